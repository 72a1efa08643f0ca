/* SPDX-License-Identifier: Apache-2.0 */
/* The screen at the start of a run. Its tables tell more. */
#include <inttypes.h>
#include <string.h>

#include "boot.h"

#include "screen.h"
#include "tables.h"

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

static void show_model(struct report *report, const struct train_parts *p,
                       const struct train_begun *begun)
{
    const struct config *c = p->config;
    char count[REPORT_NUMBER_NBYTES], dropout[32] = "";
    struct model_info info;

    report_title(report, "fsdp-launch " FSDP_VERSION_STRING);
    p->ops->info(p->model, &info);
    if (info.dropout > 0)
        snprintf(dropout, sizeof dropout, ", dropout %g", info.dropout);
    report_fact(report, "model", "%s (%s), %s parameters%s", c->model.path,
                p->ops->family(p->model), report_count(count, fsdp_param_nelem_total(p->tree)),
                dropout);
    if (train_adapter_is_on(&p->adapter))
        report_fact(report, "adapters", "%srank %d, times %g: %s parameters are trained%s",
                    p->adapter.lora.dora ? "DoRA, " : "", p->adapter.lora.r, p->adapter.lora.scale,
                    report_count(count, train_parts_trained(p)),
                    c->lora.base == CONFIG_BASE_AUTO  ? ""
                    : c->lora.base == CONFIG_BASE_NF4 ? ", on a model in NF4"
                                                      : ", on a model in NF4 with its experts");
    if (begun->resumed[0])
        report_fact(report, "start", "resumes from %s%s", begun->resumed, begun->converted);
    else
        report_fact(report, "start", "%s%s%s%s",
                    c->model.init == CONFIG_INIT_PRETRAINED ? "weights of " : "random values",
                    c->model.init == CONFIG_INIT_PRETRAINED ? c->model.path : "",
                    c->lora.path[0] ? ", adapters of " : "", c->lora.path);
}

static void show_ranks(struct report *report, const struct train_parts *p)
{
    const struct boot_info *info = p->info;
    char cores[64], device[96];

    snprintf(device, sizeof device, "%s", fsdp_device_name(p->device));
    if (p->gpu.ngpus)
        snprintf(device, sizeof device, "%s (%s of %d)", fsdp_device_name(p->device), p->gpu.device,
                 p->gpu.ngpus);
    report_fact(report, "ranks", "%d on %d node%s, started by %s; rank 0 on %s, cores %s",
                info->size, info->nnodes, plural(info->nnodes), info->method, info->host,
                train_cores_list(cores, sizeof cores, &p->cores.mask));
    report_fact(report, "device", "%s, %d thread%s a rank%s%s", device, p->threads,
                plural(p->threads), p->gpu.why_cpu[0] ? "; " : "", p->gpu.why_cpu);
}

static void show_mesh(struct report *report, const struct train_parts *p)
{
    const struct config *c = p->config;
    char strategy[32], dtype[32], reduce[32], products[128], logits[32];
    const bool narrow = strcmp(config_word(dtype, sizeof dtype, c, "fsdp.param_dtype"), "float32");

    report_fact(report, "mesh", "%s, %d x %d (replicate x shard), backend %s, %d unit%s%s%s%s%s",
                config_word(strategy, sizeof strategy, c, "fsdp.sharding_strategy"),
                p->mesh->replicate_size, p->mesh->shard_size, fsdp_comm_backend(p->mesh->world),
                fsdp_unit_count(p->fsdp), plural(fsdp_unit_count(p->fsdp)),
                c->fsdp.offload == FSDP_OFFLOAD_PARAMS ? ", parameters offloaded"
                : c->fsdp.offload                      ? ", optimizer state offloaded"
                                                       : "",
                c->fsdp.offload_activations ? ", activations offloaded" : "",
                c->fsdp.offload_gradients ? ", gradient shards offloaded" : "",
                p->updates_on_host ? ", updates on the host" : "");
    report_fact(report, "types", "parameters %s%s%s%s%s, gradients reduced in %s", dtype,
                c->fsdp.gather_dtype == CONFIG_GATHER_FLOAT8 ? " (gathered in float8_e4m3)" : "",
                train_products(products, sizeof products, p), narrow ? ", logits " : "",
                narrow ? train_output_dtype(logits, sizeof logits, p) : "",
                config_word(reduce, sizeof reduce, c, "fsdp.reduce_dtype"));
}

/* How much there is of some data, and its unit: tokens, or documents. */
static void describe_data(char *out, size_t out_nbytes, const struct data *data,
                          const struct config_source *source)
{
    char count[REPORT_NUMBER_NBYTES], tokens[REPORT_NUMBER_NBYTES];
    uint64_t ntokens, ncut;

    if (source->format == DATA_JSONL) {
        const uint64_t ndocuments = data_ndocuments(data, &ntokens, &ncut);
        snprintf(out, out_nbytes, "%s document%s of %s tokens", report_count(count, ndocuments),
                 plural((int64_t)ndocuments), report_count(tokens, ntokens));
    } else {
        snprintf(out, out_nbytes, "%s tokens", report_count(tokens, data_ntokens(data)));
    }
}

static const char *first_path(const struct config_source *source)
{
    return fsdp_tunable_list_at(&source->path, 0);
}

/* One source with its path; of a mixture as many as a screen has room for. */
static void show_data(struct report *report, const struct train_parts *p)
{
    enum { MOST = 3 };
    const uint64_t rows = (uint64_t)(p->config->train.steps * p->config->train.global_batch_size);
    const int nsources = data_mixture_nsources(p->data);
    uint64_t counts[CONFIG_MAX_SOURCES];
    char amount[96], share[32] = "";

    data_mixture_counts(p->data, rows, counts);
    for (int i = 0; i < nsources && i < MOST; i++) {
        const struct data *data = data_mixture_source(p->data, i);
        struct config_source source;
        config_source(&source, p->config, i);
        describe_data(amount, sizeof amount, data, &source);
        if (nsources > 1)
            snprintf(share, sizeof share, ", %.3g %% of the rows",
                     100 * data_mixture_share(p->data, i));
        report_fact(report, i ? "" : "data", "%s%s: %s in %d file%s%s, %.3g pass%s over it",
                    first_path(&source), source.path.nelem > 1 ? ", ..." : "", amount,
                    data_nfiles(data), plural(data_nfiles(data)), share,
                    (double)counts[i] / (double)data_nrows(data),
                    counts[i] == data_nrows(data) ? "" : "es");
    }
    if (nsources > MOST)
        report_fact(report, "", "and %d more sources (-v lists them)", nsources - MOST);
}

static void show_held_out(struct report *report, const struct train_parts *p)
{
    const int64_t interval = p->config->train.eval_interval;
    char amount[96], every[48] = "";
    struct config_source source;

    config_source_plain(&source, p->config);
    describe_data(amount, sizeof amount, data_mixture_source(p->eval, 0), &source);
    if (interval)
        snprintf(every, sizeof every, "every %" PRId64 " step%s and ", interval, plural(interval));
    report_fact(report, "held out", "%s, evaluated %sat the end", amount, every);
}

static void show_steps(struct report *report, const struct train_parts *p,
                       const struct train_begun *begun)
{
    const struct config *c = p->config;
    const int64_t rows = c->train.global_batch_size;
    const int64_t row_tokens = c->data.seq_len * train_parts_row_sequences(p);
    char from[REPORT_NUMBER_NBYTES], to[REPORT_NUMBER_NBYTES], tokens[REPORT_NUMBER_NBYTES];
    const struct fsdp_state_layout *state = fsdp_state_layout(p->fsdp);
    const double waste = config_batch_waste(&p->batch);
    char name[32], schedule[32], padding[32] = "";

    if (waste > 0)
        snprintf(padding, sizeof padding, ", %.1f %% padding", 100 * waste);
    report_fact(
        report, "steps", "%s %s %s, of %s tokens: %" PRId64 " rows of %" PRId64 " on %d rank%s%s",
        report_count(from, (uint64_t)begun->step), begun->step < c->train.steps ? "to" : "done of",
        report_count(to, (uint64_t)c->train.steps),
        report_count(tokens, (uint64_t)(rows * row_tokens)), rows, row_tokens, p->batch.ranks,
        plural(p->batch.ranks), padding);
    report_fact(report, "optimizer", "%s, lr %g, %s, %" PRId64 " step%s of warm-up%s%s",
                config_word(name, sizeof name, c, "optim.name"), c->optim.lr,
                config_word(schedule, sizeof schedule, c, "optim.schedule"), c->optim.warmup_steps,
                plural(c->optim.warmup_steps),
                state->nslots && state->slots[0].dtype == FSDP_BF16 ? ", moments in bfloat16" : "",
                train_tables_masters(c->optim.master));
}

static void show_memory(struct report *report, struct fsdp *fsdp)
{
    enum { MAX_ROWS = 32 };
    struct fsdp_memory_row rows[MAX_ROWS];
    char device[FSDP_NBYTES_TEXT], host[FSDP_NBYTES_TEXT], file[FSDP_NBYTES_TEXT];
    const int nrows = fsdp_memory_plan(fsdp, rows, MAX_ROWS);
    uint64_t nbytes[3] = {0, 0, 0};

    for (int i = 0; i < nrows && i < MAX_ROWS; i++)
        nbytes[!rows[i].counts + rows[i].file] += rows[i].nbytes;
    report_fact(report, "memory", "%s a rank%s%s%s%s, planned", fsdp_nbytes_text(device, nbytes[0]),
                nbytes[1] ? ", in host memory " : "",
                nbytes[1] ? fsdp_nbytes_text(host, nbytes[1]) : "", nbytes[2] ? ", in a file " : "",
                nbytes[2] ? fsdp_nbytes_text(file, nbytes[2]) : "");
}

static void show_places(struct report *report, const struct train_parts *p,
                        const struct train_begun *begun)
{
    const struct config *c = p->config;
    char when[64] = "at the end", kept[48] = "", end[32];

    if (c->checkpoint.interval)
        snprintf(when, sizeof when, "every %" PRId64 " step%s", c->checkpoint.interval,
                 plural(c->checkpoint.interval));
    if (c->checkpoint.keep)
        snprintf(kept, sizeof kept, ", the last %" PRId64 " kept", c->checkpoint.keep);
    if (c->checkpoint.path[0])
        report_fact(report, "checkpoints", "%s, %s%s", c->checkpoint.path, when, kept);
    else
        report_fact(report, "checkpoints", "none (checkpoint.path is not set)");
    if (c->log.metrics[0])
        report_fact(report, "metrics", "%s", c->log.metrics);
    if (train_life_end(begun->life, end, sizeof end))
        report_fact(report, "the job ends", "%s", end);
}

void train_show_screen(struct report *report, const struct train_parts *p,
                       const struct train_begun *begun)
{
    if (!report->lead)
        return;
    show_model(report, p, begun);
    show_ranks(report, p);
    show_mesh(report, p);
    if (p->data)
        show_data(report, p);
    if (p->eval)
        show_held_out(report, p);
    show_steps(report, p, begun);
    show_memory(report, p->fsdp);
    show_places(report, p, begun);
}
