/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CPU device whose memory the host cannot touch, as a GPU's: open while work of a lane runs,
 * closed else. Nor can its kernels be given the host's (pointers.h). With OPAQUE_SEED=N no work
 * runs before somebody waits for it, and then in random order (FSDP_DEVICE_SHUFFLED), so
 * that what the host gave must still be there. With OPAQUE_HANGS=1 the device hangs when a lane is
 * given back. It is built into a library of the form of libfsdp-cuda.so, so that every program can
 * be run on it: FSDP_CUDA_LIBRARY=build/bin/tests/libfsdp-opaque.so fsdp-launch ...
 * fsdp.device=cuda. A touch ends the program and says where (addr2line).
 */
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../libfsdp/device/cuda/cuda_nvtx.h"
#include "fsdp/sys/comm_ops.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "graphs.h"
#include "pointers.h"

enum { PAGE = 4096 };
static const size_t arena_nbytes = (size_t)1 << 34;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* One thread at a time works on lanes: shuffled ones are not made for several. */
static pthread_mutex_t lanes = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char *arena;
static size_t arena_used;
static int nopen;

#define CPU fsdp_device_cpu_ops

static void say_where(int signum)
{
    static const char text[] = "the host touched device memory:\n";
    void *frames[16];
    if (write(STDERR_FILENO, text, sizeof text - 1) > 0)
        backtrace_symbols_fd(frames, backtrace(frames, 16), STDERR_FILENO);
    signal(signum, SIG_DFL);
    raise(signum);
}

static void protect(int by, int how)
{
    pthread_mutex_lock(&lock);
    nopen += by;
    if (arena_used && nopen == (by > 0))
        mprotect(arena, arena_used, how);
    pthread_mutex_unlock(&lock);
}

static void open_memory(void)
{
    graphs_check("work runs at once");
    pthread_mutex_lock(&lanes);
    protect(1, PROT_READ | PROT_WRITE);
}

static void close_memory(void)
{
    protect(-1, PROT_NONE);
    pthread_mutex_unlock(&lanes);
}

static int dev_open(void **state, int ordinal, unsigned flags, struct fsdp_err *err)
{
    const char *seed = getenv("OPAQUE_SEED");
    /* Threads of their own would run while the host does. */
    flags = seed ? FSDP_DEVICE_SHUFFLED | (unsigned)atoi(seed) << FSDP_DEVICE_SEED_SHIFT : 0;
    pthread_mutex_lock(&lock);
    if (!arena) {
        arena =
            mmap(NULL, arena_nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        signal(SIGSEGV, say_where);
        if (arena != MAP_FAILED) {
            pointers_add(arena, arena_nbytes);
            /* All of it is opened and closed for each work: that takes as long as it has pages. */
            madvise(arena, arena_nbytes, MADV_HUGEPAGE);
        }
    }
    pthread_mutex_unlock(&lock);
    if (arena == MAP_FAILED)
        return fsdp_err_set(err, FSDP_ENOMEM, "opaque device: no address space");
    return CPU.open(state, ordinal, flags, err);
}

/* Fresh pages each time, with a closed one behind them; what is freed is not given out again. */
static void *dev_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    const size_t rounded = (nbytes + PAGE - 1) / PAGE * PAGE + PAGE;
    char *ptr = NULL;
    (void)state;
    pthread_mutex_lock(&lock);
    if (rounded <= arena_nbytes - arena_used) {
        ptr = arena + arena_used;
        arena_used += rounded;
        if (nopen)
            mprotect(ptr, rounded, PROT_READ | PROT_WRITE);
    }
    pthread_mutex_unlock(&lock);
    if (!ptr)
        fsdp_err_set(err, FSDP_ENOMEM, "%s: the opaque device is full", name);
    return ptr;
}

static void dev_free(void *state, void *ptr)
{
    (void)state;
    (void)ptr;
}

static void *host_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    void *ptr = CPU.host_alloc(state, nbytes, name, err);
    pointers_add(ptr, nbytes);
    return ptr;
}

static void host_free(void *state, void *ptr)
{
    pointers_remove(ptr);
    CPU.host_free(state, ptr);
}

static void lane_destroy(void *l)
{
    while (getenv("OPAQUE_HANGS"))
        pause();
    open_memory();
    CPU.lane_destroy(l);
    close_memory();
}

/* Calls whose work runs before they return, or in a lane's synchronisation: name, parameters,
 * arguments, pointers to what kernels read and write (a copy takes any memory). clang-format would
 * run their lines together. */
/* clang-format off */
#define OPENED_CALLS(X)                                                                           \
    X(lane_sync,                                                                                  \
      (void *l, struct fsdp_err *e),                                                              \
      (l, e),                                                                                     \
      (NULL))                                                                                     \
    X(lane_call,                                                                                  \
      (void *l, fsdp_lane_f *fn, const void *arg, size_t nbytes, struct fsdp_err *e),             \
      (l, fn, arg, nbytes, e),                                                                    \
      (NULL))                                                                                     \
    X(event_record,                                                                               \
      (void *event, void *l, struct fsdp_err *e),                                                 \
      (event, l, e),                                                                              \
      (NULL))                                                                                     \
    X(event_wait,                                                                                 \
      (void *event, void *l, struct fsdp_err *e),                                                 \
      (event, l, e),                                                                              \
      (NULL))                                                                                     \
    X(copy,                                                                                       \
      (void *l, void *dst, const void *src, size_t nbytes, struct fsdp_err *e),                   \
      (l, dst, src, nbytes, e),                                                                   \
      (NULL))                                                                                     \
    X(copy_pieces,                                                                                \
      (void *l, void *dst, const void *src, size_t nbytes, const struct fsdp_pieces *p,           \
       struct fsdp_err *e),                                                                       \
      (l, dst, src, nbytes, p, e),                                                                \
      (NULL))                                                                                     \
    X(zero,                                                                                       \
      (void *l, void *dst, size_t nbytes, struct fsdp_err *e),                                    \
      (l, dst, nbytes, e),                                                                        \
      (dst))                                                                                      \
    X(cast,                                                                                       \
      (void *l, void *dst, enum fsdp_dtype d, const void *src, enum fsdp_dtype s, size_t n,       \
       struct fsdp_err *e),                                                                       \
      (l, dst, d, src, s, n, e),                                                                  \
      (dst, src))                                                                                 \
    X(accumulate,                                                                                 \
      (void *l, void *dst, enum fsdp_dtype to, const void *src, enum fsdp_dtype d, size_t n,      \
       struct fsdp_err *e),                                                                       \
      (l, dst, to, src, d, n, e),                                                                 \
      (dst, src))                                                                                 \
    X(sumsq,                                                                                      \
      (void *l, double *out, const void *x, enum fsdp_dtype d, size_t n, struct fsdp_err *e),     \
      (l, out, x, d, n, e),                                                                       \
      (out, x))                                                                                   \
    X(absmax,                                                                                     \
      (void *l, double *out, const void *x, enum fsdp_dtype d, size_t n, struct fsdp_err *e),     \
      (l, out, x, d, n, e),                                                                       \
      (out, x))                                                                                   \
    X(max_rows,                                                                                   \
      (void *l, double *out, const double *in, size_t nrows, size_t ncols, struct fsdp_err *e),   \
      (l, out, in, nrows, ncols, e),                                                              \
      (out, in))                                                                                  \
    X(quantize,                                                                                   \
      (void *l, void *dst, enum fsdp_dtype d, const float *src, size_t n, const double *amax,     \
       struct fsdp_err *e),                                                                       \
      (l, dst, d, src, n, amax, e),                                                               \
      (dst, src, amax))                                                                           \
    X(dequantize,                                                                                 \
      (void *l, const struct fsdp_dequantize_args *a, struct fsdp_err *e),                        \
      (l, a, e),                                                                                  \
      (a->dst, a->src, a->amax))                                                                           \
    X(nf4_decode,                                                                                 \
      (void *l, const struct fsdp_nf4_args *a, struct fsdp_err *e),                               \
      (l, a, e),                                                                                  \
      (a->dst, a->codes, a->scale_codes, a->scales, a->offset))                                   \
    X(clip_coef,                                                                                  \
      (void *l, const struct fsdp_clip_args *a, struct fsdp_err *e),                              \
      (l, a, e),                                                                                  \
      (a->coef, a->norm, a->partial, a->scale))                                                   \
    X(loss_scale_update,                                                                          \
      (void *l, struct fsdp_loss_scale *scale, const float *norm,                                 \
       struct fsdp_loss_scale_rule rule, struct fsdp_err *e),                                     \
      (l, scale, norm, rule, e),                                                                  \
      (scale, norm))                                                                              \
    X(adamw,                                                                                      \
      (void *l, const struct fsdp_adamw_args *args, struct fsdp_err *e),                          \
      (l, args, e),                                                                               \
      (args->master, args->rest, args->exp_avg, args->exp_avg_sq, args->grad,                     \
       args->grad_scale, args->loss_scale, args->param))                                          \
    X(split,                                                                                      \
      (void *l, void *param, uint16_t *rest, const float *x, size_t n, struct fsdp_err *e),       \
      (l, param, rest, x, n, e),                                                                  \
      (param, rest, x))                                                                           \
    X(join,                                                                                       \
      (void *l, float *x, const void *param, const uint16_t *rest, size_t n,                      \
       struct fsdp_err *e),                                                                       \
      (l, x, param, rest, n, e),                                                                  \
      (x, param, rest))                                                                           \
    X(narrow,                                                                                     \
      (void *l, void *dst, const float *src, size_t n, const struct fsdp_rounding *r,             \
       struct fsdp_err *e),                                                                       \
      (l, dst, src, n, r, e),                                                                     \
      (dst, src))                                                                                 \
    X(sgd,                                                                                        \
      (void *l, const struct fsdp_sgd_args *args, struct fsdp_err *e),                            \
      (l, args, e),                                                                               \
      (args->master, args->momentum_buffer, args->grad, args->grad_scale,                         \
       args->loss_scale))                                                                         \
    X(lion,                                                                                       \
      (void *l, const struct fsdp_lion_args *args, struct fsdp_err *e),                           \
      (l, args, e),                                                                               \
      (args->master, args->exp_avg, args->grad, args->grad_scale, args->loss_scale))              \
    X(adamw8bit,                                                                                  \
      (void *l, const struct fsdp_adamw8bit_args *args, struct fsdp_err *e),                      \
      (l, args, e),                                                                               \
      (args->master, args->state1, args->state2, args->absmax1, args->absmax2, args->grad,        \
       args->grad_scale, args->loss_scale))                                                       \
    X(schedulefree,                                                                               \
      (void *l, const struct fsdp_schedulefree_args *args, struct fsdp_err *e),                   \
      (l, args, e),                                                                               \
      (args->x, args->z, args->exp_avg_sq, args->grad, args->grad_scale, args->y))                \
    X(schedulefree_y,                                                                             \
      (void *l, void *y, enum fsdp_dtype dtype, const float *x, const float *z, size_t n,         \
       double beta1, struct fsdp_err *e),                                                         \
      (l, y, dtype, x, z, n, beta1, e),                                                           \
      (y, x, z))                                                                                  \
    X(ema,                                                                                        \
      (void *l, float *average, const float *x, size_t n, double decay, struct fsdp_err *e),      \
      (l, average, x, n, decay, e),                                                               \
      (average, x))                                                                               \
    X(adafactor,                                                                                  \
      (void *l, const struct fsdp_adafactor_args *args, struct fsdp_err *e),                      \
      (l, args, e),                                                                               \
      (args->master, args->grad, args->grad_scale, args->row_var, args->col_var, args->variance,  \
       args->sums, args->update_sum))                                                             \
    X(muon_begin,                                                                                 \
      (void *l, const struct fsdp_muon_args *args, struct fsdp_err *e),                           \
      (l, args, e),                                                                               \
      (args->momentum_buffer, args->grad, args->grad_scale, args->rows))                          \
    X(muon_end,                                                                                   \
      (void *l, const struct fsdp_muon_args *args, struct fsdp_err *e),                           \
      (l, args, e),                                                                               \
      (args->master, args->rows))                                                                 \
    X(muon_unit,                                                                                  \
      (void *l, const struct fsdp_muon_matrix *args, struct fsdp_err *e),                         \
      (l, args, e),                                                                               \
      (args->wide, args->x))                                                                      \
    X(muon_back,                                                                                  \
      (void *l, const struct fsdp_muon_matrix *args, struct fsdp_err *e),                         \
      (l, args, e),                                                                               \
      (args->wide, args->x))                                                                      \
    X(matmul,                                                                                     \
      (void *l, const struct fsdp_matmul_args *args, struct fsdp_err *e),                         \
      (l, args, e),                                                                               \
      (args->c, args->a, args->b, args->add))                                                     \
    X(init_fill,                                                                                  \
      (void *l, float *dst, uint64_t first, size_t n, struct fsdp_init init, uint64_t seed,       \
       uint64_t stream, struct fsdp_err *e),                                                      \
      (l, dst, first, n, init, seed, stream, e),                                                  \
      (dst))
/* clang-format on */

#define DEFINE_OPENED(op, params, args, list)                                                      \
    static int op params                                                                           \
    {                                                                                              \
        POINTERS_CHECK(#op, list);                                                                 \
        open_memory();                                                                             \
        int rc = CPU.op args;                                                                      \
        close_memory();                                                                            \
        return rc;                                                                                 \
    }
OPENED_CALLS(DEFINE_OPENED)

static struct fsdp_device_ops opaque_ops;

#define FILL_OPENED(op, params, args, list) opaque_ops.op = op;

/* The rest is the CPU's; the name, too, so that ranks meet as they do there. */
__attribute__((constructor)) static void fill_ops(void)
{
    opaque_ops = fsdp_device_cpu_ops;
    opaque_ops.name = "cpu";
    opaque_ops.is_host = false;
    opaque_ops.open = dev_open;
    opaque_ops.alloc = dev_alloc;
    opaque_ops.free = dev_free;
    opaque_ops.host_alloc = host_alloc;
    opaque_ops.host_free = host_free;
    opaque_ops.lane_destroy = lane_destroy;
    OPENED_CALLS(FILL_OPENED)
    opaque_ops.is_profiled = device_cuda_is_profiled;
    opaque_ops.range_push = device_cuda_range_push;
    opaque_ops.range_pop = device_cuda_range_pop;
    graphs_fill(&opaque_ops);
}

static struct fsdp_comm_ops opaque_comm;

/* A communicator's memory is the device's, also of a rank that shares it with nobody. */
static void *comm_mem_alloc(void *state, size_t nbytes, struct fsdp_err *err)
{
    void *ptr = fsdp_comm_host_ops.mem_alloc(state, nbytes, err);
    pointers_add(ptr, nbytes);
    return ptr;
}

static void comm_mem_free(void *state, void *ptr)
{
    pointers_remove(ptr);
    fsdp_comm_host_ops.mem_free(state, ptr);
}

__attribute__((constructor)) static void fill_comm(void)
{
    opaque_comm = fsdp_comm_host_ops;
    opaque_comm.mem_alloc = comm_mem_alloc;
    opaque_comm.mem_free = comm_mem_free;
}

/* A tuner of one product that the CPU has not: who decides, who follows, and where it is kept. */
static int tune(struct fsdp_lane *lane, struct nn_tuning *t, bool measure, struct fsdp_err *err)
{
    static const char answer[] = "the second";

    (void)lane;
    snprintf(t->who, sizeof t->who, "opaque");
    t->nknown = t->nbytes == sizeof answer && !memcmp(t->table, answer, sizeof answer);
    t->ntimed = !t->nknown && measure;
    if (!t->ntimed)
        return FSDP_OK;
    fsdp_free(t->table);
    if (!(t->table = fsdp_alloc(1, sizeof answer, "table of products", err)))
        return FSDP_ENOMEM;
    memcpy(t->table, answer, sizeof answer);
    t->nbytes = sizeof answer;
    fsdp_log(FSDP_LOG_INFO, "a product was timed");
    return FSDP_OK;
}

static struct nn_ops opaque_nn;

__attribute__((constructor)) static void fill_nn(void)
{
    opaque_nn_fill(&opaque_nn);
    opaque_nn.tune = tune;
}

static int probe(int *ndevices, struct fsdp_err *err)
{
    (void)err;
    *ndevices = 8; /* one for each rank */
    return FSDP_OK;
}

const struct fsdp_cuda_backend fsdp_cuda_backend = {
    .abi = FSDP_CUDA_ABI,
    .version = FSDP_VERSION_STRING,
    .built = "opaque CPU memory, for tests",
    .log_set = fsdp_log_set,
    .probe = probe,
    .device_ops = &opaque_ops,
    .comm_ops = &opaque_comm,
    .nn_ops = &opaque_nn,
};
