/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for a GPU that is described are those for the CUDA device and its operators, here emulated
 * on the CPU: what the operators ask for, hash, lists and memory.
 */
#include "../models/ref_run.h"
#include "../core/toy_clock.h"

#include "family/stack.h"
#include "fsdp/sys/cuda.h"
#include "nn/cuda_sizes.h"

extern const struct nn_ops nn_cuda_ops;

enum { MAX_ROWS = 40, NDRAWS = 2000 };

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* ---- what operators ask for ------------------------------------------------------------------ */

/* The emulation has no cuDNN, and so plain kernels alone. */
static void test_sizes(const struct nn_ops *described)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    uint64_t seed = 7;
    int nsame = 0;

    for (int i = 0; i < NDRAWS; i++) {
        const enum fsdp_dtype narrow = types[1 + draw(&seed, 2)];
        const struct nn_linear linear = {.rows = 1 + (int)draw(&seed, 300),
                                         .nin = 1 + (int)draw(&seed, 300),
                                         .nout = 1 + (int)draw(&seed, 5000),
                                         .dtype = draw(&seed, 2) ? narrow : FSDP_F32,
                                         .y_dtype = draw(&seed, 2) ? narrow : FSDP_F32,
                                         .w_dtype = draw(&seed, 2) ? narrow : FSDP_F32,
                                         .dw_dtype = draw(&seed, 2) ? narrow : FSDP_F32};
        const int T = 1 + (int)draw(&seed, 200);
        const struct nn_attention attention = {.B = 1 + (int)draw(&seed, 4),
                                               .Tq = T,
                                               .Tk = T,
                                               .NH = 6,
                                               .NKV = 1 + (int)draw(&seed, 3),
                                               .D = 1 + (int)draw(&seed, 140),
                                               .dtype = types[draw(&seed, 3)]};
        const struct nn_grouped experts = {.experts = 1 + (int)draw(&seed, 9),
                                           .nplaces = linear.rows,
                                           .nin = linear.nin,
                                           .nout = linear.nout,
                                           .dtype = linear.dtype,
                                           .w_dtype = linear.w_dtype,
                                           .dw_dtype = linear.dw_dtype,
                                           .f8.dtype = draw(&seed, 2) ? FSDP_F8_E4M3 : FSDP_F32};
        nsame +=
            described->linear_work_nelem(&linear) == nn_cuda_ops.linear_work_nelem(&linear) &&
            described->grouped_work_nelem(&experts) == nn_cuda_ops.grouped_work_nelem(&experts) &&
            described->attention_work_nelem(&attention) ==
                nn_cuda_ops.attention_work_nelem(&attention);
    }
    ok(nsame == NDRAWS, "%d of %d products and attentions ask for as much work", nsame, NDRAWS);
    ok(described->logits_nelem == nn_cuda_ops.logits_nelem &&
           described->logits_align == nn_cuda_ops.logits_align && !strcmp(described->name, "cuda"),
       "so do logits");
}

/* By hand, for gate of Mixtral's 8 experts, of 2,048 tokens: 4,096 places with room for 16 more, as
 * bf16 of width 4,096 and 14,336, next to 8 matrices of 4,096 x 14,336; of two of these the larger
 * ones, with cells for scales and 16 rows in fp32. */
static void test_experts(const struct nn_ops *described)
{
    const size_t x = 4112 * 4096 / 2, dy = 4112 * 14336 / 2, w = (size_t)8 * 4096 * 14336 / 2;
    struct nn_grouped gate = {.experts = 8,
                              .nplaces = 4096,
                              .nin = 4096,
                              .nout = 14336,
                              .dtype = FSDP_BF16,
                              .w_dtype = FSDP_BF16,
                              .f8.dtype = FSDP_F8_E4M3};
    const size_t nelem = described->grouped_work_nelem(&gate), all = 64 + w + dy + 16 * 14336;

    ok(nelem == all && x < dy, "experts in 8 bits take %zu of work, %zu by hand", nelem, all);
    gate.f8.dtype = FSDP_F32;
    ok(!described->grouped_work_nelem(&gate), "in 16 bits they take none");
}

/* By hand, for the attention of a Llama of 8 billion parameters on Hopper: 2 sequences of 4096, 32
 * heads of 128, 8 of keys. */
static void test_cudnn(void)
{
    const struct nn_attention a = {
        .B = 2, .Tq = 4096, .Tk = 4096, .NH = 32, .NKV = 8, .D = 128, .dtype = FSDP_BF16};
    const size_t q = (size_t)2 * 4096 * 32 * 128, k = q / 4, stats = (size_t)2 * 4096 * 32;
    const size_t workspace = 256 + 2 * 2 * q, squares = (size_t)2 * 32 * 4096 * 4096;
    const struct nn_cuda_way plain = {0}, deterministic = {.deterministic = true};

    ok(nn_cuda_cudnn_workspace(&a, plain, true, 90) == workspace &&
           nn_cuda_cudnn_workspace(&a, plain, false, 90) == 256,
       "workspace of cuDNN: dk and dv of each head");
    ok(nn_cuda_cudnn_workspace(&a, plain, true, 80) == workspace + 4 * q, "on Ampere dq once more");
    ok(nn_cuda_cudnn_workspace(&a, deterministic, true, 90) == 256 + 2 * q + squares,
       "deterministic: one sequence, and by the square of its length");
    ok(nn_cuda_cudnn_work_nelem(&a, plain, 256, workspace) ==
           (4 * stats + 4 * q + 2 * q + 2 * 2 * k + workspace + 256) / 4,
       "work: sums, dq in fp32, three gradients, the workspace");
}

/* The same of packed documents: their tables are there besides, and dk and dv of each head are in
 * work, not in the workspace. */
static void test_packed(void)
{
    const struct nn_attention a = {
        .B = 2, .Tq = 4096, .Tk = 4096, .NH = 32, .NKV = 8, .D = 128, .dtype = FSDP_BF16};
    const size_t q = (size_t)2 * 4096 * 32 * 128, k = q / 4, stats = (size_t)2 * 4096 * 32;
    const struct nn_cuda_way packed = {.documents = nn_cuda_documents_step(200)};
    const size_t workspace = nn_cuda_cudnn_workspace(&a, packed, true, 90), table = 1280;

    ok(packed.documents == 256 && nn_cuda_documents_step(3) == 8 &&
           nn_cuda_documents_step(8) == 8 && nn_cuda_documents_step(9) == 16,
       "documents are rounded up to powers of two, from 8 on");
    ok(workspace == 448 * 256 + 1152 && nn_cuda_cudnn_workspace(&a, packed, false, 90) == 66304,
       "packed: workspaces by the number of documents");
    ok(nn_cuda_cudnn_work_nelem(&a, packed, 66304, workspace) ==
           (4 * table + 4 * stats + 4 * q + 2 * q + 2 * 2 * k + 2 * 2 * q + 115968 + 256) / 4,
       "packed: work with tables and the gradients of heads");
}

/* ---- whole plans ----------------------------------------------------------------------------- */

struct planned {
    struct fsdp_device *device;
    struct fsdp_module_tree *tree;
    const struct model_ops *ops;
    struct model *model;
    struct fsdp *f;
};

static void planned_close(struct planned *p)
{
    fsdp_destroy(p->f);
    if (p->model)
        p->ops->destroy(p->model);
    fsdp_module_tree_destroy(p->tree);
    fsdp_device_close(p->device);
}

static int plan(struct planned *p, const struct ref_setup *setup, bool described,
                struct fsdp_mesh_shape shape, struct fsdp_err *err)
{
    const char *config = ref_path(setup->folder, "config.json");
    struct fsdp_opts opts = setup->opts;
    const struct model_dtypes dtypes = {.activation = opts.param_dtype,
                                        .grad = opts.reduce_dtype,
                                        .output = setup->threaded ? FSDP_F32 : opts.param_dtype};

    *p = (struct planned){0};
    FSDP_TRY(model_find(&p->ops, config, err));
    FSDP_TRY(p->ops->create(&p->model, config, err));
    FSDP_TRY(fsdp_module_tree_create(&p->tree, err));
    p->ops->set_dtypes(p->model, &dtypes);
    FSDP_TRY(described ? fsdp_device_describe(&p->device, "cuda", err)
                       : fsdp_device_open_ops(&p->device, &fsdp_device_cuda_ops, 0, 0, err));
    if (described)
        FSDP_TRY(p->ops->set_device(p->model, p->device, err));
    else
        p->model->nn = &nn_cuda_ops;
    FSDP_TRY(p->ops->describe(p->model, p->tree, setup->B, setup->T, err));
    opts.wrap_classes = p->ops->wrap_classes(p->model);
    return fsdp_plan(&p->f, p->tree, &opts, p->device, shape, err);
}

static char *list_of(const struct fsdp *f)
{
    const struct fsdp_clock clock = toy_clock(1000);
    char *text = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&text, &nbytes);

    return to && !fsdp_schedule_print(f, &clock, to, NULL) && !fclose(to) ? text : NULL;
}

static bool alike(const struct fsdp *a, const struct fsdp *b)
{
    struct fsdp_memory_row rows[2][MAX_ROWS];
    const int n = fsdp_memory_plan(a, rows[0], MAX_ROWS);
    char *lists[] = {list_of(a), list_of(b)};
    bool same = fsdp_memory_plan(b, rows[1], MAX_ROWS) == n && lists[0] && lists[1] &&
                !strcmp(lists[0], lists[1]) && fsdp_plan_hash(a) == fsdp_plan_hash(b);

    for (int i = 0; same && i < n; i++) {
        same = !strcmp(rows[0][i].what, rows[1][i].what) &&
               rows[0][i].nbytes == rows[1][i].nbytes && rows[0][i].host == rows[1][i].host &&
               rows[0][i].file == rows[1][i].file;
        if (!same)
            diag("%s: %llu and %llu", rows[0][i].what, (unsigned long long)rows[0][i].nbytes,
                 (unsigned long long)rows[1][i].nbytes);
    }
    free(lists[0]);
    free(lists[1]);
    return same;
}

static void compare(const char *what, const struct ref_setup *setup, struct fsdp_mesh_shape shape)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct planned real, described;
    int rc = plan(&real, setup, false, shape, &err);
    const int rc2 = plan(&described, setup, true, shape, &err);

    ok(!rc && !rc2 && alike(real.f, described.f), "%s of %s: alike %s", what, setup->folder,
       err.text);
    planned_close(&real);
    planned_close(&described);
}

static void test_plans(const char *folder, int T)
{
    struct ref_setup s = {.folder = folder, .B = 2, .T = T, .opts = FSDP_OPTS_INIT};

    compare("fp32, one rank", &s, (struct fsdp_mesh_shape){1, 1, 0, 0, 0});
    s.opts.accumulation = 3;
    s.opts.param_dtype = FSDP_BF16;
    s.threaded = true; /* here: logits in fp32 */
    compare("bf16, logits in fp32, 4 ranks", &s, (struct fsdp_mesh_shape){4, 1, 0, 0, 0});
    s.threaded = false;
    s.opts.reduce_dtype = FSDP_BF16;
    s.opts.activation_checkpointing = FSDP_AC_FULL;
    compare("bf16, checkpointing, 8 x 64 ranks", &s, (struct fsdp_mesh_shape){64, 8, 0, 8, 0});
    s.opts.offload = FSDP_OFFLOAD_PARAMS;
    s.opts.optim.moment_dtype = FSDP_BF16;
    s.opts.optim.master = FSDP_MASTER_SPLIT;
    compare("bf16, offloaded", &s, (struct fsdp_mesh_shape){4, 1, 0, 0, 0});
    s.opts.offload = FSDP_OFFLOAD_OPTIMIZER;
    s.opts.offload_dir = ".";
    compare("bf16, offloaded to files", &s, (struct fsdp_mesh_shape){4, 1, 0, 0, 0});
    s.opts.offload = FSDP_OFFLOAD_PARAMS;
    compare("bf16, and parameters to the host", &s, (struct fsdp_mesh_shape){4, 1, 0, 0, 0});
}

/* Rows of files are apart from those of the host's memory. */
static void test_rows(void)
{
    struct ref_setup s = {.folder = "llama-tiny", .B = 1, .T = 16, .opts = FSDP_OPTS_INIT};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_memory_row rows[MAX_ROWS];
    uint64_t sums[3] = {0}; /* device, host, file */
    struct planned p;

    s.opts.offload = FSDP_OFFLOAD_OPTIMIZER;
    s.opts.offload_dir = ".";
    if (!plan(&p, &s, true, (struct fsdp_mesh_shape){1, 1, 0, 0, 0}, &err))
        for (int i = fsdp_memory_plan(p.f, rows, MAX_ROWS) - 1; i >= 0; i--)
            sums[rows[i].file ? 2 : rows[i].host] += rows[i].nbytes;
    ok(sums[0] && sums[1] && sums[2] && sums[1] != sums[2],
       "rows of device (%llu), host (%llu: pinned, on the way) and file (%llu)",
       (unsigned long long)sums[0], (unsigned long long)sums[1], (unsigned long long)sums[2]);
    planned_close(&p);
}

int main(void)
{
    setenv("FSDP_CUDA_ATTENTION", "plain", 1); /* as in a build without cuDNN */
    test_sizes(nn_cuda_described_ops(90));
    test_experts(nn_cuda_described_ops(90));
    test_cudnn();
    test_packed();
    test_plans("llama-tiny", 16);
    test_plans("gpt2-tiny", 16);
    test_rows();
    return tap_done();
}
