/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run: timeout=240
 *
 * What comm_nccl makes of a rank that dies, stops, comes late, leaves, calls something else, or
 * whose NCCL fails: on the stand-in, which only hangs. Every other rank gets an error that names
 * the culprit, also where it waits for its lane, and the error stays.
 */
#include <signal.h>
#include <time.h>

#include "comm_test.h"
#include "why.h"
#include "fsdp/mesh.h"

enum { FOREVER_S = 600, SHORT_S = 4, RUN_S = 100, VICTIM = 1 };

struct plan {
    struct board *board;
    const char *fault; /* NCCL_STANDIN of the victim, NULL: none */
    int variant;
};

static void nap(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, (ms % 1000) * 1000000L}, NULL);
}

static bool names(const char *text, int rank)
{
    char host[32], lost[32];
    snprintf(host, sizeof host, "rank %d (host node", rank);
    snprintf(lost, sizeof lost, "rank %d lost", rank); /* the channel's words */
    return strstr(text, host) || strstr(text, lost);
}

static bool begin(struct env *env, struct fsdp_comm **comm, const struct plan *plan,
                  struct fsdp_oob *oob, const struct fsdp_node_map *nodes, double timeout_s)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    atomic_store(&plan->board->pid[oob->rank], (int)getpid());
    if (plan->fault && oob->rank == VICTIM)
        setenv("NCCL_STANDIN", plan->fault, 1);
    if (!env_open_cuda(env, oob, nodes))
        return check(plan->board, false, "cannot open the device");
    struct fsdp_comm_opts opts = comm_opts(env, "auto", timeout_s);
    return check(plan->board, fsdp_comm_create(comm, &opts, oob, env->device, &err) == FSDP_OK,
                 "create: %s", err.text) &&
           check(plan->board, !strcmp(fsdp_comm_backend(*comm), "nccl"), "auto took %s",
                 fsdp_comm_backend(*comm));
}

static void finish(struct env *env, struct fsdp_comm *comm)
{
    fsdp_comm_destroy(comm);
    env_close(env);
}

static int reduce(struct env *env, struct fsdp_comm *comm, int rounds, struct fsdp_err *err)
{
    static float x[5000];
    int rc = FSDP_OK;

    for (int i = 0; i < rounds && rc == FSDP_OK; i++)
        rc = fsdp_comm_all_reduce(comm, x, x, i % 2 ? 5000 : 10, FSDP_F32, env->lane, err);
    return rc ? rc : fsdp_lane_sync(env->lane, err);
}

/* The outcome here, the same ever after. */
static void check_end(const struct plan *plan, struct env *env, struct fsdp_comm *comm, int rc,
                      const struct fsdp_err *err, int status, int culprit, const char *text)
{
    struct fsdp_err again = FSDP_ERR_INIT;

    check(plan->board, rc == status, "rank %d: status %d, not %d: %s", env->oob->rank, rc, status,
          err->text);
    check(plan->board, (culprit < 0 || names(err->text, culprit)) && strstr(err->text, text),
          "rank %d: %s", env->oob->rank, err->text);
    check(plan->board,
          fsdp_comm_barrier(comm, env->lane, &again) == status && !strcmp(err->text, again.text),
          "rank %d: a later barrier says: %s", env->oob->rank, again.text);
    check(plan->board, !fsdp_comm_mem_alloc(comm, 64, &again) && again.status == status,
          "a later mem_alloc is not refused");
    snprintf(plan->board->text[env->oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err->text);
    atomic_fetch_add(&plan->board->counter[0], 1);
}

/* The victim stays until all others have their error. */
static void wait_for_others(const struct plan *plan, const struct env *env)
{
    while (atomic_load(&plan->board->counter[0]) < env->oob->size - 1)
        nap(5);
}

static void run(rank_main_f *fn, int nranks, int nnodes, const char *fault, int variant,
                int bad_expected, const char *what)
{
    struct plan plan = {board_make(), fault, variant};
    struct board *board = plan.board;
    int bad = ranks_run(nranks, nnodes, RUN_S, fn, &plan, NULL);

    ok(bad == bad_expected && atomic_load(&board->nbad) == 0 && atomic_load(&board->nchecks) > 0,
       "%s, %d ranks on %d nodes: %d checks, %d bad%s%s", what, nranks, nnodes,
       atomic_load(&board->nchecks), atomic_load(&board->nbad), board->first_bad[0] ? ": " : "",
       board->first_bad);
    for (int r = 0; r < nranks; r++)
        if (board->text[r][0])
            diag("rank %d: %s", r, board->text[r]);
    munmap(board, sizeof *board);
}

/* ---- a rank dies, stops, is late, leaves, differs -------------------------------------------- */

static int killed_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    int rc = reduce(&env, comm, 3, &err);
    if (oob->rank == VICTIM)
        kill(getpid(), SIGKILL);
    if (rc == FSDP_OK)
        rc = reduce(&env, comm, 1 << 30, &err);
    check_end(plan, &env, comm, rc, &err, FSDP_EPEER, VICTIM, "");
    finish(&env, comm);
    return 0;
}

static int stopped_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, SHORT_S))
        return 1;
    if (oob->rank == VICTIM)
        raise(SIGSTOP);
    int rc = reduce(&env, comm, 1 << 30, &err);
    check_end(plan, &env, comm, rc, &err, FSDP_ETIMEDOUT, VICTIM, "does not answer");
    if (oob->rank == 0) {
        wait_for_others(plan, &env);
        kill(atomic_load(&plan->board->pid[VICTIM]), SIGKILL);
    }
    finish(&env, comm);
    return 0;
}

/* variant 0: the victim does not call; 1: it aborts meanwhile; 2: it leaves. */
static int late_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const struct {
        int status;
        const char *text;
    } expected[] = {{FSDP_ETIMEDOUT, "has called 2 operations, this is #3"},
                    {FSDP_ECANCELED, "aborted: the test says so"},
                    {FSDP_EPEER, "left"}};
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, plan->variant ? FOREVER_S : SHORT_S))
        return 1;
    check(plan->board, reduce(&env, comm, 2, &err) == FSDP_OK, "%s", err.text);
    /* What the victim does now must not meet work that the others still have on their lanes. */
    atomic_fetch_add(&plan->board->counter[1], 1);
    while (atomic_load(&plan->board->counter[1]) < oob->size)
        nap(5);
    if (oob->rank == VICTIM) {
        if (plan->variant == 1)
            fsdp_comm_abort(comm, why_of(VICTIM, "the test says so"));
        if (plan->variant == 2)
            fsdp_comm_destroy(comm);
        wait_for_others(plan, &env);
        if (plan->variant != 2)
            fsdp_comm_destroy(comm);
        env_close(&env);
        return 0;
    }
    int rc = reduce(&env, comm, 2, &err);
    check_end(plan, &env, comm, rc, &err, expected[plan->variant].status, VICTIM,
              expected[plan->variant].text);
    check(plan->board, err.culprit == VICTIM && err.of_other == (plan->variant == 1),
          "rank %d: the culprit is %d, reports it: %d", oob->rank, err.culprit, err.of_other);
    finish(&env, comm);
    return 0;
}

static int mismatch_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;
    static float x[100];

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    int rc = reduce(&env, comm, 1, &err);
    if (rc == FSDP_OK && oob->rank == VICTIM)
        rc = plan->variant ? fsdp_comm_barrier(comm, env.lane, &err)
                           : fsdp_comm_all_reduce(comm, x, x, 11, FSDP_F32, env.lane, &err);
    else if (rc == FSDP_OK)
        rc = fsdp_comm_all_reduce(comm, x, x, 10, FSDP_F32, env.lane, &err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_sync(env.lane, &err);
    check_end(plan, &env, comm, rc, &err, FSDP_EMISMATCH, VICTIM, "all_reduce #2 (nelem 10, F32");
    finish(&env, comm);
    return 0;
}

/* ---- NCCL fails ------------------------------------------------------------------------------ */

/* The victim's GPU does not end its second operation. variant: how the others learn of it. */
static int nccl_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const struct {
        int status;
        const char *text;
    } expected[] = {{FSDP_EPEER, "NCCL: remote process exited"},
                    {FSDP_ETIMEDOUT, "all ranks are"},
                    {FSDP_EINTERNAL, "the GPU failed: an illegal memory access"}};
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, plan->variant == 1 ? SHORT_S : FOREVER_S))
        return 1;
    int rc = reduce(&env, comm, 20, &err);
    check_end(plan, &env, comm, rc, &err, expected[plan->variant].status,
              plan->variant == 1 ? -1 : VICTIM, expected[plan->variant].text);
    finish(&env, comm);
    return 0;
}

/* Communicators that cannot be made: all ranks fail alike, and the channel stays in step. */
static int refused_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const struct {
        int status;
        const char *text;
    } expected[] = {{FSDP_EIO, "NCCL: unhandled system error"},
                    {FSDP_ETIMEDOUT, "did not connect the group's"},
                    {FSDP_EMISMATCH, "rank 1 has 22703"},
                    {FSDP_EINTERNAL, "NCCL_NVLS_ENABLE=0 on all ranks"}};
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (oob->rank == VICTIM && plan->fault)
        setenv("NCCL_STANDIN", plan->fault, 1);
    if (oob->rank == VICTIM && !plan->fault)
        setenv("NCCL_STANDIN_VERSION", "22703", 1);
    if (!env_open_cuda(&env, oob, nodes))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "nccl", SHORT_S);
    int rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    check(plan->board, rc == expected[plan->variant].status && !comm, "rank %d: %d: %s", oob->rank,
          rc, err.text);
    check(plan->board, strstr(err.text, expected[plan->variant].text), "rank %d: %s", oob->rank,
          err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    unsetenv("NCCL_STANDIN");
    unsetenv("NCCL_STANDIN_VERSION");
    opts.timeout_s = FOREVER_S;
    rc = fsdp_comm_create(&comm, &opts, oob, env.device, &err);
    check(plan->board, rc == FSDP_OK && reduce(&env, comm, 3, &err) == FSDP_OK,
          "rank %d: after the fix: %s", oob->rank, err.text);
    finish(&env, comm);
    return 0;
}

/* What does not fit the device, or the library that is there. */
static int unfit_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env cuda, cpu;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!env_open_cuda(&cuda, oob, nodes) || !env_open(&cpu, oob, nodes, false))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&cuda, "host", FOREVER_S);
    int rc = fsdp_comm_create(&comm, &opts, oob, cuda.device, &err);
    check(plan->board, rc == FSDP_EUNSUPPORTED && strstr(err.text, "the device is 'cuda'"),
          "host on a GPU: %d: %s", rc, err.text);
    opts.backend = "nccl";
    rc = fsdp_comm_create(&comm, &opts, oob, cpu.device, &err);
    check(plan->board, rc == FSDP_EUNSUPPORTED && strstr(err.text, "the device is 'cpu'"),
          "nccl on a CPU: %d: %s", rc, err.text);
    opts.backend = "auto";
    rc = fsdp_comm_create(&comm, &opts, oob, oob->rank ? cuda.device : cpu.device, &err);
    check(plan->board,
          rc == FSDP_EMISMATCH && strstr(err.text, "rank 0 has device cpu and rank 1 has cuda"),
          "devices of two kinds: %d: %s", rc, err.text);
    setenv("NCCL_STANDIN_VERSION", "21805", 1);
    rc = fsdp_comm_create(&comm, &opts, oob, cuda.device, &err);
    check(plan->board, rc == FSDP_EUNSUPPORTED && strstr(err.text, "NCCL 2.18.5 is there"),
          "an old library: %d: %s", rc, err.text);
    env_close(&cpu);
    env_close(&cuda);
    return 0;
}

/* ---- all of a rank's communicators ----------------------------------------------------------- */

enum { NCOMMS = 4 };

/* The victim comes to no collective and aborts its mesh: each communicator that it is in ends
 * everywhere, whatever hangs in the others. */
static int mesh_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    static float x[NCOMMS][100], y[NCOMMS][400];
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp_lane *lanes[NCOMMS];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct env env;

    if (plan->fault)
        setenv("NCCL_STANDIN", plan->fault, 1);
    if (!env_open_cuda(&env, oob, nodes) ||
        fsdp_mesh_shape_for(&shape, FSDP_HYBRID_SHARD, 0, nodes, &err) ||
        fsdp_mesh_create(&mesh, shape, "auto", FOREVER_S, nodes, oob, env.device, &err)) {
        check(plan->board, false, "a mesh: %s", err.text);
        return 1;
    }
    struct fsdp_comm *comms[NCOMMS] = {mesh->gather, mesh->reduce, mesh->replicate, mesh->world};
    const bool of_victim[NCOMMS] = {oob->rank / 2 == VICTIM / 2, oob->rank / 2 == VICTIM / 2,
                                    oob->rank % 2 == VICTIM % 2, true};
    for (int i = 0; i < NCOMMS; i++)
        if (fsdp_lane_create(&lanes[i], env.device, fsdp_comm_name(comms[i]), &err))
            return 1;
    for (int i = 0; i < NCOMMS && oob->rank != VICTIM; i++)
        if (of_victim[i])
            check(plan->board,
                  fsdp_comm_all_gather(comms[i], y[i], x[i], 100, FSDP_F32, lanes[i], &err) == 0,
                  "%s", err.text);
    atomic_fetch_add(&plan->board->counter[1], 1);
    while (atomic_load(&plan->board->counter[1]) < oob->size)
        nap(5);
    if (oob->rank == VICTIM)
        fsdp_mesh_abort(mesh, why("the test says so"));
    for (int i = 0; i < NCOMMS && oob->rank != VICTIM; i++) {
        int rc = fsdp_lane_sync(lanes[i], &err);
        check(plan->board,
              of_victim[i] ? rc == FSDP_ECANCELED && names(err.text, VICTIM) : rc == FSDP_OK,
              "rank %d, %s: %d: %s", oob->rank, fsdp_comm_name(comms[i]), rc, err.text);
    }
    for (int i = 0; i < NCOMMS; i++)
        fsdp_lane_destroy(lanes[i]);
    fsdp_mesh_abort(mesh, why("the test is over"));
    fsdp_mesh_destroy(mesh);
    env_close(&env);
    return 0;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Of four ranks: all, then pairs split off it in reverse order, then again after all have gone. */
static int groups_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *world, *pair = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t mine = oob->rank, got[4] = {-1, -1, -1, -1};

    if (!begin(&env, &world, plan, oob, nodes, FOREVER_S))
        return 1;
    for (int round = 0; round < 2; round++) {
        struct fsdp_comm_opts opts = comm_opts(&env, "nccl", FOREVER_S);
        opts.color = oob->rank % 2;
        opts.key = -oob->rank;
        int rc = fsdp_comm_create(&pair, &opts, oob, env.device, &err);
        if (!check(plan->board, rc == FSDP_OK, "pair: %s", err.text))
            return 1;
        rc = fsdp_comm_all_gather(pair, got, &mine, 1, FSDP_I32, env.lane, &err);
        rc = rc ? rc : fsdp_lane_sync(env.lane, &err);
        check(plan->board, rc == FSDP_OK && got[0] == 2 + oob->rank % 2 && got[1] == oob->rank % 2,
              "rank %d: pair of %d, %d: %s", oob->rank, got[0], got[1], err.text);
        if (round == 0) { /* the second time there is nothing to split off */
            check(plan->board, reduce(&env, world, 3, &err) == FSDP_OK, "%s", err.text);
            fsdp_comm_destroy(world);
        }
        fsdp_comm_destroy(pair);
    }
    env_close(&env);
    return 0;
}

static int nosplit_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *world, *pair = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &world, plan, oob, nodes, SHORT_S))
        return 1;
    struct fsdp_comm_opts opts = comm_opts(&env, "nccl", SHORT_S);
    opts.color = oob->rank % 2;
    int rc = fsdp_comm_create(&pair, &opts, oob, env.device, &err);
    check(plan->board, rc == FSDP_ETIMEDOUT && strstr(err.text, "did not connect"), "%d: %s", rc,
          err.text);
    snprintf(plan->board->text[oob->rank], FSDP_ERR_TEXT_NBYTES, "%s", err.text);
    nap(200); /* the watch thread comes by: it must not ask for a call that never ended */
    fsdp_comm_abort(world, why("the test is over"));
    finish(&env, world);
    return 0;
}

/* NCCL connects while the watch thread continues looking: nothing fails, or (variant 1) the other
 * rank ends it. */
static int slow_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    if (plan->variant && oob->rank != VICTIM)
        fsdp_comm_abort(comm, why("no need of it"));
    int rc = reduce(&env, comm, 3, &err);
    check(plan->board, rc == (plan->variant ? FSDP_ECANCELED : FSDP_OK), "rank %d: %d %s",
          oob->rank, rc, err.text);
    finish(&env, comm);
    return 0;
}

/* What calls return depends on the library's version; what the ranks see does not. */
static void run_as(const char *version, rank_main_f *fn, const char *fault, const char *what)
{
    char text[120];

    snprintf(text, sizeof text, "NCCL %s: %s", version, what);
    setenv("NCCL_STANDIN_VERSION", version, 1);
    run(fn, 2, 1, fault, 0, 0, text);
    unsetenv("NCCL_STANDIN_VERSION");
}

/* Memory whose registration fails after the call returned: the caller gets the error, not the
 * operation that comes next. */
static int window_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct env env;
    struct fsdp_comm *comm;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!begin(&env, &comm, plan, oob, nodes, FOREVER_S))
        return 1;
    void *mem = fsdp_comm_mem_alloc(comm, 1 << 16, &err);
    check(plan->board,
          oob->rank == VICTIM ? !mem && err.status == FSDP_EIO && strstr(err.text, "registering")
                              : mem != NULL,
          "rank %d: %s", oob->rank, err.text);
    atomic_fetch_add(&plan->board->counter[1], 1);
    while (atomic_load(&plan->board->counter[1]) < oob->size)
        nap(5);
    fsdp_comm_abort(comm, why("the test is over"));
    finish(&env, comm);
    return 0;
}

int main(void)
{
    run_as("21904", nccl_main, "call=2:6", "a call that fails");
    run_as("22304", nccl_main, "call=2:6", "a call that ends with an error");
    run_as("22809", nccl_main, "call=2:6", "a call that ends with an error");
    run_as("22907", nccl_main, "call=2:6", "a call that ends with an error");
    run_as("21904", nccl_main, "error=2:6", "an error that is reported later");
    run_as("22907", nccl_main, "error=2:6", "an error that is reported later");
    run_as("22707", window_main, "window=2", "memory that cannot be registered");
    run_as("22809", window_main, "window=2", "memory that cannot be registered");
    run(slow_main, 2, 1, "slow", 0, 0, "a first operation that takes long");
    run(slow_main, 2, 1, "slow", 1, 0, "the same, aborted meanwhile");
    run(killed_main, 3, 2, NULL, 0, 1, "killed");
    run(stopped_main, 3, 2, NULL, 0, 1, "stopped");
    run(late_main, 3, 1, NULL, 0, 0, "late");
    run(late_main, 3, 2, NULL, 1, 0, "aborted");
    run(late_main, 3, 2, NULL, 2, 0, "left");
    run(mismatch_main, 2, 1, NULL, 0, 0, "another count");
    run(mismatch_main, 3, 2, NULL, 1, 0, "another operation");
    run(nccl_main, 3, 2, "error=2:6", 0, 0, "an error that NCCL reports later");
    run(nccl_main, 3, 2, "error=2:6,norevoke", 0, 0, "the same where nothing can be revoked");
    run(nccl_main, 2, 1, "stall=2", 1, 0, "a collective that does not end");
    run(nccl_main, 3, 2, "gpu=2", 2, 0, "a GPU that fails");
    run(refused_main, 3, 2, "init=2", 0, 0, "a communicator that fails");
    run(refused_main, 3, 2, "absent", 1, 0, "a meeting to which a rank does not come");
    run(refused_main, 3, 2, NULL, 2, 0, "another library on one rank");
    run(refused_main, 3, 2, "nvls", 3, 0, "a switch without multicast");
    run(unfit_main, 2, 1, NULL, 0, 0, "what does not fit");
    run(mesh_main, 4, 2, NULL, 0, 0, "all communicators of a rank");
    run(mesh_main, 4, 2, "norevoke", 0, 0, "the same where nothing can be revoked");
    run(groups_main, 4, 2, NULL, 0, 0, "groups split off");
    if (!getenv("TEST_SANITIZER")) /* NCCL may still write to the child, so that stays allocated */
        run(nosplit_main, 4, 2, "nosplit", 0, 0, "a split that does not end");
    return tap_done();
}
