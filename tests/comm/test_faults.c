/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when a rank dies, stops, gives up, calls something else, or is not a rank at all:
 * every other rank gets an error that names it, the error stays, and nothing is left behind.
 * Deadlines are ten minutes where a death must be noticed, so a rank that only waited would fail
 * the test by the limit of the run.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "comm_test.h"

enum { FOREVER_S = 600, RUN_S = 60, VICTIM = 1 };

struct plan {
    struct board *board;
    bool threaded, blind; /* blind: the job's channel never reports a loss */
    int variant;
};

static int blind_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    (void)oob;
    (void)err;
    return FSDP_OK;
}

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, (ms % 1000) * 1000000L}, NULL);
}

static bool names(const char *text, int rank)
{
    char want[32];
    snprintf(want, sizeof want, "rank %d (host node", rank);
    if (strstr(text, want))
        return true;
    snprintf(want, sizeof want, "rank %d lost", rank); /* the channel's words */
    return strstr(text, want) != NULL;
}

static bool begin(struct env *env, struct fsdp_comm **comm, const struct plan *plan,
                  struct fsdp_oob *oob, const struct fsdp_node_map *nodes, double timeout_s)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    atomic_store(&plan->board->pid[oob->rank], (int)getpid());
    if (plan->blind)
        oob->health = blind_health;
    if (!env_open(env, oob, nodes, plan->threaded))
        return check(plan->board, false, "cannot open a device");
    struct fsdp_comm_opts opts = comm_opts(env, "host", timeout_s);
    return check(plan->board, fsdp_comm_create(comm, &opts, oob, env->device, &err) == FSDP_OK,
                 "create: %s", err.text);
}

static void finish(struct env *env, struct fsdp_comm *comm)
{
    fsdp_comm_destroy(comm);
    env_close(env);
}

static int nothing_left(const struct board *board, int nranks)
{
    int count = 0;
    for (int r = 0; r < nranks; r++)
        count += named_segments(atomic_load(&board->pid[r]));
    return count;
}

static void verdict(const struct plan *plan, int nranks, int nnodes, int bad, int bad_expected,
                    const char *what)
{
    struct board *board = plan->board;

    ok(bad == bad_expected && atomic_load(&board->nbad) == 0 && atomic_load(&board->nchecks) > 0 &&
           nothing_left(board, nranks) == 0,
       "%s, %d ranks on %d nodes%s%s: %d checks, %d bad%s%s", what, nranks, nnodes,
       plan->threaded ? ", threaded" : "", plan->blind ? ", silent channel" : "",
       atomic_load(&board->nchecks), atomic_load(&board->nbad), board->first_bad[0] ? ": " : "",
       board->first_bad);
    for (int r = 0; r < nranks; r++)
        if (board->text[r][0])
            diag("rank %d: %s", r, board->text[r]);
    munmap(board, sizeof *board);
}

/* Everything is refused with the same error from now on. */
static void check_sticky(const struct plan *plan, struct env *env, struct fsdp_comm *comm,
                         int status)
{
    struct fsdp_err err = FSDP_ERR_INIT, again = FSDP_ERR_INIT;
    char byte[8] = "";

    check(plan->board, fsdp_comm_status(comm, &err) == status, "status %d, expected %d: %s",
          err.status, status, err.text);
    check(plan->board,
          fsdp_comm_barrier(comm, env->lane, &again) == status && !strcmp(err.text, again.text),
          "a later barrier says: %s", again.text);
    check(plan->board, fsdp_comm_broadcast(comm, byte, 1, FSDP_U8, 0, env->lane, &again) == status,
          "a later broadcast is not refused");
    check(plan->board, !fsdp_comm_mem_alloc(comm, 64, &again) && again.status == status,
          "a later mem_alloc is not refused");
    snprintf(plan->board->text[env->oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
}

/* Collectives of several sizes until one fails. */
static int churn(struct env *env, struct fsdp_comm *comm, int rounds, struct fsdp_err *err)
{
    enum { NELEM = 400000 };
    static float x[NELEM];
    int rc = FSDP_OK;

    for (int i = 0; i < rounds && rc == FSDP_OK; i++) {
        size_t part = NELEM / (size_t)fsdp_comm_size(comm);
        rc = fsdp_comm_all_reduce(comm, x, x, i % 3 ? NELEM : 10, FSDP_F32, env->lane, err);
        if (rc == FSDP_OK)
            rc = fsdp_comm_all_gather(comm, x, x + (size_t)fsdp_comm_rank(comm) * part, part,
                                      FSDP_F32, env->lane, err);
        if (rc == FSDP_OK)
            rc = fsdp_lane_sync(env->lane, err);
    }
    return rc;
}

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

static int abort_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
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
            fsdp_comm_abort(comm, "the test says so");
    }
    int rc = fsdp_lane_sync(env.lane, &err);
    atomic_fetch_add(&plan->board->counter[0], 1);
    check(plan->board, rc == FSDP_ECANCELED, "rank %d: status %d: %s", oob->rank, rc, err.text);
    check(plan->board, strstr(err.text, "the test says so") && names(err.text, 0), "rank %d: %s",
          oob->rank, err.text);
    check_sticky(plan, &env, comm, FSDP_ECANCELED);
    fsdp_comm_abort(comm, "again");
    finish(&env, comm);
    return 0;
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

static void test_simple(rank_main_f *fn, int nranks, int nnodes, bool threaded, const char *what)
{
    struct plan plan = {board_make(), threaded, false, 0};
    int bad = ranks_run(nranks, nnodes, RUN_S, fn, &plan, NULL);
    verdict(&plan, nranks, nnodes, bad, 0, what);
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
    check(plan->board, mem != NULL, "mem_alloc beside running operations: %s", err.text);
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

/* ---- create --------------------------------------------------------------------------------- */

/* Ranks whose options are bad or differ: all fail alike, and the channel stays in step. */
static int refused_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_node_map short_map = *nodes;
    bool odd = oob->rank == VICTIM;

    short_map.nranks--;
    if (!env_open(&env, oob, nodes, false))
        return 1;
    for (int k = 0; k < 7; k++) {
        struct fsdp_comm_opts opts = comm_opts(&env, "host", 10);
        int expected = FSDP_EINVAL;
        switch (k) {
        case 0:
            opts.backend = odd ? "carrier-pigeon" : "host";
            break;
        case 1:
            opts.timeout_s = odd ? 0 : 10;
            break;
        case 2:
            opts.color = odd ? -1 : 0;
            break;
        case 3:
            opts.version = odd ? 99 : FSDP_COMM_OPTS_VERSION;
            break;
        case 4:
            opts.nodes = odd ? &short_map : nodes;
            break;
        case 5:
            opts.backend = odd ? "auto" : "host";
            expected = FSDP_EMISMATCH;
            break;
        default:
            opts.backend = "self";
            expected = FSDP_EUNSUPPORTED;
        }
        int rc = fsdp_comm_create(&comm, &opts, oob, env.device, k % 2 ? NULL : &err);
        check(plan->board, rc == expected, "rank %d, case %d: status %d: %s", oob->rank, k, rc,
              err.text);
        if (k == 0)
            check(plan->board,
                  strstr(err.text, "carrier-pigeon") &&
                      strstr(err.text, "known: auto, self, host") &&
                      (odd || strstr(err.text, "rank 1: ")),
                  "rank %d: %s", oob->rank, err.text);
        if (k == 6)
            check(plan->board, strstr(err.text, "groups of one rank"), "%s", err.text);
    }
    struct fsdp_comm_opts opts = comm_opts(&env, "auto", 10);
    check(plan->board,
          fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK &&
              fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK,
          "afterwards: %s", err.text);
    check(plan->board, !strcmp(fsdp_comm_backend(comm), "host"), "auto chose %s",
          fsdp_comm_backend(comm));
    finish(&env, comm);
    return 0;
}

/* Groups of unequal sizes, in reverse order, one of them alone. */
static int split_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const int color[] = {7, 3, 7, 5, 7, 3}, size[] = {3, 2, 3, 1, 3, 2};
    static const int rank_of[] = {2, 1, 1, 0, 0, 0};
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int me = oob->rank, seen[6];

    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "auto", 60);
    opts.color = color[me];
    opts.key = -me;
    if (!check(plan->board, fsdp_comm_create(&comm, &opts, oob, env.device, &err) == FSDP_OK, "%s",
               err.text))
        return 1;
    check(plan->board, fsdp_comm_size(comm) == size[me] && fsdp_comm_rank(comm) == rank_of[me],
          "world rank %d is %d of %d", me, fsdp_comm_rank(comm), fsdp_comm_size(comm));
    check(plan->board, !strcmp(fsdp_comm_backend(comm), size[me] == 1 ? "self" : "host"),
          "backend %s", fsdp_comm_backend(comm));
    check(plan->board,
          fsdp_comm_all_gather(comm, seen, &me, 1, FSDP_I32, env.lane, &err) == FSDP_OK, "%s",
          err.text);
    for (int p = 0; p < size[me]; p++)
        check(plan->board, color[seen[p]] == color[me] && rank_of[seen[p]] == p,
              "group rank %d is world rank %d", p, seen[p]);
    check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
    finish(&env, comm);
    return 0;
}

/* Too much registered memory is an error on all ranks of the node; the communicator goes on. */
static int greedy_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    check(plan->board, !fsdp_comm_mem_alloc(comm, (size_t)1 << 44, &err), "16 TiB were given");
    check(plan->board, err.status == FSDP_ENOSPC && strstr(err.text, "/dev/shm"), "status %d: %s",
          err.status, err.text);
    void *mem = fsdp_comm_mem_alloc(comm, oob->rank ? 1 << 20 : 8192, &err);
    check(plan->board, !mem && err.status == FSDP_EMISMATCH, "different sizes: status %d: %s",
          err.status, err.text);
    check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "afterwards: %s",
          err.text);
    mem = fsdp_comm_mem_alloc(comm, 8192, &err);
    check(plan->board, mem != NULL, "afterwards: %s", err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    finish(&env, comm); /* takes mem along */
    return 0;
}

/* ---- a stranger at the door ----------------------------------------------------------------- */

static int stranger_fd[64], nstrangers;

/* Called by the rank while it listens: finds its listening socket and greets it wrongly. */
static int intruding_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct {
        uint32_t magic;
        int32_t peer, attempt;
        uint8_t token[16];
    } hello = {0x66736470, oob->rank + 1, 0, {0}};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    (void)err;
    for (int fd = 3; fd < 256 && nstrangers < 64; fd++) {
        struct sockaddr_storage sa;
        int listens = 0;
        socklen_t len = sizeof listens, sa_len = sizeof sa;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens ||
            getsockname(fd, (struct sockaddr *)&sa, &sa_len))
            continue;
        to.sin_port = sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&sa)->sin6_port
                                               : ((struct sockaddr_in *)(void *)&sa)->sin_port;
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (struct sockaddr *)&to, sizeof to) == 0 &&
            (nstrangers % 2 || write(s, &hello, sizeof hello) == sizeof hello)) /* or silent */
            stranger_fd[nstrangers++] = s;
        else
            close(s);
    }
    return FSDP_OK;
}

static int stranger_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    int (*healthy)(struct fsdp_oob *, struct fsdp_err *) = oob->health;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", FOREVER_S);
    oob->health = intruding_health;
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    oob->health = healthy;
    if (!check(plan->board, rc == FSDP_OK, "create: %s", err.text))
        return 1;
    if (oob->rank < oob->size - 1)
        check(plan->board, nstrangers > 0, "rank %d saw no stranger", oob->rank);
    int ones = 1, sum = 0;
    rc = fsdp_comm_all_reduce(comm, &sum, &ones, 1, FSDP_I32, env.lane, &err);
    check(plan->board, rc == FSDP_OK && sum == oob->size, "sum %d: %s", sum, err.text);
    for (int i = 0; i < nstrangers; i++) {
        char byte;
        struct pollfd hangup = {stranger_fd[i], POLLIN, 0};
        check(plan->board, poll(&hangup, 1, 10000) == 1 && read(stranger_fd[i], &byte, 1) <= 0,
              "a stranger was answered");
        close(stranger_fd[i]);
    }
    finish(&env, comm);
    return 0;
}

/* A rank that cannot connect: the error of all is its cause, not that others waited for it. The
 * rank loses the right to open files when the ranks go from their segments to their connections. */
static int (*true_allgather)(struct fsdp_oob *, const void *, size_t, void *, struct fsdp_err *);
static struct rlimit file_limit;
static int nallgathers;

static int limiting_allgather(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                              struct fsdp_err *err)
{
    enum { SEGMENTS_AGREED = 4 };
    int rc = true_allgather(oob, in, nbytes, out, err);

    if (++nallgathers == SEGMENTS_AGREED)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, file_limit.rlim_max});
    return rc;
}

static int unreachable_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    getrlimit(RLIMIT_NOFILE, &file_limit);
    true_allgather = oob->allgather;
    if (oob->rank == VICTIM)
        oob->allgather = limiting_allgather;
    struct fsdp_comm_opts opts = comm_opts(&env, "host", 3);
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    setrlimit(RLIMIT_NOFILE, &file_limit);
    check(plan->board,
          rc == FSDP_EIO && names(err.text, 0) && strstr(err.text, "Too many open files"),
          "rank %d: status %d: %s", oob->rank, rc, err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    env_close(&env);
    return 0;
}

/* Every allocation of create fails once, on all ranks alike; then it works. */
static int alloc_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = FSDP_ENOMEM, nth = 0;

    if (!env_open(&env, oob, nodes, false))
        return 1;
    while (rc == FSDP_ENOMEM && nth < 100) {
        struct fsdp_comm_opts opts = comm_opts(&env, "host", 60);
        fsdp_alloc_fail_at((uint64_t)++nth);
        rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
        fsdp_alloc_fail_at(0);
        check(plan->board, rc == FSDP_OK || (rc == FSDP_ENOMEM && strstr(err.text, "memory")),
              "allocation %d: status %d: %s", nth, rc, err.text);
        check(plan->board, named_segments(getpid()) == 0, "allocation %d: a segment is left", nth);
    }
    check(plan->board, rc == FSDP_OK && nth > 8, "%d allocations failed, then %s", nth - 1,
          err.text);
    if (rc == FSDP_OK)
        check(plan->board, fsdp_comm_barrier(comm, env.lane, &err) == FSDP_OK, "%s", err.text);
    if (rc == FSDP_OK)
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
    test_simple(leave_main, 3, 1, false, "leave");
    test_simple(leave_main, 3, 3, false, "leave");
    test_simple(lane_main, 2, 1, false, "failed lane");
    test_simple(lane_main, 2, 2, false, "failed lane");
    test_simple(concurrent_main, 3, 1, true, "two communicators");
    test_simple(concurrent_main, 4, 2, true, "two communicators");
    test_simple(overtake_main, 2, 1, true, "overtaking");
    test_simple(refused_main, 3, 1, false, "refused options");
    test_simple(split_main, 6, 2, false, "split");
    test_simple(greedy_main, 2, 1, false, "too much memory");
    test_simple(unreachable_main, 2, 2, false, "no sockets");
    test_simple(alloc_main, 1, 1, false, "allocations");
    test_simple(alloc_main, 4, 2, false, "allocations");
    test_simple(stranger_main, 3, 3, false, "strangers");
    return tap_done();
}
