/* SPDX-License-Identifier: Apache-2.0 */
/*
 * toy.h: a small model, trained by an engine in one of its settings, with ranks as processes. Its
 * gradients are sums of small multiples of 2^-6, exact in fp32 in any order, so that every setting
 * must give the same bits.
 */
#ifndef TOY_H
#define TOY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fsdp/fsdp.h"
#include "ranks.h"
#include "tap.h"

enum {
    NBLOCKS = 3,
    ROWS = 12,
    STEPS = 3,
    MAX_PARAMS = 16,
    MAX_NELEM = 4096,
    MAX_RANKS = 16,
    NLOOKS = 3
};

struct toy {
    struct fsdp_module_tree *tree;
    int root, embed, block[NBLOCKS], head, tied;
    int npasses; /* that began; each keeps other values for backward */
};

static const struct fsdp_act_bytes toy_act = {
    .saved = 100, .recomputed = 200, .cheap = 60, .work = 50};

static inline void add(struct toy *t, int module, const char *name, int ndim, uint64_t rows,
                       uint64_t cols, unsigned flags)
{
    uint64_t shape[2] = {rows, cols};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    int index;
    if (fsdp_module_add_param(
            t->tree, module,
            &(struct fsdp_param_desc){
                .name = name, .ndim = ndim, .shape = shape, .init = init, .flags = flags},
            &index, NULL))
        abort();
    if (!strcmp(name, "embed.weight"))
        t->tied = index;
}

/* odd: rows whose lengths have no small common multiple, so that the units
 * are chunked (fsdp_cut); ranks have unequal parts, or none. */
static inline void toy_make_widths(struct toy *t, bool odd)
{
    t->npasses = 0;
    if (fsdp_module_tree_create(&t->tree, NULL) ||
        fsdp_module_add(t->tree, -1, "", "Toy", &t->root, NULL))
        abort();
    add(t, t->root, "scale", odd ? 2 : 1, odd ? 2 : 7, odd ? 767 : 1, 0);
    add(t, t->root, "scalar", 0, 0, 0, 0);
    fsdp_module_add(t->tree, t->root, "embed", "Embedding", &t->embed, NULL);
    add(t, t->embed, "embed.weight", 2, odd ? 4 : 13, odd ? 1023 : 6, 0);
    for (int i = 0; i < NBLOCKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d", i);
        fsdp_module_add(t->tree, t->root, name, "Block", &t->block[i], NULL);
        fsdp_module_set_act(t->tree, t->block[i], toy_act, NULL);
        snprintf(name, sizeof name, "block.%d.w", i);
        add(t, t->block[i], name, 2, 5, odd ? 513 : 6, 0);
        snprintf(name, sizeof name, "block.%d.b", i);
        add(t, t->block[i], name, odd ? 2 : 1, odd ? 3 : 6, odd ? 767 : 1, 0);
        snprintf(name, sizeof name, "block.%d.frozen", i);
        add(t, t->block[i], name, 2, odd ? 1 : 3, odd ? 4001 : 4, FSDP_PARAM_FROZEN);
        snprintf(name, sizeof name, "block.%d.rare", i);
        add(t, t->block[i], name, 1, 5, 1, 0);
    }
    fsdp_module_add(t->tree, t->root, "head", "Head", &t->head, NULL);
    fsdp_module_tie(t->tree, t->head, t->tied, "head.weight", NULL);
}

static inline void toy_make(struct toy *t)
{
    toy_make_widths(t, false);
}

/* grad[i] = beta * grad[i] + sum over rows r of ((r mod 5) - 1) * round(64 p[i]) / 64, which is
 * exact. */
struct grad_arg {
    const float *param;
    float *grad;
    size_t nelem;
    float beta;
    int first_row, nrows;
};

static inline int grad_run(void *arg, struct fsdp_err *err)
{
    struct grad_arg *a = arg;
    (void)err;
    for (size_t i = 0; i < a->nelem; i++) {
        float sum = 0;
        for (int r = a->first_row; r < a->first_row + a->nrows; r++)
            sum += (float)(r % 5 - 1) * rintf(64 * a->param[i]) / 64;
        a->grad[i] = a->beta == 0 ? sum : a->grad[i] + sum;
    }
    return FSDP_OK;
}

/* Only the first half of the rows use the rare parameters: not every rank and micro-step asks. */
static inline int write_grads(struct toy *t, const struct fsdp_view *v, const char *prefix,
                              int first_row, int nrows, struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(t->tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(t->tree, p);
        if (strncmp(tensor.name, prefix, strlen(prefix)) || strstr(tensor.name, "frozen"))
            continue;
        int end = first_row + nrows;
        if (strstr(tensor.name, "rare") && end > ROWS / 2)
            end = ROWS / 2;
        if (first_row >= end)
            continue;
        struct grad_arg arg = {.param = v->param[p],
                               .grad = v->grad[p],
                               .nelem = fsdp_tensor_nelem(&tensor),
                               .beta = fsdp_view_grad_beta(v, p),
                               .first_row = first_row,
                               .nrows = end - first_row};
        FSDP_TRY(fsdp_lane_call(v->lane, grad_run, &arg, sizeof arg, err));
    }
    return FSDP_OK;
}

struct look_arg {
    const void *param;
    size_t nbytes;
    uint64_t *seen;
};

static inline int look_run(void *arg, struct fsdp_err *err)
{
    struct look_arg *a = arg;
    (void)err;
    *a->seen = fsdp_hash(*a->seen, a->param, a->nbytes);
    return FSDP_OK;
}

/* What a forward pass does: it reads. */
static inline int look(struct toy *t, const struct fsdp_view *v, const char *prefix, uint64_t *seen,
                       struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(t->tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(t->tree, p);
        struct look_arg arg = {v->param[p], fsdp_tensor_nelem(&tensor) * sizeof(float), seen};
        if (!strncmp(tensor.name, prefix, strlen(prefix)))
            FSDP_TRY(fsdp_lane_call(v->lane, look_run, &arg, sizeof arg, err));
    }
    return FSDP_OK;
}

static inline int scribble_run(void *arg, struct fsdp_err *err)
{
    struct look_arg *a = arg;
    (void)err;
    memset((void *)(uintptr_t)a->param, 0xff, a->nbytes);
    return FSDP_OK;
}

/* Overwrites what a unit gathered and needs no more: if others read it, or it is not gathered
 * again, this shows. */
static inline int scribble(struct toy *t, const struct fsdp_view *v, const char *prefix,
                           struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(t->tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(t->tree, p);
        struct look_arg arg = {v->param[p], fsdp_tensor_nelem(&tensor) * sizeof(float), NULL};
        if (!strncmp(tensor.name, prefix, strlen(prefix)))
            FSDP_TRY(fsdp_lane_call(v->lane, scribble_run, &arg, sizeof arg, err));
    }
    return FSDP_OK;
}

struct keep_arg {
    void *mem;
    size_t nbytes;
    uint8_t mark;
    uint64_t *seen; /* NULL: forward, which writes */
};

/* Backward overwrites what it has read. */
static inline int keep_run(void *arg, struct fsdp_err *err)
{
    struct keep_arg *a = arg;
    (void)err;
    for (size_t i = 0; a->seen && i < a->nbytes; i++)
        if (((const uint8_t *)a->mem)[i] != a->mark)
            *a->seen = fsdp_hash(*a->seen, a->mem, a->nbytes);
    memset(a->mem, a->seen ? 0xff : a->mark, a->nbytes);
    return FSDP_OK;
}

/* What a block keeps from forward to backward: nothing is seen of it where it is right. */
static inline int keep(struct toy *t, struct fsdp *f, const struct fsdp_view *v, int block,
                       uint64_t *seen, struct fsdp_err *err)
{
    const int kind = fsdp_module_checkpointing(f, t->block[block]);
    const uint8_t mark = (uint8_t)((t->npasses * NBLOCKS + block) % 251);
    const struct keep_arg args[] = {
        {v->saved, toy_act.saved, mark, seen},
        {v->recomputed, kind == FSDP_AC_FULL ? 0 : toy_act.recomputed, mark, seen},
        {v->cheap, kind == FSDP_AC_NONE ? toy_act.cheap : 0, mark, seen}};
    for (int i = 0; i < 3; i++)
        FSDP_TRY(fsdp_lane_call(v->lane, keep_run, &args[i], sizeof args[i], err));
    return FSDP_OK;
}

/* *seen: a hash of all parameters, as they are when the pass runs. */
static inline int forward(struct toy *t, struct fsdp *f, bool scribbles, uint64_t *seen,
                          struct fsdp_err *err)
{
    struct fsdp_view v;
    char prefix[32];
    t->npasses++;
    FSDP_TRY(fsdp_module_enter(f, t->root, FSDP_FORWARD, &v, err));
    FSDP_TRY(look(t, &v, "scal", seen, err));
    FSDP_TRY(fsdp_module_enter(f, t->embed, FSDP_FORWARD, &v, err));
    FSDP_TRY(look(t, &v, "embed", seen, err));
    FSDP_TRY(fsdp_module_leave(f, t->embed, FSDP_FORWARD, err));
    for (int i = 0; i < NBLOCKS; i++) {
        FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_FORWARD, &v, err));
        snprintf(prefix, sizeof prefix, "block.%d", i);
        FSDP_TRY(look(t, &v, prefix, seen, err));
        FSDP_TRY(keep(t, f, &v, i, NULL, err));
        if (scribbles && i + 1 < NBLOCKS) /* the last stays for the backward pass */
            FSDP_TRY(scribble(t, &v, prefix, err));
        FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_FORWARD, err));
    }
    FSDP_TRY(fsdp_module_enter(f, t->head, FSDP_FORWARD, &v, err));
    FSDP_TRY(fsdp_module_leave(f, t->head, FSDP_FORWARD, err));
    return fsdp_module_leave(f, t->root, FSDP_FORWARD, err);
}

/* Looks, too: a backward pass reads what it multiplies with. */
static inline int backward(struct toy *t, struct fsdp *f, bool scribbles, int first_row, int nrows,
                           uint64_t *seen, struct fsdp_err *err)
{
    struct fsdp_view v;
    char prefix[32];
    FSDP_TRY(fsdp_module_enter(f, t->root, FSDP_BACKWARD, &v, err));
    FSDP_TRY(look(t, &v, "scal", seen, err));
    FSDP_TRY(write_grads(t, &v, "scal", first_row, nrows, err));
    FSDP_TRY(fsdp_module_enter(f, t->head, FSDP_BACKWARD, &v, err));
    FSDP_TRY(write_grads(t, &v, "embed", first_row, nrows, err));
    FSDP_TRY(fsdp_module_leave(f, t->head, FSDP_BACKWARD, err));
    for (int i = NBLOCKS - 1; i >= 0; i--) {
        if (fsdp_module_recomputes(f, t->block[i])) {
            FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_RECOMPUTE, &v, err));
            FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_RECOMPUTE, err));
        }
        FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_BACKWARD, &v, err));
        snprintf(prefix, sizeof prefix, "block.%d", i);
        FSDP_TRY(look(t, &v, prefix, seen, err));
        FSDP_TRY(keep(t, f, &v, i, seen, err));
        FSDP_TRY(write_grads(t, &v, prefix, first_row, nrows, err));
        if (scribbles)
            FSDP_TRY(scribble(t, &v, prefix, err));
        FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_BACKWARD, err));
    }
    /* The tied weight's second contribution adds. */
    FSDP_TRY(fsdp_module_enter(f, t->embed, FSDP_BACKWARD, &v, err));
    FSDP_TRY(look(t, &v, "embed", seen, err));
    FSDP_TRY(write_grads(t, &v, "embed", first_row + 1, nrows, err));
    if (scribbles)
        FSDP_TRY(scribble(t, &v, "embed", err));
    FSDP_TRY(fsdp_module_leave(f, t->embed, FSDP_BACKWARD, err));
    return fsdp_module_leave(f, t->root, FSDP_BACKWARD, err);
}

/* ---- one run, its final weights gathered in memory shared with the test ---------------------- */

struct cell {
    int nranks, nnodes, shard_size, accumulation;
    enum fsdp_strategy strategy;
    enum fsdp_wrap_policy wrap;
    int prefetch, limit, checkpointing;
    bool threaded, clip, reduce_last;
    bool traced, odd; /* odd: toy_make_widths */
    int regather;     /* reshard_after_forward as a group size; 0: the strategy's own */
    bool two_level;
    enum fsdp_offload offload;
    enum fsdp_update_at update_at;
    int slots;             /* of what is offloaded; 0: as by default */
    bool acts, grads;      /* activations, gradient shards are offloaded */
    bool on_host;          /* updates are computed there */
    int grad_buffers;      /* 0: as by default */
    const char *overrides; /* of units, separated by semicolons; NULL: none */
    unsigned shuffle;      /* seed of an order drawn at random; 0: lanes run as they do */
    int repeats;           /* engines one after the other, each in another order; 0: one */
    bool unwaited;         /* nobody waits before the last step */
    bool scribbles;        /* over what was gathered; for FULL_SHARD of units that are blocks */
    /* Called when the engine is made; may take an edge from it. */
    void (*sabotage)(struct fsdp *f, int index);
    int index;
};

struct outcome {
    float value[3][MAX_PARAMS][MAX_NELEM]; /* master, exp_avg, exp_avg_sq */
    uint32_t seen[3][MAX_PARAMS];          /* elements written, replica 0 */
    double grad_norm[STEPS], control[STEPS];
    /* What forward passes of a step saw, backward passes, and the evaluation after it: the same in
     * all micro-steps and on all ranks, else 0. */
    uint64_t looked[STEPS][NLOOKS];
    uint64_t looked_by[MAX_RANKS][STEPS][NLOOKS];
    uint64_t grads; /* a hash of the last step's gradients, on rank 0, where they are offloaded */
    /* Of rank 0, from the second step on. */
    uint64_t allocs_in_loop, device_allocs_in_loop, syncs_in_loop;
    uint64_t planned_nbytes, taken_nbytes; /* by the engine, of its device */
};

struct run {
    struct cell cell;
    struct outcome *out;
    struct toy *toy;
    int rank;
};

static inline int collect(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                          const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct run *run = ctx;
    int which = kind == FSDP_SLICE_MODEL                   ? 0
                : strstr(slice->tensor.name, "exp_avg_sq") ? 2
                                                           : 1,
        p = 0;
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor),
             nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    while (!strstr(slice->tensor.name, fsdp_param_tensor(run->toy->tree, p).name))
        p++; /* no name is part of another */
    if (slice->replica != 0)
        return FSDP_OK;
    __atomic_add_fetch(&run->out->seen[which][p], (uint32_t)nelem, __ATOMIC_SEQ_CST);
    return io->read(io->ctx, 0, &run->out->value[which][p][slice->box.offset[0] * row], nelem * 4,
                    err);
}

enum { MAX_MICROS = 12 };

/* Of one rank and step; a micro-step hashes its passes into its own. */
struct looks {
    uint64_t forward[MAX_MICROS], backward[MAX_MICROS], eval;
};

/* One step, and an evaluation pass, which must not disturb the next. Where nobody waits there is
 * none: it orders the lanes of one step before those of the next. */
static inline int train_step(struct run *run, struct fsdp *f, int step, double *control,
                             struct looks *seen, struct fsdp_err *err)
{
    const struct cell *c = &run->cell;
    int per_micro = ROWS / c->nranks / c->accumulation;
    struct fsdp_step_args args = {.step = step, .lr = 0.01, .control = control};
    bool waits = !c->unwaited || step == STEPS - 1;
    struct fsdp_step_result result = {0};

    fsdp_trace_next(f, step); /* no more than a hint where nothing is traced */
    for (int m = 0; m < c->accumulation; m++) {
        int row = (run->rank * c->accumulation + m) * per_micro;
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, m, err));
        FSDP_TRY(forward(run->toy, f, c->scribbles, &seen->forward[m], err));
        FSDP_TRY(backward(run->toy, f, c->scribbles, row, per_micro, &seen->backward[m], err));
        FSDP_TRY(fsdp_micro_end(f, err));
    }
    FSDP_TRY(fsdp_step(f, &args, waits ? &result : NULL, err));
    run->out->grad_norm[step] = result.grad_norm;
    run->out->control[step] = result.control[3];
    if (!waits)
        return FSDP_OK;
    FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
    FSDP_TRY(forward(run->toy, f, false, &seen->eval, err));
    return fsdp_micro_end(f, err);
}

static inline uint64_t all_same(const uint64_t *seen, int count)
{
    for (int i = 1; i < count; i++)
        if (seen[i] != seen[0])
            return 0;
    return seen[0];
}

static inline int hash_grad(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    uint64_t *hash = ctx;
    (void)err;
    if (param->grad)
        *hash = fsdp_hash(*hash, param->grad, fsdp_tensor_nelem(&param->tensor) * sizeof(float));
    return FSDP_OK;
}

/* The copies in host memory. */
static inline int look_at_grads(struct run *run, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    uint64_t hash = FSDP_HASH_SEED;

    opts.with_grads = true;
    FSDP_TRY(fsdp_full_params(f, &opts, hash_grad, &hash, err));
    if (run->rank == 0)
        run->out->grads = hash;
    return FSDP_OK;
}

static inline int train(struct run *run, struct fsdp *f, struct fsdp_device *device,
                        struct fsdp_err *err)
{
    double control[STEPS][FSDP_CONTROL_NELEM] = {{0}};
    struct looks seen[STEPS] = {{{0}, {0}, 0}};
    struct outcome *out = run->out;

    for (int step = 0; step < STEPS; step++) {
        uint64_t allocs = fsdp_alloc_count();
        struct fsdp_device_stats before = fsdp_device_stats(device);
        control[step][3] = run->rank + 1;
        FSDP_TRY(train_step(run, f, step, control[step], &seen[step], err));
        struct fsdp_device_stats after = fsdp_device_stats(device);
        if (step == 0 || run->rank != 0)
            continue;
        out->allocs_in_loop += fsdp_alloc_count() - allocs;
        out->device_allocs_in_loop += after.nallocs - before.nallocs;
        if (!run->cell.unwaited || step < STEPS - 1)
            out->syncs_in_loop += after.nsyncs - before.nsyncs;
    }
    FSDP_TRY(fsdp_sync(f, err));
    if (run->cell.grads)
        FSDP_TRY(look_at_grads(run, f, err));
    for (int step = 0; step < STEPS; step++) {
        uint64_t *looked = out->looked_by[run->rank][step];
        looked[0] = all_same(seen[step].forward, run->cell.accumulation);
        looked[1] = all_same(seen[step].backward, run->cell.accumulation);
        looked[2] = seen[step].eval;
    }
    return fsdp_state_each(f, collect, run, err);
}

static inline struct fsdp_opts opts_of(const struct cell *c)
{
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    opts.sharding_strategy = c->strategy;
    opts.wrap_policy = c->wrap;
    opts.wrap_classes = classes;
    opts.min_num_params = 30;
    opts.accumulation = c->accumulation;
    opts.reduce_last = c->reduce_last;
    if (c->regather)
        opts.reshard_after_forward = c->regather;
    opts.forward_prefetch = opts.backward_prefetch = c->prefetch;
    opts.limit_all_gathers = c->limit;
    opts.activation_checkpointing = c->checkpointing;
    opts.offload = c->offload;
    opts.offload_activations = c->acts;
    opts.offload_gradients = c->grads;
    opts.offload_update = c->on_host ? FSDP_OFFLOAD_UPDATE_HOST : FSDP_OFFLOAD_UPDATE_AUTO;
    opts.update_at = c->update_at;
    if (c->slots)
        opts.offload_slots = c->slots;
    if (c->grad_buffers)
        opts.grad_buffers = c->grad_buffers;
    opts.optim.clip_grad_norm = c->clip ? 0.5 : 0;
    opts.seed = 42;
    return opts;
}

enum { MAX_OVERRIDES = 4 };
struct overrides {
    char text[256];
    struct fsdp_unit_override list[MAX_OVERRIDES];
};

static inline int set_overrides(struct overrides *o, struct fsdp_opts *opts, const char *text,
                                struct fsdp_err *err)
{
    char *rest = NULL;
    snprintf(o->text, sizeof o->text, "%s", text ? text : "");
    for (char *one = strtok_r(o->text, ";", &rest); one; one = strtok_r(NULL, ";", &rest))
        FSDP_TRY(fsdp_unit_override_parse(&o->list[opts->nunit_overrides++], one, err));
    opts->unit_overrides = o->list;
    return FSDP_OK;
}

static inline int shape_of(struct fsdp_mesh_shape *shape, const struct cell *c,
                           const struct fsdp_opts *opts, const struct fsdp_node_map *nodes,
                           struct fsdp_err *err)
{
    FSDP_TRY(fsdp_mesh_shape_for(shape, c->strategy, c->shard_size, nodes, err));
    if (fsdp_opts_regather_size(opts))
        FSDP_TRY(fsdp_mesh_shape_regather(shape, fsdp_opts_regather_size(opts), err));
    return c->two_level ? fsdp_mesh_shape_two_level(shape, nodes, err) : FSDP_OK;
}

static inline unsigned device_flags(const struct cell *c)
{
    if (c->shuffle)
        return FSDP_DEVICE_SHUFFLED | c->shuffle << FSDP_DEVICE_SEED_SHIFT;
    return c->threaded ? FSDP_DEVICE_THREADED : 0;
}

static inline int create_engine(struct fsdp **f, struct run *run, const struct fsdp_opts *opts,
                                struct fsdp_device *device, struct fsdp_mesh *mesh,
                                struct fsdp_err *err)
{
    struct fsdp_memory_row rows[32];
    uint64_t before = fsdp_device_stats(device).alloc_nbytes;

    FSDP_TRY(fsdp_create(f, run->toy->tree, opts, device, mesh, err));
    if (run->cell.sabotage)
        run->cell.sabotage(*f, run->cell.index);
    if (run->rank)
        return FSDP_OK;
    run->out->taken_nbytes = fsdp_device_stats(device).alloc_nbytes - before;
    for (int i = fsdp_memory_plan(*f, rows, 32) - 1; i >= 0; i--)
        run->out->planned_nbytes += rows[i].host ? 0 : rows[i].nbytes;
    return FSDP_OK;
}

static inline int run_engine(struct run *run, const struct fsdp_opts *opts,
                             struct fsdp_device *device, struct fsdp_mesh *mesh,
                             struct fsdp_err *err)
{
    struct fsdp *f = NULL;
    int rc = create_engine(&f, run, opts, device, mesh, err);

    if (!rc)
        rc = fsdp_init_params(f, err);
    if (!rc && run->cell.traced)
        rc = fsdp_trace_open(f, STEPS, err);
    if (!rc)
        rc = train(run, f, device, err);
    fsdp_destroy(f);
    return rc;
}

static inline int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = opts_of(&run->cell);
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct overrides overrides;
    struct toy toy;
    int rc;

    toy_make_widths(&toy, run->cell.odd);
    run->toy = &toy;
    run->rank = oob->rank;
    rc = fsdp_device_open(&device, "cpu", device_flags(&run->cell), &err);
    if (!rc)
        rc = set_overrides(&overrides, &opts, run->cell.overrides, &err);
    if (!rc)
        rc = shape_of(&shape, &run->cell, &opts, nodes, &err);
    if (!rc)
        rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err);
    for (int i = 0; !rc && (i == 0 || i < run->cell.repeats); i++, run->out++)
        rc = run_engine(run, &opts, device, mesh, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return rc != 0;
}

static inline size_t outcome_nbytes(const struct cell *cell)
{
    return sizeof(struct outcome) * (size_t)(cell->repeats ? cell->repeats : 1);
}

static inline void compare_looks(struct outcome *out, int nranks)
{
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < NLOOKS; k++) {
            uint64_t seen[MAX_RANKS] = {0};
            for (int r = 0; r < nranks; r++)
                seen[r] = out->looked_by[r][step][k];
            out->looked[step][k] = all_same(seen, nranks);
        }
}

/* An outcome per repeat, to be unmapped by the caller; NULL if a rank failed. */
static inline struct outcome *run_cell(const struct cell *cell)
{
    struct run run = {.cell = *cell};
    struct outcome *out =
        mmap(NULL, outcome_nbytes(cell), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run.out = out;
    if (ranks_run(cell->nranks, cell->nnodes, 60, rank_main, &run, NULL)) {
        munmap(out, outcome_nbytes(cell));
        return NULL;
    }
    for (int i = 0; i == 0 || i < cell->repeats; i++)
        compare_looks(&out[i], cell->nranks);
    return out;
}

#endif
