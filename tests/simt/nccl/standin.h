/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin.h: a library with NCCL's interface whose ranks are processes of one machine and whose
 * streams are lanes of CPU threads. It is as strict as NCCL's documentation and as unhelpful as
 * NCCL where something goes wrong: what is called while the communicator is busy is refused, calls
 * return before their work is done, who asks about that next to the thread that called it ends the
 * process (NCCL ends its own thread for it in that question, which is not made for two), peers that
 * call different things wait for ever, memory is not zeroed. So it shows whether comm_nccl*.c calls
 * the right things in the right order and gets out of each trap; it shows nothing of NCCL itself.
 *
 * NCCL_STANDIN makes this rank fail, comma-separated:
 *     stall=N     the Nth operation of every communicator never ends on the GPU
 *     error=N:R   it does not end either, and the communicator reports result R
 *     gpu=N       the rank's GPU fails in it
 *     init=R      a new communicator reports result R
 *     slow        the first operation of a communicator takes 0.3 s to connect
 *     absent      this rank never comes to the meeting of a new communicator
 *     nosplit     a split never ends
 *     norevoke    communicators cannot be revoked, as in older versions
 *     nvls        a new communicator cannot bind the switch's multicast memory
 *     engines     gathers are refused whose buffers are not in windows of their communicator, if
 *                 that is named "gather" and asked for copy engines
 *     windows     sums are refused whose buffers are not in windows of their communicator, if that
 *                 is one for gradients (named "reduce", "outer reduce" or "replicate")
 *     window=R    the registration of a window ends with result R
 *     call=N:R    the call of the Nth operation returns, ends with result R, enqueues nothing
 *
 * NCCL_STANDIN_VERSION is the library's version (22809). What its calls return on communicators
 * that do not block is that of NCCL's source (2.19.4, 2.21.5, 2.23.4, 2.27.7, 2.28.9, 2.29.7):
 *
 *   call              returns at once          refused                      sets the state
 *   finalize          ncclInProgress           the error it has; twice:     yes
 *                                              ncclInvalidArgument
 *   collective        ncclInProgress; before   the error it has; busy:      yes, but where revoked
 *                     2.23 ncclSuccess from    ncclInvalidArgument;
 *                     the second on            revoked: ncclInvalidUsage
 *   split             ncclSuccess, while the   the error it has; busy:      no
 *                     parent is in progress    ncclInvalidArgument
 *   window register   2.27: ncclInProgress;    the same                     no
 *                     2.28: ncclSuccess, in
 *                     progress; not before
 *   revoke            ncclInProgress; not      finalized or revoked:        no
 *                     before 2.28.7            ncclInvalidArgument
 *   destroy, abort    when it has ended        destroy: the error it has;   no
 *                                              from 2.22 on the thread's
 *                                              next calls do nothing then
 *
 * Who asks for the state ends the job of a call that succeeded. The job of one that failed stays,
 * and a revocation frees it without forgetting it; here that ends the process. The error of a
 * network stays after a revocation.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl.h"

enum { MAX_RANKS = 16, MAX_WINDOWS = 64, SLOT_NBYTES = 96 << 10 };

struct meeting {
    atomic_uint count, generation;
};

struct description {
    int kind, type, root;
    size_t count;
};

/* Shared among the ranks of a communicator; a memory file that the giver of the id holds open. */
struct segment {
    atomic_int arrived, left;
    struct meeting of_ops, of_calls;
    struct description descriptions[MAX_RANKS];
    struct {
        int color, key;
        ncclUniqueId id;
    } splits[MAX_RANKS];
    _Alignas(64) char slots[MAX_RANKS][SLOT_NBYTES];
};

struct faults {
    long stall, error, gpu, call;
    int error_result, init_result, window_result, call_result;
    bool absent, nosplit, norevoke, slow, nvls, windows, engines;
};

enum job_kind { JOB_INIT, JOB_SPLIT, JOB_ENQUEUE, JOB_REVOKE, JOB_FINALIZE, JOB_WINDOW };
enum op_kind { OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BROADCAST };

struct op {
    struct ncclComm *comm;
    const void *send;
    void *recv;
    long seq;
    struct description is;
};

struct window {
    char *begin, *end;
};

struct ncclComm {
    int rank, nranks, nwindows;
    struct window windows[MAX_WINDOWS];
    bool of_gradients, of_parameters, copies; /* copies: by copy engines */
    ncclUniqueId id;
    struct segment *segment;
    struct faults faults;
    atomic_bool aborted, revoked, finalized;
    atomic_int running; /* operations on lanes */
    atomic_int state;   /* ncclResult_t, of calls */
    atomic_int network; /* ncclResult_t, of operations; stays */
    long nops;
    /* What continues after a call returned. */
    pthread_t thread, caller;
    bool has_thread;
    enum job_kind job;
    struct op op;
    cudaStream_t stream;
    ncclComm_t *child_out;
    char child_name[32];
    bool child_copies;
    const struct ncclComm *parent; /* while it is split off */
};

/* Enqueues; standin_plugin.c knows what a stream is. */
void standin_launch(cudaStream_t stream, int (*fn)(void *arg), const void *arg, size_t nbytes);
/* Runs an operation where its lane has come to it: standin_ops.c. */
int standin_run(void *arg);
size_t standin_type_nbytes(int type);
/* All ranks have come; false where this one was stopped meanwhile. */
bool standin_meet(struct ncclComm *comm, struct meeting *meeting);
/* A kernel has made this process lose its GPU. */
extern atomic_bool standin_gpu_lost;
bool standin_stopped(const struct ncclComm *comm);
void standin_nap(void);

#endif
