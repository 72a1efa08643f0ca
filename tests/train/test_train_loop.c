/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step loop with ranks as processes: every world size, strategy and division of the batch gives
 * the same losses; evaluation counts every row once; a stop on one rank stops all; ranks that
 * differ are named.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"
#include "tap.h"
#include "train/loop.h"
#include "train/setup/setup.h"

enum { STEPS = 6, MAX_OVERRIDES = 16 };

static char dir[] = "/tmp/test_train_loop_XXXXXX";

static const char model_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 256,"
    " \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": false, \"initializer_range\": 0.05}";

static const char config_yaml[] =
    "model: {path: %s/model, init: random, seed: 3}\n"
    "data: {path: %s/text, seq_len: 16, eval_path: %s/held-out}\n"
    "train: {steps: %d, global_batch_size: 12, seed: 5, eval_interval: 3, threads: 1}\n"
    "optim: {lr: 1.0e-2, warmup_steps: 2}\n"
    "fsdp: {timeout: 60}\n";

/* What one run is, and what it must come to. */
struct job {
    int nranks, nnodes;
    const char *overrides[MAX_OVERRIDES];
    const char *of_rank1;     /* an override that only rank 1 has */
    int stop_rank, stop_step; /* asks to stop when that step is computed; step 0: never */
    int status, step;         /* what every rank must end with */
    const char *holds;        /* in rank 0's error */
};

static struct train_loop *current;
static const struct job *current_job;

static unsigned asks(void *ctx, double step_seconds)
{
    (void)ctx, (void)step_seconds;
    return current_job->stop_step && current->oob->rank == current_job->stop_rank &&
                   current->state.step + 1 >= current_job->stop_step
               ? TRAIN_ASK_STOP
               : 0;
}

static int train(struct train_parts *p, struct train_loop *l, struct fsdp_oob *oob,
                 const struct fsdp_node_map *nodes, const struct job *job, struct fsdp_err *err)
{
    char config[200];
    char *overrides[MAX_OVERRIDES + 1];
    int noverrides = 0;

    while (job->overrides[noverrides]) {
        overrides[noverrides] = (char *)(uintptr_t)job->overrides[noverrides];
        noverrides++;
    }
    if (job->of_rank1 && oob->rank == 1)
        overrides[noverrides++] = (char *)(uintptr_t)job->of_rank1;
    snprintf(config, sizeof config, "%s/run.yaml", dir);
    FSDP_TRY(train_parts_config(p, oob, config, noverrides, overrides, err));
    FSDP_TRY(train_parts_local(p, oob, nodes, err));
    FSDP_TRY(train_parts_engine(p, oob, nodes, err));
    FSDP_TRY(fsdp_init_params(p->fsdp, err));
    l->parts = p;
    l->oob = oob;
    l->state = train_parts_state(p);
    l->hooks.asks = asks;
    l->saved_step = -1;
    if (oob->rank == 0) {
        const struct sink_run run = {.config = p->config, .ranks = oob->size};
        snprintf(p->config->log.metrics, sizeof p->config->log.metrics, "%s/metrics.jsonl", dir);
        FSDP_TRY(sinks_open(&l->sinks.rows, &run, err));
    }
    FSDP_TRY(train_loop_open(l, err));
    return train_loop_run(l, err);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct job *job = arg;
    struct train_parts parts = {0};
    struct report report = {.steps = STEPS, .interval = 1 << 30};
    struct train_loop loop = {.sinks.report = &report};
    struct fsdp_err err = FSDP_ERR_INIT;

    current = &loop;
    current_job = job;
    int rc = train(&parts, &loop, oob, nodes, job, &err);
    bool good = rc == job->status && (rc || loop.state.step == job->step);
    if (job->holds && oob->rank == 0)
        good &= strstr(err.text, job->holds) != NULL;
    if (!good || (rc && oob->rank == 0))
        diag("rank %d: %s at step %d: %s", oob->rank, fsdp_status_name(rc), (int)loop.state.step,
             err.text);
    train_loop_close(&loop);
    sinks_close(loop.sinks.rows, SINK_DONE, NULL);
    train_parts_close(&parts);
    return !good;
}

static void put(const char *name, const char *text, size_t nbytes)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *out = fopen(path, "w");
    if (!out || fwrite(text, 1, nbytes, out) != nbytes || fclose(out) != 0)
        abort();
}

/* 72 documents: all that the run takes, in order. Those of the second step are prompts alone, so
 * that no token counts; so is a micro-batch in the third. */
static void make_documents(void)
{
    static char text[72 * 60];
    char *to = text;

    for (int i = 0; i < 72; i++) {
        const bool silent = (i >= 12 && i < 24) || i == 25;
        to += sprintf(to, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n", 2 + i % 7,
                      "question", silent ? 0 : 1 + i % 5, "answer");
    }
    put("documents", text, (size_t)(to - text));
}

static void make_files(void)
{
    static char text[4000];
    char command[100];

    snprintf(command, sizeof command, "mkdir -p %s/model", dir);
    if (system(command) != 0)
        abort();
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + (i * i / 7 + i / 3) % 26);
    put("model/config.json", model_json, strlen(model_json));
    put("text", text, 3000);
    put("held-out", text + 3000, 16 * 7 + 1); /* 7 rows: they divide among nothing */
    int nbytes = snprintf(text, sizeof text, config_yaml, dir, dir, dir, STEPS);
    put("run.yaml", text, (size_t)nbytes);
    make_documents();
}

struct curve {
    int nsteps, nevals;
    double loss[STEPS], norm[STEPS], eval[STEPS], tokens, counted;
};

static void read_curve(struct curve *curve)
{
    char path[200], line[1000];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *in = fopen(path, "r");

    *curve = (struct curve){0};
    while (in && curve->nsteps < STEPS && fgets(line, sizeof line, in)) {
        json_t *row = json_loads(line, 0, NULL);
        if (json_integer_value(json_object_get(row, "step")) == curve->nsteps + 1) {
            curve->loss[curve->nsteps] = json_number_value(json_object_get(row, "loss"));
            curve->norm[curve->nsteps] = json_number_value(json_object_get(row, "grad_norm"));
            curve->counted = json_number_value(json_object_get(row, "counted_tokens"));
            curve->tokens = json_number_value(json_object_get(row, "tokens"));
            if (json_object_get(row, "eval_loss"))
                curve->eval[curve->nevals++] = json_number_value(json_object_get(row, "eval_loss"));
            curve->nsteps++;
        }
        json_decref(row);
    }
    if (in)
        fclose(in);
}

static double worst(const double *a, const double *b, int nelem)
{
    double most = 0;
    for (int i = 0; i < nelem; i++)
        most = fmax(most, fabs(a[i] - b[i]) / fabs(b[i]));
    return most;
}

/* All jobs, of `rows` rows a step, have the curve of the first, which learns. `with`: an override
 * of all, or NULL. */
static struct curve check_same(const struct job *jobs, size_t njobs, int rows, const char *with)
{
    struct curve first = {0}, curve;

    for (size_t i = 0; i < njobs; i++) {
        struct job job = jobs[i];
        int noverrides = 0;
        while (job.overrides[noverrides])
            noverrides++;
        job.overrides[noverrides] = with;
        ok(ranks_run(job.nranks, job.nnodes, 60, rank_main, &job, NULL) == 0,
           "%d ranks on %d nodes, %s %s", job.nranks, job.nnodes, job.overrides[0],
           with ? with : "");
        read_curve(&curve);
        if (i == 0)
            first = curve;
        ok(curve.nsteps == STEPS && curve.nevals == 2 && curve.tokens == STEPS * rows * 16,
           "a line for each step, two with an evaluation");
        double loss = worst(curve.loss, first.loss, STEPS);
        double norm = worst(curve.norm, first.norm, STEPS);
        double eval = worst(curve.eval, first.eval, 2);
        ok(loss < 3e-6 && norm < 2e-5 && eval < 3e-6,
           "as one process computes: loss %.1e, norm %.1e, held-out %.1e", loss, norm, eval);
    }
    ok(first.loss[0] > 4 && first.loss[STEPS - 1] < first.loss[0] - 0.3,
       "and it learns: %.3f to %.3f", first.loss[0], first.loss[STEPS - 1]);
    return first;
}

static void check_worlds(void)
{
    static const struct job jobs[] = {
        {1, 1, {"fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS},
        {1, 1, {"train.micro_batch_size=3"}, .step = STEPS},
        {2, 1, {"train.micro_batch_size=6"}, .step = STEPS},
        {2, 1, {"train.late_results=true", "train.micro_batch_size=2"}, .step = STEPS},
        {3, 1, {"train.micro_batch_size=1"}, .step = STEPS},
        {4, 2, {"fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS},
        {2, 1, {"fsdp.sharding_strategy=NO_SHARD", "fsdp.wrap_policy=none"}, .step = STEPS},
        {6, 3, {"data.eval_rows=7", "fsdp.wrap_policy=none"}, .step = STEPS},
    };
    struct curve plain = check_same(jobs, sizeof jobs / sizeof jobs[0], 12, NULL);
    struct curve dropped = check_same(jobs + 1, 3, 12, "model.dropout=0.1");
    ok(worst(dropped.loss, plain.loss, STEPS) > 1e-4, "dropout has an effect");
}

/* Rows that do not divide among ranks and micro-batches, also fewer rows than ranks: the padding
 * counts nowhere, in no loss, gradient, rate or position. */
static void check_uneven(void)
{
    static const struct job jobs[] = {
        {1, 1, {"train.micro_batch_size=12"}, .step = STEPS},
        {1, 1, {"train.micro_batch_size=5"}, .step = STEPS},
        {5, 1, {"fsdp.sharding_strategy=FULL_SHARD"}, .step = STEPS},
        {7, 1, {"train.micro_batch_size=1"}, .step = STEPS},
        {5, 5, {"fsdp.sharding_strategy=NO_SHARD", "train.micro_batch_size=2"}, .step = STEPS},
        {5, 1, {"fsdp.reduce_last=true", "train.micro_batch_size=1"}, .step = STEPS},
        {4, 2, {"fsdp.two_level=true", "train.micro_batch_size=2"}, .step = STEPS},
        {4, 2, {"fsdp.sharding_strategy=HYBRID_SHARD", "train.micro_batch_size=2"}, .step = STEPS},
        {7, 1, {"train.late_results=true", "fsdp.sharding_strategy=ZERO1"}, .step = STEPS},
        {5, 1, {"fsdp.activation_checkpointing=selective"}, .step = STEPS},
    };
    static const struct job few[] = {
        {1, 1, {"train.micro_batch_size=auto"}, .step = STEPS},
        {5, 1, {"train.micro_batch_size=auto"}, .step = STEPS},
        {7, 7, {"fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS},
        {6, 3, {"fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS},
    };
    check_same(jobs, sizeof jobs / sizeof jobs[0], 12, NULL);
    check_same(jobs, 4, 12, "model.dropout=0.1");
    check_same(few, sizeof few / sizeof few[0], 3, "train.global_batch_size=3");
}

/* Labels that do not count: the divisor is the whole step's. */
static void check_documents(void)
{
    static const struct job jobs[] = {
        {1, 1, {"train.micro_batch_size=12"}, .step = STEPS},
        {2, 1, {"train.micro_batch_size=1"}, .step = STEPS},
        {2, 1, {"train.micro_batch_size=3", "train.late_results=true"}, .step = STEPS},
        {4, 2, {"train.micro_batch_size=1", "fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS},
        {5, 1, {"train.micro_batch_size=2"}, .step = STEPS},
        {7, 1, {"train.micro_batch_size=auto"}, .step = STEPS},
    };
    char train[200], eval[200];
    struct curve first = {0}, curve;

    snprintf(train, sizeof train, "data.path=%s/documents", dir);
    snprintf(eval, sizeof eval, "data.eval_path=%s/documents", dir);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct job job = jobs[i];
        const char *const more[] = {
            "data.format=jsonl",   "data.pack=none", "data.layout=rows", train, eval,
            "optim.weight_decay=0"};
        int at = job.overrides[1] ? 2 : 1;
        memcpy(job.overrides + at, more, sizeof more);
        ok(ranks_run(job.nranks, job.nnodes, 60, rank_main, &job, NULL) == 0,
           "%d ranks on documents, %s", job.nranks, job.overrides[0]);
        read_curve(&curve);
        if (i == 0)
            first = curve;
        const bool zero = curve.loss[1] == 0 && curve.norm[1] == 0;
        curve.loss[1] = first.loss[1] = curve.norm[1] = first.norm[1] = 1;
        double loss = worst(curve.loss, first.loss, STEPS);
        double norm = worst(curve.norm, first.norm, STEPS);
        double held_out = worst(curve.eval, first.eval, 2);
        ok(curve.nsteps == STEPS && zero && isfinite(curve.loss[STEPS - 1]),
           "a step without labels has no loss and no gradients");
        ok(loss < 3e-6 && norm < 2e-5 && held_out < 3e-6,
           "as one process computes: loss %.1e, norm %.1e, held-out %.1e", loss, norm, held_out);
    }
    ok(first.counted == 33, "the tokens that count are in the metrics: %g", first.counted);
}

/* 16-bit runs against one process in fp32. What is rounded once is off by a part u of itself; the
 * bounds let that happen some times over on the way to a loss, or to a norm, of which logits of 16
 * bits, where the device multiplies in them, take most. */
static void check_dtypes(void)
{
    static const double bf16 = 0x1p-9, f16 = 0x1p-11, f8 = 0x1p-4;
    static const char *const param16 = "fsdp.param_dtype=bf16",
                             *reduce16 = "fsdp.reduce_dtype=bf16";
    static const char *const half = "fsdp.param_dtype=fp16",
                             *reduce_half = "fsdp.reduce_dtype=fp16";
    const struct {
        struct job job;
        double u;
    } runs[] = {
        {{1, 1, {param16}, .step = STEPS}, bf16},
        {{3, 1, {param16, reduce16, "train.micro_batch_size=2"}, .step = STEPS}, bf16},
        {{2, 1, {param16, reduce16, "fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS}, bf16},
        {{2, 1, {param16, "fsdp.activation_checkpointing=full"}, .step = STEPS}, bf16},
        {{4, 2, {param16, reduce16, "fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS}, bf16},
        {{2, 1, {half, reduce_half, "fsdp.sharding_strategy=SHARD_GRAD_OP"}, .step = STEPS}, f16},
        {{3,
          1,
          {half, reduce_half, "fsdp.reduce_last=true", "train.micro_batch_size=1"},
          .step = STEPS},
         f16},
        {{4, 2, {half, reduce_half, "fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS}, f16},
        {{2, 1, {"fsdp.param_dtype=fp32", reduce16}, .step = STEPS}, bf16},
        {{5, 1, {half, reduce_half, "train.micro_batch_size=2"}, .step = STEPS}, f16},
        {{7, 1, {param16, reduce16}, .step = STEPS}, bf16},
        {{2,
          1,
          {param16, reduce16,
           "fsdp.unit_overrides=[lm_head param_dtype=fp32 "
           "reduce_dtype=fp32]"},
          .step = STEPS},
         bf16},
        {{2, 1, {param16, "fsdp.output_dtype=bf16", "fsdp.buffer_dtype=bf16"}, .step = STEPS},
         bf16},
        {{2, 1, {"fsdp.output_dtype=fp16"}, .step = STEPS}, f16},
        {{3, 1, {param16, "fsdp.gather_dtype=float8_e4m3"}, .step = STEPS}, f8},
    };
    const struct job one = {1, 1, {"fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS};
    struct curve want, got;

    ok(ranks_run(1, 1, 60, rank_main, (void *)(uintptr_t)&one, NULL) == 0, "one process in fp32");
    read_curve(&want);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        struct job job = runs[i].job;
        ok(ranks_run(job.nranks, job.nnodes, 60, rank_main, &job, NULL) == 0, "%d ranks, %s %s %s",
           job.nranks, job.overrides[0], job.overrides[1] ? job.overrides[1] : "",
           job.overrides[2] ? job.overrides[2] : "");
        read_curve(&got);
        double loss = worst(got.loss, want.loss, STEPS) / runs[i].u;
        double norm = worst(got.norm, want.norm, STEPS) / runs[i].u;
        double eval = worst(got.eval, want.eval, 2) / runs[i].u;
        ok(got.nsteps == STEPS && loss < 1 && eval < 1 && norm < 12,
           "in roundings of its type: loss %.3f of 1, held-out %.3f of 1, norm %.2f of 12", loss,
           eval, norm);
        ok(loss > 1e-4, "and it is not fp32 that ran");
    }
}

/* What modules see of matrices gathered in fp8 depends on the masters alone, so the losses do not
 * depend on who holds them. After the first step, sums in another order can move a few weights to
 * the next value. */
static void check_gather_dtype(void)
{
    static const char *const f8 = "fsdp.gather_dtype=float8_e4m3";
    static const struct job jobs[] = {
        {1, 1, {f8}, .step = STEPS},
        {1, 1, {f8, "fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS},
        {2, 1, {f8}, .step = STEPS},
        {3, 1, {f8}, .step = STEPS},
        {4, 1, {f8, "fsdp.reshard_after_forward=2"}, .step = STEPS},
        {4, 2, {f8, "fsdp.two_level=true"}, .step = STEPS},
        {3, 1, {f8, "fsdp.sharding_strategy=NO_SHARD"}, .step = STEPS},
        {2, 2, {f8, "fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS},
        {4, 2, {f8, "fsdp.sharding_strategy=HYBRID_SHARD"}, .step = STEPS},
        {2, 1, {f8, "fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_size=1"}, .step = STEPS},
    };
    struct curve want, got;

    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct job job = jobs[i];
        ok(ranks_run(job.nranks, job.nnodes, 60, rank_main, &job, NULL) == 0, "fp8, %d ranks, %s",
           job.nranks, job.overrides[1] ? job.overrides[1] : "");
        read_curve(i ? &got : &want);
        if (i == 0)
            continue;
        double first = worst(got.loss, want.loss, 1), loss = worst(got.loss, want.loss, STEPS);
        double eval = worst(got.eval, want.eval, 2);
        ok(got.nsteps == STEPS && first < 1e-6 && loss < 1e-3 && eval < 1e-3,
           "as one rank: first loss %.1e, all %.1e, held-out %.1e", first, loss, eval);
    }
    const struct job plain = {1, 1, {"fsdp.gather_dtype=auto"}, .step = STEPS};
    ok(ranks_run(1, 1, 60, rank_main, (void *)(uintptr_t)&plain, NULL) == 0, "fp32, one rank");
    read_curve(&got);
    ok(worst(got.loss, want.loss, 1) > 1e-5, "and fp32 is another: %.1e",
       worst(got.loss, want.loss, 1));
}

static void check_stop(void)
{
    struct job job = {2, 1, {NULL}, .stop_rank = 1, .stop_step = 2, .step = 2};
    struct job late = {2,        1, {"train.late_results=true"}, .stop_rank = 1, .stop_step = 2,
                       .step = 3};
    struct curve curve;

    ok(ranks_run(2, 1, 60, rank_main, &job, NULL) == 0,
       "a stop on rank 1 stops both after its step");
    ok(ranks_run(2, 1, 60, rank_main, &late, NULL) == 0, "one step later with late results");
    read_curve(&curve);
    ok(curve.nsteps == 3, "and no line of metrics is lost");
}

static void check_refusals(void)
{
    static const struct job jobs[] = {
        {2,
         1,
         {NULL},
         .of_rank1 = "optim.lr=0.5",
         .status = FSDP_EMISMATCH,
         .holds = "rank 1 has another configuration than rank 0: 'optim.lr = 0.5' where rank 0 has "
                  "'optim.lr = 0.01'"},
        {2,
         1,
         {NULL},
         .of_rank1 = "fsdp.sharding_strategy=NO_SHARD",
         .status = FSDP_EMISMATCH,
         .holds = "fsdp.sharding_strategy = NO_SHARD"},
        {2,
         1,
         {NULL},
         .of_rank1 = "nonsense=1",
         .status = FSDP_EINVAL,
         .holds = "rank 1: command line: unknown key 'nonsense'"},
        {2, 1, {"data.seq_len=65"}, .status = FSDP_EINVAL, .holds = "longer than the model's 64"},
        {1, 1, {"data.path=/nowhere"}, .status = FSDP_ENOTFOUND, .holds = "data.path: /nowhere"},
        {1, 1, {"model.path=/nowhere"}, .status = FSDP_ENOTFOUND, .holds = "model.path: /nowhere"},
        {2,
         1,
         {"optim.lr=1e30", "optim.clip_grad_norm=0", "train.on_nonfinite=stop"},
         .status = FSDP_EINVAL,
         .holds = "train.on_nonfinite is stop"},
        {1, 1, {"optim.lr=1e30", "optim.clip_grad_norm=0"}, .step = STEPS},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct job job = jobs[i];
        ok(ranks_run(job.nranks, job.nnodes, 60, rank_main, &job, NULL) == 0, "%s",
           job.holds ? job.holds : "lost weights are a warning unless told otherwise");
    }
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    make_files();
    check_worlds();
    check_uneven();
    check_documents();
    check_dtypes();
    check_gather_dtype();
    check_stop();
    check_refusals();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
