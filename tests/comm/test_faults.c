/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when a rank dies, stops, gives up or calls something else: every other rank gets an
 * error that names it, the error stays, and nothing is left behind.
 * Deadlines are ten minutes where a death must be noticed, so a rank that only waited would fail
 * the test by the limit of the run.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "faults.h"
#include "why.h"

/* ---- a rank is killed ----------------------------------------------------------------------- */

static void *killer(void *arg)
{
    nap(*(int *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

static int killed_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    pthread_t thread;
    int delay = 30;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    /* A rank that is slow here may learn of the death before its third round ends. */
    int rc = churn(&env, comm, 3, &err);
    if (oob->rank == VICTIM) {
        if (plan->variant) /* somewhere within an operation; else between two */
            pthread_create(&thread, NULL, killer, &delay);
        else
            kill(getpid(), SIGKILL);
    }
    if (rc == FSDP_OK)
        rc = churn(&env, comm, 1 << 30, &err);
    check(plan->board, rc == FSDP_EPEER, "rank %d: status %d: %s", oob->rank, rc, err.text);
    check(plan->board, names(err.text, VICTIM), "rank %d does not name rank %d: %s", oob->rank,
          VICTIM, err.text);
    check_sticky(plan, &env, comm, FSDP_EPEER);
    finish(&env, comm);
    return 0;
}

static void test_killed(int nranks, int nnodes, bool blind, bool threaded, int variant)
{
    struct plan plan = {board_make(), threaded, blind, variant};
    int statuses[MAX_RANKS];
    int bad = ranks_run(nranks, nnodes, RUN_S, killed_main, &plan, statuses);
    verdict(&plan, nranks, nnodes, bad, 1, variant ? "killed at work" : "killed between");
}

/* ---- a rank stops --------------------------------------------------------------------------- */

static int stopped_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, 3))
        return 1;
    if (churn(&env, comm, 1, &err))
        return check(plan->board, false, "before the stop: %s", err.text);
    if (oob->rank == VICTIM)
        raise(SIGSTOP);
    int rc = churn(&env, comm, 1 << 30, &err);
    check(plan->board, rc == FSDP_ETIMEDOUT, "rank %d: status %d: %s", oob->rank, rc, err.text);
    check(plan->board, names(err.text, VICTIM) && strstr(err.text, "did not come within 3 s"),
          "rank %d: %s", oob->rank, err.text);
    check_sticky(plan, &env, comm, FSDP_ETIMEDOUT);
    atomic_fetch_add(&plan->board->counter[0], 1);
    while (oob->rank == 0 && atomic_load(&plan->board->counter[0]) < oob->size - 1)
        nap(10);
    if (oob->rank == 0)
        kill(atomic_load(&plan->board->pid[VICTIM]), SIGKILL);
    finish(&env, comm);
    return 0;
}

static void test_stopped(int nranks, int nnodes)
{
    struct plan plan = {board_make(), false, false, 0};
    int bad = ranks_run(nranks, nnodes, RUN_S, stopped_main, &plan, NULL);
    verdict(&plan, nranks, nnodes, bad, 1, "stopped");
}

/* ---- ranks call different things ------------------------------------------------------------ */

static int odd_call(const struct plan *plan, struct env *env, struct fsdp_comm *comm,
                    struct fsdp_err *err)
{
    static float x[8192];
    int size = fsdp_comm_size(comm);

    switch (plan->variant) {
    case 0: /* another collective */
        return fsdp_comm_barrier(comm, env->lane, err);
    case 1: /* another count, both small */
        return fsdp_comm_all_reduce(comm, x, x, 11, FSDP_F32, env->lane, err);
    case 2: /* another dtype */
        return fsdp_comm_all_reduce(comm, x, x, 10, FSDP_I32, env->lane, err);
    case 3: /* another path: large where the others are small */
        return fsdp_comm_all_reduce(comm, x, x, 8192, FSDP_F32, env->lane, err);
    default: /* another collective of equal bytes */
        return fsdp_comm_all_gather(comm, x, x + 10 * fsdp_comm_rank(comm) % (10 * size), 10,
                                    FSDP_F32, env->lane, err);
    }
}

static int mismatch_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    static float x[8192];

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    /* A rank that is slow to leave the barrier may be told of the mismatch there. */
    int rc = fsdp_comm_barrier(comm, env.lane, &err);
    if (rc == FSDP_OK)
        rc = oob->rank == VICTIM ? odd_call(plan, &env, comm, &err)
                                 : fsdp_comm_all_reduce(comm, x, x, 10, FSDP_F32, env.lane, &err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(env.lane, &err);
    check(plan->board, rc == FSDP_EMISMATCH, "rank %d: status %d: %s", oob->rank, rc, err.text);
    check(plan->board, names(err.text, VICTIM) && strstr(err.text, "all_reduce #2 (nelem 10, F32"),
          "rank %d: %s", oob->rank, err.text);
    check_sticky(plan, &env, comm, FSDP_EMISMATCH);
    finish(&env, comm);
    return 0;
}

static void test_mismatch(int nranks, int nnodes, int variant)
{
    struct plan plan = {board_make(), false, false, variant};
    char what[32];
    snprintf(what, sizeof what, "mismatch %d", variant);
    int bad = ranks_run(nranks, nnodes, RUN_S, mismatch_main, &plan, NULL);
    verdict(&plan, nranks, nnodes, bad, 0, what);
}

/* ---- a rank aborts, or leaves --------------------------------------------------------------- */

/* Rank 0 does, for what the culprit did. */
static int abort_for(int culprit, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                     const struct plan *plan)
{
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    char reason[FSDP_ERR_TEXT_NBYTES];
    int last = oob->size - 1;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    if (oob->rank == last) { /* comes late: learns of it then, or in the next operation */
        while (atomic_load(&plan->board->counter[0]) < last)
            nap(5);
        if (fsdp_comm_barrier(comm, env.lane, NULL) == FSDP_OK &&
            fsdp_lane_sync(env.lane, NULL) == FSDP_OK)
            fsdp_comm_barrier(comm, env.lane, NULL);
    } else {
        check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
        nap(50); /* its thread waits by now; correct either way */
        if (oob->rank == 0)
            fsdp_comm_abort(comm, why_of(culprit, "the test says so"));
    }
    int rc = fsdp_lane_sync(env.lane, &err);
    check(plan->board, !strcmp(fsdp_err_reason(reason, &err), "the test says so"),
          "rank %d: the reason is '%s'", oob->rank, reason);
    check(plan->board, err.culprit == culprit, "rank %d: the culprit is %d", oob->rank,
          err.culprit);
    check(plan->board, err.of_other == (culprit == 0 && oob->rank != 0),
          "rank %d: the culprit reports it: %d", oob->rank, err.of_other);
    atomic_fetch_add(&plan->board->counter[0], 1);
    check(plan->board, rc == FSDP_ECANCELED, "rank %d: status %d: %s", oob->rank, rc, err.text);
    check(plan->board, strstr(err.text, "the test says so") && names(err.text, 0), "rank %d: %s",
          oob->rank, err.text);
    check_sticky(plan, &env, comm, FSDP_ECANCELED);
    fsdp_comm_abort(comm, why("again"));
    finish(&env, comm);
    return 0;
}

static int abort_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    return abort_for(oob->size - 1, oob, nodes, arg);
}

static int abort_own_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    return abort_for(0, oob, nodes, arg);
}

static int leave_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
    if (oob->rank == VICTIM) {
        finish(&env, comm); /* alive, but out of the group */
        while (atomic_load(&plan->board->counter[0]) < oob->size - 1)
            nap(5);
        return 0;
    }
    int rc = fsdp_comm_barrier(comm, env.lane, &err);
    check(plan->board, rc == FSDP_EPEER && names(err.text, VICTIM) && strstr(err.text, "left"),
          "rank %d: status %d: %s", oob->rank, rc, err.text);
    check_sticky(plan, &env, comm, FSDP_EPEER);
    atomic_fetch_add(&plan->board->counter[0], 1);
    finish(&env, comm);
    return 0;
}

/* A lane that failed for reasons of its own: the other ranks must not wait for this one. */
static int own_failure(void *arg, struct fsdp_err *err)
{
    (void)arg;
    return fsdp_err_set(err, FSDP_EIO, "the lane's own trouble");
}

static int lane_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    char none = 0;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    if (oob->rank == VICTIM)
        fsdp_lane_call(env.lane, own_failure, &none, 1, NULL);
    int rc = fsdp_comm_barrier(comm, env.lane, &err);
    if (oob->rank == VICTIM)
        check(plan->board, rc == FSDP_EIO, "rank %d: status %d: %s", oob->rank, rc, err.text);
    else
        check(plan->board,
              rc == FSDP_ECANCELED && names(err.text, VICTIM) &&
                  strstr(err.text, "the lane's own trouble"),
              "rank %d: status %d: %s", oob->rank, rc, err.text);
    finish(&env, comm);
    return 0;
}

/* ---- several communicators and lanes -------------------------------------------------------- */

/* Two communicators work at the same time on two threaded lanes; ranks enqueue in different orders,
 * as only the order within a communicator counts. */
static int concurrent_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    enum { ROUNDS = 60, NELEM = 20000 };
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm[2];
    struct fsdp_lane *lane[2];
    struct fsdp_err err = FSDP_ERR_INIT;
    static uint32_t x[2][NELEM];
    uint32_t expected = 1;
    int rc = FSDP_OK;

    if (!begin(&env, &comm[0], plan, oob, nodes, FOREVER_S))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", FOREVER_S);
    opts.name = "reduce";
    check(plan->board, fsdp_comm_create(&comm[1], &opts, oob, env.device, &err) == FSDP_OK, "%s",
          err.text);
    lane[0] = env.lane;
    fsdp_lane_create(&lane[1], env.device, "second", &err);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < NELEM; i++)
            x[k][i] = 1;
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 2 && rc == FSDP_OK; k++) {
            int c = (k + oob->rank) % 2;
            rc = fsdp_comm_all_reduce(comm[c], x[c], x[c], i % 2 ? NELEM : 50, FSDP_U32, lane[c],
                                      &err);
        }
        expected *= (uint32_t)oob->size;
    }
    /* Registered memory is made by this thread while the lanes work. */
    void *mem = fsdp_comm_mem_alloc(comm[0], 1 << 20, &err);
    check(plan->board, mem != NULL, "mem_alloc next to running operations: %s", err.text);
    for (int k = 0; k < 2; k++) {
        check(plan->board, rc == FSDP_OK && fsdp_lane_sync(lane[k], &err) == FSDP_OK, "%s",
              err.text);
        check(plan->board, x[k][0] == expected && x[k][49] == expected,
              "rank %d: comm %d: %u not %u", oob->rank, k, x[k][0], expected);
    }
    fsdp_comm_mem_free(comm[0], mem);
    fsdp_lane_destroy(lane[1]);
    fsdp_comm_destroy(comm[1]);
    finish(&env, comm[0]);
    return 0;
}

static int hold(void *arg, struct fsdp_err *err)
{
    atomic_int *gate = *(atomic_int **)arg;
    (void)err;
    while (!atomic_load(gate))
        nap(1);
    return FSDP_OK;
}

/* An operation that overtakes one enqueued before it on another lane is an error, not a wrong sum.
 */
static int overtake_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_lane *other;
    struct fsdp_err err = FSDP_ERR_INIT;
    static atomic_int gate;
    atomic_int *at = &gate;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    fsdp_lane_create(&other, env.device, "other", &err);
    fsdp_lane_call(env.lane, hold, &at, sizeof at, &err);
    fsdp_comm_barrier(comm, env.lane, &err);
    fsdp_comm_barrier(comm, other, &err);
    int rc = fsdp_lane_sync(other, &err);
    check(plan->board, rc == FSDP_EINTERNAL && strstr(err.text, "barrier #2 ran before #1"),
          "%d: %s", rc, err.text);
    atomic_store(&gate, 1);
    check(plan->board, fsdp_lane_sync(env.lane, &err) == FSDP_EINTERNAL, "the first one ran");
    fsdp_lane_destroy(other);
    finish(&env, comm);
    return 0;
}

int main(void)
{
    static const int layouts[][2] = {{2, 1}, {2, 2}, {4, 2}, {6, 3}};

    for (int l = 0; l < 4; l++)
        for (int blind = 0; blind < 2; blind++)
            test_killed(layouts[l][0], layouts[l][1], blind, l % 2, l > 1);
    test_killed(3, 1, true, false, 1);
    test_stopped(2, 1);
    test_stopped(4, 2);
    for (int variant = 0; variant < 5; variant++) {
        test_mismatch(3, 1, variant);
        test_mismatch(3, 3, variant);
        test_mismatch(5, 2, variant);
    }
    test_simple(abort_main, 3, 1, true, "abort");
    test_simple(abort_main, 3, 3, true, "abort");
    test_simple(abort_main, 4, 2, true, "abort");
    test_simple(abort_own_main, 3, 1, true, "abort for its own failure");
    test_simple(abort_own_main, 4, 2, true, "abort for its own failure");
    test_simple(leave_main, 3, 1, false, "leave");
    test_simple(leave_main, 3, 3, false, "leave");
    test_simple(lane_main, 2, 1, false, "failed lane");
    test_simple(lane_main, 2, 2, false, "failed lane");
    test_simple(concurrent_main, 3, 1, true, "two communicators");
    test_simple(concurrent_main, 4, 2, true, "two communicators");
    test_simple(overtake_main, 2, 1, true, "overtaking");
    return tap_done();
}
