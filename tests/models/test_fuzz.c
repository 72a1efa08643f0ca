/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random small models and configurations (fuzz_case.h): a few steps of training on several ranks
 * against the same on one, and where llama64.h computes the same, both against double precision.
 * Before them come cases with uneven rows and one difficulty each.
 * FUZZ_SEED draws other cases, FUZZ_RAN says how many must run (configurations that are refused do
 * not count), FUZZ_CASE=N repeats one alone and shows its settings (make check-fuzz-train).
 *
 * run: timeout=1200
 */
#include <inttypes.h>
#include <unistd.h>

#include "fuzz_case.h"
#include "ref_run.h"
#include "train/loop.h"
#include "train/setup/setup.h"

enum { MAX_NELEM = 1 << 17 };

static char dir[] = "/tmp/test_fuzz_XXXXXX";

struct curve {
    int nsteps, nevals;
    double loss[FUZZ_STEPS], norm[FUZZ_STEPS], eval[FUZZ_STEPS];
};

/* What ranks leave to the test. */
struct outcome {
    bool refused;
    char why[400];
    /* way: how far the weights are from double precision beyond their own rounding, as a part of
     * the way that they went */
    double waste, way;
};

/* The same in double precision, made by the run on one rank, read by the others. */
struct wide {
    struct curve curve;
    int nparams;
    struct {
        char name[80];
        size_t at, nelem;
    } param[L64_MAX_PARAMS];
    double first[MAX_NELEM], last[MAX_NELEM];
};

struct run {
    struct fuzz_case c;
    bool many;
    struct outcome *out;
    struct wide *wide; /* NULL: not compared */
};

/* ---- double precision ------------------------------------------------------------------------ */

static int put_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                     const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &slice->tensor;
    const size_t nelem = fsdp_tensor_nelem(t);

    if (kind != FSDP_SLICE_MODEL)
        return FSDP_OK;
    float *values = malloc(nelem * sizeof *values);
    int rc = io->read(io->ctx, 0, values, nelem * sizeof *values, err);
    if (!rc)
        l64_put(ctx, t->name, (int)t->shape[0], t->ndim > 1 ? (int)t->shape[1] : 0, values);
    free(values);
    return rc;
}

/* Row `row` of the run: what stands there, what it predicts, where documents begin. */
static int wide_row(struct data_mixture *data, uint64_t row, int T, int32_t *inputs,
                    int32_t *targets, int32_t *starts, struct fsdp_err *err)
{
    int32_t tokens[FUZZ_MAX_SEQ + 1];
    const bool labels = data_mixture_has_labels(data);
    const struct data_row out = {tokens, labels ? targets : NULL, labels ? starts : NULL, NULL};

    FSDP_TRY(data_mixture_row(data, row, &out, err));
    for (int t = 0; t < T; t++) {
        inputs[t] = tokens[t];
        if (!labels)
            targets[t] = tokens[t + 1];
    }
    return FSDP_OK;
}

static int wide_steps(const struct fuzz_case *c, struct l64_model *m, struct data_mixture *data,
                      struct curve *out, struct fsdp_err *err)
{
    static int32_t inputs[FUZZ_MAX_ROWS * FUZZ_MAX_SEQ], targets[FUZZ_MAX_ROWS * FUZZ_MAX_SEQ];
    static int32_t starts[FUZZ_MAX_ROWS * FUZZ_MAX_SEQ];

    for (int step = 0; step < FUZZ_STEPS; step++) {
        for (int r = 0; r < c->rows; r++)
            FSDP_TRY(wide_row(data, (uint64_t)(step * c->rows + r), c->seq, inputs + r * c->seq,
                              targets + r * c->seq, starts + r * c->seq, err));
        l64_step(m, NULL, inputs, targets, c->labels ? starts : NULL, c->rows, c->seq,
                 fuzz_lr(c, step), &out->loss[step], &out->norm[step]);
    }
    out->nsteps = FUZZ_STEPS;
    return FSDP_OK;
}

static int make_wide(struct run *run, struct train_parts *p, struct fsdp_err *err)
{
    static struct l64_model m;
    size_t at = 0;

    m.shape = run->c.shape;
    m.optim = run->c.optim;
    FSDP_TRY(fsdp_state_each(p->fsdp, put_slice, &m, err));
    for (int i = 0; i < m.nparams; i++)
        fuzz_mark(&run->c, &m.param[i]);
    FSDP_TRY(wide_steps(&run->c, &m, p->data, &run->wide->curve, err));
    for (int i = 0; i < m.nparams; i++) {
        const size_t nelem = (size_t)l64_nelem(&m.param[i]);
        if (at + nelem > MAX_NELEM)
            return fsdp_err_set(err, FSDP_EINTERNAL, "the model is larger than the test allows");
        snprintf(run->wide->param[i].name, sizeof run->wide->param[i].name, "%s", m.param[i].name);
        run->wide->param[i].at = at;
        run->wide->param[i].nelem = nelem;
        memcpy(run->wide->first + at, m.param[i].first, nelem * sizeof(double));
        memcpy(run->wide->last + at, m.param[i].w.v, nelem * sizeof(double));
        at += nelem;
    }
    run->wide->nparams = m.nparams;
    return FSDP_OK;
}

/* Squares of the difference of weights, of the way they went, and of the weights, in this rank's
 * slices. */
struct way {
    const struct wide *want;
    double sums[3];
};

static int compare_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                         const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct way *way = ctx;
    const struct wide *want = way->want;
    const uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    int k = 0;

    if (kind != FSDP_SLICE_MODEL || !nelem)
        return FSDP_OK;
    while (k < want->nparams && strcmp(want->param[k].name, slice->tensor.name))
        k++;
    if (k == want->nparams || want->param[k].nelem != fsdp_tensor_nelem(&slice->tensor))
        return fsdp_err_set(err, FSDP_EINTERNAL, "%s: another shape", slice->tensor.name);
    const size_t at =
        want->param[k].at + slice->box.offset[0] * fsdp_tensor_row_nelem(&slice->tensor);
    float *got = malloc(nelem * sizeof *got);
    int rc = io->read(io->ctx, 0, got, nelem * sizeof *got, err);
    for (size_t i = 0; i < nelem && !rc; i++) {
        way->sums[0] += pow((double)got[i] - want->last[at + i], 2);
        way->sums[1] += pow(want->first[at + i] - want->last[at + i], 2);
        way->sums[2] += pow(want->last[at + i], 2);
    }
    free(got);
    return rc;
}

static int compare_weights(struct run *run, struct fsdp *f, struct fsdp_oob *oob,
                           struct fsdp_err *err)
{
    struct way way = {.want = run->wide};
    double all[8][3], sums[3] = {0};

    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(fsdp_state_each(f, compare_slice, &way, err));
    FSDP_TRY(oob->allgather(oob, way.sums, sizeof way.sums, all, err));
    for (int rank = 0; rank < oob->size; rank++)
        for (int i = 0; i < 3; i++)
            sums[i] += all[rank][i];
    /* A step rounds a weight twice, for its decay and for its update, each time by half a unit in
     * the last place at most. */
    const double rounded = 2 * FUZZ_STEPS * 0x1p-24 * sqrt(sums[2]);
    const double beyond = fmax(0, sqrt(sums[0]) - rounded);
    if (oob->rank == 0)
        run->out->way = sums[1] > 0 ? beyond / sqrt(sums[1]) : beyond;
    return FSDP_OK;
}

/* ---- in a rank ------------------------------------------------------------------------------- */

/* Up to where a configuration may be refused. */
static int open_run(struct run *run, struct train_parts *p, struct fsdp_oob *oob,
                    const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    char *settings[2 * FUZZ_SETTINGS + 1], path[64], metrics[96];
    int n = 0;

    for (int i = 0; i < run->c.common.nelem; i++)
        settings[n++] = run->c.common.text[i];
    for (int i = 0; run->many && i < run->c.many.nelem; i++)
        settings[n++] = run->c.many.text[i];
    snprintf(metrics, sizeof metrics, "log.metrics=%s/metrics.jsonl", dir);
    settings[n++] = metrics;
    snprintf(path, sizeof path, "%s/run.yaml", dir);
    FSDP_TRY(train_parts_config(p, oob, path, n, settings, err));
    FSDP_TRY(train_parts_local(p, oob, nodes, err));
    return train_parts_engine(p, oob, nodes, err);
}

static int train(struct run *run, struct train_parts *p, struct train_loop *l, struct fsdp_oob *oob,
                 struct fsdp_err *err)
{
    const struct sink_run seen = {
        .config = p->config, .attempt = 1, .ranks = oob->size, .nodes = 1};

    FSDP_TRY(fsdp_init_params(p->fsdp, err));
    if (run->wide && !run->many)
        FSDP_TRY(make_wide(run, p, err));
    l->parts = p;
    l->oob = oob;
    l->state = train_parts_state(p);
    l->saved_step = -1;
    if (oob->rank == 0) {
        run->out->waste = config_batch_waste(&p->batch);
        FSDP_TRY(sinks_open(&l->sinks.rows, &seen, err));
    }
    FSDP_TRY(train_loop_open(l, err));
    FSDP_TRY(train_loop_run(l, err));
    return run->wide ? compare_weights(run, p->fsdp, oob, err) : FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct train_parts parts = {0};
    struct report report = {.steps = FUZZ_STEPS, .interval = 1 << 30};
    struct train_loop loop = {.sinks.report = &report};
    struct fsdp_err err = FSDP_ERR_INIT;

    int rc = open_run(run, &parts, oob, nodes, &err);
    const bool refused = rc == FSDP_EINVAL || rc == FSDP_EUNSUPPORTED;
    if (rc == FSDP_OK)
        rc = train(run, &parts, &loop, oob, &err);
    if (rc && oob->rank == 0) {
        run->out->refused = refused;
        snprintf(run->out->why, sizeof run->out->why, "%s: %.380s", fsdp_status_name(rc), err.text);
    }
    train_loop_close(&loop);
    sinks_close(loop.sinks.rows, SINK_DONE, NULL);
    train_parts_close(&parts);
    return rc && !refused;
}

/* ---- in the test ----------------------------------------------------------------------------- */

static FILE *create(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    if (!file)
        abort();
    return file;
}

static void make_files(struct fuzz_case *c)
{
    FILE *file = create("config.json");
    fuzz_config_json(c, file);
    fclose(file);
    file = create("data");
    fuzz_tokens(c, file, 2000);
    fclose(file);
    file = create("held-out");
    fuzz_tokens(c, file, 150);
    fclose(file);
    file = create("run.yaml");
    fprintf(file,
            "model: {path: %s, init: random}\n"
            "data: {path: %s/data, eval_path: %s/held-out, eval_rows: 5}\n"
            "train: {steps: %d, threads: 1, eval_interval: 2}\n"
            "fsdp: {timeout: 60}\n",
            dir, dir, dir, FUZZ_STEPS);
    fclose(file);
}

static void read_curve(struct curve *curve)
{
    char path[64], line[1000];
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *in = fopen(path, "r");

    *curve = (struct curve){0};
    while (in && curve->nsteps < FUZZ_STEPS && fgets(line, sizeof line, in)) {
        json_t *row = json_loads(line, 0, NULL);
        curve->loss[curve->nsteps] = json_number_value(json_object_get(row, "loss"));
        curve->norm[curve->nsteps++] = json_number_value(json_object_get(row, "grad_norm"));
        if (json_object_get(row, "eval_loss"))
            curve->eval[curve->nevals++] = json_number_value(json_object_get(row, "eval_loss"));
        json_decref(row);
    }
    if (in)
        fclose(in);
    unlink(path);
}

/* Largest differences: of losses and held-out losses, absolute; of norms, relative. */
struct gap {
    double loss, norm;
};

static struct gap gap_between(const struct curve *got, const struct curve *want, int nsteps)
{
    struct gap gap = {0};
    if (got->nsteps != FUZZ_STEPS || want->nsteps != FUZZ_STEPS)
        return (struct gap){INFINITY, INFINITY};
    for (int s = 0; s < nsteps; s++) {
        const double norm = want->norm[s] > 0 ? want->norm[s] : 1;
        gap.loss = fmax(gap.loss, fabs(got->loss[s] - want->loss[s]));
        gap.norm = fmax(gap.norm, fabs(got->norm[s] - want->norm[s]) / norm);
        if (!isfinite(got->loss[s]) || !isfinite(got->norm[s]))
            gap.loss = INFINITY;
    }
    for (int i = 0; i < want->nevals && want->nevals == got->nevals && nsteps == FUZZ_STEPS; i++)
        gap.loss = fmax(gap.loss, fabs(got->eval[i] - want->eval[i]));
    return gap;
}

struct round {
    uint64_t seed;
    int ran, refused, wide, uneven, rounded;
    /* The largest: of one rank, in units of what is rounded; of fp64, on one rank and on several.
     */
    struct gap types[4], of64[2];
    double way;
};

/*
 * Bounds. In fp32 only the order of sums differs, and what that makes of a sum is multiplied by
 * four steps of an optimizer: the bounds are three times what 1,600 cases came to, and more. In 16
 * bits every value is rounded, each time by a part `unit` of itself: a loss, about 4, may be off by
 * one such rounding, a norm by sixteen, which is twice what those cases came to. With weights
 * gathered in 8 bits the first step sees the same values on all ranks, and later ones, too, unless
 * a master is so near the middle of two values that the order of sums decides: then a weight
 * differs by `unit`.
 */
static const struct gap exact = {2e-6, 1e-5};
static const double way_bound = 2e-5;
static const struct {
    const char *name;
    double unit;
    struct gap bound; /* in units */
} roundings[] = {[FUZZ_F32] = {"fp32", 1, {2e-6, 1e-5}},
                 [FUZZ_BF16] = {"bf16", 0x1p-9, {4, 16}},
                 [FUZZ_F16] = {"fp16", 0x1p-11, {4, 16}},
                 [FUZZ_F8] = {"fp8", 0x1p-4, {0.1, 0.5}}};

static bool within(struct gap *worst, struct gap gap, struct gap bound)
{
    worst->loss = fmax(worst->loss, gap.loss);
    worst->norm = fmax(worst->norm, gap.norm);
    return gap.loss <= bound.loss && gap.norm <= bound.norm;
}

static bool judge(struct round *r, const struct fuzz_case *c, const struct curve *one,
                  const struct curve *many, const struct outcome *out, const struct wide *wide)
{
    const struct gap gap = gap_between(many, one, FUZZ_STEPS);
    const double unit = roundings[c->rounding].unit;
    struct gap first = {0};
    bool good = within(&r->types[c->rounding], (struct gap){gap.loss / unit, gap.norm / unit},
                       roundings[c->rounding].bound);

    if (c->rounding == FUZZ_F8)
        good &= within(&first, gap_between(many, one, 1), exact);
    diag("      %s, of one rank: loss within %.1e, norm within %.1e", roundings[c->rounding].name,
         gap.loss, gap.norm);
    if (!c->wide)
        return good;
    for (int i = 0; i < 2; i++) {
        const struct gap gap64 = gap_between(i ? many : one, &wide->curve, FUZZ_STEPS);
        if (c->rounding == FUZZ_F32) {
            good &= within(&r->of64[i], gap64, exact) && out[i].way <= way_bound;
            r->way = fmax(r->way, out[i].way);
        } else {
            good &= gap64.loss <= roundings[c->rounding].bound.loss * unit;
        }
        diag("      of fp64, %d ranks: loss within %.1e, norm within %.1e, weights within %.1e",
             i ? c->nranks : 1, gap64.loss, gap64.norm, out[i].way);
    }
    return good;
}

static void show_case(const struct fuzz_case *c)
{
    const struct l64_shape *s = &c->shape;
    diag("      %s of %d layers, %d heads of %d, %d of keys, width %d, MLP %d, vocabulary %d%s",
         c->llama ? "Llama" : "GPT-2", s->layers, s->NH, s->D, s->NKV, s->C, s->F, s->V,
         s->tied ? ", tied" : "");
    for (int i = 0; i < c->common.nelem; i++)
        diag("      %s", c->common.text[i]);
    diag("      on %d ranks on %d nodes:", c->nranks, c->nnodes);
    for (int i = 0; i < c->many.nelem; i++)
        diag("      %s", c->many.text[i]);
}

/* text: what is special of it. */
static void run_case(struct round *r, const struct fuzz_case *drawn, int number, const char *text,
                     bool alone)
{
    struct run run = {.c = *drawn, .out = ref_shared(2 * sizeof *run.out)};
    struct fuzz_case *c = &run.c;
    struct outcome *one_out = run.out, *many_out = run.out + 1;
    struct curve one, many;

    make_files(c);
    run.wide = c->wide ? ref_shared(sizeof *run.wide) : NULL;
    bool good = ranks_run(1, 1, 60, rank_main, &run, NULL) == 0;
    read_curve(&one);
    run.many = true;
    run.out = many_out;
    good = good && !one_out->refused &&
           ranks_run(c->nranks, c->nnodes, 60, rank_main, &run, NULL) == 0;
    read_curve(&many);
    if (good && many_out->refused) {
        r->refused++;
        if (alone)
            diag("      refused: %s", many_out->why);
    } else {
        good = good && judge(r, c, &one, &many, one_out, run.wide);
        r->ran++;
        r->wide += c->wide;
        r->uneven += many_out->waste > 0;
        r->rounded += c->rounding != FUZZ_F32;
        if (!ok(good, "seed %" PRIu64 ", case %d: %s, %d rows on %d ranks%s%s%s", r->seed, number,
                c->llama ? "Llama" : "GPT-2", c->rows, c->nranks, text,
                many_out->waste > 0 ? ", uneven" : "", c->wide ? ", fp64" : "") ||
            alone) {
            show_case(c);
            diag("      %s %s", one_out->why, many_out->why);
        }
    }
    if (run.wide)
        munmap(run.wide, sizeof *run.wide);
    munmap(one_out, 2 * sizeof *one_out);
}

static void run_drawn(struct round *r, int number, bool alone)
{
    struct fuzz_case c;
    fuzz_make(&c, r->seed, number);
    run_case(r, &c, number, "", alone);
}

/* Rows that do not divide, with one more difficulty each. */
static const struct {
    const char *text;
    enum fuzz_rounding rounding;
    int rows, nranks, nnodes;
    bool labels;
    const char *setting;
} uneven[] = {
    {"", FUZZ_F32, 12, 5, 1, false, "train.micro_batch_size=auto"},
    {"", FUZZ_F32, 12, 7, 1, false, "train.micro_batch_size=auto"},
    {", fewer rows than ranks", FUZZ_F32, 3, 7, 1, false, "train.micro_batch_size=auto"},
    {", micro-batches of 2", FUZZ_F32, 12, 5, 1, false, "train.micro_batch_size=2"},
    {", micro-batches of 5", FUZZ_F32, 23, 3, 1, false, "train.micro_batch_size=5"},
    {", packed documents", FUZZ_F32, 12, 5, 1, true, "train.micro_batch_size=1"},
    {", HYBRID_SHARD", FUZZ_F32, 13, 6, 3, false, "fsdp.sharding_strategy=HYBRID_SHARD"},
    {", NO_SHARD", FUZZ_F32, 12, 7, 1, false, "fsdp.sharding_strategy=NO_SHARD"},
    {", reduce_last", FUZZ_F32, 12, 5, 2, false, "fsdp.reduce_last=true"},
    {", fp16", FUZZ_F16, 12, 5, 1, false, "train.micro_batch_size=1"},
    {", fp8", FUZZ_F8, 12, 7, 1, false, "train.micro_batch_size=1"},
};

static bool fits(const struct fuzz_case *c, int i)
{
    return c->llama && c->dropout == 0 && c->rounding == uneven[i].rounding &&
           c->labels == uneven[i].labels;
}

static void run_uneven(struct round *r, int i)
{
    struct fuzz_case c;
    int number = 100 * i;
    do
        fuzz_make(&c, r->seed, ++number);
    while (!fits(&c, i));
    c.rows = uneven[i].rows;
    c.nranks = uneven[i].nranks;
    c.nnodes = uneven[i].nnodes;
    c.many.nelem = 0;
    fuzz_set(&c.common, "train.global_batch_size=%d", c.rows);
    fuzz_set(&c.many, "%s", uneven[i].setting);
    run_case(r, &c, number, uneven[i].text, false);
}

static void run_all_uneven(uint64_t seed)
{
    struct round r = {.seed = seed};
    const int ncases = (int)(sizeof uneven / sizeof *uneven);
    for (int i = 0; i < ncases; i++)
        run_uneven(&r, i);
    ok(r.ran == ncases && r.uneven == ncases, "all %d ran, and were uneven", ncases);
}

static int number_of(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

int main(void)
{
    struct round r = {.seed = (uint64_t)number_of("FUZZ_SEED", 1)};
    const int alone = number_of("FUZZ_CASE", -1), want = number_of("FUZZ_RAN", 16);
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    if (alone >= 0)
        run_drawn(&r, alone, true);
    else
        run_all_uneven(r.seed);
    for (int i = 0; alone < 0 && r.ran < want && i < 2 * want; i++)
        run_drawn(&r, i, false);
    ok(r.ran >= (alone < 0 ? want : 0),
       "%d cases ran, %d of them uneven, %d against fp64, %d in 16 or 8 bits; %d were refused",
       r.ran, r.uneven, r.wide, r.rounded, r.refused);
    ok(alone >= 0 || (r.uneven * 3 >= r.ran && r.wide * 3 >= r.ran),
       "a third is uneven, and a third is compared with fp64");
    for (int i = 0; i < 4; i++)
        diag("largest, %s, of one rank: loss %.1e, norm %.1e of %g", roundings[i].name,
             r.types[i].loss, r.types[i].norm, roundings[i].unit);
    diag("of fp64: one rank, loss %.1e, norm %.1e; several, loss %.1e, norm %.1e; weights %.1e",
         r.of64[0].loss, r.of64[0].norm, r.of64[1].loss, r.of64[1].norm, r.way);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
