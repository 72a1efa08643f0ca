/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h: private to comm_host_*.c, the CPU backend.
 *
 *   host.c          create, destroy, enqueue, sticky errors, abort
 *   host_coll.c     the collectives, as steps of the three below
 *   host_shm.c      ranks of one node: segment, barrier, staging slots
 *   host_mem.c      ranks of one node: registered memory
 *   host_tcp.c      ranks of other nodes: frames and payloads exchanged with all at once
 *   host_connect.c  how those connections are made
 *   host_wait.c     what every wait does while it waits: deadline, death, abort
 *
 * Operations and failures are those of comm_op.h, sums of comm_sum.h. "Peer" is a group rank;
 * "seat" is the index of a rank among those of its node.
 */
#ifndef COMM_HOST_H
#define COMM_HOST_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/common/comm_op.h"
#include "comm/common/comm_meet.h"

enum {
    HOST_TOKEN_NBYTES = 16,
    HOST_NAME_NBYTES = 128,
    HOST_SMALL_NBYTES = 16 << 10,  /* up to this much a rank, one barrier moves everything */
    HOST_SLOT_NBYTES = 512 << 10,  /* staging slot; less where many ranks share a node */
    HOST_PART_NBYTES = 64,         /* a slot holds at least this much for each seat */
    HOST_SLOTS_NBYTES = 128 << 20, /* at most this for all slots of a communicator */
    HOST_TCP_NBYTES = 512 << 10,   /* receive buffer per off-node peer for sums */
};

/* What a frame on TCP begins, besides an operation. */
enum {
    HOST_BYE = FSDP_COMM_NKINDS, /* this rank left on purpose */
    HOST_FAIL,                   /* a comm_fail follows */
};

/* A buffer within registered memory; region -1 means that it is not. */
struct host_ref {
    uint64_t offset; /* within the rank's block of the region */
    int64_t region;
};

struct host_desc {
    struct comm_op op;
    struct host_ref src; /* where peers of the node find this rank's contribution */
    struct host_ref dst; /* where all_reduce leaves this rank's part of the sum; where all_gather
                          * gathers, in memory that all have in common */
};

enum host_barrier_id { HOST_BARRIER_OPS, HOST_BARRIER_MEM, HOST_NBARRIERS };

/* Registered memory: one block of block_nbytes a seat, stride apart; stride 0: one for all. */
struct host_region {
    int64_t id;
    char *base;
    size_t stride, block_nbytes, map_nbytes;
};

struct host_control; /* shared; host_shm.c */

struct host_shm {
    struct host_control *control;
    char *slots; /* [nseats][2][slot_nbytes] */
    size_t slot_nbytes, map_nbytes;
    int fd; /* holds this seat's lock; -1 where the rank is alone on its node */
    char name[HOST_NAME_NBYTES]; /* empty once nobody needs it */
    char stem[HOST_NAME_NBYTES]; /* what names of registered memory begin with; same in all seats */
    uint32_t ticket[HOST_NBARRIERS]; /* barriers arrived at */
    uint64_t uses;                   /* of staging slots; its parity picks the slot */
    pthread_mutex_t mem_lock;        /* of regions */
    struct host_region *regions;
    int nregions, max_regions;
    int64_t next_region;
};

struct host_conn {
    int peer; /* group rank */
    int fd;
    struct comm_op frame_out, frame_in;
    size_t frame_out_left, frame_in_left; /* bytes of the frames still to move */
    const char *out;
    char *in;
    size_t out_left, in_left;
    char *sum_buffer; /* [tcp_nbytes] */
};

struct host_tcp {
    int nconns;
    struct host_conn *conns;
    struct pollfd *polls; /* [nconns + 1] */
    int listener;
    size_t chunk_nbytes; /* of each sum_buffer */
    char *buffers;
    bool in_op;    /* from host_tcp_begin until the operation is done */
    bool in_final; /* the payloads posted are the operation's last */
};

struct host_comm {
    const struct fsdp_comm_group *group; /* comm.c's; lives longer */
    struct fsdp_oob *oob;
    int seat, nseats;
    int *seat_peer;   /* [nseats] group rank of each seat */
    int *peer_seat;   /* [size] seat of a group rank, -1: other node */
    int *peer_conn;   /* [size] connection of a group rank, -1: this node */
    const void **src; /* [size] sources of one sum */
    struct host_shm shm;
    struct host_tcp tcp;
    size_t window_nbytes; /* of all_reduce: the smallest slot of any node */
    long spin_ns;         /* before a waiter sleeps; 0 where ranks outnumber cores */

    pthread_mutex_t op_lock; /* one operation at a time */
    uint64_t done;           /* operations completed */
    atomic_uint_fast64_t enqueued;

    pthread_mutex_t status_lock; /* of sticky and pending */
    struct fsdp_err sticky;
    struct comm_fail pending; /* a failure from outside of an operation, which is to end it */
    atomic_bool interrupted;  /* pending is set */
    int wake_fd;              /* eventfd: wakes poll then */
    bool told;                /* peers know of the failure; under op_lock */
};

/* What a rank tells all others of the world before segments and connections are made. */
struct host_card {
    int32_t status, port, naddrs;
    char text[256];
    uint8_t token[HOST_TOKEN_NBYTES]; /* secret that a connection to this rank must show */
    uint64_t machine;                 /* equal where ranks share a kernel */
    uint64_t affinity;                /* hash of the CPU set; ncpus is its size */
    int32_t ncpus;
    char segment[HOST_NAME_NBYTES];
    struct comm_addr addr[COMM_MAX_ADDRS];
};

/* ---- host_fail.c -------------------------------------------------------------------------- */
/* Ends the communicator from any thread: an operation in progress gives up. The first call counts.
 */
void host_fail_async(struct host_comm *h, const struct comm_fail *fail);
/* The same in an operation (op), or outside of one (NULL), under op_lock: keeps the first failure
 * and tells the peers. */
void host_break_down(struct host_comm *h, const struct comm_op *op, const struct comm_fail *fail);
/* A failed peer's own account, which follows its frame on a connection; it was sent with it, so the
 * wait is short. */
void host_fail_recv(const struct host_comm *h, struct host_conn *conn, struct comm_fail *fail);
bool host_is_transient(int errnum);
/* Was that called? Never blocks. */
bool host_interrupted(struct host_comm *h, struct comm_fail *fail);

/* ---- host_wait.c ----------------------------------------------------------------------- */

/* One wait. `late` adds the peers that are awaited; `dead` sets fail and returns
 * its status where an awaited peer is gone. Both get ctx. */
struct host_watch {
    struct host_comm *h;
    struct comm_wait wait;
    void (*late)(const struct host_comm *h, const void *ctx, struct comm_late *late);
    int (*dead)(struct host_comm *h, const void *ctx, struct comm_fail *fail);
    const void *ctx;
    bool owns_tcp; /* it runs under op_lock, so it may look at connections */
};
enum { HOST_SLICE_MS = 20 }; /* sleeps between two checks of a waiter */
/* Returns FSDP_OK to keep waiting. Cheap; call it once per slice. */
int host_watch_check(struct host_watch *watch, struct comm_fail *fail);
/* A death was seen. The launcher may know more of it than a hang-up tells (signal, last words), and
 * a peer may have seen it first and left: both come within moments, so give them those. Returns
 * fail->status. */
int host_explain(struct host_comm *h, bool owns_tcp, struct comm_fail *fail);

/* ---- host_shm.c ------------------------------------------------------------------------ */
/* Before the cards are exchanged: the leader of a node makes the segment. */
int host_shm_prepare(struct host_comm *h, const uint8_t token[HOST_TOKEN_NBYTES],
                     struct fsdp_err *err);
/* After: everyone maps it. */
int host_shm_attach(struct host_comm *h, const struct host_card *cards, struct fsdp_err *err);
/* The name goes once everyone has mapped it, or on failure. */
void host_shm_unlink(struct host_comm *h);
void host_shm_close(struct host_comm *h);

/* Split barrier of the node: every arrive is followed by a wait of the same kind. */
void host_barrier_arrive(struct host_comm *h, enum host_barrier_id id);
int host_barrier_wait(struct host_comm *h, enum host_barrier_id id, struct comm_fail *fail);

/* This rank's description of its current operation (seq); read by peers after a barrier. */
struct host_desc *host_desc_of(struct host_comm *h, int seat, uint64_t seq);
/* Staging slot of a seat for the current use; host_slots_next begins the next use. */
char *host_slot(struct host_comm *h, int seat);
void host_slots_next(struct host_comm *h);

/* Publishes a failure to the node and wakes its waiters. The first one stays. */
void host_shm_tell(struct host_comm *h, const struct comm_fail *fail);
bool host_shm_told(struct host_comm *h, struct comm_fail *fail);
void host_shm_wake(struct host_comm *h);

/* ---- host_mem.c ------------------------------------------------------------------------ */
void *host_mem_alloc(struct host_comm *h, size_t nbytes, struct fsdp_err *err);
void *host_mem_common(struct host_comm *h, size_t nbytes, struct fsdp_err *err);
void host_mem_free(struct host_comm *h, void *ptr);
/* Does it lie in memory that all seats have in common? */
bool host_is_common(struct host_comm *h, const void *ptr);
/* Is [ptr, ptr + nbytes) registered? */
struct host_ref host_ref_of(struct host_comm *h, const void *ptr, size_t nbytes);
/* Address of another seat's buffer here; NULL if this rank freed the region. */
void *host_ref_at(struct host_comm *h, int seat, struct host_ref ref);

/* ---- host_connect.c -------------------------------------------------------------------- */
/* Opens the listener and fills the card's address and port. */
int host_listen(struct host_comm *h, struct host_card *card, struct fsdp_err *err);
/* Connects to all off-node peers. `cards` are in world order. */
int host_connect(struct host_comm *h, const struct host_card *cards, struct fsdp_err *err);

/* ---- host_tcp.c ------------------------------------------------------------------------ */
int host_tcp_alloc(struct host_comm *h, struct fsdp_err *err);
void host_tcp_close(struct host_comm *h);
/* Begins an operation with all off-node peers: its frame goes out with the first payload. */
void host_tcp_begin(struct host_comm *h, const struct comm_op *op);
/* Before the operation's last payloads are posted: behind them, frames may follow. */
void host_tcp_final(struct host_comm *h);
/* The operation succeeded: what comes next on every connection is a frame. */
void host_tcp_end(struct host_comm *h);
/* Adds a payload each way for host_tcp_run; either may be empty. */
void host_tcp_post(struct host_comm *h, int peer, const void *out, size_t out_nbytes, void *in,
                   size_t in_nbytes);
/* Moves frames and posted payloads with all peers at once. */
int host_tcp_run(struct host_comm *h, const struct comm_op *op, struct comm_fail *fail);
/* Did an off-node peer report a failure? Never blocks. */
bool host_tcp_told(struct host_comm *h, struct comm_fail *fail);
/* Tells off-node peers that this rank is done: fail NULL means on purpose. */
void host_tcp_tell(struct host_comm *h, const struct comm_fail *fail);

/* ---- host_coll.c ----------------------------------------------------------------------- */
/* Runs one operation; blocks. send is the broadcast's buffer too. */
int host_collective(struct host_comm *h, const struct comm_op *op, void *recv, const void *send,
                    struct comm_fail *fail);

#endif
