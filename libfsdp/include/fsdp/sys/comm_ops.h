/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_ops.h: what a communication backend implements. comm.c has checked every argument (pointers,
 * dtype, root, sticky state) before it calls; the semantics are those of comm.h.
 */
#ifndef FSDP_SYS_COMM_OPS_H
#define FSDP_SYS_COMM_OPS_H

#include "fsdp/comm.h"

#define FSDP_COMM_OPS_ABI 6

/* The group as split by comm.c: index = group rank. Lives until the backend's destroy returned. */
struct fsdp_comm_group {
    const char *name;
    int rank, size;
    const int *world_rank;                /* [size] */
    const int *node;                      /* [size] node index of each member */
    const char (*host)[FSDP_HOST_NBYTES]; /* [size] */
    int color;
    double timeout_s;
    enum fsdp_comm_use use;
    struct fsdp_comm_nccl nccl;
};

enum fsdp_comm_kind {
    FSDP_COMM_ALL_GATHER = 1,
    FSDP_COMM_REDUCE_SCATTER,
    FSDP_COMM_ALL_REDUCE,
    FSDP_COMM_BROADCAST,
    FSDP_COMM_BARRIER,
};
enum { FSDP_COMM_NKINDS = FSDP_COMM_BARRIER + 1 };

/* One collective. nelem: as the function of comm.h has it; 0 for a barrier, which has no buffers. A
 * broadcast has one buffer in both places. */
struct fsdp_comm_call {
    enum fsdp_comm_kind kind;
    void *recv;
    const void *send;
    size_t nelem;
    enum fsdp_dtype dtype;
    int root; /* of a broadcast; else 0 */
};

struct fsdp_comm_ops {
    uint32_t abi;
    const char *name;
    /* May this backend serve the group on this device? Local; `why` gets one line if not. */
    bool (*usable)(const struct fsdp_comm_group *group, const struct fsdp_device *device, char *why,
                   size_t why_nbytes);
    /* Collective over all ranks of oob (every group at once), so that addresses travel by one
     * allgather; ends in agreement: it succeeds on all ranks or fails on all. A rank whose own
     * group uses another backend takes part too and destroys the result. *out is the backend's own
     * state. */
    int (*create)(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                  struct fsdp_device *device, struct fsdp_err *err);
    void (*destroy)(void *state, bool healthy);
    void (*abort)(void *state, const struct fsdp_err *why); /* why: never NULL */
    /* Enqueues. `call` lives only during the call. */
    int (*collective)(void *state, const struct fsdp_comm_call *call, struct fsdp_lane *lane,
                      struct fsdp_err *err);
    /* Local: an error that happened in enqueued work. */
    int (*status)(void *state, struct fsdp_err *err);
    /* (optional) registered memory; comm.c falls back to the device's. */
    void *(*mem_alloc)(void *state, size_t nbytes, struct fsdp_err *err);
    void (*mem_free)(void *state, void *ptr);
    /* (optional) one block for all ranks, which mem_free frees; NULL, or has_common false: the
     * group has none. */
    void *(*mem_common)(void *state, size_t nbytes, struct fsdp_err *err);
    bool (*has_common)(const void *state);
    /* (optional) registers memory that another communicator of this backend has allocated; mem_free
     * then ends only the registration. */
    int (*mem_share)(void *state, void *ptr, size_t nbytes, struct fsdp_err *err);
    /* (optional) how it works, in words: writes to text. */
    void (*about)(const void *state, char *text, size_t text_nbytes);
};

extern const struct fsdp_comm_ops fsdp_comm_self_ops, fsdp_comm_host_ops;
extern const struct fsdp_comm_ops fsdp_comm_nccl_ops; /* in libfsdp-cuda.so (sys/cuda.h) */

#endif
