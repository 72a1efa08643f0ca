/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masters in fp32, parameters gathered in param_dtype, gradients reduced in reduce_dtype. Modules
 * check that each parameter they see is its master, rounded once; gradients, which with beta1 = 0
 * are the first moment, are compared element by element with fp64 sums of what the modules
 * computed. The bound is a rounding of the sum of magnitudes wherever one happens.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fsdp/fsdp.h"
#include "ranks.h"
#include "tap.h"
#include "toy_clock.h"

enum { NBLOCKS = 3, STEPS = 3, MAX_PARAMS = 12, MAX_NELEM = 512 };

struct net {
    struct fsdp_module_tree *tree;
    int root, embed, block[NBLOCKS], head, tied;
};

enum {
    LAST = 1,
    THREADED = 2,
    OVERRIDDEN = 4,
    ENCODED = 8,
    TWO_LEVEL = 16,
    ODD = 32,
    LONE = 64,
    CODES = 128 /* modules take matrices in codes, except "scale" */
};              /* cell.how */
struct cell {
    int nranks, nnodes, accumulation;
    enum fsdp_strategy strategy;
    enum fsdp_dtype param, reduce;
    unsigned how;
    int regather; /* 0: not */
};

struct board {
    float master[MAX_PARAMS][MAX_NELEM], grad[MAX_PARAMS][MAX_NELEM];
    float seen[MAX_PARAMS][MAX_NELEM]; /* what modules must see of the masters */
    int bad_param, bad_grad, bad_dtype, still;
    int in_codes; /* elements that modules saw so */
    int coarser;  /* elements whose master has more bits than modules see */
    double worst; /* error of a gradient in parts of its bound */
};

struct run {
    struct cell cell;
    struct board *board;
    struct net net;
    struct fsdp_lane *lane; /* of the modules */
    int rank, step;
};

/* ---- the model ------------------------------------------------------------------------------ */

/* A block's "u" has the greater values: "w" has the scale of both. */
static bool has_shared_scale(const char *name)
{
    const size_t len = strlen(name);
    return len > 2 && (!strcmp(name + len - 2, ".w") || !strcmp(name + len - 2, ".u"));
}

static void add(struct net *n, int module, const char *name, int ndim, uint64_t rows, uint64_t cols,
                unsigned flags)
{
    const uint64_t shape[2] = {rows, cols};
    const struct fsdp_init init = {FSDP_INIT_NORMAL, strstr(name, ".u") ? 100.0f : 1.0f};
    int index;
    if (fsdp_module_add_param(n->tree, module,
                              &(struct fsdp_param_desc){.name = name,
                                                        .ndim = ndim,
                                                        .shape = shape,
                                                        .init = init,
                                                        .flags = flags,
                                                        .scale_group = has_shared_scale(name)},
                              &index, NULL))
        abort();
    if (!strcmp(name, "embed.weight"))
        n->tied = index;
}

/* odd: the root's rows have lengths whose common multiple is large, so that it is chunked. */
static void net_make(struct net *n, unsigned how)
{
    const bool odd = how & ODD;
    const unsigned codes = how & CODES ? FSDP_PARAM_CODES : 0;

    if (fsdp_module_tree_create(&n->tree, NULL) ||
        fsdp_module_add(n->tree, -1, "", "Net", &n->root, NULL))
        abort();
    add(n, n->root, "scale", odd ? 2 : 1, odd ? 2 : 7, odd ? 103 : 1, 0);
    fsdp_module_add(n->tree, n->root, "embed", "Embedding", &n->embed, NULL);
    add(n, n->embed, "embed.weight", 2, odd ? 4 : 13, odd ? 101 : 6, codes);
    for (int i = 0; i < NBLOCKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d", i);
        fsdp_module_add(n->tree, n->root, name, "Block", &n->block[i], NULL);
        snprintf(name, sizeof name, "block.%d.w", i);
        add(n, n->block[i], name, 2, 5, 6, codes);
        snprintf(name, sizeof name, "block.%d.u", i);
        add(n, n->block[i], name, 2, 2, 3, codes);
        snprintf(name, sizeof name, "block.%d.frozen", i);
        add(n, n->block[i], name, 2, 3, 4, FSDP_PARAM_FROZEN | codes);
    }
    fsdp_module_add(n->tree, n->root, "head", "Head", &n->head, NULL);
    fsdp_module_tie(n->tree, n->head, n->tied, "head.weight", NULL);
}

/* One of the contributions to the gradient of element i of a parameter with value p: of row r of
 * the whole batch, by use 0 or 1 of a tied parameter. */
static double contribution(double p, int param, size_t i, int row, int use)
{
    return sin(0.9 + 1.7 * row + 0.37 * (double)i + param + 2 * use) * (p + 0.25) / 8;
}

static float load(const void *x, enum fsdp_dtype dtype, size_t i)
{
    if (dtype == FSDP_F32)
        return ((const float *)x)[i];
    uint16_t u = ((const uint16_t *)x)[i];
    return dtype == FSDP_BF16 ? fsdp_bf16_to_f32(u) : fsdp_f16_to_f32(u);
}

static void store(void *x, enum fsdp_dtype dtype, size_t i, float value)
{
    if (dtype == FSDP_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == FSDP_BF16 ? fsdp_f32_to_bf16(value) : fsdp_f32_to_f16(value);
}

static float rounded(float x, enum fsdp_dtype dtype)
{
    float out;
    store(&out, dtype, 0, x);
    return load(&out, dtype, 0);
}

static enum fsdp_dtype dtype_of(const struct cell *c, const char *name, bool reduced)
{
    if ((c->how & OVERRIDDEN) && !strncmp(name, "block.1", 7))
        return FSDP_F32;
    if ((c->how & OVERRIDDEN) && !strncmp(name, "block.2", 7) && reduced)
        return FSDP_F32;
    return reduced ? c->reduce : c->param;
}

/* What modules must see of a parameter with this master: rounded; or through fp8, with one scale
 * for the tensor, where it is gathered so. */
static void see(float *out, const struct cell *c, const struct fsdp_tensor *tensor,
                const float *master, double amax)
{
    enum fsdp_dtype dtype = dtype_of(c, tensor->name, false);
    bool encoded = (c->how & ENCODED) && tensor->ndim > 1 &&
                   !((c->how & OVERRIDDEN) && !strncmp(tensor->name, "block.1", 7));
    size_t nelem = fsdp_tensor_nelem(tensor);
    float scale = 0x1p110f;

    while (amax * (double)scale > 448)
        scale /= 2;
    for (size_t i = 0; i < nelem; i++) {
        float x = fminf(fmaxf(master[i] * scale, -448), 448);
        x = encoded ? fsdp_f8_e4m3_to_f32(fsdp_f32_to_f8_e4m3(x)) / scale : master[i];
        out[i] = rounded(x, dtype);
    }
}

/* ---- what a module does on its lane --------------------------------------------------------- */

struct work {
    struct board *board;
    const void *value;
    const double *amax; /* of codes, else NULL */
    void *grad;         /* NULL: only look at the value */
    size_t nelem;
    int param, row, use;
    enum fsdp_dtype param_dtype, grad_dtype;
    const float *loss_scale;
    float beta;
};

static int work_run(void *arg, struct fsdp_err *err)
{
    const struct work *w = arg;
    float scale = 0x1p110f;
    (void)err;
    while (w->amax && *w->amax * (double)scale > 448)
        scale /= 2;
    if (w->amax)
        __atomic_add_fetch(&w->board->in_codes, (int)w->nelem, __ATOMIC_SEQ_CST);
    for (size_t i = 0; i < w->nelem; i++) {
        float p = w->amax ? fsdp_f8_e4m3_to_f32(((const uint8_t *)w->value)[i]) / scale
                          : load(w->value, w->param_dtype, i);
        if (p != w->board->seen[w->param][i])
            __atomic_add_fetch(&w->board->bad_param, 1, __ATOMIC_SEQ_CST);
        if (!w->grad)
            continue;
        double g = contribution((double)p, w->param, i, w->row, w->use) * (double)*w->loss_scale;
        g += w->beta != 0.0f ? (double)load(w->grad, w->grad_dtype, i) : 0;
        store(w->grad, w->grad_dtype, i, (float)g);
    }
    return FSDP_OK;
}

static int uses(struct run *r, const struct fsdp_view *v, const char *prefix, bool backward,
                int row, int use, struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(r->net.tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(r->net.tree, p);
        if (strncmp(tensor.name, prefix, strlen(prefix)))
            continue;
        struct work w = {.board = r->board,
                         .value = v->param[p],
                         .amax = v->amax[p],
                         .nelem = fsdp_tensor_nelem(&tensor),
                         .param = p,
                         .row = row,
                         .use = use,
                         .param_dtype = v->param_dtype,
                         .grad_dtype = v->grad_dtype};
        if (backward && v->grad[p]) {
            w.grad = v->grad[p];
            w.beta = fsdp_view_grad_beta(v, p);
            w.loss_scale = v->loss_scale;
        }
        FSDP_TRY(fsdp_lane_call(v->lane, work_run, &w, sizeof w, err));
    }
    return FSDP_OK;
}

static int visit(struct run *r, struct fsdp *f, int module, const char *prefix,
                 enum fsdp_phase phase, int row, int use, struct fsdp_err *err)
{
    struct fsdp_view v;
    FSDP_TRY(fsdp_module_enter(f, module, phase, &v, err));
    if (v.param_dtype != dtype_of(&r->cell, prefix, false) ||
        v.grad_dtype != dtype_of(&r->cell, prefix, true))
        __atomic_add_fetch(&r->board->bad_dtype, 1, __ATOMIC_SEQ_CST);
    FSDP_TRY(uses(r, &v, prefix, phase == FSDP_BACKWARD, row, use, err));
    return fsdp_module_leave(f, module, phase, err);
}

static int pass(struct run *r, struct fsdp *f, enum fsdp_phase phase, int row, struct fsdp_err *err)
{
    static const char *const names[NBLOCKS] = {"block.0", "block.1", "block.2"};
    const bool back = phase == FSDP_BACKWARD;
    struct net *n = &r->net;
    struct fsdp_view v;

    FSDP_TRY(fsdp_module_enter(f, n->root, phase, &v, err));
    r->lane = v.lane;
    FSDP_TRY(uses(r, &v, "scale", back, row, 0, err));
    FSDP_TRY(visit(r, f, back ? n->head : n->embed, "embed", phase, row, back, err));
    for (int i = 0; i < NBLOCKS; i++) {
        int k = back ? NBLOCKS - 1 - i : i;
        FSDP_TRY(visit(r, f, n->block[k], names[k], phase, row, 0, err));
    }
    FSDP_TRY(visit(r, f, back ? n->embed : n->head, "embed", phase, row, 0, err));
    return fsdp_module_leave(f, n->root, phase, err);
}

/* ---- comparison ----------------------------------------------------------------------------- */

static int collect(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                   const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct run *r = ctx;
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor);
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    int p = 0;
    if (slice->tensor.dtype != FSDP_F32 || strstr(slice->tensor.name, "exp_avg_sq"))
        return slice->tensor.dtype == FSDP_F32 ? FSDP_OK : FSDP_EINTERNAL;
    while (!strstr(slice->tensor.name, fsdp_param_tensor(r->net.tree, p).name))
        p++;
    float *to = kind == FSDP_SLICE_MODEL ? r->board->master[p] : r->board->grad[p];
    if (slice->replica != 0)
        return FSDP_OK;
    return io->read(io->ctx, 0, to + slice->box.offset[0] * row, nelem * sizeof(float), err);
}

static double unit_roundoff(enum fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? 0x1p-9 : dtype == FSDP_F16 ? 0x1p-11 : 0x1p-24;
}

/* Roundings on the way of a gradient: each contribution as it is written, then the sum over the
 * shard group; over the replicas it is rounded before and after. fp32 shards add one per
 * micro-step in fp32. */
static double bound_of(const struct cell *c, const char *name, int nuses, double magnitude)
{
    double u = unit_roundoff(dtype_of(c, name, true));
    int nroundings = nuses * (c->how & LAST ? c->accumulation : 1) + 1;
    if (c->strategy != FSDP_FULL_SHARD && c->strategy != FSDP_SHARD_GRAD_OP)
        nroundings += 2;
    return nroundings * u * magnitude + c->accumulation * 0x1p-23 * magnitude + 0x1p-24;
}

static void compare_param(struct run *r, const float *before, const float *seen, int p)
{
    struct fsdp_tensor tensor = fsdp_param_tensor(r->net.tree, p);
    const struct cell *c = &r->cell;
    int nuses = p == r->net.tied ? 2 : 1;
    for (size_t i = 0; i < fsdp_tensor_nelem(&tensor); i++) {
        double value = (double)seen[i];
        double sum = 0, magnitude = 0;
        for (int row = 0; row < c->nranks * c->accumulation; row++)
            for (int use = 0; use < nuses; use++) {
                double g = contribution(value, p, i, row, use);
                sum += g;
                magnitude += fabs(g);
            }
        double part =
            fabs((double)r->board->grad[p][i] - sum) / bound_of(c, tensor.name, nuses, magnitude);
        r->board->worst = fmax(r->board->worst, part);
        r->board->bad_grad += !(part <= 1);
        r->board->still += r->board->master[p][i] == before[i];
    }
}

static int barrier(struct fsdp_oob *oob, struct fsdp_err *err)
{
    char in = 0, all[16];
    return oob->allgather(oob, &in, 1, all, err);
}

/* Of the masters that share a scale with p's. */
static double greatest_for(const struct run *r, int p)
{
    const struct fsdp_tensor own = fsdp_param_tensor(r->net.tree, p);
    double amax = 0;

    for (int k = 0; k < fsdp_param_count(r->net.tree); k++) {
        const struct fsdp_tensor tensor = fsdp_param_tensor(r->net.tree, k);
        const bool shares = has_shared_scale(own.name) && has_shared_scale(tensor.name) &&
                            !strncmp(own.name, tensor.name, strlen("block.N"));
        for (size_t i = 0; (k == p || shares) && i < fsdp_tensor_nelem(&tensor); i++)
            amax = fmax(amax, fabs((double)r->board->master[k][i]));
    }
    return amax;
}

/* Rank 0 computes what everybody must see from now on. */
static int look(struct run *r, struct fsdp_oob *oob, struct fsdp_err *err)
{
    FSDP_TRY(barrier(oob, err)); /* all masters are there */
    for (int p = 0; r->rank == 0 && p < fsdp_param_count(r->net.tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(r->net.tree, p);
        see(r->board->seen[p], &r->cell, &tensor, r->board->master[p], greatest_for(r, p));
        for (size_t i = 0; i < fsdp_tensor_nelem(&tensor); i++)
            r->board->coarser += r->board->seen[p][i] != r->board->master[p][i];
    }
    return barrier(oob, err);
}

/* An evaluation sees what training does, and so does who unshards by hand. */
static int look_again(struct run *r, struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
    FSDP_TRY(pass(r, f, FSDP_FORWARD, 0, err));
    FSDP_TRY(fsdp_micro_end(f, err));
    FSDP_TRY(fsdp_sync(f, err));
    for (int m = 0; m < NBLOCKS; m++)
        FSDP_TRY(fsdp_unshard(f, r->net.block[m], err));
    for (int p = 0; p < fsdp_param_count(r->net.tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(r->net.tree, p);
        struct work w = {.board = r->board,
                         .value = fsdp_unsharded_param(f, p),
                         .nelem = fsdp_tensor_nelem(&tensor),
                         .param = p,
                         .param_dtype = dtype_of(&r->cell, tensor.name, false)};
        if (w.value)
            FSDP_TRY(fsdp_lane_call(r->lane, work_run, &w, sizeof w, err));
    }
    FSDP_TRY(fsdp_lane_sync(r->lane, err));
    for (int m = 0; m < NBLOCKS; m++)
        FSDP_TRY(fsdp_reshard(f, r->net.block[m], err));
    return FSDP_OK;
}

static int one_step(struct run *r, struct fsdp *f, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const struct cell *c = &r->cell;
    struct fsdp_step_args args = {.step = r->step, .lr = 1e-4};
    float before[MAX_PARAMS][MAX_NELEM], seen[MAX_PARAMS][MAX_NELEM];

    for (int m = 0; m < c->accumulation; m++) {
        int row = r->rank * c->accumulation + m;
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, m, err));
        FSDP_TRY(pass(r, f, FSDP_FORWARD, row, err));
        FSDP_TRY(pass(r, f, FSDP_BACKWARD, row, err));
        FSDP_TRY(fsdp_micro_end(f, err));
    }
    FSDP_TRY(fsdp_step(f, &args, NULL, err));
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(barrier(oob, err)); /* everyone has looked at the masters */
    memcpy(before, r->board->master, sizeof before);
    memcpy(seen, r->board->seen, sizeof seen);
    FSDP_TRY(barrier(oob, err));
    FSDP_TRY(fsdp_state_each(f, collect, r, err));
    FSDP_TRY(barrier(oob, err));
    for (int p = 0; r->rank == 0 && p < fsdp_param_count(r->net.tree); p++)
        if (!strstr(fsdp_param_tensor(r->net.tree, p).name, "frozen"))
            compare_param(r, before[p], seen[p], p);
    FSDP_TRY(look(r, oob, err));
    return look_again(r, f, err);
}

static struct fsdp_opts opts_of(const struct cell *c)
{
    static const char *const classes[] = {"Block", NULL};
    static struct fsdp_unit_override rows[] = {FSDP_UNIT_OVERRIDE_INIT, FSDP_UNIT_OVERRIDE_INIT};
    struct fsdp_opts opts = FSDP_OPTS_INIT;

    rows[0].module = "block.[12]";
    rows[0].reduce_dtype = FSDP_F32;
    rows[1].module = "*.1";
    rows[1].class_name = "Block";
    rows[1].param_dtype = FSDP_F32;
    rows[1].gather_codec = 0;
    opts.sharding_strategy = c->strategy;
    opts.wrap_classes = classes;
    opts.accumulation = c->accumulation;
    opts.reduce_last = c->how & LAST;
    opts.param_dtype = c->param;
    opts.reduce_dtype = c->reduce;
    opts.gather_codec = c->how & ENCODED ? &fsdp_gather_float8 : NULL;
    opts.unit_overrides = rows;
    opts.nunit_overrides = c->how & OVERRIDDEN ? 2 : 0;
    opts.frozen_in_param_dtype = c->how & LONE;
    if (c->regather)
        opts.reshard_after_forward = c->regather;
    opts.loss_scale.init = 64;
    opts.optim.betas[0] = 0;
    opts.optim.clip_grad_norm = 0;
    return opts;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *r = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = opts_of(&r->cell);
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    int rc;

    net_make(&r->net, r->cell.how);
    r->rank = oob->rank;
    if ((rc = fsdp_device_open(&device, ranks_device(),
                               r->cell.how & THREADED ? FSDP_DEVICE_THREADED : 0, &err)) ||
        (rc = fsdp_mesh_shape_for(&shape, r->cell.strategy, 0, nodes, &err)) ||
        ((r->cell.how & TWO_LEVEL) && (rc = fsdp_mesh_shape_two_level(&shape, nodes, &err))) ||
        (r->cell.regather && (rc = fsdp_mesh_shape_regather(&shape, r->cell.regather, &err))) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, r->net.tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)) || (rc = fsdp_state_each(f, collect, r, &err)) ||
        (rc = look(r, oob, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    for (r->step = 0; !rc && r->step < STEPS; r->step++)
        if ((rc = one_step(r, f, oob, &err)))
            fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(r->net.tree);
    return rc != 0;
}

static void run_cell(const struct cell *c)
{
    struct run run = {.cell = *c};
    char what[200];
    run.board =
        mmap(NULL, sizeof *run.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int bad = ranks_run(c->nranks, c->nnodes, 60, rank_main, &run, NULL);
    snprintf(what, sizeof what,
             "%s, %d ranks on %d nodes, %s reduced in %s, accumulation %d%s%s%s%s%s%s%s%s",
             fsdp_strategy_name(c->strategy), c->nranks, c->nnodes, fsdp_dtype_name(c->param),
             fsdp_dtype_name(c->reduce), c->accumulation, c->how & LAST ? " reduced last" : "",
             c->how & THREADED ? ", threaded" : "", c->how & OVERRIDDEN ? ", overrides" : "",
             c->how & ENCODED ? ", gathered in fp8" : "", c->how & TWO_LEVEL ? ", two levels" : "",
             c->how & ODD ? ", chunked" : "", c->how & LONE ? ", frozen without masters" : "",
             c->how & CODES ? ", taken in codes" : "");
    ok(bad == 0 && run.board->bad_dtype == 0 && run.board->bad_param == 0,
       "%s: parameters are their masters in the gathered type", what);
    ok((run.board->in_codes > 0) == ((c->how & CODES) && (c->how & ENCODED)),
       "%s: %d elements were seen in codes", what, run.board->in_codes);
    ok(run.board->bad_grad == 0 && run.board->worst > 0, "%s: gradients within %.2f of the bound",
       what, run.board->worst);
    /* Steps of 1e-4 are below the spacing of 16-bit values near 1. */
    ok(run.board->still == 0, "%s: every master moves", what);
    ok(run.board->coarser > 0 || (c->param == FSDP_F32 && !(c->how & ENCODED)),
       "%s: the state that is saved holds masters", what);
    munmap(run.board, sizeof *run.board);
}

static void test_strategies(void)
{
    static const struct cell cells[] = {
        {1, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, 0, 0},
        {1, 1, 3, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, 0, 0},
        {3, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, 0, 0},
        {2, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, THREADED, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_F16, FSDP_BF16, LAST, 0},
        {4, 2, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, THREADED, 2},
        {2, 1, 1, FSDP_SHARD_GRAD_OP, FSDP_F16, FSDP_F16, 0, 0},
        {3, 1, 2, FSDP_SHARD_GRAD_OP, FSDP_F32, FSDP_BF16, 0, 0},
        {2, 1, 2, FSDP_NO_SHARD, FSDP_BF16, FSDP_BF16, 0, 0},
        {3, 1, 2, FSDP_NO_SHARD, FSDP_F16, FSDP_F16, LAST | THREADED, 0},
        {2, 1, 2, FSDP_NO_SHARD, FSDP_BF16, FSDP_F32, 0, 0},
        {4, 2, 2, FSDP_HYBRID_SHARD, FSDP_BF16, FSDP_BF16, 0, 0},
        {6, 3, 1, FSDP_HYBRID_SHARD, FSDP_F16, FSDP_F16, THREADED, 0},
        {4, 2, 2, FSDP_HYBRID_SHARD_ZERO2, FSDP_BF16, FSDP_F32, THREADED, 0},
        {3, 1, 3, FSDP_ZERO1, FSDP_BF16, FSDP_BF16, LAST, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, OVERRIDDEN, 0},
        {4, 2, 2, FSDP_HYBRID_SHARD, FSDP_F16, FSDP_F16, OVERRIDDEN | THREADED, 0},
        {2, 1, 2, FSDP_NO_SHARD, FSDP_BF16, FSDP_BF16, OVERRIDDEN, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, LONE, 0},
        {4, 2, 1, FSDP_HYBRID_SHARD, FSDP_F16, FSDP_F32, LONE | THREADED | OVERRIDDEN, 0},
        {2, 1, 1, FSDP_NO_SHARD, FSDP_BF16, FSDP_BF16, LONE, 0},
        {3, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, LONE | ENCODED, 0},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        run_cell(&cells[i]);
}

/* Units in chunks, which are copied in the gathered and the reduced type, or decoded. */
static void test_chunks(void)
{
    static const struct cell cells[] = {
        {1, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, ODD, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ODD, 0},
        {2, 1, 2, FSDP_SHARD_GRAD_OP, FSDP_F16, FSDP_F16, ODD | THREADED, 0},
        {4, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ODD | LAST, 2},
        {4, 2, 2, FSDP_HYBRID_SHARD, FSDP_BF16, FSDP_BF16, ODD, 0},
        {2, 1, 2, FSDP_NO_SHARD, FSDP_BF16, FSDP_BF16, ODD, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ODD | ENCODED, 0},
        {4, 2, 2, FSDP_FULL_SHARD, FSDP_F32, FSDP_BF16, ODD | ENCODED | TWO_LEVEL | THREADED, 0},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        run_cell(&cells[i]);
}

/* A codec changes what modules see, and that is a function of the masters alone: also where nothing
 * is sent, on one rank, under NO_SHARD, and with one rank a node under HYBRID_SHARD. */
static void test_codec(void)
{
    static const struct cell cells[] = {
        {1, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED, 0},
        {2, 1, 1, FSDP_FULL_SHARD, FSDP_F32, FSDP_F32, ENCODED | THREADED, 0},
        {4, 2, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, ENCODED | THREADED | TWO_LEVEL, 0},
        {6, 3, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED | TWO_LEVEL | OVERRIDDEN, 0},
        {4, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED | THREADED, 2},
        {5, 1, 2, FSDP_SHARD_GRAD_OP, FSDP_F16, FSDP_F32, ENCODED | OVERRIDDEN, 0},
        {4, 2, 1, FSDP_HYBRID_SHARD, FSDP_BF16, FSDP_BF16, ENCODED | THREADED, 0},
        {3, 1, 2, FSDP_ZERO1, FSDP_BF16, FSDP_F32, ENCODED, 0},
        {2, 1, 1, FSDP_NO_SHARD, FSDP_BF16, FSDP_F32, ENCODED, 0},
        {1, 1, 2, FSDP_FULL_SHARD, FSDP_F32, FSDP_F32, ENCODED | ODD, 0},
        {1, 1, 1, FSDP_NO_SHARD, FSDP_F16, FSDP_F32, ENCODED | OVERRIDDEN, 0},
        {3, 1, 2, FSDP_NO_SHARD, FSDP_F32, FSDP_BF16, ENCODED | OVERRIDDEN | THREADED, 0},
        {3, 3, 1, FSDP_HYBRID_SHARD, FSDP_BF16, FSDP_F32, ENCODED, 0},
        {2, 2, 2, FSDP_HYBRID_SHARD_ZERO2, FSDP_F32, FSDP_F32, ENCODED | ODD, 0},
        {3, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED | CODES, 0},
        {4, 2, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_BF16, ENCODED | CODES | TWO_LEVEL | THREADED, 0},
        {4, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED | CODES | THREADED, 2},
        {5, 1, 1, FSDP_SHARD_GRAD_OP, FSDP_F16, FSDP_F32, ENCODED | CODES | OVERRIDDEN, 0},
        {4, 2, 1, FSDP_HYBRID_SHARD, FSDP_F32, FSDP_BF16, ENCODED | CODES | ODD, 0},
        {1, 1, 2, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, ENCODED | CODES, 0},
        {2, 1, 1, FSDP_NO_SHARD, FSDP_F32, FSDP_F32, ENCODED | CODES | OVERRIDDEN | THREADED, 0},
        {2, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F32, CODES, 0},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        run_cell(&cells[i]);
}

struct large {
    float *master;
    size_t nelem;
};

static int collect_large(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                         const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct large *large = ctx;
    (void)slice;
    if (kind != FSDP_SLICE_MODEL)
        return FSDP_OK;
    return io->read(io->ctx, 0, large->master, large->nelem * sizeof(float), err);
}

/* A matrix that one rank decodes in several pieces, the last of them smaller. */
static int large_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    enum { ROWS = 4099, COLS = 1031, NELEM = ROWS * COLS };
    const uint64_t shape[2] = {ROWS, COLS};
    const struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_module_tree *tree = NULL;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape mesh_shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    int root, param, differ = 0, rc;

    (void)arg;
    opts.wrap_policy = FSDP_WRAP_NONE;
    opts.gather_codec = &fsdp_gather_float8;
    if ((rc = fsdp_module_tree_create(&tree, &err)) ||
        (rc = fsdp_module_add(tree, -1, "", "Net", &root, &err)) ||
        (rc = fsdp_module_add_param(
             tree, root,
             &(struct fsdp_param_desc){.name = "w", .ndim = 2, .shape = shape, .init = init},
             &param, &err)) ||
        (rc = fsdp_device_open(&device, "cpu", 0, &err)) ||
        (rc = fsdp_mesh_shape_for(&mesh_shape, FSDP_FULL_SHARD, 0, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, mesh_shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)) || (rc = fsdp_unshard(f, root, &err)))
        fprintf(stderr, "%s\n", err.text);
    struct large large = {calloc(NELEM, sizeof(float)), NELEM};
    float *expected = calloc(NELEM, sizeof *expected);
    const struct fsdp_tensor tensor = {.ndim = 2, .shape = {ROWS, COLS}};
    const struct cell c = {1, 1, 1, FSDP_FULL_SHARD, FSDP_F32, FSDP_F32, ENCODED, 0};
    if (!rc)
        rc = fsdp_state_each(f, collect_large, &large, &err);
    double amax = 0;
    for (size_t i = 0; i < NELEM; i++)
        amax = fmax(amax, fabs((double)large.master[i]));
    see(expected, &c, &tensor, large.master, amax);
    const float *seen = rc ? NULL : fsdp_unsharded_param(f, param);
    for (size_t i = 0; seen && i < NELEM; i++)
        differ += seen[i] != expected[i];
    free(large.master);
    free(expected);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(tree);
    return rc || differ;
}

static void test_large(void)
{
    ok(ranks_run(1, 1, 60, large_main, NULL, NULL) == 0,
       "one rank decodes a matrix of 4 million elements");
}

/* ---- what is planned, and what is refused --------------------------------------------------- */

static int plan_with(struct fsdp **f, struct net *n, struct fsdp_device *device,
                     const struct fsdp_unit_override *rows, int nrows, struct fsdp_err *err)
{
    const struct cell c = {2, 1, 1, FSDP_FULL_SHARD, FSDP_BF16, FSDP_F16, 0, 0};
    const struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 2};
    struct fsdp_opts opts = opts_of(&c);
    opts.unit_overrides = rows;
    opts.nunit_overrides = nrows;
    return fsdp_plan(f, n->tree, &opts, device, shape, err);
}

static bool refused(struct net *n, struct fsdp_device *device, struct fsdp_unit_override row,
                    const char *word)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;
    int rc = plan_with(&f, n, device, &row, 1, &err);
    fsdp_destroy(f);
    printf("# %s\n", err.text);
    return rc != FSDP_OK && strstr(err.text, word);
}

static void test_plan(void)
{
    const struct fsdp_clock clock = toy_clock(1);
    struct fsdp_unit_override row = FSDP_UNIT_OVERRIDE_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device;
    struct fsdp *f = NULL;
    struct net n;
    char *text = NULL;
    size_t nbytes;

    net_make(&n, 0);
    fsdp_device_open(&device, ranks_device(), 0, &err);
    row.class_name = "Block";
    row.param_dtype = FSDP_F32;
    ok(plan_with(&f, &n, device, &row, 1, &err) == FSDP_OK, "plan: %s", err.text);
    FILE *to = open_memstream(&text, &nbytes);
    fsdp_schedule_print(f, &clock, to, &err);
    fclose(to);
    ok(strstr(text, "gathered in BF16 and F32, reduced in F16\n") != NULL,
       "the schedule names the dtypes");
    free(text);
    fsdp_destroy(f);

    row.gather_codec = 1; /* as opts says: none */
    ok(plan_with(&f, &n, device, &row, 1, &err) == FSDP_OK, "plan: %s", err.text);
    to = open_memstream(&text, &nbytes);
    fsdp_schedule_print(f, &clock, to, &err);
    fclose(to);
    ok(!strstr(text, "amax"), "nothing is encoded without a codec");
    free(text);
    fsdp_destroy(f);

    row = (struct fsdp_unit_override)FSDP_UNIT_OVERRIDE_INIT;
    ok(refused(&n, device, row, "neither module nor class"), "a row that names nothing");
    row.module = "layer.*";
    ok(refused(&n, device, row, "layer.*"), "a row that no module matches");
    row.module = "block.0";
    row.reduce_dtype = FSDP_I8;
    ok(refused(&n, device, row, "reduce_dtype I8"), "a dtype that cannot be");
    row.module = "head";
    row.reduce_dtype = FSDP_F32;
    ok(refused(&n, device, row, "head.weight"), "a tied parameter in two dtypes");
    fsdp_device_close(device);
    fsdp_module_tree_destroy(n.tree);
}

int main(void)
{
    test_strategies();
    test_chunks();
    test_codec();
    test_large();
    test_plan();
    return tap_done();
}
