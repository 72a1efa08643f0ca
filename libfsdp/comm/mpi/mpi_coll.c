/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives as messages between all pairs, each rank beginning with its neighbour, so that no
 * rank is everybody's first. An operation begins with one of a few bytes from each to all: whoever
 * has not come is known, and two ranks in different operations find out before they touch memory.
 */
#include <stdio.h>
#include <string.h>

#include "comm/common/comm_sum.h"
#include "mpi.h"

/* All meet, and are in the same operation. */
static int meet_peers(struct mpi_comm *m, const struct comm_op *op, struct comm_fail *fail)
{
    int size = m->group->size, me = m->group->rank;

    m->ops[me] = *op;
    for (int k = 1; k < size; k++)
        FSDP_TRY(comm_mpi_recv(m, &m->ops[(me + size - k) % size], sizeof *op,
                               (me + size - k) % size, fail));
    for (int k = 1; k < size; k++)
        FSDP_TRY(comm_mpi_send(m, &m->ops[me], sizeof *op, (me + k) % size, fail));
    FSDP_TRY(comm_mpi_wait(m, fail));
    for (int p = 0; p < size; p++)
        FSDP_TRY(comm_op_match(m->group, op, p, &m->ops[p], fail));
    return FSDP_OK;
}

/* ---- moving ---- */

static int all_gather(struct mpi_comm *m, char *recv, const char *send, size_t nbytes,
                      struct comm_fail *fail)
{
    int size = m->group->size, me = m->group->rank;
    char *own = recv + (size_t)me * nbytes;

    if (own != send && nbytes)
        memcpy(own, send, nbytes);
    for (size_t at = 0; at < nbytes; at += MOVE_NBYTES) {
        size_t now = nbytes - at < MOVE_NBYTES ? nbytes - at : MOVE_NBYTES;
        for (int k = 1; k < size; k++) {
            int p = (me + size - k) % size;
            FSDP_TRY(comm_mpi_recv(m, recv + (size_t)p * nbytes + at, now, p, fail));
        }
        for (int k = 1; k < size; k++)
            FSDP_TRY(comm_mpi_send(m, own + at, now, (me + k) % size, fail));
        FSDP_TRY(comm_mpi_wait(m, fail));
    }
    return FSDP_OK;
}

static int broadcast_bytes(struct mpi_comm *m, char *buf, size_t nbytes, int root,
                           struct comm_fail *fail)
{
    int size = m->group->size, me = m->group->rank;

    for (size_t at = 0; at < nbytes; at += MOVE_NBYTES) {
        size_t now = nbytes - at < MOVE_NBYTES ? nbytes - at : MOVE_NBYTES;
        for (int k = 1; k < size && me == root; k++)
            FSDP_TRY(comm_mpi_send(m, buf + at, now, (me + k) % size, fail));
        if (me != root)
            FSDP_TRY(comm_mpi_recv(m, buf + at, now, root, fail));
        FSDP_TRY(comm_mpi_wait(m, fail));
    }
    return FSDP_OK;
}

/* ---- sums ---- */

/* What a rank has for each: part p at send + p * stride, nelem elements of nelem_all, so that the
 * last ones may be shorter or empty. */
struct parts {
    const char *send;
    size_t stride, nelem, nelem_all;
};

static size_t part_nelem(const struct parts *parts, int p)
{
    size_t before = (size_t)p * parts->nelem;
    if (before >= parts->nelem_all)
        return 0;
    return parts->nelem_all - before < parts->nelem ? parts->nelem_all - before : parts->nelem;
}

/* dst = the sum over ranks, in rank order, of what each has for this one. */
static int sum_parts(struct mpi_comm *m, char *dst, const struct parts *parts,
                     enum fsdp_dtype dtype, struct comm_fail *fail)
{
    int size = m->group->size, me = m->group->rank;
    size_t width = fsdp_dtype_nbytes(dtype), mine = part_nelem(parts, me);

    for (int k = 1; k < size; k++) {
        int p = (me + size - k) % size;
        m->src[p] = m->scratch + (size_t)p * SUM_NBYTES;
        if (mine)
            FSDP_TRY(comm_mpi_recv(m, m->scratch + (size_t)p * SUM_NBYTES, mine * width, p, fail));
    }
    for (int k = 1; k < size; k++) {
        int p = (me + k) % size;
        size_t theirs = part_nelem(parts, p);
        if (theirs)
            FSDP_TRY(
                comm_mpi_send(m, parts->send + (size_t)p * parts->stride, theirs * width, p, fail));
    }
    m->src[me] = parts->send + (size_t)me * parts->stride;
    FSDP_TRY(comm_mpi_wait(m, fail));
    if (mine)
        comm_sum(dst, m->src, size, mine, dtype);
    return FSDP_OK;
}

static int reduce_scatter(struct mpi_comm *m, char *recv, const char *send, size_t nelem,
                          enum fsdp_dtype dtype, struct comm_fail *fail)
{
    size_t width = fsdp_dtype_nbytes(dtype), most = SUM_NBYTES / width;

    for (size_t at = 0; at < nelem; at += most) {
        size_t now = nelem - at < most ? nelem - at : most;
        struct parts parts = {.send = send + at * width,
                              .stride = nelem * width,
                              .nelem = now,
                              .nelem_all = now * (size_t)m->group->size};
        FSDP_TRY(sum_parts(m, recv + at * width, &parts, dtype, fail));
    }
    return FSDP_OK;
}

/* Everything from everybody, summed everywhere. */
static int all_reduce_small(struct mpi_comm *m, char *recv, const char *send, size_t nelem,
                            enum fsdp_dtype dtype, struct comm_fail *fail)
{
    struct parts parts = {
        .send = send, .nelem = nelem, .nelem_all = nelem * (size_t)m->group->size};
    return sum_parts(m, recv, &parts, dtype, fail);
}

/* Each rank sums its part of a block, and the parts are gathered. */
static int all_reduce_block(struct mpi_comm *m, char *recv, const char *send, size_t nelem,
                            enum fsdp_dtype dtype, struct comm_fail *fail)
{
    int size = m->group->size, me = m->group->rank;
    size_t width = fsdp_dtype_nbytes(dtype), each = (nelem + (size_t)size - 1) / (size_t)size;
    struct parts parts = {.send = send, .stride = each * width, .nelem = each, .nelem_all = nelem};
    char *own = recv + (size_t)me * parts.stride;

    FSDP_TRY(sum_parts(m, own, &parts, dtype, fail));
    for (int k = 1; k < size; k++) {
        int p = (me + size - k) % size;
        if (part_nelem(&parts, p))
            FSDP_TRY(comm_mpi_recv(m, recv + (size_t)p * parts.stride,
                                   part_nelem(&parts, p) * width, p, fail));
    }
    for (int k = 1; k < size && part_nelem(&parts, me); k++)
        FSDP_TRY(comm_mpi_send(m, own, part_nelem(&parts, me) * width, (me + k) % size, fail));
    return comm_mpi_wait(m, fail);
}

static int all_reduce(struct mpi_comm *m, char *recv, const char *send, size_t nelem,
                      enum fsdp_dtype dtype, struct comm_fail *fail)
{
    size_t width = fsdp_dtype_nbytes(dtype), most = SUM_NBYTES / width * (size_t)m->group->size;

    if (nelem * width <= SMALL_NBYTES)
        return all_reduce_small(m, recv, send, nelem, dtype, fail);
    for (size_t at = 0; at < nelem; at += most)
        FSDP_TRY(all_reduce_block(m, recv + at * width, send + at * width,
                                  nelem - at < most ? nelem - at : most, dtype, fail));
    return FSDP_OK;
}

int comm_mpi_collective(struct mpi_comm *m, const struct comm_op *op, void *recv, const void *send,
                        struct comm_fail *fail)
{
    enum fsdp_dtype dtype = (enum fsdp_dtype)op->dtype;
    size_t nelem = (size_t)op->nelem, nbytes = nelem * fsdp_dtype_nbytes(dtype);

    FSDP_TRY(meet_peers(m, op, fail));
    switch ((enum fsdp_comm_kind)op->kind) {
    case FSDP_COMM_ALL_GATHER:
        return all_gather(m, recv, send, nbytes, fail);
    case FSDP_COMM_REDUCE_SCATTER:
        return reduce_scatter(m, recv, send, nelem, dtype, fail);
    case FSDP_COMM_ALL_REDUCE:
        return all_reduce(m, recv, send, nelem, dtype, fail);
    case FSDP_COMM_BROADCAST:
        return broadcast_bytes(m, recv, nbytes, op->root, fail);
    case FSDP_COMM_BARRIER:
        break; /* they have met */
    }
    return FSDP_OK;
}
