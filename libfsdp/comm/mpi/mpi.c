/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for CPU clusters: MPI's beginning and end, communicators, operations, failure. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mpi.h"
#include "fsdp/sys/mpi.h"

enum { BEGIN_S = 10 }; /* for which a rank without MPI waits for the others' word */

/* ---- MPI itself ----------------------------------------------------------------------------- */

/* Begun with the first communicator, ended with the process: MPI begins only once. */
static struct {
    pthread_mutex_t lock;
    bool begun;
    pid_t pid;
    MPI_Comm world;
    int rank, size;
    int ncreated;        /* the same on all ranks: creating is collective over the world */
    atomic_bool unwell;  /* some communicator failed: its end would wait for others */
    struct fsdp_err why; /* why it did not begin: it cannot be tried again */
} mpi = {.lock = PTHREAD_MUTEX_INITIALIZER, .why = FSDP_ERR_INIT};

/* After a failure MPI's own end would wait for peers that do not come. Its PMIx server takes a rank
 * that leaves without goodbye for a death and kills the others while they say what they know, so
 * that the goodbye is said for it. */
static void end_mpi(void)
{
    if (!mpi.begun || getpid() != mpi.pid)
        return;
    if (!atomic_load(&mpi.unwell)) {
        MPI_Comm_free(&mpi.world);
        MPI_Finalize();
        return;
    }
    int (*goodbye)(const void *info, size_t ninfo) =
        (int (*)(const void *, size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "PMIx_Finalize");
    if (goodbye)
        goodbye(NULL, 0);
}

/* Open MPI from version 5 on does not begin where somebody opened PMIx before it ("local rank: not
 * found"). Version 4 and MPICH begin in any order. */
static bool must_be_first(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int nbytes, major;

    return MPI_Get_library_version(text, &nbytes) == MPI_SUCCESS &&
           sscanf(text, "Open MPI v%d", &major) == 1 && major >= 5;
}

static int init_error(struct fsdp_err *err)
{
    char host[FSDP_HOST_NBYTES] = "this host", text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int nbytes;

    gethostname(host, sizeof host - 1);
    MPI_Get_library_version(text, &nbytes);
    return fsdp_err_set(err, FSDP_EPEER,
                        "MPI does not begin on %s (%.*s), for the reason that it gave above; is it "
                        "the MPI of the mpirun or srun that started this rank? "
                        "fsdp.backend=host needs no MPI",
                        host, (int)strcspn(text, ",\n"), text);
}

/* An Open MPI of version 5 or newer gives errors of its beginning back, if told by the environment;
 * others end the process. */
static int init_mpi(struct fsdp_err *err)
{
    static const char handler[] = "OMPI_MCA_mpi_initial_errhandler";
    bool given = getenv(handler);
    int level;

    if (mpi.why.status)
        return fsdp_err_pass(err, mpi.why.status, &mpi.why);
    if (!given)
        setenv(handler, "mpi_errors_return", 1);
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (!given)
        unsetenv(handler);
    if (rc == MPI_SUCCESS)
        return FSDP_OK;
    rc = init_error(&mpi.why);
    return fsdp_err_pass(err, rc, &mpi.why);
}

static int begin_mpi(struct fsdp_err *err)
{
    const char *fence = getenv("SLURM_PMIX_FENCE");
    int begun = 0, ended = 0, level = 0;

    MPI_Finalized(&ended);
    MPI_Initialized(&begun);
    if (ended)
        return fsdp_err_set(err, FSDP_EINVAL, "MPI has been finalized in this process");
    /* MPI itself would end the process, now and then, with words that do not help. */
    if (!begun && fence && strcmp(fence, "tree") == 0)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "SLURM_PMIX_FENCE=tree: MPI cannot begin reliably on fences that do not "
            "wait for other nodes; unset it or say ring before srun");
    if (!begun)
        FSDP_TRY(init_mpi(err));
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "this MPI lets one thread call it at a time (level %d), and lanes are "
                            "several; use an MPI with MPI_THREAD_MULTIPLE",
                            level);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi.world);
    MPI_Comm_set_errhandler(mpi.world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi.world, &mpi.rank);
    MPI_Comm_size(mpi.world, &mpi.size);
    mpi.pid = getpid();
    mpi.begun = true;
    if (!begun)
        atexit(end_mpi);
    return FSDP_OK;
}

static bool has_ranks(void)
{
    return getenv("PMIX_RANK") && getenv("PMIX_NAMESPACE");
}

static int begin_world(struct fsdp_err *err)
{
    pthread_mutex_lock(&mpi.lock);
    int rc = !mpi.begun && has_ranks() && must_be_first() ? begin_mpi(err) : FSDP_OK;
    pthread_mutex_unlock(&mpi.lock);
    return rc;
}

/* ---- create --------------------------------------------------------------------------------- */

static bool usable(const struct fsdp_comm_group *group, const struct fsdp_device *device, char *why,
                   size_t why_nbytes)
{
    (void)group;
    if (strcmp(fsdp_device_name(device), "cpu")) {
        snprintf(why, why_nbytes, "it moves CPU memory, and the device is '%s'",
                 fsdp_device_name(device));
        return false;
    }
    if (!has_ranks()) {
        snprintf(why, why_nbytes,
                 "MPI needs ranks that srun --mpi=pmix or mpirun started, one task a rank");
        return false;
    }
    return true;
}

static void comm_mpi_free(struct mpi_comm *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->op_lock);
    pthread_mutex_destroy(&m->status_lock);
    fsdp_free(m->mpi_rank);
    fsdp_free(m->ops);
    fsdp_free(m->request);
    fsdp_free(m->from);
    fsdp_free(m->finished);
    fsdp_free(m->src);
    fsdp_free(m->telling);
    fsdp_free(m->scratch);
    fsdp_free(m);
}

static int comm_mpi_new(struct mpi_comm **out, const struct fsdp_comm_group *group,
                        struct fsdp_oob *oob, struct fsdp_err *err)
{
    size_t size = (size_t)group->size;
    struct mpi_comm *m = fsdp_alloc(1, sizeof *m, "comm mpi", err);

    if (!m)
        return FSDP_ENOMEM;
    m->group = group;
    m->oob = oob;
    m->told = MPI_REQUEST_NULL;
    pthread_mutex_init(&m->op_lock, NULL);
    pthread_mutex_init(&m->status_lock, NULL);
    m->mpi_rank = fsdp_alloc(size, sizeof *m->mpi_rank, "comm ranks", err);
    m->ops = fsdp_alloc(size, sizeof *m->ops, "comm operations", err);
    m->request = fsdp_alloc(2 * size, sizeof(MPI_Request), "comm requests", err);
    m->from = fsdp_alloc(2 * size, sizeof *m->from, "comm requests", err);
    m->finished = fsdp_alloc(2 * size, sizeof *m->finished, "comm requests", err);
    m->src = fsdp_alloc(size, sizeof *m->src, "comm sources", err);
    m->telling = fsdp_alloc(size, sizeof(MPI_Request), "comm requests", err);
    m->scratch = fsdp_alloc(size, SUM_NBYTES, "comm scratch", err);
    if (!m->mpi_rank || !m->ops || !m->request || !m->from || !m->finished || !m->src ||
        !m->telling || !m->scratch) {
        comm_mpi_free(m);
        return FSDP_ENOMEM;
    }
    *out = m;
    return FSDP_OK;
}

/* Ranks of the job have numbers of their own (--reorder): all say which of MPI's they have. */
static int map_ranks(struct mpi_comm *m, struct fsdp_oob *oob, struct fsdp_err *err)
{
    int32_t mine = mpi.rank, *all = fsdp_alloc((size_t)oob->size, sizeof *all, "MPI ranks", err);

    if (!all)
        return FSDP_ENOMEM;
    int rc = oob->allgather(oob, &mine, sizeof mine, all, err);
    for (int p = 0; p < m->group->size && rc == FSDP_OK; p++)
        m->mpi_rank[p] = all[m->group->world_rank[p]];
    fsdp_free(all);
    if (rc == FSDP_OK && mpi.size != oob->size)
        rc = fsdp_err_set(err, FSDP_EMISMATCH,
                          "MPI knows %d ranks, the job has %d: start one task a rank with srun "
                          "--mpi=pmix or mpirun",
                          mpi.size, oob->size);
    return rc;
}

/* Ranks where MPI does begin may wait for this one inside of MPI, where no word reaches them: its
 * own error counts unless they all come soon. */
static int agree_on_failure(struct fsdp_oob *oob, struct fsdp_err *own)
{
    struct fsdp_err agreed = *own;

    if (oob->set_wait)
        oob->set_wait(oob, BEGIN_S);
    if (fsdp_oob_agree(oob, own->status, &agreed) != FSDP_ETIMEDOUT)
        *own = agreed;
    return own->status;
}

static int create(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                  struct fsdp_device *device, struct fsdp_err *err)
{
    struct mpi_comm *m = NULL;
    struct fsdp_err own = FSDP_ERR_INIT;

    (void)device;
    pthread_mutex_lock(&mpi.lock);
    int rc = mpi.begun ? FSDP_OK : begin_mpi(&own);
    int number = mpi.ncreated++;
    pthread_mutex_unlock(&mpi.lock);
    if (rc) {
        rc = agree_on_failure(oob, &own);
        goto out;
    }
    rc = comm_mpi_new(&m, group, oob, &own);
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, rc, &own), out);
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, map_ranks(m, oob, &own), &own), out);
    m->data_tag = 2 * number;
    m->fail_tag = 2 * number + 1;
    if (MPI_Irecv(&m->told_fail, sizeof m->told_fail, MPI_BYTE, MPI_ANY_SOURCE, m->fail_tag,
                  mpi.world, &m->told))
        rc = fsdp_err_set(&own, FSDP_EPEER, "comm %s: MPI_Irecv failed", group->name);
    m->world = mpi.world;
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, rc, &own), out);
    *out = m;
    m = NULL;
out:
    if (rc && err)
        *err = own;
    comm_mpi_free(m);
    return rc;
}

/* ---- failure -------------------------------------------------------------------------------- */

static int status(void *state, struct fsdp_err *err)
{
    struct mpi_comm *m = state;

    pthread_mutex_lock(&m->status_lock);
    int rc = m->sticky.status;
    if (rc && err)
        *err = m->sticky;
    pthread_mutex_unlock(&m->status_lock);
    return rc;
}

static void tell_peers(struct mpi_comm *m, const struct comm_fail *fail)
{
    m->tell = *fail;
    m->has_told = true;
    for (int p = 0; p < m->group->size; p++) {
        m->telling[p] = MPI_REQUEST_NULL;
        if (p != m->group->rank)
            MPI_Isend(&m->tell, sizeof m->tell, MPI_BYTE, m->mpi_rank[p], m->fail_tag, m->world,
                      &m->telling[p]);
    }
}

/* Ends the communicator: keeps the first failure and tells the peers. Under op_lock. op: NULL
 * outside of one. */
static void break_down(struct mpi_comm *m, const struct comm_op *op, const struct comm_fail *fail)
{
    pthread_mutex_lock(&m->status_lock);
    if (!m->sticky.status)
        comm_fail_error(&m->sticky, m->group, fail, op);
    pthread_mutex_unlock(&m->status_lock);
    atomic_store(&mpi.unwell, true);
    if (!m->has_told)
        tell_peers(m, fail);
}

static void abort_comm(void *state, const struct fsdp_err *why)
{
    struct mpi_comm *m = state;
    struct comm_fail fail;

    comm_fail_abort(m->group, &fail, why);
    pthread_mutex_lock(&m->status_lock);
    if (!atomic_load(&m->interrupted))
        m->pending = fail;
    fail = m->pending;
    atomic_store(&m->interrupted, true);
    pthread_mutex_unlock(&m->status_lock);
    /* An operation in progress sees it and tells the peers itself. */
    if (pthread_mutex_trylock(&m->op_lock) == 0) {
        break_down(m, NULL, &fail);
        pthread_mutex_unlock(&m->op_lock);
    }
}

/* What is still on its way after a failure is left to the process's end: its buffers may be in use,
 * and the peer may never take it. */
static void destroy(void *state, bool healthy)
{
    struct mpi_comm *m = state;

    if (!healthy || m->has_told || m->nrequests)
        return;
    if (m->told != MPI_REQUEST_NULL) {
        MPI_Cancel(&m->told);
        MPI_Wait(&m->told, MPI_STATUS_IGNORE);
    }
    comm_mpi_free(m);
}

/* ---- operations ----------------------------------------------------------------------------- */

struct call {
    struct mpi_comm *m;
    struct comm_op op;
    void *recv;
    const void *send;
};
_Static_assert(sizeof(struct call) <= FSDP_LANE_ARG_NBYTES, "a call fits a lane's argument");

static int run_call(void *arg, struct fsdp_err *err)
{
    struct call *call = arg;
    struct mpi_comm *m = call->m;
    struct comm_fail fail = {0};

    pthread_mutex_lock(&m->op_lock);
    int rc = status(m, NULL);
    if (rc == FSDP_OK) {
        rc = comm_op_is_next(m->group, &call->op, m->done, &fail);
        if (rc == FSDP_OK)
            rc = comm_mpi_collective(m, &call->op, call->recv, call->send, &fail);
        if (rc == FSDP_OK && comm_mpi_interrupted(m, &fail))
            rc = fail.status;
        if (rc == FSDP_OK)
            m->done++;
        else
            break_down(m, &call->op, &fail);
    }
    pthread_mutex_unlock(&m->op_lock);
    return rc ? status(m, err) : FSDP_OK;
}

static int mpi_collective(void *state, const struct fsdp_comm_call *args, struct fsdp_lane *lane,
                          struct fsdp_err *err)
{
    struct mpi_comm *m = state;
    struct call call = {.m = m, .recv = args->recv, .send = args->send};
    struct fsdp_err own = FSDP_ERR_INIT;

    call.op = (struct comm_op){.seq = atomic_fetch_add(&m->enqueued, 1) + 1,
                               .nelem = args->nelem,
                               .kind = args->kind,
                               .dtype = (int32_t)args->dtype,
                               .root = args->root};
    int rc = fsdp_lane_call(lane, run_call, &call, sizeof call, &own);
    if (rc == FSDP_OK)
        return FSDP_OK;
    /* A lane that failed before takes no more work, and the peers must not wait for this rank. */
    if (status(m, NULL) == FSDP_OK) {
        struct fsdp_err why = own;
        fsdp_err_prefix(&why, rc, "lane %s takes no work: ", fsdp_lane_name(lane));
        abort_comm(m, &why);
    }
    if (err)
        *err = own;
    return rc;
}

static const struct fsdp_comm_ops ops = {
    .abi = FSDP_COMM_OPS_ABI,
    .name = "mpi",
    .usable = usable,
    .create = create,
    .destroy = destroy,
    .abort = abort_comm,
    .collective = mpi_collective,
    .status = status,
};

const struct fsdp_mpi_backend fsdp_mpi_backend = {
    .abi = FSDP_MPI_ABI,
    .version = FSDP_VERSION_STRING,
    .comm_ops = &ops,
    .begin = begin_world,
};
