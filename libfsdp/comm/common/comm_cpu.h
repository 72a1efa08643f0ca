/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_cpu.h: what the backends share that make the collectives themselves, on the CPU (host, mpi):
 * an operation and a failure as ranks tell each other of them, and sums.
 *
 * "Peer" is a group rank.
 */
#ifndef COMM_CPU_H
#define COMM_CPU_H

#include "fsdp/sys/comm_ops.h"

enum { COMM_WHAT_NBYTES = 512, COMM_PEER_NBYTES = 96 };

/* One operation, as far as all ranks must agree on it. Travels whole. */
struct comm_op {
    uint64_t seq; /* 1 for a communicator's first */
    uint64_t nelem;
    int32_t kind, dtype, root, zero;
};

/* Why a communicator ended. Travels whole. */
struct comm_fail {
    int32_t status;
    int32_t reporter; /* world rank that saw it */
    int32_t is_own;   /* the reporter speaks of itself: `what` begins with its name */
    char what[COMM_WHAT_NBYTES];
};

/* ---- comm_cpu.c ------------------------------------------------------------------------------ */

const char *comm_kind_name(int kind);
/* "rank 3 (host node1)": world rank and host of a peer. Writes to and returns text. */
const char *comm_peer_name(char text[COMM_PEER_NBYTES], const struct fsdp_comm_group *group,
                           int peer);

/* Sets *fail, with this rank as its reporter. `what` names its rank with comm_peer_name. Returns
 * status. */
int comm_fail_set(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);
/* The same of this rank itself: its name and a blank come before the text. */
int comm_fail_own(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);
/* *out = the error of a communicator that ended so, as its callers see it. op: what this rank was
 * in; NULL: nothing. */
void comm_fail_error(struct fsdp_err *out, const struct fsdp_comm_group *group,
                     const struct comm_fail *fail, const struct comm_op *op);

/* Operations get their numbers when they are enqueued. FSDP_EINTERNAL unless this one is next after
 * the ndone that ran: where two lanes ran them in another order, ranks could differ in it. */
int comm_op_is_next(const struct fsdp_comm_group *group, const struct comm_op *op, uint64_t ndone,
                    struct comm_fail *fail);
/* FSDP_EMISMATCH, naming both ranks, unless the peer is in the same operation. */
int comm_op_match(const struct fsdp_comm_group *group, const struct comm_op *mine, int peer,
                  const struct comm_op *theirs, struct comm_fail *fail);

/* ---- comm_cpu_sum.c -------------------------------------------------------------------------- */

/* dst[i] = src[0][i] + src[1][i] + ... from left to right. dst may be one of the sources. */
void comm_sum(void *dst, const void *const *src, int nsrc, size_t nelem, enum fsdp_dtype dtype);

#endif
