/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL that is there at run time, which may be another than the headers': what is newer than
 * NCCL_LEAST is linked weakly, and missing is NULL.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

#pragma weak ncclCommInitRankScalable /* 2.23 */
#pragma weak ncclCommWindowRegister   /* 2.27 */
#pragma weak ncclCommWindowDeregister /* 2.27 */
#pragma weak ncclCommRevoke           /* 2.28.7 */
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 3)
#error "NCCL's headers are too old: 2.27.3 or newer is needed to compile, 2.19 to run"
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 7)
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
#endif

bool nccl_lib_usable(char *why, size_t why_nbytes)
{
    int version = 0;

    if (ncclGetVersion(&version) != ncclSuccess) {
        snprintf(why, why_nbytes, "the NCCL library does not tell its version");
        return false;
    }
    /* A major version may change the interface. */
    if (version < NCCL_LEAST || version / 10000 != NCCL_VERSION_CODE / 10000) {
        snprintf(
            why, why_nbytes,
            "NCCL %d.%d.%d is there (built with %d.%d.%d), and %d.%d or a later %d.x is needed",
            version / 10000, version / 100 % 100, version % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
            NCCL_LEAST / 10000, NCCL_LEAST / 100 % 100, NCCL_MAJOR);
        return false;
    }
    return true;
}

const char *nccl_lib_error(char text[COMM_WHAT_NBYTES], ncclComm_t comm, ncclResult_t result)
{
    const char *last = ncclGetLastError(comm), *advice = "";

    if (last && (strstr(last, "NVLS") || strstr(last, "ulticast")))
        advice = "; NCCL_NVLS_ENABLE=0 on all ranks does without the switch's multicast";
    if (last && strstr(last, "Duplicate GPU"))
        advice = "; give each rank a GPU of its own, or for a test say how many share one "
                 "(fsdp-launch --ranks-per-gpu)";
    snprintf(text, COMM_WHAT_NBYTES, "NCCL: %s%s%.300s%s", ncclGetErrorString(result),
             last && *last ? ": " : "", last ? last : "", advice);
    return text;
}

int nccl_lib_status(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return FSDP_OK;
    case ncclInProgress:
        return FSDP_ETIMEDOUT;
    case ncclRemoteError:
        return FSDP_EPEER;
    case ncclSystemError:
        return FSDP_EIO;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return FSDP_EINVAL;
    default:
        return FSDP_EINTERNAL;
    }
}

ncclResult_t nccl_lib_state(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess, rc = ncclCommGetAsyncError(comm, &state);
    return rc == ncclSuccess ? state : rc;
}

ncclResult_t nccl_lib_settle(ncclComm_t comm, ncclResult_t rc, const atomic_bool *stop,
                             double deadline, struct fsdp_oob *oob, struct fsdp_err *err)
{
    enum { NYIELDS = 200, SHORTEST_NS = 20000, LONGEST_NS = 2000000 };
    ncclResult_t state;
    long nap = SHORTEST_NS;
    int nyields = 0;

    if (rc != ncclSuccess && rc != ncclInProgress)
        return rc;
    while ((state = nccl_lib_state(comm)) == ncclInProgress) {
        if ((stop && atomic_load(stop)) || fsdp_time_now() > deadline)
            return state;
        /* A collective is launched by a thread of NCCL's, in less time than a nap takes. */
        if (nyields++ < NYIELDS) {
            sched_yield();
            continue;
        }
        if (nap == LONGEST_NS && oob && oob->health(oob, err))
            return ncclRemoteError;
        nanosleep(&(struct timespec){0, nap}, NULL);
        nap = nap * 2 < LONGEST_NS ? nap * 2 : LONGEST_NS;
    }
    return state;
}

ncclResult_t nccl_lib_init(ncclComm_t *out, int nranks, int rank, int nids, ncclUniqueId *ids,
                           ncclConfig_t *config)
{
    if (nids > 1 && ncclCommInitRankScalable)
        return ncclCommInitRankScalable(out, nranks, rank, nids, ids, config);
    return ncclCommInitRankConfig(out, nranks, ids[0], rank, config);
}

bool nccl_lib_can_revoke(void)
{
    return ncclCommRevoke != NULL;
}

ncclResult_t nccl_lib_revoke(ncclComm_t comm)
{
    return ncclCommRevoke(comm, 0);
}

ncclResult_t nccl_lib_window(ncclWindow_t *window, ncclComm_t comm, void *ptr, size_t nbytes)
{
    *window = NULL;
    if (!ncclCommWindowRegister || !ncclCommWindowDeregister)
        return ncclSuccess;
    return ncclCommWindowRegister(comm, ptr, nbytes, window, NCCL_WIN_COLL_SYMMETRIC);
}

void nccl_lib_window_free(ncclComm_t comm, ncclWindow_t window)
{
    if (window)
        ncclCommWindowDeregister(comm, window);
}
