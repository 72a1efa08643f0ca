/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every strategy, data type policy, accumulation, activation checkpointing, prefetch, number of
 * ranks and of nodes, each with each level of every other (cover.h), against one process in fp32:
 * three steps of a small Llama. With COVER_TABLE a path, the rows are written there (make table).
 * run: timeout=400
 */
#include "cover.h"
#include "ref_run.h"

enum { STEPS = 3, LEN = 16, MAX_ROWS = 36, NTOKENS = STEPS * MAX_ROWS * (LEN + 1) };

enum { STRATEGY, DTYPES, ACCUMULATION, AC, PREFETCH, RANKS, NODES };

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

/* Bounds: of the loss absolute, of the gradient norm relative. fp32 differs by the order of sums;
 * 16 bits by the precision of what is gathered, computed with and reduced. */
static const struct {
    const char *name;
    enum fsdp_dtype param, reduce;
    double loss, norm;
} dtypes[] = {
    {"fp32", FSDP_F32, FSDP_F32, 3e-7, 1e-6},
    {"bf16, reduce fp32", FSDP_BF16, FSDP_F32, 1e-3, 4e-3},
    {"bf16", FSDP_BF16, FSDP_BF16, 1e-3, 4e-3},
    {"fp16", FSDP_F16, FSDP_F16, 2e-4, 5e-4},
};

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
    int nskipped;
};

struct run {
    struct cell cell;
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
    if (rc)
        fprintf(stderr, "rank %d: %s: %s\n", oob->rank, fsdp_status_name(rc), err.text);
    ref_rank_close(&r);
    return rc != 0;
}

static bool run_cell(struct outcome *out, const struct cell *cell)
{
    struct run run = {*cell, ref_shared(sizeof *out)};
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
    opts->strategy = strategies[row[STRATEGY]].strategy;
    opts->reshard_after_forward = strategies[row[STRATEGY]].reshard;
    opts->overrides = &kept;
    opts->noverrides = strategies[row[STRATEGY]].layer_kept;
    opts->param_dtype = dtypes[row[DTYPES]].param;
    opts->reduce_dtype = dtypes[row[DTYPES]].reduce;
    opts->scaler.init = 1024; /* nothing overflows, so that no step is skipped */
    opts->accumulation = accumulations[row[ACCUMULATION]].count;
    opts->reduce_last = accumulations[row[ACCUMULATION]].last;
    opts->activation_checkpointing = row[AC];
    opts->forward_prefetch = opts->backward_prefetch = prefetches[row[PREFETCH]].depth;
    opts->limit_all_gathers = prefetches[row[PREFETCH]].limit;
    opts->grad_buffers = prefetches[row[PREFETCH]].grad_buffers;
    return c;
}

/* One process, fp32, nothing special, on as many rows. */
static bool reference_of(struct outcome *out, int nrows)
{
    static struct outcome known[MAX_ROWS + 1];
    struct cell one = {.nranks = 1, .nnodes = 1, .nrows = nrows};
    one.setup =
        (struct ref_setup){.folder = "llama-tiny", .B = nrows, .T = LEN, .opts = FSDP_OPTS_INIT};
    bool good = known[nrows].loss[0] > 0 || run_cell(&known[nrows], &one);
    *out = known[nrows];
    return good && out->loss[STEPS - 1] > 1;
}

static void check_row(const int row[COVER_FACTORS], FILE *table)
{
    struct outcome got, want;
    const struct cell c = cell_of(row);
    char what[200];
    double loss = 0, norm = 0;

    snprintf(what, sizeof what, "%s | %s | %s | %s | %s | %d | %d", strategies[row[STRATEGY]].name,
             dtypes[row[DTYPES]].name, accumulations[row[ACCUMULATION]].name,
             checkpointing[row[AC]], prefetches[row[PREFETCH]].name, c.nranks, c.nnodes);
    if (!ok(reference_of(&want, c.nrows) && run_cell(&got, &c), "%s: runs", what))
        return;
    for (int s = 0; s < STEPS; s++) {
        loss = fmax(loss, fabs(got.loss[s] - want.loss[s]));
        norm = fmax(norm, fabs(got.norm[s] - want.norm[s]) / want.norm[s]);
    }
    ok(loss <= dtypes[row[DTYPES]].loss && norm <= dtypes[row[DTYPES]].norm,
       "%s: loss within %.1e, norm %.1e", what, loss, norm);
    if (table)
        fprintf(table, "| %s | %.1e | %.1e |\n", what, loss, norm);
}

static void begin_table(FILE *table, const struct cover *c)
{
    fprintf(
        table,
        "# What was compared\n\n"
        "Made by `make table`. Three steps of a Llama of two layers with the settings of each row, "
        "against one process in plain\nfp32: the largest difference of the loss, and that of "
        "the gradient norm, relative. The %d rows hold every pair of\nvalues of two columns "
        "that can occur, %d in all (`tests/models/test_cover.c`).\n\n"
        "| data types | loss within | norm within |\n| --- | --- | --- |\n",
        c->nrows, c->npairs);
    for (int i = 0; i < COUNT(dtypes); i++)
        fprintf(table, "| %s | %.0e | %.0e |\n", dtypes[i].name, dtypes[i].loss, dtypes[i].norm);
    fprintf(table,
            "\n| strategy | data types | accumulation | recomputed | prefetch | ranks | nodes "
            "| loss | norm |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
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
