/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one node use each other's shards where they lie. A slow rank sees them as they were,
 * however early the other one changes its own: after an evaluation, and in an update.
 */
#include <time.h>

#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { NRANKS = 2, SLOW = 1 };

struct look_arg {
    const float *at;
    int nelem;
    float expected;
    long wait_ns;
    int *nwrong;
};

static int look_run(void *arg, struct fsdp_err *err)
{
    struct look_arg *a = arg;
    (void)err;
    nanosleep(&(struct timespec){.tv_nsec = a->wait_ns}, NULL);
    for (int i = 0; i < a->nelem; i++)
        *a->nwrong += a->at[i] != a->expected;
    return FSDP_OK;
}

/* Compares a whole parameter when its time comes on the lane; the slow rank's takes longer. */
static int look(const struct fsdp_view *view, int rank, int param, float expected, int *nwrong,
                struct fsdp_err *err)
{
    struct look_arg arg = {view->param[param], given_start[param + 1] - given_start[param],
                           expected, rank == SLOW ? 100000000 : 0, nwrong};
    return fsdp_lane_call(view->lane, look_run, &arg, sizeof arg, err);
}

static int fill_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const float value = *(const float *)ctx;
    float values[GIVEN_NELEM];
    const uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);

    for (int i = 0; i < GIVEN_NELEM; i++)
        values[i] = value;
    return kind == FSDP_SLICE_MODEL ? io->write(io->ctx, 0, values, nelem * sizeof(float), err)
                                    : FSDP_OK;
}

/* The rank's own shards: others are not asked. */
static int fill(struct fsdp *f, float value, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_sync(f, err));
    return fsdp_state_each(f, fill_slice, &value, err);
}

static int enter_and_look(struct given *g, struct fsdp *f, int rank, int block,
                          enum fsdp_phase phase, float expected, int *nwrong, struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, g->block[block], phase, &view, err));
    return look(&view, rank, g->param[1 + 2 * block], expected, nwrong, err);
}

static int forward(struct given *g, struct fsdp *f, int rank, float expected, int *nwrong,
                   struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, g->root, FSDP_FORWARD, &view, err));
    for (int i = 0; i < 2; i++) {
        FSDP_TRY(enter_and_look(g, f, rank, i, FSDP_FORWARD, expected, nwrong, err));
        FSDP_TRY(fsdp_module_leave(f, g->block[i], FSDP_FORWARD, err));
    }
    return fsdp_module_leave(f, g->root, FSDP_FORWARD, err);
}

/* Evaluates, and changes the shards as soon as that is over here. */
static int evaluate(struct given *g, struct fsdp *f, int rank, float now, float next, int *nwrong,
                    struct fsdp_err *err)
{
    FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
    FSDP_TRY(forward(g, f, rank, now, nwrong, err));
    FSDP_TRY(fsdp_micro_end(f, err));
    return fill(f, next, err);
}

/* A step whose gradients, summed over the ranks, are 1: at a rate of 1 every weight becomes less by
 * 1. The last that the slow rank reads is the first block's. */
static int train(struct given *g, struct fsdp *f, int rank, float now, int *nwrong,
                 struct fsdp_err *err)
{
    const struct fsdp_step_args args = {.step = 0, .lr = 1};
    static float grads[GIVEN_NELEM]; /* lanes read it later */
    struct fsdp_view view;

    for (int i = 0; i < GIVEN_NELEM; i++)
        grads[i] = 1.0f / NRANKS;
    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
    FSDP_TRY(forward(g, f, rank, now, nwrong, err));
    FSDP_TRY(given_grads(g, f, g->root, 0, 0, grads, 1, err));
    for (int i = 1; i >= 0; i--) {
        FSDP_TRY(fsdp_module_enter(f, g->block[i], FSDP_BACKWARD, &view, err));
        FSDP_TRY(look(&view, rank, g->param[1 + 2 * i], now, nwrong, err));
        for (int p = 1 + 2 * i; p <= 2 + 2 * i; p++) {
            struct given_arg arg = {view.grad[g->param[p]],
                                    grads,
                                    given_start[p + 1] - given_start[p],
                                    fsdp_view_grad_beta(&view, g->param[p]),
                                    1,
                                    view.loss_scale,
                                    view.grad_dtype};
            FSDP_TRY(fsdp_lane_call(view.lane, given_write, &arg, sizeof arg, err));
        }
        FSDP_TRY(fsdp_module_leave(f, g->block[i], FSDP_BACKWARD, err));
    }
    FSDP_TRY(fsdp_module_leave(f, g->root, FSDP_BACKWARD, err));
    FSDP_TRY(fsdp_micro_end(f, err));
    return fsdp_step(f, &args, NULL, err);
}

static bool has_slots(const struct fsdp *f)
{
    enum { MOST = 40 };
    struct fsdp_memory_row rows[MOST];
    const int nrows = fsdp_memory_plan(f, rows, MOST);
    for (int i = 0; i < nrows; i++)
        if (!strncmp(rows[i].what, "unsharded parameters", strlen("unsharded parameters")))
            return true;
    return false;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct given_where where = {.device = "cpu", .flags = FSDP_DEVICE_THREADED};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct given_engine e;
    struct given g;
    struct fsdp_err err = FSDP_ERR_INIT;
    int nwrong = 0, rc;

    (void)arg;
    given_make(&g);
    opts.optim.name = "sgd";
    opts.optim.clip_grad_norm = 0;
    opts.optim.weight_decay = opts.optim.momentum = 0;
    rc = given_open(&e, &g, &opts, &where, nodes, oob, &err);
    if (rc == FSDP_OK && has_slots(e.f) != (nodes->nnodes > 1))
        rc = fsdp_err_set(&err, FSDP_EINTERNAL, "slots on %d nodes", nodes->nnodes);
    if (rc == FSDP_OK && !(rc = fill(e.f, 8, &err)))
        rc = fsdp_state_loaded(e.f, &err);
    for (int i = 0; i < 3 && rc == FSDP_OK; i++)
        rc = evaluate(&g, e.f, oob->rank, (float)(8 + i), (float)(9 + i), &nwrong, &err);
    if (rc == FSDP_OK)
        rc = train(&g, e.f, oob->rank, 11, &nwrong, &err);
    if (rc == FSDP_OK)
        rc = train(&g, e.f, oob->rank, 10, &nwrong, &err);
    if (rc == FSDP_OK)
        rc = fsdp_sync(e.f, &err);
    if (rc == FSDP_OK && nwrong)
        rc = fsdp_err_set(&err, FSDP_EINTERNAL, "%d elements were not what they should be", nwrong);
    return given_close(&e, &g, oob->rank, rc, &err);
}

int main(void)
{
    ok(ranks_run(NRANKS, 1, 30, rank_main, NULL, NULL) == 0,
       "a slow rank of the node sees shards as they were when others change them");
    ok(ranks_run(NRANKS, 2, 30, rank_main, NULL, NULL) == 0,
       "as ranks of two nodes do, which gather copies");
    return tap_done();
}
