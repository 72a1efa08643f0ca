/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.h: communicators. One communicator is one group of ranks with its own order of operations;
 * collectives are enqueued on a lane and do not block the caller (except that an unthreaded CPU
 * lane runs them at once). This dispatcher checks arguments and state; backends (sys/comm_ops.h)
 * trust it.
 *
 * Errors are sticky: after the first failure every later call on the communicator returns it, and
 * only fsdp_comm_abort and fsdp_comm_destroy follow. Every wait has a deadline, and a dead or
 * silent peer is named by world rank and host. FSDP_EMISMATCH names two ranks that are not in the
 * same operation.
 *
 * Backends: self, groups of one rank; host, memory of the CPU, shared in a node and over TCP
 * between nodes; mpi, memory of the CPU over MPI; nccl, memory of CUDA devices. "auto" takes self,
 * else what fits the device, which is of one kind on all ranks. Where host is asked for by name on
 * a CUDA device, it is refused.
 *
 * Environment: FSDP_COMM_IFNAME, comma-separated beginnings of the names of the network interfaces
 * whose addresses a rank gives to those on other nodes (default: all but loopback). NCCL has its
 * own, NCCL_SOCKET_IFNAME.
 */
#ifndef FSDP_COMM_H
#define FSDP_COMM_H

#include "fsdp/base.h"
#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_comm;

#define FSDP_HOST_NBYTES 64

/* Who started the ranks, so that an error can say which option of theirs to change. */
enum fsdp_starter { FSDP_STARTED_BY_SRUN, FSDP_STARTED_BY_MPIRUN, FSDP_STARTED_HERE };

/* Where every rank of the world runs; borrowed arrays of nranks entries. */
struct fsdp_node_map {
    int nranks, nnodes;
    const int *node_of;                   /* node index 0..nnodes-1 of each world rank */
    const char (*host)[FSDP_HOST_NBYTES]; /* host name of each world rank, NULL: unknown */
    enum fsdp_starter starter;
};

/* What a communicator does next to the device's own work. A hint to the backend. */
enum fsdp_comm_use { FSDP_COMM_FOR_ALL, FSDP_COMM_FOR_GATHERS, FSDP_COMM_FOR_SUMS };

/* What NCCL takes of a GPU that computes meanwhile, alike on all ranks; zeros: what suits it. Other
 * backends have no notion of it. Variables of NCCL's for the same count more. */
struct fsdp_comm_nccl {
    bool no_copy_engines; /* gathers inside a node are kernels, too */
    int most_ctas;        /* blocks of a kernel for gathers or sums, at most */
};

struct fsdp_comm_opts {
    uint32_t version;
    const char *backend; /* "auto", "self", "host", "mpi", "nccl" */
    const char *name;    /* "gather", "reduce", ...: appears in errors; static */
    int color;           /* ranks with equal color form one group; >= 0 */
    int key;             /* orders the ranks of the group; ties by world rank */
    double timeout_s;    /* deadline of every wait */
    const struct fsdp_node_map *nodes;
    enum fsdp_comm_use use;
    struct fsdp_comm_nccl nccl;
};
#define FSDP_COMM_OPTS_VERSION 2
#define FSDP_COMM_OPTS_INIT                                                                        \
    {                                                                                              \
        .version = FSDP_COMM_OPTS_VERSION, .backend = "auto", .name = "comm", .timeout_s = 600     \
    }

/* Collective over all ranks of oob, like MPI_Comm_split: fails on all ranks or on none. oob is
 * borrowed until destroy (health), opts and its node map only by this call. device: that of the
 * lanes of later calls. FSDP_EINVAL for bad options, FSDP_EMISMATCH where ranks' options contradict
 * each other, FSDP_EUNSUPPORTED for a backend that cannot serve the device. Blocks. */
int fsdp_comm_create(struct fsdp_comm **out, const struct fsdp_comm_opts *opts,
                     struct fsdp_oob *oob, struct fsdp_device *device, struct fsdp_err *err);
/* Local. For a process that opens PMIx itself and then uses backend "mpi": called before PMIx is
 * opened, it begins an MPI that cannot begin later (Open MPI 5 or newer, which waits in this for
 * the ranks of all processes). Other MPIs begin with their first communicator. What fails here
 * fails there, too, with the same error. No MPI, or ranks that MPI cannot serve: FSDP_OK. */
int fsdp_comm_begin_mpi(struct fsdp_err *err);
/* Collective where healthy; after an error local. Never waits for others. The lanes that it was
 * used on are synced before. Frees fsdp_comm_mem_alloc's memory; leaves no segment, socket or file
 * behind. NULL is allowed. */
void fsdp_comm_destroy(struct fsdp_comm *comm);
/* Local. Ends every pending and later operation of this communicator with FSDP_ECANCELED, on this
 * rank and, as they notice, on the others. Their errors have the reason and the culprit of `why`
 * (NULL: no reason is given); where the culprit is this rank, it is taken to report the failure
 * itself (of_other). NULL is allowed as comm. */
void fsdp_comm_abort(struct fsdp_comm *comm, const struct fsdp_err *why);

/* Of this rank's group. Local. */
int fsdp_comm_rank(const struct fsdp_comm *comm);
int fsdp_comm_size(const struct fsdp_comm *comm);
/* What opts named it, and the backend that serves it. They live as long as comm. */
const char *fsdp_comm_name(const struct fsdp_comm *comm);
const char *fsdp_comm_backend(const struct fsdp_comm *comm);
/* How it works, in words, where the backend has a choice; "" elsewhere. Writes to and returns text.
 */
const char *fsdp_comm_about(const struct fsdp_comm *comm, char *text, size_t text_nbytes);
/* "auto" and the backends' names, between bars: what fsdp_comm_opts.backend takes. */
extern const char fsdp_comm_backend_words[];
/* Local. The sticky error, FSDP_OK if there is none. */
int fsdp_comm_status(struct fsdp_comm *comm, struct fsdp_err *err);

/* Memory that the backend moves fastest (shared memory, registered windows). Collective: every rank
 * of the group allocates the same sizes in the same order. Any device pointer works in a
 * collective. */
void *fsdp_comm_mem_alloc(struct fsdp_comm *comm, size_t nbytes, struct fsdp_err *err);
void fsdp_comm_mem_free(struct fsdp_comm *comm, void *ptr);
/* One block of memory that all ranks of the group read and write, which fsdp_comm_mem_free frees;
 * zeros at first. An all_gather whose recv lies at the same place of it on every rank, with send in
 * its part, moves nothing: it returns when all ranks have come, after which each reads what the
 * others have written before. Collective. Only where fsdp_comm_has_common, which is local: the
 * ranks share a node and compute on its processors. */
void *fsdp_comm_mem_common(struct fsdp_comm *comm, size_t nbytes, struct fsdp_err *err);
bool fsdp_comm_has_common(const struct fsdp_comm *comm);
/* Another communicator's memory: from now on this one, too, moves it as fast as its own, where its
 * backend can register memory twice (NCCL); elsewhere nothing is done. ptr, nbytes: all of what
 * fsdp_comm_mem_alloc gave, which stays the other's. Collective: all ranks of this group share
 * memory of the same sizes in the same order. Blocks. */
int fsdp_comm_mem_share(struct fsdp_comm *comm, void *ptr, size_t nbytes, struct fsdp_err *err);
/* Ends that, before the memory is freed. NULL and what is not shared are allowed. Local. */
void fsdp_comm_mem_unshare(struct fsdp_comm *comm, void *ptr);

/* Collective, enqueue. Sizes and dtypes are the same on every rank of the group. Buffers are
 * aligned to their dtype, and send and recv do not overlap except in place as stated. BOOL and F8
 * can be gathered and broadcast, not summed.
 *
 * all_gather: recv[size * nelem] = every rank's send[nelem] in rank order.
 *             In place where send == recv + rank * nelem elements.
 * reduce_scatter: recv[nelem] = sum over ranks of send[rank * nelem ...]; send has size * nelem.
 *             In place where recv == send + rank * nelem elements; the rest of send is then
 *             unspecified.
 * all_reduce: recv[nelem] = sum over ranks of send[nelem]. In place where recv == send.
 * broadcast:  buf[nelem] of root to all.
 *
 * Sums are taken in rank order of the group, bf16 and fp16 in fp32 and rounded once, so results are
 * the same on every rank and in every run (host, mpi). NCCL chooses its order by size and links,
 * 16-bit types may be rounded at each hop, I16 and U16 are not summed (FSDP_EUNSUPPORTED); all
 * ranks have the same result, and so has every run on the same machines. */
int fsdp_comm_all_gather(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                         enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err);
int fsdp_comm_reduce_scatter(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                             enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err);
int fsdp_comm_all_reduce(struct fsdp_comm *comm, void *recv, const void *send, size_t nelem,
                         enum fsdp_dtype dtype, struct fsdp_lane *lane, struct fsdp_err *err);
int fsdp_comm_broadcast(struct fsdp_comm *comm, void *buf, size_t nelem, enum fsdp_dtype dtype,
                        int root, struct fsdp_lane *lane, struct fsdp_err *err);
int fsdp_comm_barrier(struct fsdp_comm *comm, struct fsdp_lane *lane, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
