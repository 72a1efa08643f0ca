/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's communicators: meeting, splitting, ending. What takes others runs in a thread,
 * while the communicator reports that it is in progress. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsdp/base.h"
#include "standin.h"

static __thread char last_error[200];

/* ---- the library ----------------------------------------------------------------------------- */

static int version_now(void)
{
    const char *text = getenv("NCCL_STANDIN_VERSION");
    return text ? atoi(text) : NCCL_VERSION_CODE;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = version_now();
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const names[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return names[result];
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

static ncclResult_t refuse(ncclResult_t rc, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return rc;
}

/* What ends the process with NCCL, later and elsewhere. */
static void die(const char *why)
{
    fprintf(stderr, "nccl stand-in: %s\n", why);
    abort();
}

ncclResult_t ncclMemAlloc(void **ptr, size_t nbytes)
{
    *ptr = aligned_alloc(NCCL_WIN_REQUIRED_ALIGNMENT, nbytes);
    if (*ptr)
        memset(*ptr, 0xab, nbytes);
    return *ptr ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *ptr)
{
    free(ptr);
    return ncclSuccess;
}

/* ---- segments -------------------------------------------------------------------------------- */

/* The id is the path by which others find the file; it stays open as long as the process. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    int fd = memfd_create("nccl stand-in", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct segment)))
        return ncclSystemError;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/proc/%d/fd/%d", (int)getpid(), fd);
    return ncclSuccess;
}

static struct segment *segment_map(const ncclUniqueId *id)
{
    int fd = open(id->internal, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *mem = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mem == MAP_FAILED ? NULL : mem;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static struct faults faults_read(void)
{
    struct faults f = {0};
    const char *text = getenv("NCCL_STANDIN");

    for (; text && *text; text += strcspn(text, ","), text += *text == ',') {
        sscanf(text, "stall=%ld", &f.stall);
        sscanf(text, "error=%ld:%d", &f.error, &f.error_result);
        sscanf(text, "gpu=%ld", &f.gpu);
        sscanf(text, "init=%d", &f.init_result);
        sscanf(text, "window=%d", &f.window_result);
        sscanf(text, "call=%ld:%d", &f.call, &f.call_result);
        f.absent |= !strncmp(text, "absent", 6);
        f.nosplit |= !strncmp(text, "nosplit", 7);
        f.norevoke |= !strncmp(text, "norevoke", 8);
        f.slow |= !strncmp(text, "slow", 4);
        f.windows |= !strncmp(text, "windows", 7);
        f.nvls |= !strncmp(text, "nvls", 4);
        f.engines |= !strncmp(text, "engines", 7);
    }
    return f;
}

static struct ncclComm *comm_new(int nranks, int rank, const ncclUniqueId *id, const char *name)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);

    comm->rank = rank;
    comm->nranks = nranks;
    comm->id = *id;
    comm->of_gradients = strstr(name, "reduce") || !strcmp(name, "replicate");
    comm->of_parameters = !strcmp(name, "gather");
    comm->faults = faults_read();
    atomic_store(&comm->state, ncclInProgress);
    return comm;
}

static ncclResult_t do_init(struct ncclComm *comm)
{
    if (comm->faults.init_result)
        return (ncclResult_t)comm->faults.init_result;
    comm->segment = segment_map(&comm->id);
    if (!comm->segment)
        return ncclSystemError;
    if (!comm->faults.absent)
        atomic_fetch_add(&comm->segment->arrived, 1);
    while (comm->faults.absent || atomic_load(&comm->segment->arrived) < comm->nranks) {
        if (standin_stopped(comm))
            return ncclInternalError;
        standin_nap();
    }
    return ncclSuccess;
}

static ncclResult_t do_split(struct ncclComm *parent)
{
    struct segment *s = parent->segment;
    int color = s->splits[parent->rank].color, key = s->splits[parent->rank].key;
    int rank = 0, nranks = 0, first = -1;

    while (parent->faults.nosplit && !standin_stopped(parent))
        standin_nap();
    if (ncclGetUniqueId(&s->splits[parent->rank].id) || !standin_meet(parent, &s->of_calls))
        return ncclSystemError;
    for (int r = 0; r < parent->nranks; r++) {
        if (s->splits[r].color != color)
            continue;
        nranks++;
        rank += s->splits[r].key < key || (s->splits[r].key == key && r < parent->rank);
        first = first < 0 ? r : first;
    }
    struct ncclComm *child = comm_new(nranks, rank, &s->splits[first].id, parent->child_name);
    child->copies = parent->child_copies;
    child->parent = parent;
    bool met = standin_meet(parent, &s->of_calls); /* all have read */
    atomic_store(&child->state, met ? (int)do_init(child) : (int)ncclSystemError);
    child->parent = NULL;
    if (standin_stopped(parent)) { /* nobody looks there any more */
        if (child->segment)
            munmap(child->segment, sizeof *child->segment);
        free(child);
        return ncclInternalError;
    }
    *parent->child_out = child;
    return ncclSuccess;
}

/* It maps the peers' memory, which takes time also after all have come. */
static ncclResult_t do_register(struct ncclComm *comm)
{
    double until = fsdp_time_now() + 0.02;

    if (!standin_meet(comm, &comm->segment->of_calls))
        return ncclInternalError;
    while (fsdp_time_now() < until)
        standin_nap();
    return (ncclResult_t)comm->faults.window_result;
}

static ncclResult_t do_wait(struct ncclComm *comm, const atomic_int *until, int value)
{
    while (atomic_load(until) != value && !atomic_load(&comm->aborted))
        standin_nap();
    return ncclSuccess;
}

static void *job_main(void *arg)
{
    struct ncclComm *comm = arg;
    ncclResult_t rc = ncclSuccess;

    if (comm->job == JOB_INIT) {
        rc = do_init(comm);
    } else if (comm->job == JOB_SPLIT) {
        rc = do_split(comm);
    } else if (comm->job == JOB_WINDOW) {
        rc = do_register(comm);
    } else if (comm->job == JOB_REVOKE) {
        rc = do_wait(comm, &comm->running, 0);
    } else if (comm->job == JOB_FINALIZE) {
        atomic_fetch_add(&comm->segment->left, 1);
        rc = do_wait(comm, &comm->segment->left, comm->nranks);
    } else {
        /* The first operation connects. */
        bool first = comm->op.seq == 1;
        double until = fsdp_time_now() + (comm->faults.slow && first ? 0.3 : 0);
        for (int i = 0; i < (first ? 20 : 1) || fsdp_time_now() < until; i++)
            standin_nap();
        if (comm->op.seq == comm->faults.call) {
            rc = (ncclResult_t)comm->faults.call_result;
            atomic_fetch_sub(&comm->running, 1);
        } else {
            standin_launch(comm->stream, standin_run, &comm->op, sizeof comm->op);
        }
    }
    atomic_store(&comm->state, rc);
    return NULL;
}

static void job_join(struct ncclComm *comm)
{
    if (comm->has_thread)
        pthread_join(comm->thread, NULL);
    comm->has_thread = false;
}

static ncclResult_t job_start(struct ncclComm *comm, enum job_kind job)
{
    job_join(comm);
    comm->caller = pthread_self();
    comm->job = job;
    atomic_store(&comm->state, ncclInProgress);
    comm->has_thread = pthread_create(&comm->thread, NULL, job_main, comm) == 0;
    return comm->has_thread ? ncclInProgress : ncclSystemError;
}

static ncclResult_t state_of(const struct ncclComm *comm)
{
    ncclResult_t state = (ncclResult_t)atomic_load(&comm->state);
    return state == ncclSuccess ? (ncclResult_t)atomic_load(&comm->network) : state;
}

/* Only between calls, and only where nothing went wrong before. */
static ncclResult_t ready(const struct ncclComm *comm)
{
    ncclResult_t state = state_of(comm);

    if (state == ncclInProgress)
        return refuse(ncclInvalidArgument, "the communicator is busy");
    return state == ncclSuccess ? state : refuse(state, "the communicator has failed");
}

/* A refusal that the communicator itself keeps. */
static ncclResult_t keep(struct ncclComm *comm, ncclResult_t rc)
{
    atomic_store(&comm->state, (int)rc);
    return rc;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = state_of(comm);
    if (!comm->has_thread || (*state != ncclInProgress && *state != ncclSuccess))
        return ncclSuccess;
    if (!pthread_equal(comm->caller, pthread_self()))
        die("two threads call one communicator");
    if (*state == ncclSuccess)
        job_join(comm);
    return ncclSuccess;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* What NCCL makes of the configuration: only 2.27 and newer have a policy, and 2.27 has no copy
 * engines. */
static ncclResult_t config_check(const ncclConfig_t *config)
{
    const int policies = version_now() >= NCCL_VERSION(2, 28, 0) ? NCCL_CTA_POLICY_ZERO : 1;

    if (config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != 0)
        return refuse(ncclInvalidUsage, "this library takes communicators that do not block");
    if (version_now() >= NCCL_VERSION(2, 27, 0) && config->CTAPolicy != INT_MIN &&
        (config->CTAPolicy < 0 || config->CTAPolicy > policies))
        return refuse(ncclInvalidArgument, "Invalid config policy attribute value");
    if (config->maxCTAs != INT_MIN && (config->maxCTAs <= 0 || config->minCTAs > config->maxCTAs))
        return refuse(ncclInvalidArgument, "Invalid config min/max channels attribute value");
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    const ncclResult_t rc = config_check(config);

    if (rc != ncclSuccess)
        return rc;
    if (faults_read().nvls) {
        return refuse(ncclUnhandledCudaError,
                      "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152");
    }
    *comm = comm_new(nranks, rank, &id, config->commName);
    (*comm)->copies = config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
    return job_start(*comm, JOB_INIT);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids,
                                      ncclUniqueId *ids, ncclConfig_t *config)
{
    (void)nids;
    return ncclCommInitRankConfig(comm, nranks, ids[0], rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config)
{
    ncclResult_t rc = ready(comm);

    if (rc == ncclSuccess)
        rc = config_check(config);
    if (rc != ncclSuccess)
        return rc;
    comm->segment->splits[comm->rank].color = color;
    comm->segment->splits[comm->rank].key = key;
    comm->child_out = child;
    comm->child_copies = config->CTAPolicy == NCCL_CTA_POLICY_ZERO;
    snprintf(comm->child_name, sizeof comm->child_name, "%s", config->commName);
    *child = NULL;
    rc = job_start(comm, JOB_SPLIT);
    return rc == ncclInProgress ? ncclSuccess : rc;
}

static void comm_free(struct ncclComm *comm)
{
    job_join(comm);
    while (atomic_load(&comm->running))
        standin_nap();
    if (comm->segment)
        munmap(comm->segment, sizeof *comm->segment);
    free(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    atomic_store(&comm->aborted, true);
    comm_free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    if (comm->faults.norevoke || version_now() < NCCL_VERSION(2, 28, 7))
        return refuse(ncclInvalidUsage, "this version cannot revoke");
    if (flags || atomic_load(&comm->finalized) || atomic_load(&comm->revoked))
        return ncclInvalidArgument;
    if (comm->has_thread)
        die("revoked while a call is under way, or after it ended with an error");
    atomic_store(&comm->revoked, true);
    return job_start(comm, JOB_REVOKE);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t rc = ready(comm);

    if (rc == ncclSuccess && (atomic_load(&comm->finalized) || atomic_load(&comm->revoked)))
        rc = refuse(ncclInvalidArgument, "the communicator is finalized or revoked");
    if (rc == ncclSuccess && comm->nwindows)
        rc = refuse(ncclInvalidUsage, "windows are still registered");
    if (rc != ncclSuccess)
        return keep(comm, rc);
    atomic_store(&comm->finalized, true);
    return job_start(comm, JOB_FINALIZE);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t rc = ready(comm);

    if (rc != ncclSuccess && version_now() >= NCCL_VERSION(2, 22, 0))
        die("destroyed while busy or failed: this thread's next calls are not launched");
    if (rc != ncclSuccess)
        return rc;
    if (!atomic_load(&comm->finalized))
        return refuse(ncclInvalidUsage, "destroyed before it was finalized");
    comm_free(comm);
    return ncclSuccess;
}

/* ---- windows --------------------------------------------------------------------------------- */

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *ptr, size_t nbytes, ncclWindow_t *window,
                                    int flags)
{
    ncclResult_t rc = ready(comm);

    if (version_now() < NCCL_VERSION(2, 27, 0)) /* as if the function were not there */
        return ncclSuccess;
    if (rc != ncclSuccess)
        return rc;
    if ((uintptr_t)ptr % NCCL_WIN_REQUIRED_ALIGNMENT || nbytes % NCCL_WIN_REQUIRED_ALIGNMENT ||
        flags != NCCL_WIN_COLL_SYMMETRIC)
        return ncclInvalidArgument;
    if (comm->nwindows == MAX_WINDOWS)
        return refuse(ncclInvalidUsage, "too many windows");
    comm->windows[comm->nwindows++] = (struct window){ptr, (char *)ptr + nbytes};
    *window = (ncclWindow_t)ptr;
    rc = job_start(comm, JOB_WINDOW);
    return rc == ncclInProgress && version_now() >= NCCL_VERSION(2, 28, 0) ? ncclSuccess : rc;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    int i = 0;

    while (i < comm->nwindows && comm->windows[i].begin != (char *)window)
        i++;
    if (i == comm->nwindows)
        return ncclInvalidArgument;
    comm->windows[i] = comm->windows[--comm->nwindows];
    return ready(comm);
}

static bool in_window(const struct ncclComm *comm, const void *ptr, size_t nbytes)
{
    const char *begin = ptr;

    for (int i = 0; i < comm->nwindows; i++)
        if (begin >= comm->windows[i].begin && begin + nbytes <= comm->windows[i].end)
            return true;
    return false;
}

/* Are both ends of a sum where NCCL's fast kernels need them? */
static ncclResult_t check_windows(const struct ncclComm *comm, enum op_kind kind, const void *send,
                                  const void *recv, size_t nbytes)
{
    size_t nsent = nbytes * (kind == OP_REDUCE_SCATTER ? (size_t)comm->nranks : 1);

    if (!comm->faults.windows || !comm->of_gradients ||
        (kind != OP_REDUCE_SCATTER && kind != OP_ALL_REDUCE) ||
        (in_window(comm, send, nsent) && in_window(comm, recv, nbytes)))
        return ncclSuccess;
    return refuse(ncclInvalidUsage, "a sum outside of the communicator's windows");
}

/* Are both where copy engines need them? */
static ncclResult_t check_engines(const struct ncclComm *comm, enum op_kind kind, const void *send,
                                  const void *recv, size_t nbytes)
{
    if (!comm->faults.engines || !comm->copies || !comm->of_parameters || kind != OP_ALL_GATHER ||
        (in_window(comm, send, nbytes) && in_window(comm, recv, nbytes * (size_t)comm->nranks)))
        return ncclSuccess;
    return refuse(ncclInvalidUsage, "a gather outside of the communicator's windows");
}

/* ---- collectives ----------------------------------------------------------------------------- */

static ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, enum op_kind kind,
                            const void *send, void *recv, size_t count, int type, int root)
{
    if (atomic_load(&comm->revoked))
        return refuse(ncclInvalidUsage, "the communicator is revoked");
    ncclResult_t rc = ready(comm);
    if (rc == ncclSuccess && atomic_load(&comm->finalized))
        rc = refuse(ncclInvalidUsage, "the communicator is finalized");
    if (rc == ncclSuccess)
        rc = check_windows(comm, kind, send, recv, count * standin_type_nbytes(type));
    if (rc == ncclSuccess)
        rc = check_engines(comm, kind, send, recv, count * standin_type_nbytes(type));
    if (rc != ncclSuccess)
        return keep(comm, rc);
    struct op op = {.comm = comm, .send = send, .recv = recv, .seq = ++comm->nops};
    memset(&op.is, 0, sizeof op.is); /* compared whole */
    op.is.kind = (int)kind;
    op.is.type = type;
    op.is.root = root;
    op.is.count = count;
    atomic_fetch_add(&comm->running, 1);
    if (comm->nops > 1 && version_now() < NCCL_VERSION(2, 23, 0)) {
        if (op.seq == comm->faults.call) {
            atomic_fetch_sub(&comm->running, 1);
            return keep(comm, (ncclResult_t)comm->faults.call_result);
        }
        standin_launch(stream, standin_run, &op, sizeof op);
        return ncclSuccess;
    }
    /* A thread enqueues it. */
    comm->op = op;
    comm->stream = stream;
    return job_start(comm, JOB_ENQUEUE);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(comm, stream, OP_ALL_GATHER, send, recv, count, (int)type, 0);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (op != ncclSum)
        return ncclInvalidArgument;
    return enqueue(comm, stream, OP_REDUCE_SCATTER, send, recv, count, (int)type, 0);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (op != ncclSum)
        return ncclInvalidArgument;
    return enqueue(comm, stream, OP_ALL_REDUCE, send, recv, count, (int)type, 0);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    return enqueue(comm, stream, OP_BROADCAST, send, recv, count, (int)type, root);
}
