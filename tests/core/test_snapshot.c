/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state is read from a snapshot by another thread, slowly, while training continues. What it
 * reads must be the state as it was taken, and training must end where it ends without, whatever of
 * the snapshot had room to be copied. Where updates have a lane of their own they are held up, so
 * that who does not wait for them reads the state of the step before.
 */
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/engine.h"
#include "ranks.h"
#include "tap.h"

enum { NBLOCKS = 4, NSTEPS = 4, NSLICES = 64, ROWS = 37, COLS = 16 };

struct model {
    struct fsdp_module_tree *tree;
    int root, block[NBLOCKS], param[NBLOCKS + 2];
};

static int model_make(struct model *m, struct fsdp_err *err)
{
    uint64_t shape[2] = {ROWS, COLS};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    FSDP_TRY(fsdp_module_tree_create(&m->tree, err));
    FSDP_TRY(fsdp_module_add(m->tree, -1, "", "Model", &m->root, err));
    FSDP_TRY(fsdp_module_add_param(
        m->tree, m->root,
        &(struct fsdp_param_desc){.name = "embed", .ndim = 2, .shape = shape, .init = init},
        &m->param[0], err));
    FSDP_TRY(fsdp_module_add_param(
        m->tree, m->root,
        &(struct fsdp_param_desc){
            .name = "table", .ndim = 2, .shape = shape, .init = init, .flags = FSDP_PARAM_FROZEN},
        &m->param[NBLOCKS + 1], err));
    for (int i = 0; i < NBLOCKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d", i);
        FSDP_TRY(fsdp_module_add(m->tree, m->root, name, "Block", &m->block[i], err));
        snprintf(name, sizeof name, "block.%d.weight", i);
        FSDP_TRY(fsdp_module_add_param(
            m->tree, m->block[i],
            &(struct fsdp_param_desc){.name = name, .ndim = 2, .shape = shape, .init = init},
            &m->param[i + 1], err));
    }
    return FSDP_OK;
}

/* The gradient is the parameter itself: enough for every element to change in every step. */
struct grad_arg {
    const float *param;
    float *grad;
};

static int grad_run(void *arg, struct fsdp_err *err)
{
    struct grad_arg *a = arg;
    (void)err;
    memcpy(a->grad, a->param, ROWS * COLS * sizeof(float));
    return FSDP_OK;
}

static int module_backward(struct fsdp *f, int module, int param, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, module, FSDP_BACKWARD, &view, err));
    fsdp_view_grad_beta(&view, param);
    struct grad_arg arg = {view.param[param], view.grad[param]};
    return fsdp_lane_call(view.lane, grad_run, &arg, sizeof arg, err);
}

static int one_step(struct model *m, struct fsdp *f, int step, struct fsdp_err *err)
{
    struct fsdp_step_args args = {.step = step, .lr = 0.1};
    struct fsdp_view view;
    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
    FSDP_TRY(fsdp_module_enter(f, m->root, FSDP_FORWARD, &view, err));
    for (int i = 0; i < NBLOCKS; i++) {
        FSDP_TRY(fsdp_module_enter(f, m->block[i], FSDP_FORWARD, &view, err));
        FSDP_TRY(fsdp_module_leave(f, m->block[i], FSDP_FORWARD, err));
    }
    FSDP_TRY(fsdp_module_leave(f, m->root, FSDP_FORWARD, err));
    FSDP_TRY(module_backward(f, m->root, m->param[0], err));
    for (int i = NBLOCKS; i-- > 0;) {
        FSDP_TRY(module_backward(f, m->block[i], m->param[i + 1], err));
        FSDP_TRY(fsdp_module_leave(f, m->block[i], FSDP_BACKWARD, err));
    }
    FSDP_TRY(fsdp_module_leave(f, m->root, FSDP_BACKWARD, err));
    FSDP_TRY(fsdp_micro_end(f, err));
    return fsdp_step(f, &args, NULL, err);
}

/* ---- what is read ---------------------------------------------------------------------------- */

struct record {
    int nslices;
    uint64_t hash[NSLICES], nbytes;
    enum fsdp_slice_kind only; /* a visit reads one kind, as a writer of files does */
    bool slow;
};

static int record_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                        const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct record *r = ctx;
    float data[ROWS * COLS];
    size_t nbytes = (size_t)fsdp_box_nelem(&slice->box, slice->tensor.ndim) * sizeof(float);

    if (kind != r->only || !nbytes)
        return FSDP_OK;
    if (r->slow)
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    FSDP_TRY(io->read(io->ctx, 0, data, nbytes, err));
    r->hash[r->nslices] = fsdp_hash(FSDP_HASH_SEED, slice->tensor.name, strlen(slice->tensor.name));
    r->hash[r->nslices] = fsdp_hash(r->hash[r->nslices], data, nbytes);
    r->nslices++;
    r->nbytes += nbytes;
    return FSDP_OK;
}

static int record_live(struct record *r, struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_sync(f, err));
    r->only = FSDP_SLICE_MODEL;
    FSDP_TRY(fsdp_state_each(f, record_slice, r, err));
    r->only = FSDP_SLICE_OPTIM;
    return fsdp_state_each(f, record_slice, r, err);
}

static bool equal(const struct record *a, const struct record *b)
{
    return a->nslices == b->nslices && a->nslices > 0 && a->nbytes == b->nbytes &&
           !memcmp(a->hash, b->hash, (size_t)a->nslices * sizeof *a->hash);
}

struct writer {
    struct fsdp_snapshot *snapshot;
    struct record record;
    int rc;
    struct fsdp_err err;
};

static void *write_beside(void *arg)
{
    struct writer *w = arg;
    w->record.slow = true;
    w->record.only = FSDP_SLICE_MODEL;
    w->rc = fsdp_snapshot_each(w->snapshot, record_slice, &w->record, &w->err);
    w->record.only = FSDP_SLICE_OPTIM;
    if (w->rc == FSDP_OK)
        w->rc = fsdp_snapshot_each(w->snapshot, record_slice, &w->record, &w->err);
    fsdp_snapshot_release(w->snapshot);
    return NULL;
}

/* ---- cells ----------------------------------------------------------------------------------- */

struct cell {
    enum fsdp_strategy strategy;
    bool threaded;
    enum fsdp_update_at update_at;
    double room; /* of the state; < 0: no snapshot is taken */
    uint64_t budget_nbytes;
    uint64_t final[2]; /* each rank's state at the end */
};

static int rest_call(void *arg, struct fsdp_err *err)
{
    (void)arg;
    (void)err;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return FSDP_OK;
}

/* The step's updates begin late. */
static int hold_up_updates(struct fsdp *f, struct fsdp_err *err)
{
    char nothing = 0;
    return fsdp_lane_call(f->lanes[SCHED_UPDATES], rest_call, &nothing, sizeof nothing, err);
}

static int run_cell(struct cell *cell, int rank, struct model *m, struct fsdp *f,
                    struct fsdp_err *err)
{
    struct fsdp_snapshot *snapshot = NULL;
    struct record taken = {0}, last = {0};
    struct writer writer = {0};
    pthread_t thread;

    FSDP_TRY(fsdp_init_params(f, err));
    if (cell->room >= 0)
        FSDP_TRY(fsdp_snapshot_create(&snapshot, f, cell->budget_nbytes, 20, err));
    uint64_t allocs = 0;
    for (int step = 0; step < NSTEPS; step++) {
        FSDP_TRY(hold_up_updates(f, err));
        FSDP_TRY(one_step(m, f, step, err));
        if (step != 1 || !snapshot)
            continue;
        allocs = fsdp_alloc_count();
        FSDP_TRY(fsdp_snapshot_take(snapshot, err));
        if (fsdp_alloc_count() != allocs)
            return fsdp_err_set(err, FSDP_EINTERNAL, "taking a snapshot allocates");
        if (fsdp_snapshot_take(snapshot, NULL) != FSDP_EINVAL)
            return fsdp_err_set(err, FSDP_EINTERNAL, "a second snapshot is not refused");
        FSDP_TRY(record_live(&taken, f, err));
        writer.snapshot = snapshot;
        if (pthread_create(&thread, NULL, write_beside, &writer))
            return fsdp_err_set(err, FSDP_EINTERNAL, "no thread");
    }
    FSDP_TRY(record_live(&last, f, err));
    cell->final[rank] = fsdp_hash(FSDP_HASH_SEED, last.hash, sizeof last.hash);
    if (!snapshot)
        return FSDP_OK;
    pthread_join(thread, NULL);
    fsdp_snapshot_destroy(snapshot);
    if (writer.rc)
        return fsdp_err_pass(err, writer.rc, &writer.err);
    if (!equal(&taken, &writer.record))
        return fsdp_err_set(err, FSDP_EINTERNAL, "the snapshot is not the state that was taken");
    if (equal(&taken, &last))
        return fsdp_err_set(err, FSDP_EINTERNAL, "training did not continue");
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct cell *cell = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct model m;
    int rc;

    opts.sharding_strategy = cell->strategy;
    opts.wrap_classes = classes;
    opts.update_at = cell->update_at;
    (void)((rc = model_make(&m, &err)) ||
           (rc = fsdp_device_open(&device, ranks_device(),
                                  cell->threaded ? FSDP_DEVICE_THREADED : 0, &err)) ||
           (rc = fsdp_mesh_shape_for(&shape, cell->strategy, 0, nodes, &err)) ||
           (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
           (rc = fsdp_create(&f, m.tree, &opts, device, mesh, &err)) ||
           (rc = run_cell(cell, oob->rank, &m, f, &err)));
    if (rc)
        diag("rank %d: %s", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(m.tree);
    return rc != FSDP_OK;
}

/* The masters and both moments of all trainable parameters, over both ranks. */
enum { STATE_NBYTES = (NBLOCKS + 1) * ROWS * COLS * 4 * 3 };

static bool run_ranks(struct cell *cell)
{
    bool good =
        ranks_run(2, cell->strategy == FSDP_HYBRID_SHARD ? 2 : 1, 60, rank_main, cell, NULL) == 0;
    if (!good)
        diag("room for %g of the state", cell->room);
    return good;
}

int main(void)
{
    static const double rooms[] = {1, 0.5, 0.1, 0.0001};
    static const enum fsdp_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_NO_SHARD};
    struct cell *cell =
        mmap(NULL, sizeof *cell, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (int k = 0; k < 2; k++) {
        for (int way = 0; way < 3; way++) {
            *cell =
                (struct cell){.strategy = strategies[k],
                              .threaded = way > 0,
                              .update_at = way > 1 ? FSDP_UPDATE_AT_FORWARD : FSDP_UPDATE_AT_STEP,
                              .room = -1};
            bool good = run_ranks(cell), undisturbed = good;
            uint64_t final[2] = {cell->final[0], cell->final[1]};
            for (int i = 0; i < 4; i++) {
                cell->room = rooms[i];
                cell->budget_nbytes = (uint64_t)(STATE_NBYTES * rooms[i]) + 1;
                good &= run_ranks(cell);
                undisturbed &= !memcmp(final, cell->final, sizeof final);
            }
            static const char *const ways[] = {"at once", "on threads",
                                               "on threads, updates on one"};
            const char *how = ways[way];
            ok(good, "strategy %d, lanes %s: a snapshot is the state it was taken of, read later",
               strategies[k], how);
            ok(undisturbed, "strategy %d, lanes %s: training ends where it does without one",
               strategies[k], how);
        }
    }
    munmap(cell, sizeof *cell);
    return tap_done();
}
