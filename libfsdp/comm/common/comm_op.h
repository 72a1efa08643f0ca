/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_op.h: what every backend shares: an operation and a failure as ranks tell each other of
 * them.
 *
 * "Peer" is a group rank.
 */
#ifndef COMM_OP_H
#define COMM_OP_H

#include "fsdp/sys/comm_ops.h"

enum {
    COMM_WHAT_NBYTES = FSDP_ERR_TEXT_NBYTES,
    COMM_PEER_NBYTES = 96,
    COMM_OP_NBYTES = 128,
    COMM_LATE_NBYTES = 448,
};

/* ---- operations ------------------------------------------------------------------------------ */

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
    int32_t culprit;  /* world rank at fault, -1: not known */
    int32_t told;     /* the culprit reports it itself */
    int32_t cause;    /* where `what` holds the reason; before it: who passed it on */
    char what[COMM_WHAT_NBYTES];
};

/* "all_gather"; static. */
const char *comm_kind_name(int kind);
/* "all_gather #2 (nelem 10, F32, root 0)". Writes to and returns text. */
const char *comm_op_text(char text[COMM_OP_NBYTES], const struct comm_op *op);
/* "rank 3 (host node1)": world rank and host of a peer. Writes to and returns text. */
const char *comm_peer_name(char text[COMM_PEER_NBYTES], const struct fsdp_comm_group *group,
                           int peer);

/* Operations get their numbers when they are enqueued. FSDP_EINTERNAL unless this one is next after
 * the ndone that ran: where two lanes ran them in another order, ranks could differ in it. */
int comm_op_is_next(const struct fsdp_comm_group *group, const struct comm_op *op, uint64_t ndone,
                    struct comm_fail *fail);
/* FSDP_EMISMATCH, naming both ranks, unless the peer is in the same operation. */
int comm_op_match(const struct fsdp_comm_group *group, const struct comm_op *mine, int peer,
                  const struct comm_op *theirs, struct comm_fail *fail);

/* ---- failures -------------------------------------------------------------------------------- */

/* Sets *fail, with this rank as its reporter and nobody at fault. Returns status, like the next
 * four. */
int comm_fail_set(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...) FSDP_PRINTF(4, 5);
/* The same with a peer at fault, which may be this rank: its name comes right before the text. */
int comm_fail_peer(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                   int peer, const char *fmt, ...) FSDP_PRINTF(5, 6);
/* This rank aborted the communicator. */
int comm_fail_abort(const struct fsdp_comm_group *group, struct comm_fail *fail,
                    const struct fsdp_err *why);
/* What the job's channel says (health), with its status. */
int comm_fail_pass(const struct fsdp_comm_group *group, struct comm_fail *fail,
                   const struct fsdp_err *lost);
/* What came from a peer is made safe to use. */
void comm_fail_received(struct comm_fail *fail);
/* *out = the error of a communicator that ended so, as its callers see it. op: what this rank was
 * in; NULL: nothing. */
void comm_fail_error(struct fsdp_err *out, const struct fsdp_comm_group *group,
                     const struct comm_fail *fail, const struct comm_op *op);

/* Those that a wait is for: a few by name, the others by number. All zero at first. */
struct comm_late {
    int first;         /* peer; where npeers > 0 */
    int npeers, nmore; /* nmore: those that are not named */
    char names[COMM_LATE_NBYTES - 32];
};
/* how: what the peer does instead, such as "does not answer"; NULL: not known. */
void comm_late_add(struct comm_late *late, const struct fsdp_comm_group *group, int peer,
                   const char *how);
/* "rank 1 (host n0), rank 2 (host n1) and 5 more". Writes to and returns text. */
const char *comm_late_text(char text[COMM_LATE_NBYTES], const struct comm_late *late);
/* Sets *fail: they did not come within the group's deadline. Returns FSDP_ETIMEDOUT. */
int comm_fail_late(const struct fsdp_comm_group *group, struct comm_fail *fail,
                   const struct comm_late *late);

/* ---- waiting, for backends whose collectives block a thread ---------------------------------- */

/* One wait for peers. All zero at first. */
struct comm_wait {
    double begin, probed;
};
/* Is it time for what costs system calls? The first call begins the wait. */
bool comm_wait_probes(struct comm_wait *wait);
/* Something moved: the deadline starts anew. */
void comm_wait_progress(struct comm_wait *wait);
/* FSDP_OK to keep waiting; FSDP_EPEER with *fail set: the job has lost a rank; FSDP_ETIMEDOUT,
 * where the caller knows who is late: the group's deadline has passed. */
int comm_wait_check(const struct comm_wait *wait, const struct fsdp_comm_group *group,
                    struct fsdp_oob *oob, struct comm_fail *fail);

#endif
