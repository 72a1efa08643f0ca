/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of failing communicators share: how one begins, what is checked at its end. */
#ifndef FAULTS_H
#define FAULTS_H

#include <time.h>

#include "comm_test.h"

enum { FOREVER_S = 600, RUN_S = 60, VICTIM = 1 };

struct plan {
    struct board *board;
    bool threaded, blind; /* blind: the job's channel never reports a loss */
    int variant;
};

static inline int blind_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    (void)oob;
    (void)err;
    return FSDP_OK;
}

static inline void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, (ms % 1000) * 1000000L}, NULL);
}

static inline bool names(const char *text, int rank)
{
    char want[32];
    snprintf(want, sizeof want, "rank %d (host node", rank);
    if (strstr(text, want))
        return true;
    snprintf(want, sizeof want, "rank %d lost", rank); /* the channel's words */
    return strstr(text, want) != NULL;
}

static inline bool begin(struct env *env, struct fsdp_comm **comm, const struct plan *plan,
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

static inline void finish(struct env *env, struct fsdp_comm *comm)
{
    fsdp_comm_destroy(comm);
    env_close(env);
}

static inline int nothing_left(const struct board *board, int nranks)
{
    int count = 0;
    for (int r = 0; r < nranks; r++)
        count += named_segments(atomic_load(&board->pid[r]));
    return count;
}

static inline void verdict(const struct plan *plan, int nranks, int nnodes, int bad,
                           int bad_expected, const char *what)
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
static inline void check_sticky(const struct plan *plan, struct env *env, struct fsdp_comm *comm,
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
static inline int churn(struct env *env, struct fsdp_comm *comm, int rounds, struct fsdp_err *err)
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

static inline void test_simple(rank_main_f *fn, int nranks, int nnodes, bool threaded,
                               const char *what)
{
    struct plan plan = {board_make(), threaded, false, 0};
    int bad = ranks_run(nranks, nnodes, RUN_S, fn, &plan, NULL);
    verdict(&plan, nranks, nnodes, bad, 0, what);
}

#endif
