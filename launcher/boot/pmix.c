/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap through a PMIx server: srun --mpi=pmix, mpirun, prterun.
 *
 * Of PMIx only put, commit, fence and get are used, because Slurm's server offers no more. The
 * fence always collects data: a plain one is no barrier between few nodes there. The connection is
 * closed as soon as the control tree stands: while it is open, one rank's death makes the server
 * kill the others before anyone can say why.
 *
 * The library's calls block and honour no timeout towards other nodes, so they run on a thread of
 * their own and the caller waits with its deadline. A thread that does not come back is left behind
 * with everything it may still touch.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp/sys/thread.h"
#include "node.h"
#include "pmix_lib.h"

extern char **environ;

enum { KEY_NBYTES = 64, CLOSE_S = 5 };

struct pmix;
typedef int pmix_call_f(struct pmix *state);

struct pmix {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    /* the call in progress */
    pmix_call_f *call;
    bool busy, quit;
    int rc;
    struct fsdp_err err;
    /* its arguments and results */
    int rank;
    char key[KEY_NBYTES];
    void *data;
    size_t nbytes;

    struct pmix_lib lib;
    pmix_proc_t me;
    struct boot_facts facts;
};

static bool pmix_probe(char *why, size_t why_nbytes)
{
    bool server = false;
    for (char **e = environ; *e && !server; e++)
        server = strncmp(*e, "PMIX_SERVER_URI", 15) == 0;
    if (!getenv("PMIX_RANK") || !getenv("PMIX_NAMESPACE") || !server) {
        snprintf(why, why_nbytes,
                 "no PMIx server is named in the environment (srun --mpi=pmix or mpirun does)");
        return false;
    }
    snprintf(why, why_nbytes, "PMIX_RANK=%.20s of namespace %.100s", getenv("PMIX_RANK"),
             getenv("PMIX_NAMESPACE"));
    return true;
}

/* ---- the thread ---- */

static void *serve_thread(void *arg)
{
    struct pmix *state = arg;
    pthread_mutex_lock(&state->lock);
    for (;;) {
        while (!state->busy && !state->quit)
            pthread_cond_wait(&state->changed, &state->lock);
        if (!state->busy)
            break;
        pthread_mutex_unlock(&state->lock);
        int rc = state->call(state);
        pthread_mutex_lock(&state->lock);
        state->rc = rc;
        state->busy = false;
        pthread_cond_broadcast(&state->changed);
    }
    pthread_mutex_unlock(&state->lock);
    return NULL;
}

static int run_call(struct pmix *state, pmix_call_f *call, const char *what, double deadline,
                    struct fsdp_err *err)
{
    const struct timespec end = fsdp_cond_time(deadline - fsdp_time_now());
    int why = 0, rc;

    pthread_mutex_lock(&state->lock);
    state->call = call;
    state->err = (struct fsdp_err)FSDP_ERR_INIT;
    state->busy = true;
    pthread_cond_broadcast(&state->changed);
    while (state->busy && !why)
        why = pthread_cond_timedwait(&state->changed, &state->lock, &end);
    if (state->busy)
        rc =
            fsdp_err_set(err, FSDP_ETIMEDOUT,
                         "rank %u: %s did not end in time: a rank did not start, or died before it "
                         "came there (PMIx does not say which)",
                         state->me.rank, what);
    else if ((rc = state->rc) != FSDP_OK && err)
        *err = state->err;
    pthread_mutex_unlock(&state->lock);
    return rc;
}

static int pmix_error(struct pmix *state, pmix_status_t status, const char *what)
{
    return fsdp_err_set(&state->err, FSDP_EPEER, "%s: %s", what, state->lib.error_string(status));
}

/* ---- facts ---- */

/* Servers differ in the integer type that they give for the same key. */
static bool to_int(const pmix_value_t *v, long *out)
{
    switch (v->type) {
    case PMIX_INT:
        *out = v->data.integer;
        return true;
    case PMIX_INT8:
        *out = v->data.int8;
        return true;
    case PMIX_INT16:
        *out = v->data.int16;
        return true;
    case PMIX_INT32:
        *out = v->data.int32;
        return true;
    case PMIX_INT64:
        *out = v->data.int64;
        return true;
    case PMIX_UINT:
        *out = v->data.uint;
        return true;
    case PMIX_UINT8:
        *out = v->data.uint8;
        return true;
    case PMIX_UINT16:
        *out = v->data.uint16;
        return true;
    case PMIX_UINT32:
        *out = v->data.uint32;
        return true;
    case PMIX_UINT64:
        *out = (long)v->data.uint64;
        return true;
    case PMIX_SIZE:
        *out = (long)v->data.size;
        return true;
    case PMIX_PROC_RANK:
        *out = v->data.rank;
        return true;
    default:
        return false;
    }
}

/* The header's own macros for this and for values call functions of the library. */
static void proc_load(pmix_proc_t *out, const struct pmix *state, pmix_rank_t rank)
{
    *out = state->me;
    out->rank = rank;
}

static bool get_int(struct pmix *state, pmix_rank_t rank, const char *key, long *out)
{
    pmix_proc_t who;
    pmix_value_t *value = NULL;
    proc_load(&who, state, rank);
    if (state->lib.get(&who, key, NULL, 0, &value) != PMIX_SUCCESS)
        return false;
    bool known = to_int(value, out);
    pmix_lib_release(value);
    return known;
}

static void get_host(struct pmix *state, char *out, size_t nbytes)
{
    pmix_value_t *value = NULL;
    out[0] = 0;
    if (state->lib.get(&state->me, PMIX_HOSTNAME, NULL, 0, &value) == PMIX_SUCCESS) {
        if (value->type == PMIX_STRING && value->data.string)
            snprintf(out, nbytes, "%s", value->data.string);
        pmix_lib_release(value);
    }
    if (!out[0] && gethostname(out, nbytes - 1))
        snprintf(out, nbytes, "localhost");
}

static int call_init(struct pmix *state)
{
    struct boot_facts *facts = &state->facts;
    long size = 0, nnodes = 0;
    pmix_status_t status = state->lib.init(&state->me, NULL, 0);
    if (status != PMIX_SUCCESS)
        return pmix_error(state, status, "PMIx_Init");
    if (!get_int(state, PMIX_RANK_WILDCARD, PMIX_JOB_SIZE, &size) || size < 1 || size > 1 << 20)
        return fsdp_err_set(&state->err, FSDP_EPEER,
                            "the PMIx server does not say how many ranks there are");
    facts->rank = (int)state->me.rank;
    facts->size = (int)size;
    if (facts->rank < 0 || facts->rank >= facts->size)
        return fsdp_err_set(&state->err, FSDP_EPEER, "the PMIx server calls this rank %u of %ld",
                            state->me.rank, size);
    get_host(state, facts->host, sizeof facts->host);
    boot_node_key(facts->node_key, sizeof facts->node_key, facts->host);
    facts->loopback = get_int(state, PMIX_RANK_WILDCARD, PMIX_NUM_NODES, &nnodes) && nnodes == 1;
    return FSDP_OK;
}

/* ---- the table ---- */

static int pmix_open(void **out, double deadline, struct fsdp_err *err)
{
    struct pmix *state = fsdp_alloc(1, sizeof *state, "boot pmix", err);
    if (!state)
        return FSDP_ENOMEM;
    int rc = pmix_lib_open(&state->lib, err);
    if (rc) {
        fsdp_free(state);
        return rc;
    }
    pthread_mutex_init(&state->lock, NULL);
    fsdp_cond_init(&state->changed);
    state->me.rank = (pmix_rank_t)atoi(getenv("PMIX_RANK"));
    int why = fsdp_thread_start(&state->thread, serve_thread, state);
    if (why) {
        fsdp_free(state);
        return fsdp_err_sys(err, why, "cannot start a thread for PMIx");
    }
    rc = run_call(state, call_init, "PMIx_Init", deadline, err);
    if (rc) {
        boot_pmix_ops.close(state, false);
        return rc;
    }
    *out = state;
    return FSDP_OK;
}

static void pmix_info(void *arg, struct boot_facts *out)
{
    const struct pmix *state = arg;
    *out = state->facts;
}

static int call_put(struct pmix *state)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    value.data.bo.bytes = state->data;
    value.data.bo.size = state->nbytes;
    pmix_status_t status = state->lib.put(PMIX_GLOBAL, state->key, &value);
    if (status == PMIX_SUCCESS)
        status = state->lib.commit();
    return status == PMIX_SUCCESS ? FSDP_OK : pmix_error(state, status, "PMIx_Put");
}

static int pmix_put(void *arg, const char *key, const void *data, size_t nbytes, double deadline,
                    struct fsdp_err *err)
{
    struct pmix *state = arg;
    fsdp_free(state->data);
    state->data = fsdp_alloc(nbytes, 1, "boot value", err);
    if (!state->data)
        return FSDP_ENOMEM;
    memcpy(state->data, data, nbytes);
    state->nbytes = nbytes;
    snprintf(state->key, sizeof state->key, "fsdp.%s", key);
    return run_call(state, call_put, "PMIx_Put", deadline, err);
}

static int call_fence(struct pmix *state)
{
    pmix_proc_t all;
    pmix_info_t info = {.key = PMIX_COLLECT_DATA, .value.type = PMIX_BOOL};
    proc_load(&all, state, PMIX_RANK_WILDCARD);
    info.value.data.flag = true;
    pmix_status_t status = state->lib.fence(&all, 1, &info, 1);
    /* Where a rank has died, servers say success or partial success; the tree will tell. */
    return status == PMIX_SUCCESS || status == PMIX_ERR_PARTIAL_SUCCESS
               ? FSDP_OK
               : pmix_error(state, status, "PMIx_Fence");
}

static int pmix_fence(void *arg, double deadline, struct fsdp_err *err)
{
    return run_call(arg, call_fence, "PMIx_Fence", deadline, err);
}

static int call_get(struct pmix *state)
{
    pmix_proc_t who;
    pmix_value_t *value = NULL;
    char what[64];
    int rc = FSDP_OK;

    proc_load(&who, state, (pmix_rank_t)state->rank);
    pmix_status_t status = state->lib.get(&who, state->key, NULL, 0, &value);
    if (status != PMIX_SUCCESS) {
        snprintf(what, sizeof what, "PMIx_Get from rank %d", state->rank);
        return pmix_error(state, status, what);
    }
    if (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != state->nbytes)
        rc = fsdp_err_set(&state->err, FSDP_EINVAL,
                          "rank %d put something else under %s: does it run another program?",
                          state->rank, state->key);
    else
        memcpy(state->data, value->data.bo.bytes, state->nbytes);
    pmix_lib_release(value);
    return rc;
}

static int pmix_get(void *arg, int rank, const char *key, void *data, size_t nbytes,
                    double deadline, struct fsdp_err *err)
{
    struct pmix *state = arg;
    char what[64];
    /* Into memory of the state: a call that never ends must not write into the caller's. */
    fsdp_free(state->data);
    state->data = fsdp_alloc(nbytes, 1, "boot value", err);
    if (!state->data)
        return FSDP_ENOMEM;
    state->rank = rank;
    state->nbytes = nbytes;
    snprintf(state->key, sizeof state->key, "fsdp.%s", key);
    snprintf(what, sizeof what, "PMIx_Get from rank %d", rank);
    FSDP_TRY(run_call(state, call_get, what, deadline, err));
    memcpy(data, state->data, nbytes);
    return FSDP_OK;
}

static int call_finalize(struct pmix *state)
{
    pmix_status_t status = state->lib.finalize(NULL, 0);
    return status == PMIX_SUCCESS ? FSDP_OK : pmix_error(state, status, "PMIx_Finalize");
}

static void pmix_close(void *arg, bool clean)
{
    struct pmix *state = arg;
    pthread_mutex_lock(&state->lock);
    bool stuck = state->busy;
    pthread_mutex_unlock(&state->lock);
    /* After a failure the server shall notice that this rank ends, so it is not told goodbye. */
    if (clean && !stuck &&
        run_call(state, call_finalize, "PMIx_Finalize", fsdp_time_now() + CLOSE_S, NULL) ==
            FSDP_ETIMEDOUT)
        stuck = true;
    if (stuck) {
        pthread_detach(state->thread);
        return;
    }
    pthread_mutex_lock(&state->lock);
    state->quit = true;
    pthread_cond_broadcast(&state->changed);
    pthread_mutex_unlock(&state->lock);
    pthread_join(state->thread, NULL);
    pthread_cond_destroy(&state->changed);
    pthread_mutex_destroy(&state->lock);
    fsdp_free(state->data);
    fsdp_free(state);
}

const struct boot_ops boot_pmix_ops = {
    .abi = BOOT_OPS_ABI,
    .name = "pmix",
    .probe = pmix_probe,
    .open = pmix_open,
    .info = pmix_info,
    .put = pmix_put,
    .fence = pmix_fence,
    .get = pmix_get,
    .close = pmix_close,
};
