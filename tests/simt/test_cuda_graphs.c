/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers as CUDA graphs (model.cuda_graphs), on the CUDA device emulated on the CPU: training and
 * evaluation have the bits of runs without them, graphs are launched, and a graph is taken for no
 * other block than its own.
 * run: long
 * run: timeout=600
 */
#include "cuda_runtime_api.h"

#include "cuda_train.h"

enum { STEPS = 4, T = 16, SHORT_T = 9 };

struct outcome {
    double loss[STEPS], norm[STEPS], eval[STEPS];
    struct stack_graph_counts counts;
    struct simt_graph_counts graphs;
    int left; /* graphs that are there at the end */
};

struct graphs_run {
    struct ref_setup setup;
    const int32_t *tokens;
    struct outcome *out;
};

static void use_cuda(struct model *m)
{
    m->nn = &nn_cuda_ops;
}

static void use_graphs(struct model *m)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    use_cuda(m);
    if (stack_set_graphs(m, &err))
        fprintf(stderr, "%s\n", err.text);
}

/* The device's value of a sum, once all of its work ran. */
static int read_sum(struct ref_rank *r, double *out, const double *sum, struct fsdp_err *err)
{
    struct fsdp_lane *lane;

    FSDP_TRY(fsdp_sync(r->f, err));
    FSDP_TRY(fsdp_lane_create(&lane, r->device, "read", err));
    int rc = fsdp_copy(lane, out, sum, sizeof *out, err);
    rc = rc ? rc : fsdp_lane_sync(lane, err);
    fsdp_lane_destroy(lane);
    return rc;
}

/* A batch, and one of fewer and shorter rows. */
static int evaluate(struct ref_rank *r, const struct ref_setup *setup, const int32_t *tokens,
                    double *loss, struct fsdp_err *err)
{
    double *sum = fsdp_device_alloc(r->device, sizeof *sum, "sum", err);
    int rc = sum ? FSDP_OK : FSDP_ENOMEM;

    for (int i = 0; i < 2 && !rc; i++) {
        struct model_batch batch = {
            .tokens = tokens, .B = i ? setup->B - 1 : setup->B, .T = i ? SHORT_T : setup->T};
        rc = fsdp_micro_begin(r->f, FSDP_EVAL, 0, err);
        rc = rc ? rc : r->ops->run(r->model, r->f, &batch, false, sum, err);
        rc = rc ? rc : fsdp_micro_end(r->f, err);
    }
    rc = rc ? rc : read_sum(r, loss, sum, err);
    fsdp_device_free(r->device, sum);
    return rc;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct graphs_run *run = arg;
    struct ref_rank r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ref_rank_open(&r, &run->setup, oob, nodes, &err);

    for (int s = 0; s < STEPS && !rc; s++) {
        const struct fsdp_step_args args = {.step = s, .lr = 1e-2};
        const int32_t *tokens = run->tokens + s * TRAIN_ROWS * (T + 1);
        rc = ref_rank_step(&r, &run->setup, tokens, TRAIN_ROWS, args, &run->out->loss[s],
                           &run->out->norm[s], &err);
        rc = rc ? rc : evaluate(&r, &run->setup, tokens, &run->out->eval[s], &err);
    }
    if (rc)
        fprintf(stderr, "%s: %s\n", fsdp_status_name(rc), err.text);
    run->out->graphs = simt_graphs();
    if (!rc)
        run->out->counts = stack_graph_counts(r.model);
    ref_rank_close(&r);
    run->out->left = simt_graphs().there;
    return rc != 0;
}

static bool runs(struct ref_setup setup, const int32_t *tokens, struct outcome *out)
{
    struct graphs_run run = {.setup = setup, .tokens = tokens, .out = out};
    return ranks_run(1, 1, 200, rank_main, &run, NULL) == 0;
}

static bool same_bits(const struct outcome *a, const struct outcome *b)
{
    return !memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->norm, b->norm, sizeof a->norm) &&
           !memcmp(a->eval, b->eval, sizeof a->eval);
}

static struct ref_setup setup_of(const char *folder)
{
    struct ref_setup setup = {.folder = folder, .B = 2, .T = T, .opts = FSDP_OPTS_INIT};

    setup.opts.accumulation = 2;
    setup.device_ops = &fsdp_device_cuda_ops;
    return setup;
}

/* Without and with graphs, in shared memory of two. */
static bool compare(struct ref_setup setup, int vocab, void (*with)(struct model *),
                    struct outcome *both)
{
    int32_t tokens[STEPS * TRAIN_ROWS * (T + 1)];

    train_fill(tokens, STEPS * TRAIN_ROWS * (T + 1), vocab);
    setup.use_ops = use_cuda;
    if (!runs(setup, tokens, &both[0]))
        return false;
    setup.use_ops = with;
    return runs(setup, tokens, &both[1]) && both[0].loss[0] > 1 && both[0].eval[0] > 1;
}

static void test_same(const char *what, struct ref_setup setup, int vocab)
{
    struct outcome *both = ref_shared(2 * sizeof *both);
    const bool ran = compare(setup, vocab, use_graphs, both);
    const struct outcome *with = &both[1];

    ok(ran && same_bits(&both[0], with), "%s: the same bits with graphs", what);
    ok(ran && with->counts.captured > 0 && with->counts.launched > 2 * with->counts.captured &&
           with->graphs.launched == with->counts.launched &&
           with->graphs.there == with->counts.captured && with->left == 0,
       "%s: %d graphs were launched %d times, and %d are left", what, (int)with->counts.captured,
       (int)with->counts.launched, with->left);
    ok(both[0].graphs.launched == 0, "%s: none without the setting", what);
    munmap(both, 2 * sizeof *both);
}

static void test_families(void)
{
    struct ref_setup llama = setup_of("llama-tiny"), gpt2 = setup_of("gpt2-tiny");

    test_same("Llama", llama, 256);
    test_same("GPT-2", gpt2, 211);
    llama.opts.activation_checkpointing = FSDP_AC_FULL;
    gpt2.opts.activation_checkpointing = FSDP_AC_SELECTIVE;
    llama.opts.sharding_strategy = FSDP_NO_SHARD;
    test_same("Llama, replicated and recomputed", llama, 256);
    test_same("GPT-2, attention recomputed", gpt2, 211);
    llama.opts.param_dtype = llama.opts.reduce_dtype = FSDP_BF16;
    test_same("Llama in bf16", llama, 256);
}

/* ---- captures that fail ---------------------------------------------------------------------- */

static void use_failing_graphs(struct model *m)
{
    use_graphs(m);
    simt_fail_graphs(cudaErrorMemoryAllocation);
}

static const struct nn_ops *plain_ops;
static struct nn_ops waiting_ops;

/* An operator that a graph has no place for: it waits. */
static int wait_and_scale(struct fsdp_lane *lane, const struct nn_glu *args, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_lane_sync(lane, err));
    return plain_ops->glu_forward(lane, args, err);
}

static void use_waiting_operator(struct model *m)
{
    use_graphs(m);
    plain_ops = m->nn;
    waiting_ops = *m->nn;
    waiting_ops.glu_forward = wait_and_scale;
    m->nn = &waiting_ops;
}

static void test_failures(void)
{
    struct outcome *both = ref_shared(2 * sizeof *both);
    bool ran = compare(setup_of("llama-tiny"), 256, use_failing_graphs, both);

    ok(ran && same_bits(&both[0], &both[1]) && both[1].counts.launched == 0 && both[1].left == 0,
       "graphs that cannot be made: the bits of a run without");
    ran = compare(setup_of("llama-tiny"), 256, use_waiting_operator, both);
    ok(ran && same_bits(&both[0], &both[1]) && both[1].counts.captured > 0,
       "an operator that waits: its lists run without, %d others as graphs",
       (int)both[1].counts.captured);
    munmap(both, 2 * sizeof *both);
}

/* ---- whose graph it is ----------------------------------------------------------------------- */

/* A model's MLP on memory of its own: areas, of which each holds any of its tensors. */
struct bench {
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct model *m;
    float *memory, *host;
};

enum { AREA = 1 << 14, NAREAS = 12 };

static int bench_open(struct bench *b, struct fsdp_err *err)
{
    memset(b, 0, sizeof *b);
    FSDP_TRY(stack_create(&b->m, ref_path("llama-tiny", "config.json"), err));
    use_graphs(b->m);
    FSDP_TRY(fsdp_device_open_ops(&b->device, &fsdp_device_cuda_ops, 0, 0, err));
    FSDP_TRY(fsdp_lane_create(&b->lane, b->device, "bench", err));
    const size_t nbytes = (size_t)AREA * NAREAS * sizeof *b->memory;
    b->memory = fsdp_device_alloc(b->device, nbytes, "bench", err);
    b->host = fsdp_host_alloc(b->device, nbytes, "bench", err);
    return b->memory && b->host ? FSDP_OK : FSDP_ENOMEM;
}

static void bench_close(struct bench *b)
{
    stack_destroy(b->m);
    fsdp_host_free(b->device, b->host);
    fsdp_device_free(b->device, b->memory);
    fsdp_lane_destroy(b->lane);
    fsdp_device_close(b->device);
}

/* Area i begins with other numbers than the others. */
static int bench_fill(struct bench *b, struct fsdp_err *err)
{
    for (int i = 0; i < AREA * NAREAS; i++)
        b->host[i] = (float)((unsigned)i * 2654435761u >> 8 & 1023) / 10240 - .05f;
    FSDP_TRY(fsdp_copy(b->lane, b->memory, b->host, (size_t)AREA * NAREAS * sizeof *b->host, err));
    return fsdp_lane_sync(b->lane, err);
}

static float *area(const struct bench *b, int i)
{
    return b->memory + (size_t)i * AREA;
}

/* An MLP on one row, from area 0 on. */
static struct stack_block bench_block(const struct bench *b)
{
    struct stack_block blk = {.lane = b->lane, .dtype = FSDP_F32, .B = 1, .Tq = 1, .Tk = 1};
    const enum stack_slot slots[] = {STACK_NORM2, STACK_GATE, STACK_UP, STACK_DOWN};

    for (int i = 0; i < 4; i++)
        blk.param[b->m->place[slots[i]].weight].w = area(b, i);
    blk.in = blk.out = area(b, 4);
    blk.norm = area(b, 5);
    blk.act = area(b, 6);
    blk.gate = area(b, 7);
    blk.up = area(b, 8);
    blk.rstd[STACK_NORM2] = area(b, 9);
    return blk;
}

/* Fills memory, runs the block's MLP, and has what it left in `host`. */
static int bench_run(struct bench *b, const struct stack_block *blk, struct fsdp_err *err)
{
    const size_t nbytes = (size_t)AREA * NAREAS * sizeof *b->host;

    FSDP_TRY(bench_fill(b, err));
    FSDP_TRY(stack_run_list(b->m, blk, STACK_MLP_FORWARD, true, err));
    FSDP_TRY(fsdp_copy(b->lane, b->host, b->memory, nbytes, err));
    return fsdp_lane_sync(b->lane, err);
}

/* Blocks that differ in one thing from the one that was captured. */
static struct stack_block other_block(const struct bench *b, int what)
{
    struct stack_block blk = bench_block(b);

    if (what == 0)
        blk.in = blk.out = area(b, 10);
    else if (what == 1)
        blk.param[b->m->place[STACK_GATE].weight].w = area(b, 10);
    else if (what == 2)
        blk.gate = area(b, 10);
    else
        blk.mid = area(b, 10);
    return blk;
}

/* The bits of the block's MLP without graphs. */
static bool is_right(struct bench *b, const struct stack_block *blk, struct fsdp_err *err)
{
    struct stack_graphs *graphs = b->m->graphs;
    const size_t nbytes = (size_t)AREA * NAREAS * sizeof *b->host;
    float *made = malloc(nbytes);
    bool right = made && !bench_run(b, blk, err);

    if (right)
        memcpy(made, b->host, nbytes);
    b->m->graphs = NULL;
    right = right && !bench_run(b, blk, err) && !memcmp(made, b->host, nbytes);
    b->m->graphs = graphs;
    free(made);
    return right;
}

static void test_key(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct bench b;
    bool right = bench_open(&b, &err) == FSDP_OK;
    const struct stack_block blk = right ? bench_block(&b) : (struct stack_block){0};

    for (int i = 0; i < 4 && right; i++)
        right = is_right(&b, &blk, &err);
    ok(right && stack_graph_counts(b.m).captured == 1 && stack_graph_counts(b.m).launched == 3,
       "a block that comes again is launched as its graph: %s", right ? "three times" : err.text);
    for (int i = 0; i < 4; i++) {
        const struct stack_block other = other_block(&b, i);
        const int64_t launched = stack_graph_counts(b.m).launched;
        ok(right && is_right(&b, &other, &err) && stack_graph_counts(b.m).launched == launched,
           "a block with another pointer (%d) is not: it has its own results", i);
    }
    for (int i = 0; i < 20 && right; i++) {
        struct stack_block shape = blk;
        shape.documents = i + 1;
        for (int j = 0; j < 2 && right; j++)
            right = is_right(&b, &shape, &err);
    }
    /* This block, four of other pointers that came once, and three of these. */
    ok(right && simt_graphs().there == 4 && stack_graph_counts(b.m).captured == 4,
       "of one list at most 8 blocks are kept: %d graphs", simt_graphs().there);
    const int64_t before = stack_graph_counts(b.m).launched;
    ok(right && is_right(&b, &blk, &err) && stack_graph_counts(b.m).launched == before + 1,
       "and the first ones stay");
    bench_close(&b);
}

int main(void)
{
    test_failures();
    test_families();
    test_key(); /* in this process, whose counts others would begin with */
    return tap_done();
}
