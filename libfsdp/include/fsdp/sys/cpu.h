/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu.h: for arithmetic on the CPU, of the device and of models' operators: loops compiled for
 * several instruction sets, threads, and conversion between the floating types.
 */
#ifndef FSDP_SYS_CPU_H
#define FSDP_SYS_CPU_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a function whose loops vectorise: it is compiled for the build's own target and, where that
 * is a lesser x86-64, for AVX-512; the loader takes what the machine has. Results do not depend on
 * which: no sum may be reordered (no -ffast-math), and reductions hold a fixed number of partial
 * sums. Off under sanitizers: the loader chooses before they start. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__) &&       \
    !defined(__AVX512F__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&    \
    !defined(FSDP_NO_CLONES)
#define FSDP_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define FSDP_CPU_CLONES
#endif

/* Before a loop: no element depends on an earlier one. clang has no word for just this, and looks
 * at run time whether the ranges meet. */
#ifdef __clang__
#define FSDP_INDEPENDENT
#else
#define FSDP_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* dst[i] = src[i] among F32, BF16 and F16, rounded to nearest even, NaN staying NaN. The ranges do
 * not overlap, or are the same in types of one size. Local. */
void fsdp_cpu_convert(void *dst, enum fsdp_dtype dst_dtype, const void *src,
                      enum fsdp_dtype src_dtype, size_t nelem);

/* Words of Philox 4x32-10 (libfsdp/device/common/philox.h): out[w][j] is word w of counter
 * `counter` + j, which is a multiple of FSDP_PHILOX_COUNTERS. Local. */
enum { FSDP_PHILOX_WORDS = 4, FSDP_PHILOX_COUNTERS = 8 };
void fsdp_cpu_philox(uint32_t out[FSDP_PHILOX_WORDS][FSDP_PHILOX_COUNTERS], uint64_t key,
                     uint64_t stream, uint64_t counter);

/* memcpy for data that nobody reads soon. It writes past the caches, which would first read what
 * dst held, and uses the threads below. */
void fsdp_cpu_copy_past(void *dst, const void *src, size_t nbytes);

/* ---- threads ------------------------------------------------------------------------------------
 * One set of worker threads for all arithmetic of the process. They are created at the first
 * request, so that a process may fork before that. */

/* From now on nthreads threads compute, the caller of fsdp_cpu_for among them; fewer where the
 * system gives no more. Not while work is under way. Local. */
void fsdp_cpu_set_threads(int nthreads);
int fsdp_cpu_threads(void);

/* Runs fn(arg, worker, from, to) until [0, nitems) is covered, in pieces of `grain` items or a
 * multiple, in no order, and returns when all have run. worker is less than
 * fsdp_cpu_threads(), and no other call of fn has it at the same time: it chooses scratch memory.
 * How items are divided depends on the number of threads, so results must not depend on it. A
 * second caller at the same time (on another lane, or from inside fn) does its work alone, as
 * worker 0 of its own loop. Local. */
typedef void fsdp_cpu_f(void *arg, int worker, size_t from, size_t to);
void fsdp_cpu_for(size_t nitems, size_t grain, fsdp_cpu_f *fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
