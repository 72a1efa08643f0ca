/* SPDX-License-Identifier: Apache-2.0 */
/* host_shm.h: the shared segment as host_shm.c and host_mem.c see it. */
#ifndef COMM_HOST_SHM_H
#define COMM_HOST_SHM_H

#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

enum { PAGE_NBYTES = 4096, FAIL_NONE = 0, FAIL_WRITING, FAIL_SET };

struct host_barrier {
    _Alignas(64) atomic_uint generation; /* barriers completed; the futex */
    atomic_uint arrived, sleepers;
};

struct host_seat {
    _Alignas(64) atomic_uint came[HOST_NBARRIERS]; /* barriers arrived at */
    atomic_bool left;
    struct host_desc desc[2]; /* by parity of seq, as staging slots */
    uint64_t mem_nbytes;
    bool mem_common; /* one block for all, not one for each */
    int32_t mem_status;
    char mem_text[200];
};

struct host_control {
    uint8_t token[HOST_TOKEN_NBYTES];
    struct host_barrier barrier[HOST_NBARRIERS];
    atomic_int fail_state;
    struct comm_fail fail;
    struct host_seat seat[];
};

static inline size_t round_up(size_t nbytes, size_t multiple)
{
    return (nbytes + multiple - 1) / multiple * multiple;
}

int host_segment_create(int *fd, const char *name, size_t nbytes, struct fsdp_err *err);
/* Without this, a full /dev/shm is a SIGBUS at first touch. Each seat reserves its own part, so
 * that its pages lie near it. */
int host_segment_reserve(int fd, size_t offset, size_t nbytes, struct fsdp_err *err);
/* fd -1: memory of this process alone. */
int host_segment_map(void **out, int fd, size_t nbytes, struct fsdp_err *err);

static inline long host_futex(atomic_uint *word, int op, unsigned value,
                              const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

#endif
