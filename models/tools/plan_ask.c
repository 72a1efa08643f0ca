/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan's question, from the command line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "plan.h"

/* ---- the cluster ----------------------------------------------------------------------------- */

static int apply_what_ifs(struct cluster *c, const struct plan_texts *what_if, struct fsdp_err *err)
{
    for (int i = 0; i < what_if->ntexts; i++) {
        const char *equals = strchr(what_if->text[i], '=');
        char key[64];
        if (!equals || equals == what_if->text[i] ||
            (size_t)(equals - what_if->text[i]) >= sizeof key)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--what-if %s: write a key of a cluster.yaml and a value, such as "
                                "net=800Gbx8",
                                what_if->text[i]);
        snprintf(key, sizeof key, "%.*s", (int)(equals - what_if->text[i]), what_if->text[i]);
        FSDP_TRY(cluster_set(c, key, equals + 1, err));
    }
    return FSDP_OK;
}

static int open_cluster(struct cluster *out, const struct plan_settings *set, struct fsdp_err *err)
{
    if (set->cluster && (set->gpu || set->net || set->node_ngpus))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "--cluster says what GPUs, nodes and network there are: leave out --%s, "
            "or change it by --what-if",
            set->gpu   ? "gpu"
            : set->net ? "net"
                       : "node-size");
    if (set->cluster)
        return cluster_load(out, set->cluster, err);
    return cluster_words(out, set->gpu ? set->gpu : "h100", set->net ? set->net : "400Gbx8",
                         set->node_ngpus ? set->node_ngpus : 8, err);
}

/* Without a number, those of the cluster, or a node. */
static int count_gpus(int *out, const struct plan_settings *set, const struct cluster *c,
                      struct fsdp_err *err)
{
    const int node = c->clock.net.node_nranks;

    if (set->ngpus && set->nnodes && set->ngpus != set->nnodes * node)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--gpus %d and --nodes %d of %d GPUs each: leave out one of them",
                            set->ngpus, set->nnodes, node);
    *out = set->ngpus ? set->ngpus : set->nnodes ? set->nnodes * node : c->ngpus ? c->ngpus : node;
    return FSDP_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static int add_override(struct plan_asked *a, char *override, struct fsdp_err *err)
{
    if (a->question.noverrides == PLAN_MAX_OVERRIDES)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d settings", PLAN_MAX_OVERRIDES);
    a->overrides[a->question.noverrides++] = override;
    return FSDP_OK;
}

/* Takes a text of fsdp_sprintf. */
static int add_made(struct plan_asked *a, char *text, struct fsdp_err *err)
{
    if (!text)
        return FSDP_ENOMEM;
    a->owned[a->nowned++] = text; /* before it can be refused */
    return add_override(a, text, err);
}

/* A run of a model alone: bf16, a few million tokens a step. */
static int describe_run(struct plan_asked *a, const struct plan_settings *set, struct fsdp_err *err)
{
    enum { DEFAULT_SEQ = 4096, DEFAULT_BATCH = 1 << 22 };
    static const char *const fixed[] = {"model.init=random", "data.path=FILL_IN",
                                        "train.micro_batch_size=1", "fsdp.param_dtype=bfloat16"};
    const int seq = set->seq_len ? set->seq_len : DEFAULT_SEQ;
    const double batch = set->batch_tokens > 0 ? set->batch_tokens : DEFAULT_BATCH;
    long rows = (long)(batch / seq) / a->question.ngpus * a->question.ngpus;

    if (set->batch_tokens > 0 && rows < a->question.ngpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--batch: %.0f tokens are %.0f rows of %d, and each of %d GPUs takes "
                            "one at least: --batch %.0f, or fewer GPUs",
                            batch, floor(batch / seq), seq, a->question.ngpus,
                            (double)a->question.ngpus * seq);
    rows = rows < a->question.ngpus ? a->question.ngpus : rows;
    a->question.tokens = set->tokens > 0 ? set->tokens : -1;
    const double steps = set->tokens > 0 ? ceil(set->tokens / ((double)rows * seq)) : 1;
    FSDP_TRY(add_made(a, fsdp_sprintf(err, "model.path=%s", set->model), err));
    FSDP_TRY(add_made(a, fsdp_sprintf(err, "data.seq_len=%d", seq), err));
    FSDP_TRY(add_made(a, fsdp_sprintf(err, "train.global_batch_size=%ld", rows), err));
    FSDP_TRY(add_made(a, fsdp_sprintf(err, "train.steps=%.0f", steps), err));
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        FSDP_TRY(add_override(a, (char *)(uintptr_t)fixed[i], err));
    return FSDP_OK;
}

static int take_operands(struct plan_asked *a, const struct plan_settings *set,
                         const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    int first = 0;

    if (line->noperands && !strchr(line->operands[0], '='))
        a->question.config = line->operands[first++];
    if (a->question.config && set->model)
        return fsdp_err_set(err, FSDP_EINVAL, "--model and %s: give one of them",
                            a->question.config);
    if (!a->question.config && !set->model)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "no run: give a run.yaml, or --model with the folder of a config.json");
    if (set->model)
        FSDP_TRY(describe_run(a, set, err));
    for (int i = first; i < line->noperands; i++) {
        if (!strchr(line->operands[i], '='))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' after the run: settings are section.key=value",
                                line->operands[i]);
        FSDP_TRY(add_override(a, line->operands[i], err));
    }
    if (!set->model && set->seq_len)
        return fsdp_err_set(err, FSDP_EINVAL, "--seq is for --model: set data.seq_len=%d",
                            set->seq_len);
    if (!set->model && set->batch_tokens > 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--batch is for --model: set train.global_batch_size, in rows");
    return FSDP_OK;
}

int plan_ask(struct plan_asked *out, const struct plan_settings *set,
             const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    *out = (struct plan_asked){.question = {.tokens = set->tokens, .now = (double)time(NULL)}};
    out->question.cluster = &out->cluster;
    out->question.what_if = set->what_if.text;
    out->question.nwhat_ifs = set->what_if.ntexts;
    out->question.foreign = set->foreign;
    out->question.overrides = out->overrides;
    FSDP_TRY(open_cluster(&out->cluster, set, err));
    int rc = apply_what_ifs(&out->cluster, &set->what_if, err);
    if (rc == FSDP_OK)
        rc = count_gpus(&out->question.ngpus, set, &out->cluster, err);
    if (rc == FSDP_OK)
        rc = take_operands(out, set, line, err);
    if (rc)
        plan_close(out);
    return rc;
}

void plan_close(struct plan_asked *asked)
{
    cluster_close(&asked->cluster);
    for (int i = 0; i < asked->nowned; i++)
        fsdp_free(asked->owned[i]);
    asked->nowned = 0;
}
