/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation moves, and what it takes under a clock. */
#include <string.h>

#include "core/state/gather.h"
#include "core/state/offload.h"
#include "trace.h"

const char *trace_op_name(char *out, size_t out_nbytes, const struct fsdp *f,
                          const struct sched_op *op)
{
    int module = op->module;
    bool frozen = false;

    if (op->flat >= 0) {
        module = f->units.units[f->units.flats[op->flat].unit].module;
        frozen = !f->units.flats[op->flat].trainable;
    }
    const char *name = module >= 0 ? f->tree->modules[module].name : "";
    snprintf(out, out_nbytes, "%s%s", module >= 0 && !*name ? "(root)" : name,
             frozen ? ", frozen" : "");
    return out;
}

const char *trace_op_label(char *out, size_t out_nbytes, const struct fsdp *f,
                           const struct sched_op *op)
{
    char name[200];

    trace_op_name(name, sizeof name, f, op);
    if (op->kind == SCHED_STEP)
        snprintf(out, out_nbytes, "optimizer");
    else if (op->kind == SCHED_MICRO_BEGIN)
        snprintf(out, out_nbytes, "micro-step %d", op->micro);
    else
        snprintf(out, out_nbytes, "%s%s%s",
                 op->kind == SCHED_ENTER ? fsdp_phase_name(op->phase) : sched_kind_name(op->kind),
                 *name ? " " : "", name);
    return out;
}

static struct sched_sizes sizes_of(const struct fsdp *f, const struct sched_op *op)
{
    const struct fsdp_mesh *mesh = f->mesh;
    uint64_t nflats = (uint64_t)f->units.nflats;
    struct sched_sizes sizes = {.world_nranks = mesh->size,
                                .shard_nranks = mesh->shard_size,
                                .replicate_nranks = mesh->replicate_size,
                                .regather_nranks = mesh->regather_size,
                                .inner_nranks = mesh->inner_size,
                                .outer_nranks = mesh->outer_size,
                                .norm_nbytes = (FSDP_CONTROL_NELEM + nflats) * sizeof(double),
                                .amax_nbytes = (uint64_t)f->encoding.namax_trainable *
                                               (uint64_t)mesh->shard_size * sizeof(double)};

    if (op->module >= 0)
        sizes.act_nbytes = f->mem.modules[op->module].place_nbytes;
    if (op->flat < 0)
        return sizes;
    const struct flat *flat = &f->units.flats[op->flat];
    sizes.sent_nbytes = gather_shard_nbytes(flat) * (uint64_t)mesh->shard_size;
    sizes.param_nbytes = gather_whole_nbytes(flat);
    sizes.grad_nbytes = f->plan.sched_flats[op->flat].grad_nbytes;
    sizes.shard_nbytes = flat->cut.shard_nelem * sizeof(float);
    sizes.state_nbytes = offload_copied_nbytes(f, op->flat);
    sizes.grad_shard_nbytes = flat_grad_nbytes(f, flat);
    return sizes;
}

uint64_t trace_op_nbytes(const struct fsdp *f, const struct sched_op *op)
{
    const struct sched_sizes sizes = sizes_of(f, op);
    return sched_received(&sched_infos[op->kind], &sizes);
}

bool trace_op_collective(struct sched_collective *out, const struct fsdp *f,
                         const struct sched_op *op)
{
    const struct sched_op_info *info = &sched_infos[op->kind];
    const struct sched_sizes sizes = sizes_of(f, op);

    if (!info->collective)
        return false;
    *out = info->collective(&sizes);
    return out->nranks > 1;
}

/* Its own parameters, and those of others that it uses under another name. */
static double module_nelem(const struct fsdp_module_tree *tree, int module)
{
    double nelem = 0;
    for (int i = 0; i < tree->nparams; i++)
        if (tree->params[i].module == module)
            nelem += (double)fsdp_tensor_nelem(&tree->params[i].tensor);
    for (int i = 0; i < tree->naliases; i++)
        if (tree->aliases[i].module == module)
            nelem += (double)fsdp_tensor_nelem(&tree->params[tree->aliases[i].param].tensor);
    return nelem;
}

/* A model that does not describe its work: one product for all parameters of a module, and two in
 * backward. */
static double guess_seconds(const struct fsdp *f, const struct sched_op *op,
                            const struct fsdp_clock *clock, double work_s[FSDP_WORK_NKINDS])
{
    const double nelem = module_nelem(f->tree, op->module);
    const struct fsdp_work product = {.kind = FSDP_WORK_PRODUCT,
                                      .times = op->phase == FSDP_BACKWARD ? 2 : 1,
                                      .m = clock->ntokens,
                                      .n = nelem,
                                      .k = 1,
                                      .type = FSDP_BF16};
    const struct fsdp_device_clock *d = &clock->device;
    const double peak = d->flops_16 > 0 ? d->flops_16 : d->flops_32;
    /* Its shape means nothing: the rate is that of large products. */
    const double seconds = product.times * fsdp_work_flops(&product) / (peak * d->product_share);

    work_s[FSDP_WORK_PRODUCT] += seconds;
    return seconds;
}

static bool is_done_in(const struct fsdp *f, const struct sched_op *op,
                       const struct fsdp_work *work)
{
    switch (op->phase) {
    case FSDP_FORWARD:
        return work->phases & FSDP_WORK_FORWARD;
    case FSDP_BACKWARD:
        return work->phases & FSDP_WORK_BACKWARD;
    default:
        return f->plan.checkpointing[op->module] == FSDP_AC_SELECTIVE
                   ? work->phases & FSDP_WORK_CHEAP
                   : work->phases & FSDP_WORK_RECOMPUTE;
    }
}

/* The device waits for the host where kernels are shorter than it takes to enqueue them. */
double trace_work_seconds(const struct fsdp *f, const struct sched_op *op,
                          const struct fsdp_clock *clock, double work_s[FSDP_WORK_NKINDS])
{
    const struct module *m = &f->tree->modules[op->module];
    double seconds = 0, launches = 0;

    if (!f->tree->has_work)
        return guess_seconds(f, op, clock, work_s);
    for (int i = 0; i < m->nwork; i++) {
        if (!is_done_in(f, op, &m->work[i]))
            continue;
        const double each = fsdp_work_seconds(&clock->device, &m->work[i]);
        work_s[m->work[i].kind] += each;
        seconds += each;
        launches += m->work[i].times;
    }
    const double host = launches * clock->device.launch_s;
    return seconds > host ? seconds : host;
}

static bool passes_state(const struct sched_op *op)
{
    return op->kind == SCHED_FETCH || op->kind == SCHED_STORE;
}

static bool is_on_host(const struct fsdp *f, const struct sched_op *op)
{
    return op->flat >= 0 && offload_on_host(f, op->flat);
}

/* For an update on the host, what passes goes the other way: to the host first. */
static enum fsdp_link link_of(const struct fsdp *f, const struct sched_op *op)
{
    const bool down = op->lane == SCHED_DOWNLOADS;
    return down != (passes_state(op) && is_on_host(f, op)) ? FSDP_LINK_DOWN : FSDP_LINK_UP;
}

/* A copy between host and device, or host and disks: of the two, at once, the slower. */
static struct fsdp_transfer copy_of(const struct fsdp *f, const struct sched_op *op,
                                    const struct fsdp_net_clock *net, double nbytes)
{
    const double filed =
        passes_state(op) ? (double)offload_home_nbytes(f, op->flat, OFFLOAD_FILE) : 0;
    const double file_rate = net->file_nbytes_per_s;
    const double least = filed > 0 && file_rate > 0 ? filed / file_rate : 0;
    struct fsdp_transfer copy = fsdp_host_transfer(net, link_of(f, op), nbytes);

    if (!(nbytes > 0) && least > 0)
        return (struct fsdp_transfer){.nbytes = filed, .rate = file_rate};
    if (least > 0 && nbytes / least < copy.rate)
        copy.rate = nbytes / least;
    return copy;
}

/* It takes nothing of the device, nor of its links. */
static struct fsdp_transfer host_update(const struct fsdp_net_clock *net, double nbytes)
{
    const double rate = net->host_memory_nbytes_per_s;
    return (struct fsdp_transfer){.nbytes = nbytes,
                                  .rate = rate > 0 ? rate : net->host_nbytes_per_s};
}

struct trace_cost trace_op_cost(const struct fsdp *f, const struct sched_op *op,
                                const struct fsdp_clock *clock)
{
    const struct sched_op_info *info = &sched_infos[op->kind];
    const struct sched_sizes sizes = sizes_of(f, op);
    struct trace_cost cost = {.comm = info->comm};
    double work_s[FSDP_WORK_NKINDS] = {0};

    if (op->kind == SCHED_ENTER) { /* all of the module's own work */
        cost.seconds = trace_work_seconds(f, op, clock, work_s);
    } else if (op->kind == SCHED_UPDATE && is_on_host(f, op) && !clock->device.serial) {
        cost.transfer = host_update(&clock->net, info->touched_nbytes(&sizes));
        cost.transfers = true;
    } else if (info->touched_nbytes) {
        cost.seconds = fsdp_pass_seconds(&clock->device, info->pass, false, FSDP_F32,
                                         info->touched_nbytes(&sizes));
    } else if (info->copied) {
        cost.transfer = copy_of(f, op, &clock->net, (double)info->copied(&sizes));
        cost.transfers = true;
    } else if (info->collective) {
        const struct sched_collective c = info->collective(&sizes);
        if (c.nranks < 2)
            return cost;
        cost.transfer = fsdp_collective_transfer(
            &clock->net, c.kind, fsdp_group_of(&clock->net, c.nranks, c.stride), (double)c.nbytes);
        cost.transfers = true;
    }
    return cost;
}
