/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "binding.h"
#include "boot.h"

#include "tables.h"

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* Which cores rank 0 has; a warning where ranks crowd on few of a machine's many. */
static void show_cores(struct report *report, const struct train_parts *p,
                       const struct fsdp_node_map *nodes)
{
    const struct train_cores *cores = &p->cores;
    char list[64], shared[48] = "not shared";

    if (cores->sharers > 1)
        snprintf(shared, sizeof shared, "shared by %d ranks", cores->sharers);
    report_row(report, "its cores", "%s, %d of %d, %s",
               train_cores_list(list, sizeof list, &cores->mask), CPU_COUNT(&cores->mask),
               cores->nonline, shared);
    if (cores->crowded >= 0 && report->lead)
        fsdp_log(FSDP_LOG_WARN,
                 "rank %d on %s may use %d core%s, which %d ranks share, although its machine has "
                 "enough for all: srun --cpus-per-task=N --cpu-bind=cores gives each its own",
                 cores->crowded, nodes->host[cores->crowded], cores->crowded_ncores,
                 plural(cores->crowded_ncores), cores->crowded_sharers);
}

static void show_device(struct report *report, const struct train_parts *p)
{
    const struct train_gpu *gpu = &p->gpu;
    char device[96] = "";

    if (gpu->ngpus)
        snprintf(device, sizeof device, ": %s of %d, in order of %s", gpu->device, gpu->ngpus,
                 gpu->order);
    report_row(report, "device", "%s%s, %d thread%s a rank", fsdp_device_name(p->device), device,
               p->threads, plural(p->threads));
    if (*gpu->set)
        report_row(report, "set for it", "%s", gpu->set);
    if (*gpu->kept)
        report_row(report, "yours, kept", "%s", gpu->kept);
}

void train_show_environment(struct report *report, const struct train_parts *p,
                            const struct fsdp_node_map *nodes)
{
    const struct boot_info *info = p->info;

    report_title(report, "environment");
    report_row(report, "version", "fsdp-launch %s", FSDP_VERSION_STRING);
    report_row(report, "ranks", "%d on %d node%s, started by %s", info->size, info->nnodes,
               plural(info->nnodes), info->method);
    report_row(report, "rank 0", "host %s, process %d", info->host, (int)getpid());
    show_cores(report, p, nodes);
    show_device(report, p);
}

const char *train_products(char *out, size_t nbytes, const struct train_parts *p)
{
    static const char *const scales[] = {"", " with scales of rows", " with scales of blocks"};
    const struct config *c = p->config;
    char dtype[32];
    struct model_info info;

    *out = 0;
    if (c->model.linear_dtype == CONFIG_LINEAR_AUTO)
        return out;
    p->ops->info(p->model, &info);
    const int n =
        snprintf(out, nbytes, ", products in float8_e4m3%s", scales[c->model.linear_scales]);
    if (info.nexperts_f8 < info.nexpert_matrices && n > 0 && (size_t)n < nbytes)
        snprintf(out + n, nbytes - (size_t)n, ", of %sexperts in %s",
                 info.nexperts_f8 ? "some matrices of " : "",
                 config_word(dtype, sizeof dtype, c, "fsdp.param_dtype"));
    return out;
}

void train_show_mesh(struct report *report, const struct train_parts *p)
{
    const struct config *c = p->config;
    char strategy[32], wrap[32], dtype[32], reduce[32], output[32], about[96], products[128];

    report_title(report, "mesh");
    report_row(report, "strategy", "%s, %d x %d (replicate x shard), backend %s",
               config_word(strategy, sizeof strategy, c, "fsdp.sharding_strategy"),
               p->mesh->replicate_size, p->mesh->shard_size, fsdp_comm_backend(p->mesh->world));
    if (*fsdp_comm_about(p->mesh->gather, about, sizeof about))
        report_row(report, "gathers", "%s", about);
    if (*fsdp_comm_about(p->mesh->reduce, about, sizeof about))
        report_row(report, "reductions", "%s", about);
    report_row(report, "units",
               "%d by policy %s, %" PRId64 " forward and %" PRId64 " backward gathered ahead",
               fsdp_unit_count(p->fsdp), config_word(wrap, sizeof wrap, c, "fsdp.wrap_policy"),
               c->fsdp.forward_prefetch, c->fsdp.backward_prefetch);
    if (c->fsdp.offload)
        report_row(report, "offloaded", "%s, to %s%s, through %" PRId64 " place%s on the %s",
                   c->fsdp.offload != FSDP_OFFLOAD_PARAMS ? "the optimizer's state"
                   : *c->fsdp.offload_dir ? "parameters to host memory, the optimizer's state"
                                          : "parameters and the optimizer's state",
                   *c->fsdp.offload_dir ? "files in " : "host memory", c->fsdp.offload_dir,
                   c->fsdp.offload_slots, plural(c->fsdp.offload_slots),
                   p->updates_on_host ? "host" : "device");
    if (p->updates_on_host)
        report_row(report, "updates", "on the host, by %d thread%s of each rank", p->threads,
                   plural(p->threads));
    if (c->fsdp.offload_activations)
        report_row(report, "activations",
                   "offloaded to host memory, through %" PRId64 " place%s on the device",
                   c->fsdp.offload_slots, plural(c->fsdp.offload_slots));
    if (c->fsdp.offload_gradients)
        report_row(report, "gradient shards",
                   "offloaded to host memory, through %" PRId64 " place%s on the device",
                   c->fsdp.offload_slots, plural(c->fsdp.offload_slots));
    report_row(
        report, "types", "parameters %s%s%s, logits %s, gradients reduced in %s",
        config_word(dtype, sizeof dtype, c, "fsdp.param_dtype"),
        c->fsdp.gather_dtype == CONFIG_GATHER_FLOAT8 ? ", matrices gathered in float8_e4m3" : "",
        train_products(products, sizeof products, p), train_output_dtype(output, sizeof output, p),
        config_word(reduce, sizeof reduce, c, "fsdp.reduce_dtype"));
    report_row(report, "plan", "%016" PRIx64, fsdp_plan_hash(p->fsdp));
}

static void show_documents(struct report *report, const struct train_parts *p, const char *what,
                           const struct data *data, const struct config_source *source)
{
    static const char *const fates[] = {
        [DATA_SPLIT] = "cut; a piece does not see the ones before",
        [DATA_REFUSE] = "refused",
        [DATA_TRUNCATE] = "truncated to it",
        [DATA_DROP] = "dropped",
    };
    const struct config *c = p->config;
    char documents[REPORT_NUMBER_NBYTES], tokens[REPORT_NUMBER_NBYTES], rows[REPORT_NUMBER_NBYTES];
    uint64_t ntokens, ncut, ndocuments = data_ndocuments(data, &ntokens, &ncut);

    report_row(report, what, "%s documents of %s tokens in %d file%s, %s rows of %" PRId64 ", %s",
               report_count(documents, ndocuments), report_count(tokens, ntokens),
               data_nfiles(data), plural(data_nfiles(data)), report_count(rows, data_nrows(data)),
               c->data.seq_len, source->pack == CONFIG_PACK_NONE ? "one in each" : "packed");
    if (ncut && report->lead)
        fsdp_log(FSDP_LOG_WARN,
                 "%s: %" PRIu64 " of %" PRIu64 " documents are longer than data.seq_len (%" PRId64
                 ") and are %s",
                 what, ncut, ndocuments + (source->too_long == DATA_DROP ? ncut : 0),
                 c->data.seq_len, fates[source->too_long]);
}

static void show_source(struct report *report, const struct train_parts *p, const char *what,
                        const struct data *data, const struct config_source *source)
{
    char format[16], layout[16], tokens[REPORT_NUMBER_NBYTES], rows[REPORT_NUMBER_NBYTES];

    if (source->format == DATA_JSONL) {
        show_documents(report, p, what, data, source);
        return;
    }
    report_row(report, what, "%s tokens in %d file%s (%s), %s rows (%s) of %" PRId64 "+1%s",
               report_count(tokens, data_ntokens(data)), data_nfiles(data),
               plural(data_nfiles(data)),
               config_index_word(format, sizeof format, "data.format", source->format),
               report_count(rows, data_nrows(data)),
               config_index_word(layout, sizeof layout, "data.layout", source->layout),
               p->config->data.seq_len, data_has_labels(data) ? ", documents apart" : "");
}

/* What the run takes of its data. */
static void show_data(struct report *report, const struct train_parts *p, uint64_t rows_needed)
{
    uint64_t counts[CONFIG_MAX_SOURCES];
    char what[32] = "data";

    data_mixture_counts(p->data, rows_needed, counts);
    for (int i = 0; i < data_mixture_nsources(p->data); i++) {
        const struct data *data = data_mixture_source(p->data, i);
        const double passes = (double)counts[i] / (double)data_nrows(data);
        struct config_source source;
        config_source(&source, p->config, i);
        if (p->config->nsources)
            snprintf(what, sizeof what, "data.sources[%d]", i);
        show_source(report, p, what, data, &source);
        if (!p->config->nsources)
            report_row(report, "passes over it", "%.3g", passes);
        else
            report_row(report, "share of the rows", "%.4g %%, %.3g passes over %s%s",
                       100 * data_mixture_share(p->data, i), passes,
                       fsdp_tunable_list_at(&source.path, 0), source.path.nelem > 1 ? ", ..." : "");
    }
}

static void show_eval(struct report *report, const struct train_parts *p)
{
    struct config_source source;

    config_source_plain(&source, p->config);
    show_source(report, p, "held-out data", data_mixture_source(p->eval, 0), &source);
}

const char *train_tables_masters(int master)
{
    static const char *const texts[] = {
        [FSDP_MASTER_SPLIT] = ", masters split", [FSDP_MASTER_NONE] = ", no masters"};
    return master == FSDP_MASTER_WHOLE ? "" : texts[master];
}

void train_show_training(struct report *report, const struct train_parts *p,
                         const struct train_begun *begun)
{
    const struct config *c = p->config;
    char end[32];
    char count[REPORT_NUMBER_NBYTES], name[32], schedule[32];
    const struct fsdp_state_layout *state = fsdp_state_layout(p->fsdp);
    struct model_info info;
    int64_t rows = c->train.global_batch_size;
    const double waste = config_batch_waste(&p->batch);
    char padding[32] = "";

    p->ops->info(p->model, &info);
    report_title(report, "training");
    report_row(report, "model", "%s (%s), %s parameters", c->model.path, p->ops->family(p->model),
               report_count(count, fsdp_param_nelem_total(p->tree)));
    if (info.dropout > 0)
        report_row(report, "dropout", "%g%s", info.dropout,
                   c->model.dropout < 0 ? " at most, as config.json says" : "");
    if (p->data)
        show_data(report, p, (uint64_t)(c->train.steps * rows));
    if (p->eval)
        show_eval(report, p);
    if (waste > 0)
        snprintf(padding, sizeof padding, ", %.1f %% padding", 100 * waste);
    report_row(
        report, "a step", "%s tokens: %" PRId64 " rows %s %d rank%s x %d micro-step%s x %d row%s%s",
        report_count(count, (uint64_t)(rows * c->data.seq_len * train_parts_row_sequences(p))),
        rows, waste > 0 ? "in" : "=", p->batch.ranks, plural(p->batch.ranks), p->batch.accumulation,
        plural(p->batch.accumulation), p->batch.micro_rows, plural(p->batch.micro_rows), padding);
    report_row(report, "optimizer", "%s, lr %g, %s, %" PRId64 " steps of warm-up%s%s",
               config_word(name, sizeof name, c, "optim.name"), c->optim.lr,
               config_word(schedule, sizeof schedule, c, "optim.schedule"), c->optim.warmup_steps,
               state->nslots && state->slots[0].dtype == FSDP_BF16 ? ", moments in bfloat16" : "",
               train_tables_masters(c->optim.master));
    report_row(report, "steps", "%" PRId64 " %s %" PRId64, begun->step,
               begun->step < c->train.steps ? "to" : "done of", c->train.steps);
    report_row(report, "start", "%s%s%s",
               begun->resumed[0]                         ? "resumes from "
               : c->model.init == CONFIG_INIT_PRETRAINED ? "weights of "
                                                         : "random values",
               begun->resumed[0]                         ? begun->resumed
               : c->model.init == CONFIG_INIT_PRETRAINED ? c->model.path
                                                         : "",
               begun->converted);
    report_row(report, "checkpoints", "%s",
               c->checkpoint.path[0] ? c->checkpoint.path : "none (checkpoint.path is not set)");
    if (train_life_end(begun->life, end, sizeof end))
        report_row(report, "the job ends", "%s", end);
}

void train_show_memory(struct report *report, struct fsdp *fsdp)
{
    enum { MAX_ROWS = 32 };
    struct fsdp_memory_row rows[MAX_ROWS];
    char nbytes[REPORT_NUMBER_NBYTES];
    int nrows = fsdp_memory_plan(fsdp, rows, MAX_ROWS);
    uint64_t total = 0;

    report_title(report, "memory of rank 0, planned");
    for (int i = 0; i < nrows && i < MAX_ROWS; i++) {
        if (rows[i].counts)
            report_row(report, rows[i].what, "%12s", fsdp_nbytes_text(nbytes, rows[i].nbytes));
        total += rows[i].counts ? rows[i].nbytes : 0;
    }
    report_row(report, "in all", "%12s", fsdp_nbytes_text(nbytes, total));
    for (int i = 0; i < nrows && i < MAX_ROWS; i++)
        if (!rows[i].counts)
            report_row(report, rows[i].what, "%12s", fsdp_nbytes_text(nbytes, rows[i].nbytes));
}

static void warn_of_waste(const struct train_parts *p)
{
    const double most = 0.1;
    char where[400], advice[200];

    if (p->data && config_batch_waste(&p->batch) > most)
        fsdp_log(FSDP_LOG_WARN, "%s: %s",
                 config_where(where, sizeof where, p->config, "train.global_batch_size"),
                 config_batch_advice(advice, sizeof advice, &p->batch, p->config));
}

/* In layout rows the order has a meaning. */
static void warn_of_repeats(const struct train_parts *p)
{
    const int64_t needed = p->config->train.steps * p->config->train.global_batch_size;
    uint64_t counts[CONFIG_MAX_SOURCES];
    struct config_source source;

    data_mixture_counts(p->data, (uint64_t)needed, counts);
    for (int i = 0; i < data_mixture_nsources(p->data); i++) {
        const uint64_t nrows = data_nrows(data_mixture_source(p->data, i));
        config_source(&source, p->config, i);
        if (source.layout == DATA_ROWS && counts[i] > nrows)
            fsdp_log(FSDP_LOG_WARN,
                     "the run takes %" PRIu64 " rows, and the data has %" PRIu64
                     ": they will be taken again from the start",
                     counts[i], nrows);
    }
}

void train_warn_of_settings(struct report *report, const struct train_parts *p)
{
    const struct config *c = p->config;
    char text[400];

    if (!report->lead)
        return;
    config_warn_idle(c);
    warn_of_waste(p);
    if (c->fsdp.two_level && p->mesh && !p->mesh->inner_size && p->mesh->shard_size > 1)
        fsdp_log(FSDP_LOG_WARN,
                 "%s has no effect: each shard group lies inside one node, or has one rank on each",
                 config_where(text, sizeof text, c, "fsdp.two_level"));
    if (p->data)
        data_mixture_warn(p->data);
    if (p->eval)
        data_mixture_warn(p->eval);
    if (binding_gpus_hidden(text, sizeof text, p->info->local_size, getenv))
        fsdp_log(FSDP_LOG_WARN, "%s", text);
    if (p->data)
        warn_of_repeats(p);
}
