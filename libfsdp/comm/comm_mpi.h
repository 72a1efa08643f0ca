/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_mpi.h: private to comm_mpi*.c, the backend for CPU clusters.
 *
 *   comm_mpi.c        MPI's beginning and end; create, destroy, enqueue, errors, abort
 *   comm_mpi_coll.c   the collectives, as messages between all pairs
 *   comm_mpi_wait.c   the one wait: deadline, abort, a peer's failure, a lost rank
 *
 * MPI moves messages; the collectives are made here. So sums are in rank order as with comm_host,
 * every wait has a deadline and knows for whom it waits, and no communicator of MPI's own (whose
 * making blocks) is needed: each of ours has two tags.
 */
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "fsdp/sys/comm_ops.h"

enum {
    SMALL_NBYTES = 16 << 10, /* up to this much, a sum takes everything from everybody */
    SUM_NBYTES = 512 << 10,  /* scratch a peer */
    MOVE_NBYTES = 256 << 20, /* of one message: counts are ints */
    WHAT_NBYTES = 512,
};

enum mpi_kind {
    KIND_ALL_GATHER,
    KIND_REDUCE_SCATTER,
    KIND_ALL_REDUCE,
    KIND_BROADCAST,
    KIND_BARRIER
};

/* One operation, as far as all ranks must agree on it: the first message of it, from each to all.
 */
struct mpi_op {
    uint64_t seq; /* 1 for the first */
    uint64_t nelem;
    int32_t kind, dtype, root, zero;
};

/* Why a communicator ended, in the form that peers are told. */
struct mpi_fail {
    int32_t status;
    int32_t reporter; /* world rank that saw it */
    char what[WHAT_NBYTES];
};

struct mpi_comm {
    const struct fsdp_comm_group *group;
    struct fsdp_oob *oob;
    MPI_Comm world;
    int *mpi_rank; /* [size] of each member in `world` */
    int data_tag, fail_tag;
    pthread_mutex_t op_lock; /* one operation at a time */
    uint64_t done;
    _Atomic uint64_t enqueued;

    pthread_mutex_t status_lock; /* of sticky and pending */
    struct fsdp_err sticky;
    struct mpi_fail pending; /* this rank's own, from outside of operations */
    atomic_bool interrupted;

    struct mpi_op *ops;   /* [size] what each is in */
    MPI_Request *request; /* [2 * size] */
    int *from;            /* [2 * size] peer that a request waits for */
    int *finished;        /* [2 * size] for MPI_Testsome */
    int nrequests;
    char *scratch; /* [size][SUM_NBYTES] */
    const void **src;
    MPI_Request told; /* waits for a peer's failure */
    struct mpi_fail told_fail, tell;
    MPI_Request *telling; /* [size] */
    bool has_told;
};

const char *comm_mpi_kind_name(int kind);
int comm_mpi_fail_set(const struct mpi_comm *m, struct mpi_fail *fail, int status, const char *fmt,
                      ...) FSDP_PRINTF(4, 5);
/* "rank 3 (host n1)" */
const char *comm_mpi_peer_name(char text[96], const struct mpi_comm *m, int peer);

/* ---- comm_mpi_wait.c ---- */

/* Begins a message; at most 2 * size until the next wait. */
int comm_mpi_send(struct mpi_comm *m, const void *buf, size_t nbytes, int peer,
                  struct mpi_fail *fail);
int comm_mpi_recv(struct mpi_comm *m, void *buf, size_t nbytes, int peer, struct mpi_fail *fail);
/* Waits for all that were begun. */
int comm_mpi_wait(struct mpi_comm *m, struct mpi_fail *fail);
bool comm_mpi_interrupted(struct mpi_comm *m, struct mpi_fail *fail);

/* ---- comm_mpi_coll.c ---- */

int comm_mpi_collective(struct mpi_comm *m, const struct mpi_op *op, void *recv, const void *send,
                        struct mpi_fail *fail);

#endif
