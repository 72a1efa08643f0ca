/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "cpu.h"

/* Other CBLAS libraries lack it. */
extern char *openblas_get_corename(void) __attribute__((weak));
extern void openblas_set_num_threads(int nthreads) __attribute__((weak));

const char *nn_blas_kernels(void)
{
    return openblas_get_corename ? openblas_get_corename() : "unknown";
}

/* OpenBLAS takes a buffer for each thread at its first product, and tries for ever where it gets
 * none. Only a limit refuses address space, and what a run allocates before that product could take
 * it: until then it is kept. */
static void *kept;
static size_t kept_nbytes;

int nn_blas_keep_room(struct fsdp_err *err)
{
    const size_t buffer_nbytes = (size_t)128 << 20, nthreads = (size_t)fsdp_cpu_threads();
    struct rlimit limit;

    nn_blas_leave_room();
    if (!openblas_set_num_threads || getrlimit(RLIMIT_AS, &limit) ||
        limit.rlim_cur == RLIM_INFINITY)
        return FSDP_OK;
    void *room = mmap(NULL, nthreads * buffer_nbytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return fsdp_err_set(err, FSDP_ENOMEM,
                            "address space is limited to %llu MiB (ulimit -v), too little for "
                            "OpenBLAS, which takes %zu MiB a thread: raise the limit",
                            (unsigned long long)(limit.rlim_cur >> 20), buffer_nbytes >> 20);
    kept_nbytes = nthreads * buffer_nbytes;
    __atomic_store_n(&kept, room, __ATOMIC_RELEASE);
    return FSDP_OK;
}

void nn_blas_leave_room(void)
{
    void *room = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    if (room && (room = __atomic_exchange_n(&kept, NULL, __ATOMIC_ACQ_REL)))
        munmap(room, kept_nbytes);
}

static CBLAS_TRANSPOSE transpose_of(const struct nn_matrix *x)
{
    return x->transposed ? CblasTrans : CblasNoTrans;
}

void nn_blas_sgemm(const struct nn_product *g, float alpha)
{
    nn_blas_leave_room();
    cblas_sgemm(CblasRowMajor, transpose_of(&g->a), transpose_of(&g->b), g->m, g->n, g->k, alpha,
                g->a.at, g->a.ld, g->b.at, g->b.ld, g->beta, g->c, g->ldc);
}

/* Products are divided here, so that one set of threads does everything. */
void nn_set_threads(int nthreads)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    fsdp_cpu_set_threads(nthreads);
}
