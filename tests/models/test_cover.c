/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every strategy, data type policy, accumulation, activation checkpointing, prefetch, number of
 * ranks and of nodes, each with each level of every other (cover.h): three steps of a small Llama
 * against the same in double precision (llama64.h), and the fp32 rows against one process too.
 * With COVER_TABLE a path, the rows are written there (make table).
 *
 * run: timeout=400
 */
#include "cover.h"
#include "llama64.h"
#include "ref_run.h"

enum { STEPS = 3, LEN = 16, MAX_ROWS = 36, NTOKENS = STEPS * MAX_ROWS * (LEN + 1) };

enum { STRATEGY, DTYPES, ACCUMULATION, AC, PREFETCH, RANKS, NODES };
enum { FP32 }; /* of dtypes[] */

static const struct {
    const char *name;
    enum fsdp_strategy strategy;
    int reshard;
    bool two_level, by_node, layer_kept;
} strategies[] = {
    {.name = "FULL_SHARD", .strategy = FSDP_FULL_SHARD, .reshard = -1},
    {.name = "FULL_SHARD, two levels", .reshard = -1, .two_level = true, .by_node = true},
    {.name = "FULL_SHARD, reshard 2", .reshard = 2},
    {.name = "FULL_SHARD, layer 0 kept", .reshard = -1, .layer_kept = true},
    {.name = "SHARD_GRAD_OP", .strategy = FSDP_SHARD_GRAD_OP, .reshard = -1},
    {.name = "NO_SHARD", .strategy = FSDP_NO_SHARD, .reshard = -1},
    {.name = "HYBRID_SHARD", .strategy = FSDP_HYBRID_SHARD, .reshard = -1, .by_node = true},
    {.name = "HYBRID_SHARD_ZERO2",
     .strategy = FSDP_HYBRID_SHARD_ZERO2,
     .reshard = -1,
     .by_node = true},
    {.name = "ZERO1", .strategy = FSDP_ZERO1, .reshard = -1},
};

/* How far from the reference: the loss, absolute; the gradient norm, relative; the way of the
 * weights from the first step to the last, relative in the 2-norm. */
struct gap {
    double loss, norm, weights;
};

/* Bounds, some three times what is measured: fp32 differs by its roundings, 16 bits by the
 * precision of the gathered copy, computed with and reduced. */
static const struct {
    const char *name;
    enum fsdp_dtype param, reduce;
    struct gap bound;
} dtypes[] = {
    [FP32] = {"fp32", FSDP_F32, FSDP_F32, {2e-7, 3e-7, 2e-4}},
    {"bf16, reduce fp32", FSDP_BF16, FSDP_F32, {7e-4, 3e-3, 0.2}},
    {"bf16", FSDP_BF16, FSDP_BF16, {9e-4, 3e-3, 0.2}},
    {"fp16", FSDP_F16, FSDP_F16, {2e-4, 3e-4, 0.05}},
};

/* Between an fp32 row and one process: the order of sums, and what Adam makes of gradients near 0.
 */
static const struct gap one_process = {.loss = 3e-7, .norm = 4e-7};

static const struct {
    const char *name;
    int count;
    bool last;
} accumulations[] = {
    {"1", 1, false}, {"2", 2, false}, {"3", 3, false}, {"3, reduced last", 3, true}};

static const char *const checkpointing[] = {"none", "full", "selective"};

static const struct {
    const char *name;
    int depth, limit, grad_buffers;
} prefetches[] = {{"0", 0, 2, 1}, {"1", 1, 2, 2}, {"2", 2, 3, 3}, {"4, no limit", 4, 0, 2}};

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static bool valid(const int row[COVER_FACTORS])
{
    const int nranks = row[RANKS] + 1, nnodes = row[NODES] + 1;
    if (nnodes > nranks || (strategies[row[STRATEGY]].by_node && nranks % nnodes))
        return false;
    return strategies[row[STRATEGY]].reshard < 2 || nranks % strategies[row[STRATEGY]].reshard == 0;
}

struct cell {
    struct ref_setup setup;
    int nranks, nnodes, nrows;
};

struct outcome {
    double loss[STEPS], norm[STEPS];
    double weights; /* gap to the reference */
};

struct run {
    struct cell cell;
    struct l64_model *want;
    struct outcome *out;
};

/* The same text for everybody, whatever the number of rows. */
static const int32_t *tokens_of(int step)
{
    static int32_t tokens[NTOKENS];
    uint32_t state = 1;
    for (int i = 0; i < NTOKENS; i++) {
        state = state * 1664525 + 1013904223;
        tokens[i] = (int32_t)(state >> 24);
    }
    return tokens + step * MAX_ROWS * (LEN + 1);
}

/* Squares of the difference of weights, and of the way they went, in this rank's slices. */
struct way {
    struct l64_model *want;
    double sums[2];
};

static int compare_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                         const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct way *way = ctx;
    const uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    const uint64_t at = slice->box.offset[0] * fsdp_tensor_row_nelem(&slice->tensor);

    if (kind != FSDP_SLICE_MODEL || !nelem)
        return FSDP_OK;
    const struct l64_param *param = l64_find(way->want, slice->tensor.name);
    float *got = malloc(nelem * sizeof *got);
    int rc = io->read(io->ctx, 0, got, nelem * sizeof *got, err);
    for (uint64_t i = 0; i < nelem && !rc; i++) {
        way->sums[0] += pow((double)got[i] - param->w.v[at + i], 2);
        way->sums[1] += pow(param->first[at + i] - param->w.v[at + i], 2);
    }
    free(got);
    return rc;
}

static int compare_weights(struct run *run, struct ref_rank *r, struct fsdp_oob *oob,
                           struct fsdp_err *err)
{
    struct way way = {.want = run->want};
    double all[6][2], diff = 0, size = 0;

    FSDP_TRY(fsdp_sync(r->f, err));
    FSDP_TRY(fsdp_state_each(r->f, compare_slice, &way, err));
    FSDP_TRY(oob->allgather(oob, way.sums, sizeof way.sums, all, err));
    for (int rank = 0; rank < oob->size; rank++) {
        diff += all[rank][0];
        size += all[rank][1];
    }
    if (oob->rank == 0)
        run->out->weights = sqrt(diff / size);
    return FSDP_OK;
}

static int train(struct run *run, struct ref_rank *r, struct fsdp_err *err)
{
    const struct cell *c = &run->cell;
    for (int step = 0; step < STEPS; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 1e-3};
        double loss, norm;
        FSDP_TRY(ref_rank_step(r, &c->setup, tokens_of(step), c->nrows, args, &loss, &norm, err));
        if (r->mesh->rank)
            continue;
        run->out->loss[step] = loss;
        run->out->norm[step] = norm;
    }
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct ref_rank r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ref_rank_open(&r, &run->cell.setup, oob, nodes, &err);
    if (!rc)
        rc = train(run, &r, &err);
    if (!rc)
        rc = compare_weights(run, &r, oob, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s: %s\n", oob->rank, fsdp_status_name(rc), err.text);
    ref_rank_close(&r);
    return rc != 0;
}

static bool run_cell(struct outcome *out, const struct cell *cell, struct l64_model *want)
{
    struct run run = {*cell, want, ref_shared(sizeof *out)};
    bool good = ranks_run(cell->nranks, cell->nnodes, 100, rank_main, &run, NULL) == 0;
    *out = *run.out;
    munmap(run.out, sizeof *run.out);
    return good;
}

static struct cell cell_of(const int row[COVER_FACTORS])
{
    static const struct fsdp_unit_override kept = {.module = "model.layers.0",
                                                   .param_dtype = FSDP_KEEP,
                                                   .reduce_dtype = FSDP_KEEP,
                                                   .reshard_after_forward = 0};
    struct cell c = {.nranks = row[RANKS] + 1, .nnodes = row[NODES] + 1};
    struct fsdp_opts *opts = &c.setup.opts;
    const int parts = c.nranks * accumulations[row[ACCUMULATION]].count;

    c.nrows = (24 + parts - 1) / parts * parts;
    c.setup = (struct ref_setup){.folder = "llama-tiny",
                                 .B = c.nrows / parts,
                                 .T = LEN,
                                 .two_level = strategies[row[STRATEGY]].two_level,
                                 .opts = FSDP_OPTS_INIT};
    opts->sharding_strategy = strategies[row[STRATEGY]].strategy;
    opts->reshard_after_forward = strategies[row[STRATEGY]].reshard;
    opts->unit_overrides = &kept;
    opts->nunit_overrides = strategies[row[STRATEGY]].layer_kept;
    opts->param_dtype = dtypes[row[DTYPES]].param;
    opts->reduce_dtype = dtypes[row[DTYPES]].reduce;
    opts->loss_scale.init = 1024; /* nothing overflows, so that no step is skipped */
    opts->accumulation = accumulations[row[ACCUMULATION]].count;
    opts->reduce_last = accumulations[row[ACCUMULATION]].last;
    opts->activation_checkpointing = row[AC];
    opts->forward_prefetch = opts->backward_prefetch = prefetches[row[PREFETCH]].depth;
    opts->limit_all_gathers = prefetches[row[PREFETCH]].limit;
    opts->grad_buffers = prefetches[row[PREFETCH]].grad_buffers;
    return c;
}

/* What a number of rows is held to: one process in fp32, nothing special; and double precision. */
struct reference {
    struct outcome one, wide;
    struct l64_model model;
    bool good;
};

static void make_reference(struct reference *ref, int nrows)
{
    struct ref_tensors weights = ref_tensors_open(ref_path("llama-tiny", "model.safetensors"));
    struct cell one = {.nranks = 1, .nnodes = 1, .nrows = nrows};
    one.setup =
        (struct ref_setup){.folder = "llama-tiny", .B = nrows, .T = LEN, .opts = FSDP_OPTS_INIT};
    ref->model.shape = l64_tiny;
    ref->model.optim = l64_defaults;
    for (int s = 0; s < STEPS; s++)
        l64_step_rows(&ref->model, &weights, tokens_of(s), nrows, LEN, 1e-3, &ref->wide.loss[s],
                      &ref->wide.norm[s]);
    ref_tensors_close(&weights);
    ref->good = run_cell(&ref->one, &one, &ref->model) && ref->one.loss[STEPS - 1] > 1;
}

static struct reference *reference_of(int nrows)
{
    static struct reference *known[MAX_ROWS + 1];
    if (!known[nrows]) {
        known[nrows] = calloc(1, sizeof **known);
        make_reference(known[nrows], nrows);
    }
    return known[nrows];
}

static struct gap gap_between(const struct outcome *got, const struct outcome *want)
{
    struct gap gap = {.weights = got->weights};
    for (int s = 0; s < STEPS; s++) {
        gap.loss = fmax(gap.loss, fabs(got->loss[s] - want->loss[s]));
        gap.norm = fmax(gap.norm, fabs(got->norm[s] - want->norm[s]) / want->norm[s]);
    }
    return gap;
}

static void check_row(const int row[COVER_FACTORS], FILE *table)
{
    const struct cell c = cell_of(row);
    struct reference *ref = reference_of(c.nrows);
    struct outcome got = {0};
    char what[200];

    snprintf(what, sizeof what, "%s | %s | %s | %s | %s | %d | %d", strategies[row[STRATEGY]].name,
             dtypes[row[DTYPES]].name, accumulations[row[ACCUMULATION]].name,
             checkpointing[row[AC]], prefetches[row[PREFETCH]].name, c.nranks, c.nnodes);
    if (!ok(ref->good && run_cell(&got, &c, &ref->model), "%s: runs", what))
        return;
    const struct gap wide = gap_between(&got, &ref->wide), one = gap_between(&got, &ref->one);
    const struct gap bound = dtypes[row[DTYPES]].bound;
    ok(wide.loss <= bound.loss && wide.norm <= bound.norm && wide.weights <= bound.weights,
       "%s: of fp64, loss within %.1e, norm %.1e, weights %.1e", what, wide.loss, wide.norm,
       wide.weights);
    if (table)
        fprintf(table, "| %s | %.1e | %.1e | %.1e |", what, wide.loss, wide.norm, wide.weights);
    if (row[DTYPES] == FP32)
        ok(one.loss <= one_process.loss && one.norm <= one_process.norm,
           "%s: of one process, loss within %.1e, norm %.1e", what, one.loss, one.norm);
    if (table && row[DTYPES] == FP32)
        fprintf(table, " %.1e | %.1e |\n", one.loss, one.norm);
    else if (table)
        fprintf(table, " | |\n");
}

static void begin_table(FILE *table, const struct cover *c)
{
    fprintf(table,
            "# What was compared\n\n"
            "Made by `make table`. Three steps of a Llama of two layers with the settings of each "
            "row, against the same steps in\ndouble precision, written down as plain loops "
            "(`tests/models/llama64.h`): the largest difference of the loss; that of\nthe gradient "
            "norm, relative; and the difference of all weights after the last step, relative to "
            "the total change of the weights. The\nfp32 rows are also held to one process in fp32 "
            "(the last two "
            "columns, within %.0e and %.0e), from which the order of\nsums alone divides them. The "
            "%d rows hold every pair of values of two columns that can occur, %d in all\n"
            "(`tests/models/test_cover.c`).\n\n"
            "| data types | loss within | norm within | weights within |\n"
            "| --- | --- | --- | --- |\n",
            one_process.loss, one_process.norm, c->nrows, c->npairs);
    for (int i = 0; i < COUNT(dtypes); i++)
        fprintf(table, "| %s | %.0e | %.0e | %.0e |\n", dtypes[i].name, dtypes[i].bound.loss,
                dtypes[i].bound.norm, dtypes[i].bound.weights);
    fprintf(table,
            "\n| strategy | data types | accumulation | recomputed | prefetch | ranks | nodes "
            "| loss | norm | weights | of one: loss | norm |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
}

int main(void)
{
    struct cover cover = {.nlevels = {[STRATEGY] = COUNT(strategies),
                                      [DTYPES] = COUNT(dtypes),
                                      [ACCUMULATION] = COUNT(accumulations),
                                      [AC] = COUNT(checkpointing),
                                      [PREFETCH] = COUNT(prefetches),
                                      [RANKS] = 6,
                                      [NODES] = 3},
                          .valid = valid};
    const char *path = getenv("COVER_TABLE");
    FILE *table = path ? fopen(path, "w") : NULL;

    cover_make(&cover);
    ok(cover.nrows < COVER_MAX_ROWS && cover.npairs > 300, "%d rows cover %d pairs", cover.nrows,
       cover.npairs);
    if (table)
        begin_table(table, &cover);
    for (int i = 0; i < cover.nrows; i++)
        check_row(cover.rows[i], table);
    ok(!path || (table && !fclose(table)), "the table is written where it is asked for");
    return tap_done();
}
