/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h: private to nccl*.c, the backend for CUDA devices.
 *
 *   nccl.c        operations, abort
 *   nccl_fail.c   status and failure, the queue
 *   nccl_init.c   how the ranks of every group meet; destroy
 *   nccl_share.c  what a communicator takes of its GPU
 *   nccl_lib.c    the NCCL library that is there: versions, errors, newer functions
 *   nccl_mem.c    memory that NCCL has registered
 *   nccl_watch.c  a thread per communicator: deadlines, errors that come later, their end
 *   nccl_peers.c  what ranks tell each other outside NCCL: where they are, why they failed
 *
 * NCCL moves the data and neither names a rank that is late nor ends a collective that it cannot
 * complete. So every operation is recorded between two events. The watch thread sees by the first
 * that the lane has come to it, and from then on its deadline runs; where it takes long, it asks
 * the peers for what they have at that place in the order, by datagrams. Who has something else,
 * has not come or does not answer is named.
 *
 * A communicator is issued to by one thread at a time. "Peer" is a group rank.
 */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm/common/comm_meet.h"
#include "comm/common/comm_op.h"
#include "fsdp/sys/comm_ops.h"

enum {
    NCCL_LEAST = 21900,  /* ncclMemAlloc, ncclCommSplit, config.splitShare */
    NCCL_NPENDING = 256, /* operations of a communicator between host and GPU */
    NCCL_TOKEN_NBYTES = 16,
    NCCL_IDS_EVERY = 128, /* ranks for each unique id of a large group */
};

/* ---- operations ------------------------------------------------------------------------------ */

/* An operation on its way. */
struct nccl_pending {
    struct comm_op op;
    struct fsdp_lane *lane;
    struct fsdp_event *begin, *end; /* around it on its lane */
    bool issued;                    /* end was recorded */
    double began;                   /* when begin was seen to be done, 0: not yet */
};

/* ---- peers ----------------------------------------------------------------------------------- */

enum nccl_word {
    NCCL_ASK = 1, /* what do you have as number op.seq? */
    NCCL_ANSWER,
    NCCL_FAILED,
    NCCL_BYE, /* this rank left on purpose */
};

/* A datagram. */
struct nccl_message {
    uint32_t magic;
    int32_t word, from;               /* from: group rank */
    int32_t begun;                    /* ANSWER: its lane has come to op */
    uint8_t token[NCCL_TOKEN_NBYTES]; /* the receiver's secret */
    struct comm_op op;                /* ANSWER: kind 0 where it has not come, or long ago */
    uint64_t enqueued;                /* ANSWER: operations so far */
    struct comm_fail fail;
};

struct nccl_peer {
    struct comm_addr addr[COMM_MAX_ADDRS];
    int32_t naddrs, port;
    bool here; /* the same machine: loopback */
    uint8_t token[NCCL_TOKEN_NBYTES];
    bool left; /* after `enqueued` operations */
    /* The latest answer to the question that is open. */
    bool heard, begun;
    struct comm_op op;
    uint64_t enqueued;
};

/* ---- a communicator -------------------------------------------------------------------------- */

struct nccl_block {
    void *ptr;
    bool shared;         /* another communicator's memory */
    ncclWindow_t window; /* NULL: not registered */
    bool unsettled;      /* its registration did not end: NCCL may still use both */
    struct nccl_block *next;
};

struct nccl_comm {
    const struct fsdp_comm_group *group; /* comm.c's; lives longer */
    struct fsdp_oob *oob;
    struct fsdp_device *device;
    ncclComm_t comm; /* NULL after an abort */
    struct nccl_comm *next_parent;
    bool copies;            /* its gathers are the copy engines' where NCCL can */
    int most_ctas;          /* blocks of its kernels; 0: NCCL's own number */
    struct fsdp_lane *lane; /* of this communicator's own: zeroes memory */
    void *scratch;          /* of barriers */
    struct nccl_block *blocks;
    pthread_mutex_t blocks_lock;

    /* Calls of NCCL on comm, one at a time: also one that asks how comm is, since it ends what an
     * earlier call began. Who holds it leaves an error that it was told in `told`. */
    pthread_mutex_t issue;
    bool unsettled;  /* guarded by issue: it was left while a call was under way */
    bool held;       /* guarded by issue: a call failed; NCCL may hold its job until an abort */
    atomic_int told; /* ncclResult_t */
    pthread_mutex_t lock;                       /* of the queue, sticky and told */
    struct nccl_pending pending[NCCL_NPENDING]; /* number n is at n % NCCL_NPENDING */
    uint64_t enqueued, done;
    struct fsdp_err sticky;
    struct comm_fail fail; /* status 0: none */
    atomic_bool failed;

    struct nccl_peer *peers; /* [size] */
    uint8_t token[NCCL_TOKEN_NBYTES];
    int socket, family, wake_fd;
    pthread_t thread;
    bool watched; /* thread runs */
    atomic_bool stop;
};

/* ---- nccl_fail.c ------------------------------------------------------------------------ */
int nccl_status(void *state, struct fsdp_err *err);
/* Ends the communicator; from any thread. The first call counts. The watch thread does the rest:
 * tells the peers, ends what is on the GPU. */
void nccl_fail(struct nccl_comm *h, const struct comm_fail *fail);
/* Under lock: operations that the GPU has done leave the queue. Fails where the GPU has. */
int nccl_retire(struct nccl_comm *h, struct fsdp_err *err);
/* Wakes the watch thread. */
void nccl_wake(struct nccl_comm *h);

/* ---- nccl_init.c ------------------------------------------------------------------------ */
int nccl_create(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                struct fsdp_device *device, struct fsdp_err *err);
void nccl_destroy(void *state, bool healthy);

/* ---- nccl_share.c ----------------------------------------------------------------------- */
/* Which of NCCL's variables for this the user set, in bits: alike on all ranks, or they would
 * choose differently. */
int nccl_share_variables(void);
/* Chooses for this group and this version of NCCL, and sets what config has for it. */
void nccl_share_choose(struct nccl_comm *h, ncclConfig_t *config, int version);
void nccl_share_about(const void *state, char *text, size_t text_nbytes);

/* ---- nccl_lib.c ------------------------------------------------------------------------- */
/* Is the library that is there one that this backend can use? */
bool nccl_lib_usable(char *why, size_t why_nbytes);
/* "system error: <what NCCL said last>"; comm may be NULL. Writes to and returns text. */
const char *nccl_lib_error(char text[COMM_WHAT_NBYTES], ncclComm_t comm, ncclResult_t result);
/* The status that fits a result. */
int nccl_lib_status(ncclResult_t result);
/* NCCL's result of what comm is doing; ncclInProgress while it continues. */
ncclResult_t nccl_lib_state(ncclComm_t comm);
/* Waits until the call that returned rc has ended, and returns its result. ncclSuccess is waited
 * for as ncclInProgress is: several calls (ncclCommWindowRegister from 2.28 on, ncclCommSplit)
 * return it while their work continues. Any other rc is returned at once. Gives up when *stop is
 * set (NULL: never), at the deadline (ncclInProgress), or when the job has lost a rank
 * (ncclRemoteError, err set). */
ncclResult_t nccl_lib_settle(ncclComm_t comm, ncclResult_t rc, const atomic_bool *stop,
                             double deadline, struct fsdp_oob *oob, struct fsdp_err *err);
ncclResult_t nccl_lib_init(ncclComm_t *out, int nranks, int rank, int nids, ncclUniqueId *ids,
                           ncclConfig_t *config);
bool nccl_lib_can_revoke(void);
ncclResult_t nccl_lib_revoke(ncclComm_t comm);
/* *window stays NULL where the library has no notion of windows. */
ncclResult_t nccl_lib_window(ncclWindow_t *window, ncclComm_t comm, void *ptr, size_t nbytes);
void nccl_lib_window_free(ncclComm_t comm, ncclWindow_t window);

/* ---- nccl_mem.c ------------------------------------------------------------------------- */
void *nccl_mem_alloc(void *state, size_t nbytes, struct fsdp_err *err);
void nccl_mem_free(void *state, void *ptr);
int nccl_mem_share(void *state, void *ptr, size_t nbytes, struct fsdp_err *err);
void nccl_mem_free_all(struct nccl_comm *h);

/* ---- nccl_watch.c ----------------------------------------------------------------------- */
int nccl_watch_start(struct nccl_comm *h, struct fsdp_err *err);
void nccl_watch_stop(struct nccl_comm *h);

/* ---- nccl_peers.c ----------------------------------------------------------------------- */
/* Opens the socket and makes the token. */
int nccl_peers_open(struct nccl_comm *h, int32_t *port, struct fsdp_err *err);
void nccl_peers_close(struct nccl_comm *h);
/* To one peer, or to all (-1) that have not left. Never blocks; datagrams may be lost. */
void nccl_peers_say(struct nccl_comm *h, int peer, enum nccl_word word, const struct comm_op *op);
/* Reads what has come: answers questions, notes answers. A peer's failure becomes this one's. */
void nccl_peers_listen(struct nccl_comm *h);

#endif
