/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one node: the shared segment.
 *
 *     [ control: barriers, failure, seats | slots of seat 0: A B | slots of seat 1: A B | ... ]
 *
 * Each seat has two staging slots that are used in turn. Every use is: fill, barrier, peers read. A
 * seat fills a slot for use u + 2 after the barrier of use u + 1, which nobody reaches before it
 * has finished reading use u: so one barrier a use suffices.
 *
 * Each seat holds a lock on one byte of the segment's file. The kernel drops it when the process
 * ends, however it ends, which is how peers notice a death. Unlike a process id, it needs no common
 * namespace and is never reused. (A forked child that does not exec would hold it on; then the
 * job's channel is the one to tell.)
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host_shm.h"

enum { JOB_NBYTES = 64 };

static size_t control_nbytes(const struct host_comm *h)
{
    return round_up(sizeof(struct host_control) + (size_t)h->nseats * sizeof(struct host_seat),
                    PAGE_NBYTES);
}

/* ---- files of shared memory ----------------------------------------------------------------- */

/* The job's name of BOOT_JOB as far as a file's name can hold it, else "". */
static const char *job_name(void)
{
    static const char fit[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *job = getenv("BOOT_JOB");

    return job && strlen(job) < JOB_NBYTES && !job[strspn(job, fit)] ? job : "";
}

/* This process's id for people, a token against collisions, and the job's name where fsdp-launch
 * gave one, by which it finds what killed ranks leave. */
static void segment_name(char name[HOST_NAME_NBYTES], const uint8_t token[HOST_TOKEN_NBYTES])
{
    const char *job = job_name();
    int len = snprintf(name, HOST_NAME_NBYTES, "/fsdp-%ld-", (long)getpid());

    for (int i = 0; i < HOST_TOKEN_NBYTES; i++)
        len += snprintf(name + len, HOST_NAME_NBYTES - (size_t)len, "%02x", token[i]);
    if (*job)
        snprintf(name + len, HOST_NAME_NBYTES - (size_t)len, "-%s", job);
}

int host_segment_create(int *fd, const char *name, size_t nbytes, struct fsdp_err *err)
{
    *fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (*fd < 0)
        return fsdp_err_sys(err, errno, "shared memory %s: create", name);
    if (ftruncate(*fd, (off_t)nbytes) == 0)
        return FSDP_OK;
    int rc = fsdp_err_sys(err, errno, "shared memory %s: %zu bytes", name, nbytes);
    close(*fd);
    *fd = -1;
    shm_unlink(name);
    return rc;
}

int host_segment_reserve(int fd, size_t offset, size_t nbytes, struct fsdp_err *err)
{
    int errnum;

    if (!nbytes)
        return FSDP_OK;
    do
        errnum = posix_fallocate(fd, (off_t)offset, (off_t)nbytes);
    while (errnum == EINTR);
    if (!errnum)
        return FSDP_OK;
    return fsdp_err_sys(
        err, errnum,
        "shared memory: reserving %zu bytes (is /dev/shm large enough? in a container "
        "--shm-size sets it)",
        nbytes);
}

int host_segment_map(void **out, int fd, size_t nbytes, struct fsdp_err *err)
{
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
    void *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED)
        return fsdp_err_sys(err, errno, "shared memory: mapping %zu bytes", nbytes);
    if (fd < 0)
        madvise(base, nbytes, MADV_HUGEPAGE); /* advice only */
    *out = base;
    return FSDP_OK;
}

/* ---- the communicator's own segment --------------------------------------------------------- */

static size_t slot_size(int nseats)
{
    size_t slot = HOST_SLOTS_NBYTES / 2 / (size_t)nseats;
    size_t least = round_up((size_t)nseats * HOST_PART_NBYTES, PAGE_NBYTES);

    slot = slot < HOST_SLOT_NBYTES ? slot / PAGE_NBYTES * PAGE_NBYTES : HOST_SLOT_NBYTES;
    if (least < HOST_SMALL_NBYTES)
        least = HOST_SMALL_NBYTES;
    return slot > least ? slot : least;
}

static int fullest_node(const struct fsdp_comm_group *group)
{
    int most = 0;

    for (int p = 0; p < group->size; p++) {
        int count = 0;
        for (int q = 0; q < group->size; q++)
            count += group->node[q] == group->node[p];
        most = count > most ? count : most;
    }
    return most;
}

static void shm_layout(struct host_comm *h)
{
    size_t nslots = 2 * (size_t)h->nseats;

    h->shm.slot_nbytes = slot_size(h->nseats);
    h->window_nbytes = slot_size(fullest_node(h->group));
    /* Alone on its node, a rank stages nothing but its control page. */
    h->shm.map_nbytes = control_nbytes(h) + (h->nseats > 1 ? nslots * h->shm.slot_nbytes : 0);
}

int host_shm_prepare(struct host_comm *h, const uint8_t token[HOST_TOKEN_NBYTES],
                     struct fsdp_err *err)
{
    shm_layout(h);
    if (h->nseats == 1 || h->seat != 0)
        return FSDP_OK;
    segment_name(h->shm.name, token);
    int rc = host_segment_create(&h->shm.fd, h->shm.name, h->shm.map_nbytes, err);
    if (rc == FSDP_OK)
        rc = host_segment_reserve(h->shm.fd, 0, h->shm.map_nbytes, err);
    if (rc == FSDP_OK && pwrite(h->shm.fd, token, HOST_TOKEN_NBYTES, 0) != HOST_TOKEN_NBYTES)
        rc = fsdp_err_sys(err, errno, "shared memory %s: write", h->shm.name);
    return rc;
}

static struct flock seat_lock(int seat)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = seat, .l_len = 1};
}

static int segment_join(struct host_comm *h, const struct host_card *cards, struct fsdp_err *err)
{
    char leader[COMM_PEER_NBYTES];
    int first = h->seat_peer[0];
    const struct host_card *card = &cards[h->group->world_rank[first]];
    struct stat st;

    memcpy(h->shm.name, card->segment, sizeof h->shm.name);
    h->shm.name[sizeof h->shm.name - 1] = 0;
    h->shm.fd = shm_open(h->shm.name, O_RDWR | O_CLOEXEC, 0);
    if (h->shm.fd < 0)
        return fsdp_err_sys(
            err, errno,
            "comm %s: shared memory %s of %s, which the node map puts on this rank's "
            "node (do they share /dev/shm?)",
            h->group->name, h->shm.name, comm_peer_name(leader, h->group, first));
    if (fstat(h->shm.fd, &st) || (uint64_t)st.st_size != h->shm.map_nbytes)
        return fsdp_err_set(err, FSDP_EMISMATCH, "comm %s: shared memory %s has an unexpected size",
                            h->group->name, h->shm.name);
    return FSDP_OK;
}

int host_shm_attach(struct host_comm *h, const struct host_card *cards, struct fsdp_err *err)
{
    void *base = NULL;
    const uint8_t *token = cards[h->group->world_rank[h->seat_peer[0]]].token;

    if (h->nseats > 1) {
        struct flock lock = seat_lock(h->seat);
        if (h->seat != 0)
            FSDP_TRY(segment_join(h, cards, err));
        memcpy(h->shm.stem, h->shm.name, sizeof h->shm.stem);
        if (fcntl(h->shm.fd, F_OFD_SETLK, &lock))
            return fsdp_err_sys(err, errno, "comm %s: shared memory %s: lock", h->group->name,
                                h->shm.name);
    }
    FSDP_TRY(host_segment_map(&base, h->shm.fd, h->shm.map_nbytes, err));
    h->shm.control = base;
    h->shm.slots = (char *)base + control_nbytes(h);
    if (h->nseats > 1 && memcmp(h->shm.control->token, token, HOST_TOKEN_NBYTES))
        return fsdp_err_set(err, FSDP_EMISMATCH, "comm %s: shared memory %s is not this job's",
                            h->group->name, h->shm.name);
    return FSDP_OK;
}

void host_shm_unlink(struct host_comm *h)
{
    if (h->shm.name[0])
        shm_unlink(h->shm.name);
    h->shm.name[0] = 0;
}

void host_shm_close(struct host_comm *h)
{
    for (int i = 0; i < h->shm.nregions; i++)
        munmap(h->shm.regions[i].base, h->shm.regions[i].map_nbytes);
    fsdp_free(h->shm.regions);
    if (h->shm.control) {
        atomic_store(&h->shm.control->seat[h->seat].left, true);
        munmap(h->shm.control, h->shm.map_nbytes);
    }
    if (h->shm.fd >= 0)
        close(h->shm.fd);
}

/* ---- barrier -------------------------------------------------------------------------------- */

void host_barrier_arrive(struct host_comm *h, enum host_barrier_id id)
{
    struct host_barrier *barrier = &h->shm.control->barrier[id];
    unsigned ticket = ++h->shm.ticket[id];

    atomic_store(&h->shm.control->seat[h->seat].came[id], ticket);
    if (atomic_fetch_add(&barrier->arrived, 1) + 1 < (unsigned)h->nseats)
        return;
    atomic_store(&barrier->arrived, 0);
    atomic_store(&barrier->generation, ticket);
    /* A waiter that this load misses counts itself later, and its futex call sees the generation.
     */
    if (atomic_load(&barrier->sleepers))
        host_futex(&barrier->generation, FUTEX_WAKE, INT_MAX, NULL);
}

struct barrier_wait {
    enum host_barrier_id id;
    unsigned ticket;
};

static bool came(const struct host_comm *h, int seat, const struct barrier_wait *wait)
{
    return (int)(atomic_load(&h->shm.control->seat[seat].came[wait->id]) - wait->ticket) >= 0;
}

static void barrier_late(const struct host_comm *h, const void *ctx, struct comm_late *late)
{
    for (int s = 0; s < h->nseats; s++)
        if (!came(h, s, ctx))
            comm_late_add(late, h->group, h->seat_peer[s], NULL);
}

/* A peer that arrived may leave afterwards; only one that is awaited must be alive. */
static int barrier_dead(struct host_comm *h, const void *ctx, struct comm_fail *fail)
{
    for (int s = 0; s < h->nseats; s++) {
        struct flock lock = seat_lock(s);
        if (s == h->seat || came(h, s, ctx))
            continue;
        if (fcntl(h->shm.fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK)
            continue;
        bool left = atomic_load(&h->shm.control->seat[s].left);
        if (came(h, s, ctx)) /* between the two looks */
            continue;
        return comm_fail_peer(h->group, fail, FSDP_EPEER, h->seat_peer[s], " %s",
                              left ? "left the communicator" : "died");
    }
    return FSDP_OK;
}

static bool spin(const atomic_uint *word, unsigned until, long spin_ns)
{
    struct timespec begin, now;

    if (atomic_load(word) == until)
        return true;
    if (!spin_ns)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) == until)
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < spin_ns);
    return false;
}

int host_barrier_wait(struct host_comm *h, enum host_barrier_id id, struct comm_fail *fail)
{
    struct host_barrier *barrier = &h->shm.control->barrier[id];
    struct barrier_wait wait = {id, h->shm.ticket[id]};
    struct host_watch watch = {.h = h,
                               .late = barrier_late,
                               .dead = barrier_dead,
                               .ctx = &wait,
                               .owns_tcp = id == HOST_BARRIER_OPS};
    struct timespec slice = {0, HOST_SLICE_MS * 1000000L};

    if (spin(&barrier->generation, wait.ticket, h->spin_ns))
        return FSDP_OK;
    for (;;) {
        unsigned seen = atomic_load(&barrier->generation);
        if (seen == wait.ticket)
            return FSDP_OK;
        FSDP_TRY(host_watch_check(&watch, fail));
        atomic_fetch_add(&barrier->sleepers, 1);
        host_futex(&barrier->generation, FUTEX_WAIT, seen, &slice);
        atomic_fetch_sub(&barrier->sleepers, 1);
    }
}

/* ---- what seats show each other ------------------------------------------------------------- */

struct host_desc *host_desc_of(struct host_comm *h, int seat, uint64_t seq)
{
    return &h->shm.control->seat[seat].desc[seq & 1];
}

char *host_slot(struct host_comm *h, int seat)
{
    return h->shm.slots + (2 * (size_t)seat + (h->shm.uses & 1)) * h->shm.slot_nbytes;
}

void host_slots_next(struct host_comm *h)
{
    h->shm.uses++;
}
