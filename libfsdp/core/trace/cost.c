/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation moves, and how long a simple model says that it takes. */
#include <math.h>
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

    if (op->flat < 0)
        return sizes;
    const struct flat *flat = &f->units.flats[op->flat];
    sizes.sent_nbytes = gather_shard_nbytes(flat) * (uint64_t)mesh->shard_size;
    sizes.param_nbytes = flat_full_nelem(flat) * fsdp_dtype_nbytes(flat->param_dtype);
    sizes.grad_nbytes = f->plan.sched_flats[op->flat].grad_nbytes;
    sizes.shard_nbytes = flat->cut.shard_nelem * sizeof(float);
    sizes.state_nbytes = offload_copied_nbytes(f, op->flat);
    return sizes;
}

uint64_t trace_op_nbytes(const struct fsdp *f, const struct sched_op *op)
{
    const struct sched_op_info *info = &sched_infos[op->kind];
    const struct sched_sizes sizes = sizes_of(f, op);
    return info->nbytes ? info->nbytes(&sizes) : 0;
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

static double seconds_of(const struct fsdp *f, const struct sched_op *op,
                         const struct fsdp_schedule_cost *cost)
{
    const struct sched_op_info *info = &sched_infos[op->kind];
    const struct sched_sizes sizes = sizes_of(f, op);

    if (op->kind == SCHED_ENTER) { /* all of the module's own work; what is below it has its own */
        double flop = (op->phase == FSDP_BACKWARD ? 4 : 2) * module_nelem(f->tree, op->module);
        return flop * cost->ntokens / cost->flops_per_s;
    }
    if (info->touched_nbytes)
        return info->touched_nbytes(&sizes) / cost->memory_nbytes_per_s;
    if (!info->nbytes || (info->comm && f->mesh->size == 1))
        return 0;
    return (info->comm ? cost->latency_s : 0) +
           (double)info->nbytes(&sizes) / cost->link_nbytes_per_s;
}

struct model {
    const struct sched *sched;
    double free_at[SCHED_NLANES];
    struct trace_time *pass[2];
};

static double ready_at(const struct model *m, int pass, int i)
{
    const struct sched_op *op = &m->sched->ops[i];
    double ready = m->free_at[op->lane];

    for (int k = 0; k < op->nwaits; k++) {
        int target = m->sched->waits[op->waits + k];
        if (target >= i && pass == 0)
            continue; /* of a step that never was */
        const struct trace_time *t = &m->pass[target >= i ? 0 : pass][target];
        ready = t->end > ready ? t->end : ready;
    }
    return ready;
}

static void run_pass(struct model *m, int pass, const struct fsdp *f,
                     const struct fsdp_schedule_cost *cost)
{
    struct trace_time *times = m->pass[pass], *driven = NULL;

    for (int i = 0; i < m->sched->nops; i++) {
        const struct sched_op *op = &m->sched->ops[i];
        double *free_at = &m->free_at[op->lane];
        if (op->kind == SCHED_FREE)
            continue;
        double ready = ready_at(m, pass, i), seconds = seconds_of(f, op, cost);
        if (sched_is_driven(op->kind)) {
            driven = &times[i];
            *driven = (struct trace_time){*free_at, ready};
        } else {
            times[i] = (struct trace_time){ready, ready + seconds};
            if (op->lane == SCHED_COMPUTE && driven)
                driven->end = times[i].end; /* the model continues after it */
        }
        *free_at = ready + seconds;
    }
}

void trace_model(struct trace_time *times, const struct fsdp *f, enum fsdp_program program,
                 const struct fsdp_schedule_cost *cost, struct trace_time *scratch)
{
    const struct sched *s = &f->plan.programs[program].sched;
    struct model m = {.sched = s, .pass = {scratch, times}};
    double first = INFINITY;

    memset(times, 0, (size_t)s->nops * sizeof *times);
    memset(scratch, 0, (size_t)s->nops * sizeof *scratch);
    run_pass(&m, 0, f, cost);
    run_pass(&m, 1, f, cost);
    for (int i = 0; i < s->nops; i++)
        if (s->ops[i].kind != SCHED_FREE && times[i].begin < first)
            first = times[i].begin;
    for (int i = 0; i < s->nops; i++) {
        times[i].begin -= first;
        times[i].end -= first;
    }
}
