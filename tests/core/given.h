/* SPDX-License-Identifier: Apache-2.0 */
/*
 * given.h: a small model whose gradients are given, so that a test sees what the engine and the
 * optimizer do with them: a root (scale [7]) around two blocks (w [5, 6], b [6]). Vectors of
 * GIVEN_NELEM hold all parameters one after another; this is the order of tests/data/torch-cases.
 */
#ifndef GIVEN_H
#define GIVEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/fsdp.h"
#include "fsdp/sys/device_ops.h"

enum { GIVEN_NPARAMS = 5, GIVEN_NELEM = 7 + 2 * (30 + 6) };
static const char *const given_names[GIVEN_NPARAMS] = {"scale", "blocks.0.w", "blocks.0.b",
                                                       "blocks.1.w", "blocks.1.b"};
static const int given_start[GIVEN_NPARAMS + 1] = {0, 7, 37, 43, 73, 79};

struct given {
    struct fsdp_module_tree *tree;
    int root, block[2];
    int param[GIVEN_NPARAMS]; /* index in the tree */
    int skip;                 /* the parameter that takes no part in a backward pass; -1: none */
};

static inline void given_param(struct given *g, int module, int p)
{
    static const uint64_t shapes[GIVEN_NPARAMS][2] = {{7, 0}, {5, 6}, {6, 0}, {5, 6}, {6, 0}};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    int ndim = shapes[p][1] ? 2 : 1;
    if (fsdp_module_add_param(
            g->tree, module,
            &(struct fsdp_param_desc){
                .name = given_names[p], .ndim = ndim, .shape = shapes[p], .init = init},
            &g->param[p], NULL))
        abort();
}

/* tied: the second block's w is the first's. The tree is the caller's to destroy. */
static inline void given_make_tied(struct given *g, bool tied)
{
    g->skip = -1;
    if (fsdp_module_tree_create(&g->tree, NULL) ||
        fsdp_module_add(g->tree, -1, "", "Model", &g->root, NULL))
        abort();
    given_param(g, g->root, 0);
    for (int i = 0; i < 2; i++) {
        if (fsdp_module_add(g->tree, g->root, i ? "blocks.1" : "blocks.0", "Block", &g->block[i],
                            NULL))
            abort();
        if (i && tied && fsdp_module_tie(g->tree, g->block[i], g->param[1], given_names[3], NULL))
            abort();
        if (i && tied)
            g->param[3] = g->param[1];
        else
            given_param(g, g->block[i], 1 + 2 * i);
        given_param(g, g->block[i], 2 + 2 * i);
    }
}

static inline void given_make(struct given *g)
{
    given_make_tied(g, false);
}

/* ---- an engine ------------------------------------------------------------------------------- */

/* What a test wants of the mesh and the device; zero is one level, lanes that run at once. */
struct given_where {
    const char *device;
    unsigned flags;
    int regather; /* reshard_after_forward as a group size; 0: the strategy's own */
    bool two_level;
    const struct fsdp_device_ops *ops; /* in place of the device's; NULL: its own */
};

struct given_engine {
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp *f;
};

/* An engine of the model, a unit per block unless opts say otherwise. Collective; destroyed with
 * given_close, also where this fails. */
static inline int given_open(struct given_engine *e, const struct given *g, struct fsdp_opts *opts,
                             const struct given_where *where, const struct fsdp_node_map *nodes,
                             struct fsdp_oob *oob, struct fsdp_err *err)
{
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_mesh_shape shape;

    *e = (struct given_engine){.device = NULL};
    opts->wrap_classes = classes;
    if (where->regather)
        opts->reshard_after_forward = where->regather;
    FSDP_TRY(where->ops ? fsdp_device_open_ops(&e->device, where->ops, 0, where->flags, err)
                        : fsdp_device_open(&e->device, where->device, where->flags, err));
    FSDP_TRY(fsdp_mesh_shape_for(&shape, opts->sharding_strategy, 0, nodes, err));
    if (where->regather)
        FSDP_TRY(fsdp_mesh_shape_regather(&shape, where->regather, err));
    if (where->two_level)
        FSDP_TRY(fsdp_mesh_shape_two_level(&shape, nodes, err));
    FSDP_TRY(fsdp_mesh_create(&e->mesh, shape, "auto", 20, nodes, oob, e->device, err));
    return fsdp_create(&e->f, g->tree, opts, e->device, e->mesh, err);
}

/* Destroys the model, too, and says what went wrong: the end of a rank. */
static inline int given_close(struct given_engine *e, struct given *g, int rank, int rc,
                              const struct fsdp_err *err)
{
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, err->text);
    fsdp_destroy(e->f);
    fsdp_mesh_destroy(e->mesh);
    fsdp_device_close(e->device);
    fsdp_module_tree_destroy(g->tree);
    return rc != 0;
}

/* ---- a micro-step ---------------------------------------------------------------------------- */

struct given_arg {
    void *grad;
    const float *from;
    int nelem;
    float beta, scale;
    const float *loss_scale;
    enum fsdp_dtype dtype;
};

static inline float given_load(const void *from, enum fsdp_dtype dtype, int i)
{
    if (dtype == FSDP_F32)
        return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return dtype == FSDP_BF16 ? fsdp_bf16_to_f32(half) : fsdp_f16_to_f32(half);
}

/* grad = beta * grad + scale * loss_scale * from, rounded to grad's type. */
static inline int given_write(void *arg, struct fsdp_err *err)
{
    struct given_arg *a = arg;
    (void)err;
    for (int i = 0; i < a->nelem; i++) {
        float x = a->scale * *a->loss_scale * a->from[i];
        if (a->beta != 0)
            x += a->beta * given_load(a->grad, a->dtype, i);
        if (a->dtype == FSDP_F32)
            ((float *)a->grad)[i] = x;
        else
            ((uint16_t *)a->grad)[i] =
                a->dtype == FSDP_BF16 ? fsdp_f32_to_bf16(x) : fsdp_f32_to_f16(x);
    }
    return FSDP_OK;
}

/* Parameters that are not trained have no gradient and are passed over. */
static inline int given_grads(const struct given *g, struct fsdp *f, int module, int first,
                              int last, const float *values, float scale, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, module, FSDP_BACKWARD, &view, err));
    for (int p = first; p <= last; p++) {
        if (!view.grad[g->param[p]] || p == g->skip)
            continue;
        struct given_arg arg = {view.grad[g->param[p]],
                                values + given_start[p],
                                given_start[p + 1] - given_start[p],
                                fsdp_view_grad_beta(&view, g->param[p]),
                                scale,
                                view.loss_scale,
                                view.grad_dtype};
        FSDP_TRY(fsdp_lane_call(view.lane, given_write, &arg, sizeof arg, err));
    }
    return FSDP_OK;
}

static inline int given_forward(const struct given *g, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, g->root, FSDP_FORWARD, &view, err));
    for (int i = 0; i < 2; i++) {
        FSDP_TRY(fsdp_module_enter(f, g->block[i], FSDP_FORWARD, &view, err));
        FSDP_TRY(fsdp_module_leave(f, g->block[i], FSDP_FORWARD, err));
    }
    return fsdp_module_leave(f, g->root, FSDP_FORWARD, err);
}

static inline int given_backward(const struct given *g, struct fsdp *f, const float *values,
                                 float scale, struct fsdp_err *err)
{
    FSDP_TRY(given_grads(g, f, g->root, 0, 0, values, scale, err));
    for (int i = 1; i >= 0; i--) {
        FSDP_TRY(given_grads(g, f, g->block[i], 1 + 2 * i, 2 + 2 * i, values, scale, err));
        FSDP_TRY(fsdp_module_leave(f, g->block[i], FSDP_BACKWARD, err));
    }
    return fsdp_module_leave(f, g->root, FSDP_BACKWARD, err);
}

/* Micro-step `micro` with gradients scale * values[GIVEN_NELEM], which live until a sync. */
static inline int given_micro(const struct given *g, struct fsdp *f, int micro, const float *values,
                              float scale, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, micro, err));
    FSDP_TRY(given_forward(g, f, err));
    FSDP_TRY(given_backward(g, f, values, scale, err));
    return fsdp_micro_end(f, err);
}

/* ---- state ----------------------------------------------------------------------------------- */

/* What this rank holds of one tensor per parameter: key "" for the weights, or "exp_avg", ... */
struct given_state {
    const char *key;
    float *values; /* [GIVEN_NELEM] */
    bool write;    /* into the engine, instead of out of it */
};

static inline int given_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                              const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct given_state *s = ctx;
    const char *name = slice->tensor.name;
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor);
    char want[64];

    (void)kind;
    for (int p = 0; p < GIVEN_NPARAMS; p++) {
        snprintf(want, sizeof want, "%s%s%s%s", *s->key ? "state." : "", given_names[p],
                 *s->key ? "." : "", s->key);
        if (strcmp(name, want))
            continue;
        float *at = s->values + given_start[p] + slice->box.offset[0] * row;
        return s->write ? io->write(io->ctx, 0, at, nelem * 4, err)
                        : io->read(io->ctx, 0, at, nelem * 4, err);
    }
    return FSDP_OK;
}

/* This rank's boxes of a tensor per parameter into their places in values[GIVEN_NELEM]. */
static inline int given_read(struct fsdp *f, const char *key, float *values, struct fsdp_err *err)
{
    struct given_state state = {key, values, false};
    FSDP_TRY(fsdp_sync(f, err));
    return fsdp_state_each(f, given_slice, &state, err);
}

/* Loads the weights. */
static inline int given_load_params(struct fsdp *f, const float *values, struct fsdp_err *err)
{
    struct given_state state = {"", (float *)(uintptr_t)values, true};
    FSDP_TRY(fsdp_state_each(f, given_slice, &state, err));
    return fsdp_state_loaded(f, err);
}

#endif
