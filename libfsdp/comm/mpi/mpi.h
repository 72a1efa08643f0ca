/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi.h: private to comm_mpi*.c, the backend for CPU clusters.
 *
 *   mpi.c        MPI's beginning and end; create, destroy, enqueue, errors, abort
 *   mpi_coll.c   the collectives, as messages between all pairs
 *   mpi_wait.c   the one wait: deadline, abort, a peer's failure, a lost rank
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

#include "comm/common/comm_op.h"

enum {
    SMALL_NBYTES = 16 << 10, /* up to this much, a sum takes everything from everybody */
    SUM_NBYTES = 512 << 10,  /* scratch a peer */
    MOVE_NBYTES = 256 << 20, /* of one message: counts are ints */
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
    struct comm_fail pending; /* this rank's own, from outside of operations */
    atomic_bool interrupted;

    struct comm_op *ops;  /* [size] what each is in */
    MPI_Request *request; /* [2 * size] */
    int *from;            /* [2 * size] peer that a request waits for */
    int *finished;        /* [2 * size] for MPI_Testsome */
    int nrequests;
    char *scratch; /* [size][SUM_NBYTES] */
    const void **src;
    MPI_Request told; /* waits for a peer's failure */
    struct comm_fail told_fail, tell;
    MPI_Request *telling; /* [size] */
    bool has_told;
};

/* ---- mpi_wait.c ---- */

/* Begins a message; at most 2 * size until the next wait. */
int comm_mpi_send(struct mpi_comm *m, const void *buf, size_t nbytes, int peer,
                  struct comm_fail *fail);
int comm_mpi_recv(struct mpi_comm *m, void *buf, size_t nbytes, int peer, struct comm_fail *fail);
/* Waits for all that were begun. */
int comm_mpi_wait(struct mpi_comm *m, struct comm_fail *fail);
bool comm_mpi_interrupted(struct mpi_comm *m, struct comm_fail *fail);

/* ---- mpi_coll.c ---- */

int comm_mpi_collective(struct mpi_comm *m, const struct comm_op *op, void *recv, const void *send,
                        struct comm_fail *fail);

#endif
