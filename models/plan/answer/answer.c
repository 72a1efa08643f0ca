/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "answer.h"
#include "foreign_answer.h"

bool answer_is_equal(double a, double b)
{
    return fabs(a - b) <= ANSWER_EQUAL_PERCENT / 100.0 * fmin(fabs(a), fabs(b));
}

/* ---- planning -------------------------------------------------------------------------------- */

static int check_ranks(const struct question *q, struct fsdp_err *err)
{
    const int node = q->cluster->clock.net.node_nranks;

    if (q->ngpus < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "%d GPUs: say how many with --gpus N or --nodes N",
                            q->ngpus);
    if (q->ngpus > node && !strcasecmp(q->cluster->net, "none"))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%d GPUs on nodes of %d, and there is no network: say which with --net, "
            "such as 400Gbx8, or take %d GPUs",
            q->ngpus, node, node);
    if (q->ngpus > node && q->ngpus % node)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%d GPUs on nodes of %d: --gpus must be a multiple of --node-size, or "
                            "no more than it (%d or %d)",
                            q->ngpus, node, q->ngpus / node * node, (q->ngpus / node + 1) * node);
    return FSDP_OK;
}

static int plan(struct train_parts *parts, const struct question *q, struct fsdp_err *err)
{
    const int node = q->cluster->clock.net.node_nranks;
    const int nnodes = q->ngpus > node ? q->ngpus / node : 1;

    FSDP_TRY(check_ranks(q, err));
    parts->target = stock_target(q->cluster->gpu);
    parts->clock = &q->cluster->clock;
    parts->host_nbytes = q->cluster->host_nbytes;
    int *node_of = fsdp_alloc((size_t)q->ngpus, sizeof *node_of, "nodes", err);
    if (!node_of)
        return FSDP_ENOMEM;
    for (int r = 0; r < q->ngpus; r++)
        node_of[r] = r / (q->ngpus / nnodes);
    const struct fsdp_node_map nodes = {
        .nranks = q->ngpus, .nnodes = nnodes, .node_of = node_of, .starter = FSDP_STARTED_HERE};
    const int rc = train_parts_plan(parts, q->config, q->noverrides, q->overrides, &nodes, err);
    fsdp_free(node_of);
    return rc;
}

/* ---- reading the plan ------------------------------------------------------------------------ */

static void take_run(struct answer *a, const struct train_parts *p, const struct question *q)
{
    const struct fsdp_mesh_shape shape = fsdp_planned_shape(p->fsdp);
    const int node = q->cluster->clock.net.node_nranks;
    char grads[32];

    snprintf(a->family, sizeof a->family, "%s", p->ops->family(p->model));
    config_word(a->strategy, sizeof a->strategy, p->config, "fsdp.sharding_strategy");
    config_word(a->gathered, sizeof a->gathered, p->config, "fsdp.gather_dtype");
    if (!strcmp(a->gathered, "auto"))
        config_word(a->gathered, sizeof a->gathered, p->config, "fsdp.param_dtype");
    config_word(a->reduced, sizeof a->reduced, p->config, "fsdp.reduce_dtype");
    a->nranks = q->ngpus;
    a->node_nranks = q->ngpus < node ? q->ngpus : node;
    a->nnodes = q->ngpus / a->node_nranks;
    a->shard_nranks = shape.shard_size;
    a->replicate_nranks = shape.replicate_size;
    a->two_level = shape.inner_size > 0;
    struct config_batch batch;
    config_divide(&batch, p->config, q->ngpus);
    a->micro_rows = batch.micro_rows;
    a->accumulation = batch.accumulation;
    a->padding = config_batch_waste(&batch);
    if (a->padding > 0)
        a->better_rows = config_batch_better(&batch, p->config).rows;
    a->row_tokens = p->config->data.seq_len * train_parts_row_sequences(p);
    a->rows = p->batch.rows;
    a->offloads = p->config->fsdp.offload != FSDP_OFFLOAD_NONE;
    a->offloads_acts = p->config->fsdp.offload_activations;
    a->offloads_grads = p->config->fsdp.offload_gradients;
    a->updates_on_host = p->updates_on_host;
    a->names_update = p->config->fsdp.offload_update != FSDP_OFFLOAD_UPDATE_AUTO;
    a->reshards = p->config->fsdp.reshard_after_forward >= 0;
    a->clips = p->config->optim.clip_grad_norm > 0;
    a->reduces_last = p->config->fsdp.reduce_last;
    a->updates_at_reduce = p->config->fsdp.update_at == FSDP_UPDATE_AT_REDUCE;
    a->updates_at_forward = p->config->fsdp.update_at == FSDP_UPDATE_AT_FORWARD;
    a->names_disks = *p->config->fsdp.offload_dir != 0;
    config_word(grads, sizeof grads, p->config, "fsdp.grad_dtype");
    a->narrow_grads = grads[0] == 'b';
    a->nparams = (double)fsdp_param_nelem_total(p->tree);
    a->ntrained = (double)train_parts_trained(p);
    a->hash = fsdp_plan_hash(p->fsdp);
    a->nunits = fsdp_unit_count(p->fsdp);
}

/* Does the cluster give peaks or rates of its own? */
static bool has_own_numbers(const struct cluster *c)
{
    enum { MAX_FACTS = 64 };
    static const char *const keys[] = {"gpu.peak_bf16", "gpu.peak_fp8", "gpu.hbm"};
    struct stock_fact facts[MAX_FACTS];
    const int n = cluster_facts(facts, MAX_FACTS, c);

    for (int i = 0; i < n && i < MAX_FACTS; i++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            if (facts[i].key && facts[i].origin == STOCK_GIVEN && !strcmp(facts[i].key, keys[k]))
                return true;
    return false;
}

/* What published runs support: docs/results/plan.md has the errors by regime. */
static struct answer_band band_of(const struct answer *a, const struct cluster *c)
{
    enum { PUBLISHED_NRANKS = 512 }; /* the most with one collective a unit */

    const double measured = .05;

    if (c->basis == CLUSTER_MEASURED && c->scatter > measured)
        return (struct answer_band){
            c->scatter,
            "the clock was measured on this cluster; its measurements differ by as much", false};
    if (c->basis == CLUSTER_MEASURED)
        return (struct answer_band){measured, "the clock was measured on this cluster", false};
    if (c->basis == CLUSTER_CALIBRATED)
        return (struct answer_band){.1, "the clock was calibrated by a run on this cluster", false};
    if (has_own_numbers(c))
        return (struct answer_band){
            .35, "numbers of the GPU are given; the shares of them are those of a stock one", true};
    if (stock_is_assumed(c->gpu))
        return (struct answer_band){
            .35, "assumed constants: there is no published run on this device", true};
    if (a->nranks > PUBLISHED_NRANKS)
        return (struct answer_band){.35, "extrapolated: no published run has more than 512 GPUs",
                                    true};
    return (struct answer_band){.2, "fitted to published runs: 9 of 10 are within 20 %", false};
}

static void take_time(struct answer *a, const struct train_parts *p, const struct cluster *c)
{
    const struct fsdp_device_clock *d = &c->clock.device;
    const double peak = d->flops_16 > 0 ? d->flops_16 : d->flops_32;

    a->step_s = a->times.step_s;
    a->step_tokens = (double)a->rows * (double)a->row_tokens;
    a->tokens_s = a->step_tokens / a->step_s;
    a->tokens_s_gpu = a->tokens_s / a->nranks;
    a->tflops_gpu =
        a->tokens_s_gpu * p->ops->flops_per_token(p->model, (int)p->config->data.seq_len) * 1e-12;
    a->mfu = peak > 0 ? a->tflops_gpu * 1e12 / peak : 0;
    a->band = band_of(a, c);
}

static bool is_within(double nbytes, double limit)
{
    return limit <= 0 || nbytes <= limit;
}

static void take_memory(struct answer *a, const struct train_parts *p, const struct cluster *c)
{
    struct fsdp_memory_row rows[ANSWER_MAX_ROWS];
    int nrows = fsdp_memory_plan(p->fsdp, rows, ANSWER_MAX_ROWS);

    nrows = nrows < ANSWER_MAX_ROWS ? nrows : ANSWER_MAX_ROWS;
    for (int i = 0; i < nrows; i++) {
        struct answer_memory *row = &a->memory[a->nmemory++];
        snprintf(row->what, sizeof row->what, "%s", rows[i].what);
        row->nbytes = (double)rows[i].nbytes;
        row->host = !rows[i].counts;
        row->file = rows[i].file;
        if (rows[i].file)
            a->node_file_nbytes += row->nbytes * a->node_nranks;
        else if (!rows[i].counts)
            a->node_host_nbytes += row->nbytes * a->node_nranks;
        else
            a->device_nbytes += row->nbytes;
    }
    a->reserved_nbytes = c->clock.device.reserved_nbytes;
    a->limit_nbytes = c->clock.device.memory_nbytes;
    a->plan_limit_nbytes = p->config->fsdp.memory_limit * (double)(1 << 30);
    a->node_host_limit = c->host_nbytes;
    a->node_file_limit = c->nvme_nbytes;
    a->fits = is_within(a->device_nbytes + a->reserved_nbytes, a->limit_nbytes) &&
              is_within(a->device_nbytes, a->plan_limit_nbytes) &&
              is_within(a->node_host_nbytes, a->node_host_limit) &&
              is_within(a->node_file_nbytes, a->node_file_limit);
    /* Masters and two moments of what is trained, masters of what is not. */
    a->state_nbytes = 12 * a->ntrained + 4 * (a->nparams - a->ntrained);
}

static void take_end(struct answer *a, const struct train_parts *p, const struct question *q)
{
    const struct config *c = p->config;
    const struct cluster *k = q->cluster;

    a->tokens = q->tokens;
    if (a->tokens == 0 && c->train.steps > 0)
        a->tokens = (double)c->train.steps * a->step_tokens;
    if (!(a->tokens > 0))
        return;
    a->saves = *c->checkpoint.path && c->checkpoint.interval > 0;
    a->storage_is_assumed = !(k->storage_nbytes_per_s > 0);
    const struct goodput_state state = {
        .nbytes = a->state_nbytes,
        .rank_nbytes = a->state_nbytes / a->nranks,
        .ngpus = a->nranks,
        .nnodes = a->nnodes,
        .storage_nbytes_per_s = a->storage_is_assumed ? ANSWER_STORAGE : k->storage_nbytes_per_s,
        .host_nbytes_per_s = k->clock.net.host_nbytes_per_s,
        .background = c->checkpoint.async,
        .start_s = k->restart_s,
        .requeue_s = k->requeue_s,
    };
    a->save_held_s = goodput_save_held(&state);
    a->save_s = goodput_save(&state);
    a->restart_s = goodput_restart(&state);
    const struct goodput_in in = {.ngpus = a->nranks,
                                  .gpu_mtbf_h = k->gpu_mtbf_h,
                                  .save_held_s = a->save_held_s,
                                  .save_s = a->save_s,
                                  .restart_s = a->restart_s,
                                  /* without its own, as often as is best */
                                  .interval_s =
                                      a->saves ? (double)c->checkpoint.interval * a->step_s : 0};
    goodput(&a->goodput, &in);
    const struct goodput_bill_in bill = {.ntokens = a->tokens,
                                         .tokens_per_s = a->tokens_s,
                                         .share = a->goodput.share,
                                         .ngpus = a->nranks,
                                         .watts = k->watts,
                                         .pue = k->pue,
                                         .price_per_gpu_hour =
                                             k->price_given ? k->price_per_gpu_hour : 0,
                                         .now = (time_t)q->now};
    goodput_bill(&a->bill, &bill);
}

/* ---- many micro-steps ------------------------------------------------------------------------ */

enum { QUICK_ACCUMULATION = 3, MOST_ACCUMULATION = 128 };

/* sum += factor * other, of all that are seconds, bytes or counts. */
static void add_times(struct fsdp_schedule_times *sum, double factor,
                      const struct fsdp_schedule_times *other)
{
    double *const to[] = {&sum->step_s,       &sum->list_s,   &sum->compute_s, &sum->comm_s,
                          &sum->exposed_s,    &sum->slowed_s, &sum->again_s,   &sum->memory_s,
                          &sum->ncollectives, &sum->host_s};
    const double from[] = {other->step_s,       other->list_s,   other->compute_s, other->comm_s,
                           other->exposed_s,    other->slowed_s, other->again_s,   other->memory_s,
                           other->ncollectives, other->host_s};

    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++)
        *to[i] += factor * from[i];
    for (int k = 0; k < FSDP_WORK_NKINDS; k++)
        sum->work_s[k] += factor * other->work_s[k];
    for (int k = 0; k < FSDP_NLINKS; k++) {
        sum->link_s[k] += factor * other->link_s[k];
        sum->link_nbytes[k] += factor * other->link_nbytes[k];
    }
}

/* A step with one micro-step more than `parts` has takes as much longer as each further one. */
static int extrapolate(struct answer *a, const struct question *q, int planned,
                       struct fsdp_err *err)
{
    struct train_parts parts = {.most_accumulation = planned + 1};
    struct fsdp_schedule_times more;
    const double left = a->accumulation - planned;
    int rc = plan(&parts, q, err);

    if (rc == FSDP_OK)
        rc = fsdp_schedule_time(parts.fsdp, FSDP_TRAIN, &q->cluster->clock, &more, err);
    if (rc == FSDP_OK) {
        const struct fsdp_schedule_times fewer = a->times;
        add_times(&a->times, left, &more);
        add_times(&a->times, -left, &fewer);
    }
    train_parts_close(&parts);
    return rc;
}

int answer_make(struct answer *out, const struct question *q, struct fsdp_err *err)
{
    struct train_parts parts = {.most_accumulation =
                                    q->quick ? QUICK_ACCUMULATION : MOST_ACCUMULATION};
    int rc = plan(&parts, q, err);

    *out = (struct answer){.nranks = q->ngpus};
    if (rc == FSDP_OK) {
        take_run(out, &parts, q);
        rc = fsdp_schedule_time(parts.fsdp, FSDP_TRAIN, &q->cluster->clock, &out->times, err);
    }
    if (rc == FSDP_OK && out->accumulation > parts.batch.accumulation) {
        out->hash = 0;
        rc = extrapolate(out, q, parts.batch.accumulation, err);
    }
    if (rc == FSDP_OK) {
        take_time(out, &parts, q->cluster);
        take_memory(out, &parts, q->cluster);
        take_end(out, &parts, q);
        rc = answer_price_foreign(out, &parts, q, err);
    }
    train_parts_close(&parts);
    return rc;
}

int answer_trace(const struct question *q, FILE *to, struct fsdp_err *err)
{
    struct train_parts parts = {0};
    int rc = plan(&parts, q, err);

    if (rc == FSDP_OK)
        rc = fsdp_schedule_trace(parts.fsdp, &q->cluster->clock, to, err);
    train_parts_close(&parts);
    return rc;
}
