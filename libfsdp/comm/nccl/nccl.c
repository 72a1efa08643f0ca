/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for CUDA devices: the way of an operation to NCCL, and what happens when one fails.
 */
#include <float.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

static const double CAUSE_S = 10; /* for the watch thread to say why a communicator failed */

static bool nccl_usable(const struct fsdp_comm_group *group, const struct fsdp_device *device,
                        char *why, size_t why_nbytes)
{
    (void)group;
    if (!strcmp(fsdp_device_name(device), "cuda"))
        return nccl_lib_usable(why, why_nbytes);
    snprintf(why, why_nbytes, "it moves memory of CUDA devices, and the device is '%s'",
             fsdp_device_name(device));
    return false;
}

static void nccl_abort(void *state, const struct fsdp_err *why)
{
    struct nccl_comm *h = state;
    struct comm_fail fail;

    comm_fail_abort(h->group, &fail, why);
    nccl_fail(h, &fail);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Bytes where NCCL has no such type; what needs a sum has one (sum_check). */
static ncclDataType_t type_of(enum fsdp_dtype dtype, size_t *nelem)
{
    switch (dtype) {
    case FSDP_F32:
        return ncclFloat32;
    case FSDP_BF16:
        return ncclBfloat16;
    case FSDP_F16:
        return ncclFloat16;
    case FSDP_F64:
        return ncclFloat64;
    case FSDP_I64:
        return ncclInt64;
    case FSDP_I32:
        return ncclInt32;
    case FSDP_I8:
        return ncclInt8;
    case FSDP_U64:
        return ncclUint64;
    case FSDP_U32:
        return ncclUint32;
    default:
        *nelem *= fsdp_dtype_nbytes(dtype);
        return ncclUint8;
    }
}

static int sum_check(const struct nccl_comm *h, enum fsdp_comm_kind kind, enum fsdp_dtype dtype,
                     struct fsdp_err *err)
{
    if ((kind != FSDP_COMM_REDUCE_SCATTER && kind != FSDP_COMM_ALL_REDUCE) ||
        (dtype != FSDP_I16 && dtype != FSDP_U16))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "comm %s: %s: NCCL cannot sum %s; cast it to I32",
                        h->group->name, comm_kind_name(kind), fsdp_dtype_name(dtype));
}

static ncclResult_t call_nccl(struct nccl_comm *h, const struct comm_op *op, void *recv,
                              const void *send, cudaStream_t stream)
{
    size_t nelem = op->nelem;
    ncclDataType_t type = type_of((enum fsdp_dtype)op->dtype, &nelem);

    switch (op->kind) {
    case FSDP_COMM_ALL_GATHER:
        return ncclAllGather(send, recv, nelem, type, h->comm, stream);
    case FSDP_COMM_REDUCE_SCATTER:
        return ncclReduceScatter(send, recv, nelem, type, ncclSum, h->comm, stream);
    case FSDP_COMM_ALL_REDUCE:
        return ncclAllReduce(send, recv, nelem, type, ncclSum, h->comm, stream);
    case FSDP_COMM_BROADCAST:
        return ncclBroadcast(send, recv, nelem, type, op->root, h->comm, stream);
    default: /* NCCL has no barrier: nobody has the sum before all gave their part */
        return ncclAllReduce(h->scratch, h->scratch, 1, ncclInt32, ncclSum, h->comm, stream);
    }
}

/* Makes room for one more. The queue is full only where the host is far ahead of the GPU. */
static int wait_for_room(struct nccl_comm *h, struct fsdp_err *err)
{
    for (;;) {
        FSDP_TRY(nccl_status(h, err));
        pthread_mutex_lock(&h->lock);
        if (h->enqueued - h->done == NCCL_NPENDING)
            nccl_retire(h, NULL); /* a GPU that failed: the watch thread says so */
        bool room = h->enqueued - h->done < NCCL_NPENDING;
        pthread_mutex_unlock(&h->lock);
        if (room)
            return FSDP_OK;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

/* From here the watch thread sees the operation, also where NCCL itself does not come back. */
static int pending_begin(struct nccl_comm *h, struct comm_op *op, struct fsdp_lane *lane,
                         struct fsdp_err *err)
{
    struct nccl_pending *p = &h->pending[(h->enqueued + 1) % NCCL_NPENDING];

    FSDP_TRY(fsdp_event_record(p->begin, lane, err));
    pthread_mutex_lock(&h->lock);
    op->seq = h->enqueued + 1;
    p->op = *op;
    p->lane = lane;
    p->issued = false;
    p->began = 0;
    h->enqueued++;
    pthread_mutex_unlock(&h->lock);
    return nccl_status(h, err);
}

static int pending_end(struct nccl_comm *h, const struct comm_op *op, struct fsdp_err *err)
{
    struct nccl_pending *p = &h->pending[op->seq % NCCL_NPENDING];

    FSDP_TRY(fsdp_event_record(p->end, p->lane, err));
    pthread_mutex_lock(&h->lock);
    p->issued = true;
    pthread_mutex_unlock(&h->lock);
    return FSDP_OK;
}

/* A communicator that has failed refuses calls without a reason. The watch thread has it, or waits
 * for a better account of it from elsewhere. */
static void wait_for_cause(struct nccl_comm *h)
{
    ncclResult_t state = nccl_lib_state(h->comm);
    double deadline = fsdp_time_now() + CAUSE_S;

    if (state == ncclSuccess || state == ncclInProgress)
        return;
    atomic_store(&h->told, (int)state);
    while (!atomic_load(&h->failed) && fsdp_time_now() < deadline)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* The first operation of a communicator connects it, which continues after the call returned; the
 * deadline is the watch thread's. */
static int issue(struct nccl_comm *h, const struct comm_op *op, void *recv, const void *send,
                 struct fsdp_lane *lane, struct fsdp_err *err)
{
    struct comm_fail fail;
    char text[COMM_WHAT_NBYTES];
    ncclResult_t rc = call_nccl(h, op, recv, send, fsdp_lane_native(lane));

    rc = nccl_lib_settle(h->comm, rc, &h->failed, DBL_MAX, NULL, NULL);
    /* A call that is refused says nothing about an earlier one. */
    h->unsettled = rc == ncclInProgress || (h->unsettled && rc != ncclSuccess);
    h->held |= rc != ncclInProgress && rc != ncclSuccess;
    if (rc == ncclSuccess)
        return pending_end(h, op, err);
    wait_for_cause(h);
    comm_fail_peer(h->group, &fail, nccl_lib_status(rc), h->group->rank, ": %s: %.400s",
                   comm_kind_name(op->kind), nccl_lib_error(text, h->comm, rc));
    nccl_fail(h, &fail); /* does not count where it failed already */
    return nccl_status(h, err);
}

static int nccl_collective(void *state, const struct fsdp_comm_call *args, struct fsdp_lane *lane,
                           struct fsdp_err *err)
{
    struct nccl_comm *h = state;
    struct comm_op op;

    FSDP_TRY(sum_check(h, args->kind, args->dtype, err));
    if (!args->nelem && args->kind != FSDP_COMM_BARRIER)
        return FSDP_OK;
    memset(&op, 0, sizeof op); /* compared whole */
    op.nelem = args->nelem;
    op.kind = args->kind;
    op.dtype = (int32_t)args->dtype;
    op.root = args->root;
    pthread_mutex_lock(&h->issue);
    int rc = wait_for_room(h, err);
    if (rc == FSDP_OK)
        rc = pending_begin(h, &op, lane, err);
    if (rc == FSDP_OK)
        rc = issue(h, &op, args->recv, args->send, lane, err);
    pthread_mutex_unlock(&h->issue);
    return rc;
}

const struct fsdp_comm_ops fsdp_comm_nccl_ops = {
    .abi = FSDP_COMM_OPS_ABI,
    .name = "nccl",
    .usable = nccl_usable,
    .create = nccl_create,
    .destroy = nccl_destroy,
    .abort = nccl_abort,
    .collective = nccl_collective,
    .status = nccl_status,
    .mem_alloc = nccl_mem_alloc,
    .mem_free = nccl_mem_free,
    .mem_share = nccl_mem_share,
    .about = nccl_share_about,
};
