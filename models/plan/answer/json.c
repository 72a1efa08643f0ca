/* SPDX-License-Identifier: Apache-2.0 */
/* An answer as JSON. Keys end in their unit; they are never renamed. */
#include <errno.h>
#include <jansson.h>
#include <math.h>

#include "answer.h"
#include "plan/stock.h"

/* A number that JSON has not (infinity) is null. */
static json_t *number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *with_band(double value, double low, double high, const char *basis)
{
    return json_pack("{s:o, s:o, s:o, s:s}", "value", number_json(value), "low", number_json(low),
                     "high", number_json(high), "basis", basis);
}

static json_t *run_json(const struct answer *a)
{
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)a->hash);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:b, s:b, s:i, s:i, s:i, s:I, s:I, "
        "s:o, s:o, s:o, s:s}",
        "family", a->family, "sharding_strategy", a->strategy, "gathered", a->gathered, "reduced",
        a->reduced, "gpus", a->nranks, "nodes", a->nnodes, "shard_size", a->shard_nranks,
        "replicate_size", a->replicate_nranks, "two_level", a->two_level, "updates_on_host",
        a->updates_on_host, "units", a->nunits, "micro_batch_rows", a->micro_rows, "accumulation",
        a->accumulation, "row_tokens", (json_int_t)a->row_tokens, "rows_per_step",
        (json_int_t)a->rows, "padding_share", number_json(a->padding), "parameters",
        number_json(a->nparams), "trained_parameters", number_json(a->ntrained), "plan_hash", hash);
}

static json_t *time_json(const struct answer *a)
{
    const struct fsdp_schedule_times *t = &a->times;
    const double low = 1 - a->band.share, high = 1 + a->band.share;
    const char *basis = a->band.basis;

    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "step_s",
        with_band(a->step_s, a->step_s * low, a->step_s * high, basis), "tokens_per_s",
        with_band(a->tokens_s, a->tokens_s / high, a->tokens_s / low, basis),
        "tokens_per_s_per_gpu",
        with_band(a->tokens_s_gpu, a->tokens_s_gpu / high, a->tokens_s_gpu / low, basis), "mfu",
        a->mfu > 0 ? with_band(a->mfu, a->mfu / high, a->mfu / low, basis) : json_null(),
        "products_s", number_json(t->work_s[FSDP_WORK_PRODUCT]), "attention_s",
        number_json(t->work_s[FSDP_WORK_ATTENTION]), "pointwise_s",
        number_json(t->work_s[FSDP_WORK_BYTES]), "recomputed_s", number_json(t->again_s),
        "optimizer_s", number_json(t->memory_s), "host_updates_s", number_json(t->host_s),
        "slowed_s", number_json(t->slowed_s), "communication_s", number_json(t->comm_s),
        "exposed_s", number_json(t->exposed_s), "collectives", number_json(t->ncollectives),
        "extrapolated", a->band.extrapolated);
}

static json_t *links_json(const struct answer *a, const struct question *q)
{
    static const char *const keys[FSDP_NLINKS] = {"node", "nic", "from_host", "to_host"};
    json_t *links = json_object();

    for (int i = 0; i < FSDP_NLINKS; i++)
        json_object_set_new(
            links, keys[i],
            json_pack("{s:o, s:o, s:o}", "bytes", number_json(a->times.link_nbytes[i]), "busy",
                      number_json(a->times.link_s[i] / a->step_s), "bytes_per_s",
                      number_json(fsdp_link_capacity(&q->cluster->clock.net, (enum fsdp_link)i))));
    return links;
}

static json_t *memory_json(const struct answer *a)
{
    json_t *rows = json_array();

    for (int i = 0; i < a->nmemory; i++)
        json_array_append_new(rows, json_pack("{s:s, s:o, s:b, s:b}", "what", a->memory[i].what,
                                              "bytes", number_json(a->memory[i].nbytes), "host",
                                              a->memory[i].host && !a->memory[i].file, "file",
                                              a->memory[i].file));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "rows", rows,
                     "planned_bytes", number_json(a->device_nbytes), "reserved_bytes",
                     number_json(a->reserved_nbytes), "device_bytes", number_json(a->limit_nbytes),
                     "memory_limit_bytes", number_json(a->plan_limit_nbytes), "node_file_bytes",
                     number_json(a->node_file_nbytes), "node_file_limit_bytes",
                     number_json(a->node_file_limit), "node_host_bytes",
                     number_json(a->node_host_nbytes), "node_host_limit_bytes",
                     number_json(a->node_host_limit), "fits", a->fits);
}

static json_t *end_json(const struct answer *a)
{
    const struct goodput *g = &a->goodput;

    if (!(a->tokens > 0))
        return json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "tokens",
                     number_json(a->tokens), "seconds", number_json(a->bill.seconds), "goodput",
                     number_json(g->share), "best_goodput", number_json(g->best_share),
                     "job_mtbf_s", number_json(g->job_mtbf_s), "checkpoint_interval_s",
                     number_json(g->interval_s), "best_checkpoint_interval_s",
                     number_json(g->best_interval_s), "save_held_s", number_json(a->save_held_s),
                     "gpu_hours", number_json(a->bill.gpu_hours), "kwh", number_json(a->bill.kwh),
                     "money", number_json(a->bill.money), "finish_unix_s",
                     (json_int_t)a->bill.finish);
}

static json_t *clock_json(const struct question *q)
{
    enum { MAX_FACTS = 64 };
    struct stock_fact facts[MAX_FACTS];
    const int n = cluster_facts(facts, MAX_FACTS, q->cluster);
    json_t *list = json_array();

    for (int i = 0; i < n && i < MAX_FACTS; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:s, s:s, s:s}", "what", facts[i].what, "value",
                            number_json(facts[i].value), "unit", facts[i].unit, "origin",
                            stock_origin_name(facts[i].origin), "source", facts[i].source));
    return json_pack("{s:s, s:s, s:i, s:o}", "gpu", q->cluster->clock.device.name, "net",
                     q->cluster->net, "node_gpus", q->cluster->clock.net.node_nranks, "numbers",
                     list);
}

static json_t *foreign_json(const struct answer *a)
{
    const struct answer_foreign *f = &a->foreign;
    const struct foreign_times *t = &f->times;

    if (!f->priced)
        return json_null();
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "tp", f->ask.tp, "pp", f->ask.pp, "cp", f->ask.cp, "vpp", f->ask.vpp, "data",
                     f->data_nranks, "micro_steps", f->accumulation, "step_s",
                     with_band(t->step_s, t->step_s * (1 - f->band.share),
                               t->step_s * (1 + f->band.share), f->band.basis),
                     "tokens_per_s_per_gpu", number_json(f->tokens_s_gpu), "compute_s",
                     number_json(t->compute_s), "tensor_s", number_json(t->tensor_s), "context_s",
                     number_json(t->context_s), "pipeline_s", number_json(t->pipe_s), "bubble_s",
                     number_json(t->bubble_s), "data_s", number_json(t->data_s), "slowed_s",
                     number_json(t->slowed_s));
}

static json_t *answer_object(const struct answer *a, const struct question *q)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "version", 1, "run", run_json(a),
                     "time", time_json(a), "links", links_json(a, q), "memory", memory_json(a),
                     "end", end_json(a), "foreign", foreign_json(a), "clock", clock_json(q));
}

int answer_json(const struct answer *a, const struct question *q, FILE *to, struct fsdp_err *err)
{
    json_t *all = answer_object(a, q);
    int rc = FSDP_OK;

    if (!all || json_dumpf(all, to, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ||
        fputc('\n', to) < 0)
        rc = all ? fsdp_err_sys(err, errno ? errno : EIO, "cannot write the answer as JSON")
                 : fsdp_err_set(err, FSDP_ENOMEM, "the answer as JSON");
    json_decref(all);
    return rc;
}
