/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds spare plans and lose nothing: the front of a search is the same without them. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "plan/search/search.h"
#include "tap.h"

enum { MOST = 16 };

static bool same_point(const struct search_point *a, const struct search_point *b)
{
    char x[CHANGE_MAX_SETTINGS * (CHANGE_TEXT + 1)], y[sizeof x];

    return a->ngpus == b->ngpus && a->token_s == b->token_s &&
           a->answer.device_nbytes == b->answer.device_nbytes &&
           !strcmp(change_text(x, sizeof x, &a->change), change_text(y, sizeof y, &b->change));
}

static void compare(const char *what, const char *gpu, int ngpus, enum search_goal goal,
                    bool keep_numerics, char *const *overrides, int noverrides)
{
    struct search_result *with = calloc(1, sizeof *with), *without = calloc(1, sizeof *without);
    struct search_opts opts = {.goal = goal, .keep_numerics = keep_numerics};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct cluster cluster;

    if (!ok(!cluster_words(&cluster, gpu, "400Gbx8", 8, &err), "%s: a cluster %s", what, err.text))
        return;
    const struct question question = {.cluster = &cluster,
                                      .ngpus = ngpus,
                                      .noverrides = noverrides,
                                      .overrides = overrides,
                                      .tokens = -1};
    int rc = search_run(with, &question, &opts, &err);
    opts.no_bounds = true;
    rc = rc ? rc : search_run(without, &question, &opts, &err);
    ok(!rc && with->nfront > 0 && with->complete, "%s: %d points, %d plans, %d ruled out %s", what,
       with->nfront, with->nplanned, with->npruned, err.text);
    ok(with->npruned > 0 && !without->npruned && with->nplanned < without->nplanned,
       "%s: bounds spare %d of %d plans", what, without->nplanned - with->nplanned,
       without->nplanned);
    bool same = with->nfront == without->nfront;
    for (int i = 0; same && i < with->nfront; i++)
        same = same_point(&with->front[i], &without->front[i]);
    ok(same, "%s: and lose no point (%d, %d)", what, with->nfront, without->nfront);
    cluster_close(&cluster);
    free(with);
    free(without);
}

/* As many parameters as a model of 8 billion has, in a quarter of its layers: a plan takes as long
 * as its list. */
static bool make_model(void)
{
    FILE *file = mkdir("model", 0777) ? NULL : fopen("model/config.json", "w");
    if (!file)
        return false;
    fputs("{\"model_type\": \"llama\", \"hidden_size\": 8192, \"intermediate_size\": 28672,"
          " \"num_hidden_layers\": 8, \"num_attention_heads\": 64, \"num_key_value_heads\": 8,"
          " \"vocab_size\": 64000, \"max_position_embeddings\": 8192,"
          " \"tie_word_embeddings\": false}",
          file);
    return !fclose(file);
}

int main(void)
{
    char large[4096];
    const char *top = getenv("TOP");
    char *overrides[MOST] = {
        "model.path=model",         "model.init=random", "data.path=none",
        "data.seq_len=4096",        "train.steps=1",     "train.global_batch_size=64",
        "fsdp.param_dtype=bfloat16"};

    if (!ok(make_model(), "a model"))
        return tap_done();
    compare("8 GPUs of 80 GB", "h100", 8, SEARCH_TIME, true, overrides, 7);
    compare("16 GPUs of 40 GB, where little fits", "a100-40", 16, SEARCH_TIME, true, overrides, 7);
    compare("the fewest GPUs", "h100", 16, SEARCH_GPUS, true, overrides, 7);
    snprintf(large, sizeof large, "model.path=%s/examples/llama-8b", top ? top : ".");
    overrides[0] = large;
    overrides[7] = "fsdp.offload=params";
    compare("a run that offloads", "h100", 8, SEARCH_TIME, true, overrides, 8);
    overrides[0] = "model.path=model";
    overrides[6] = "fsdp.param_dtype=float32";
    overrides[5] = "train.global_batch_size=16";
    overrides[7] = "train.micro_batch_size=1";
    compare("in fp32", "h200", 8, SEARCH_COST, false, overrides, 8);
    return tap_done();
}
