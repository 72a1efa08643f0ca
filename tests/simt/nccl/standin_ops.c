/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of the stand-in: through slots of shared memory, sums in rank order. */
#include <string.h>
#include <time.h>

#include "fsdp/base.h"
#include "standin.h"

atomic_bool standin_gpu_lost;

void standin_nap(void)
{
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

bool standin_stopped(const struct ncclComm *comm)
{
    return atomic_load(&comm->aborted) || atomic_load(&comm->revoked) ||
           (comm->parent && standin_stopped(comm->parent));
}

bool standin_meet(struct ncclComm *comm, struct meeting *meeting)
{
    unsigned generation = atomic_load(&meeting->generation);

    if (atomic_fetch_add(&meeting->count, 1) + 1 == (unsigned)comm->nranks) {
        atomic_store(&meeting->count, 0);
        atomic_fetch_add(&meeting->generation, 1);
        return true;
    }
    while (atomic_load(&meeting->generation) == generation) {
        if (standin_stopped(comm))
            return false;
        standin_nap();
    }
    return true;
}

size_t standin_type_nbytes(int type)
{
    static const size_t nbytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return nbytes[type];
}

#define SUM(T)                                                                                     \
    do {                                                                                           \
        T total = ((const T *)src[0])[i];                                                          \
        for (int r = 1; r < nsrc; r++)                                                             \
            total = (T)(total + ((const T *)src[r])[i]);                                           \
        ((T *)dst)[i] = total;                                                                     \
    } while (0)
#define SUM16(to_f32, from_f32)                                                                    \
    do {                                                                                           \
        float total = to_f32(((const uint16_t *)src[0])[i]);                                       \
        for (int r = 1; r < nsrc; r++)                                                             \
            total += to_f32(((const uint16_t *)src[r])[i]);                                        \
        ((uint16_t *)dst)[i] = from_f32(total);                                                    \
    } while (0)

static void sum(void *dst, const void *const *src, int nsrc, size_t nelem, int type)
{
    for (size_t i = 0; i < nelem; i++) {
        switch (type) {
        case ncclFloat32:
            SUM(float);
            break;
        case ncclFloat64:
            SUM(double);
            break;
        case ncclFloat16:
            SUM16(fsdp_f16_to_f32, fsdp_f32_to_f16);
            break;
        case ncclBfloat16:
            SUM16(fsdp_bf16_to_f32, fsdp_f32_to_bf16);
            break;
        case ncclInt64:
        case ncclUint64:
            SUM(uint64_t);
            break;
        case ncclInt32:
        case ncclUint32:
            SUM(uint32_t);
            break;
        default:
            SUM(uint8_t);
        }
    }
}

/* What this rank gives of elements [at, at + n) goes to its slot. */
static void give(const struct op *op, size_t at, size_t n)
{
    size_t elem = standin_type_nbytes(op->is.type);
    char *slot = op->comm->segment->slots[op->comm->rank];
    const char *send = op->send;

    if (op->is.kind == OP_BROADCAST && op->is.root != op->comm->rank)
        return;
    int nparts = op->is.kind == OP_REDUCE_SCATTER ? op->comm->nranks : 1;
    for (int p = 0; p < nparts; p++)
        memcpy(slot + (size_t)p * n * elem, send + ((size_t)p * op->is.count + at) * elem,
               n * elem);
}

static void take(const struct op *op, size_t at, size_t n)
{
    size_t elem = standin_type_nbytes(op->is.type);
    const struct segment *s = op->comm->segment;
    char *recv = (char *)op->recv + at * elem;
    const void *src[MAX_RANKS];
    int nranks = op->comm->nranks;
    size_t part = op->is.kind == OP_REDUCE_SCATTER ? (size_t)op->comm->rank * n * elem : 0;

    for (int r = 0; r < nranks; r++)
        src[r] = s->slots[r] + part;
    if (op->is.kind == OP_REDUCE_SCATTER || op->is.kind == OP_ALL_REDUCE)
        sum(recv, src, nranks, n, op->is.type);
    else if (op->is.kind == OP_BROADCAST)
        memcpy(recv, src[op->is.root], n * elem);
    else
        for (int r = 0; r < nranks; r++)
            memcpy(recv + (size_t)r * op->is.count * elem, src[r], n * elem);
}

/* Where ranks called different things, nobody comes back. */
static bool same(const struct op *op)
{
    const struct segment *s = op->comm->segment;

    for (int r = 0; r < op->comm->nranks; r++)
        if (memcmp(&s->descriptions[r], &op->is, sizeof op->is))
            return false;
    return true;
}

static void hang(const struct ncclComm *comm)
{
    while (!standin_stopped(comm))
        standin_nap();
}

static void transfer(const struct op *op)
{
    struct ncclComm *comm = op->comm;
    struct segment *s = comm->segment;
    int nparts = op->is.kind == OP_REDUCE_SCATTER ? comm->nranks : 1;
    size_t most = SLOT_NBYTES / standin_type_nbytes(op->is.type) / (size_t)nparts;

    s->descriptions[comm->rank] = op->is;
    if (!standin_meet(comm, &s->of_ops))
        return;
    if (!same(op)) {
        hang(comm);
        return;
    }
    for (size_t at = 0; at < op->is.count; at += most) {
        size_t n = op->is.count - at < most ? op->is.count - at : most;
        give(op, at, n);
        if (!standin_meet(comm, &s->of_ops))
            return;
        take(op, at, n);
        if (!standin_meet(comm, &s->of_ops))
            return;
    }
}

int standin_run(void *arg)
{
    const struct op *op = arg;
    struct ncclComm *comm = op->comm;

    if (op->seq == comm->faults.error)
        atomic_store(&comm->network, comm->faults.error_result);
    if (op->seq == comm->faults.gpu)
        atomic_store(&standin_gpu_lost, true);
    if (op->seq == comm->faults.stall || op->seq == comm->faults.error ||
        op->seq == comm->faults.gpu)
        hang(comm);
    if (!standin_stopped(comm))
        transfer(op);
    atomic_fetch_sub(&comm->running, 1);
    return 0;
}
