/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: segments with one block a seat, which every rank of the node maps whole, so
 * that collectives read peers' buffers where they are. Ranks of one node make a region together,
 * with a barrier of their own: this runs in the caller's thread while operations run on lanes.
 *
 * While it is made, a region has a name, which all seats know without being told: whoever of them
 * is left removes it, so that no death leaves memory behind.
 *
 *     region: [ block of seat 0 | block of seat 1 | ... ], stride apart; or one block for all
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host_shm.h"

static int mem_barrier(struct host_comm *h, struct fsdp_err *err)
{
    struct comm_fail fail;

    host_barrier_arrive(h, HOST_BARRIER_MEM);
    if (host_barrier_wait(h, HOST_BARRIER_MEM, &fail) == FSDP_OK)
        return FSDP_OK;
    host_fail_async(h, &fail); /* the seats have lost step */
    return fsdp_err_set(err, fail.status, "comm %s: %s (this rank was in mem_alloc)",
                        h->group->name, fail.what);
}

/* The first failure among the seats, the same everywhere. */
static int mem_verdict(struct host_comm *h, struct fsdp_err *err)
{
    const struct host_seat *seats = h->shm.control->seat;
    char a[COMM_PEER_NBYTES], b[COMM_PEER_NBYTES];

    for (int s = 0; s < h->nseats; s++)
        if (seats[s].mem_status)
            return fsdp_err_set(err, seats[s].mem_status, "comm %s: mem_alloc on %s: %.*s",
                                h->group->name, comm_peer_name(a, h->group, h->seat_peer[s]),
                                (int)sizeof seats[s].mem_text - 1, seats[s].mem_text);
    for (int s = 1; s < h->nseats; s++)
        if (seats[s].mem_nbytes != seats[0].mem_nbytes ||
            seats[s].mem_common != seats[0].mem_common)
            return fsdp_err_set(err, FSDP_EMISMATCH,
                                "comm %s: %s of %llu bytes on %s, %s of %llu on %s", h->group->name,
                                seats[0].mem_common ? "mem_common" : "mem_alloc",
                                (unsigned long long)seats[0].mem_nbytes,
                                comm_peer_name(a, h->group, h->seat_peer[0]),
                                seats[s].mem_common ? "mem_common" : "mem_alloc",
                                (unsigned long long)seats[s].mem_nbytes,
                                comm_peer_name(b, h->group, h->seat_peer[s]));
    return FSDP_OK;
}

/* Meets the other seats; each brings its status. The second barrier keeps a fast seat from
 * overwriting what a slow one still reads. */
static int mem_meet(struct host_comm *h, int status, const struct fsdp_err *mine,
                    struct fsdp_err *err)
{
    struct host_seat *seat = &h->shm.control->seat[h->seat];

    seat->mem_status = status;
    snprintf(seat->mem_text, sizeof seat->mem_text, "%.*s", (int)sizeof seat->mem_text - 1,
             status ? mine->text : "");
    FSDP_TRY(mem_barrier(h, err));
    int rc = mem_verdict(h, err);
    if (rc) {
        mem_barrier(h, NULL);
        return rc;
    }
    return mem_barrier(h, err);
}

/* This seat's block; of one block for all, an equal part. */
static int reserve_part(const struct host_comm *h, const struct host_region *region, int fd,
                        struct fsdp_err *err)
{
    const size_t part = region->map_nbytes / (size_t)h->nseats;
    return host_segment_reserve(fd, (size_t)h->seat * part, part, err);
}

/* Makes and maps the segment of one region, among all seats. status: this seat's so far. */
static int mem_share(struct host_comm *h, struct host_region *region, int status,
                     struct fsdp_err *mine, struct fsdp_err *err)
{
    char name[HOST_NAME_NBYTES + 24];
    void *base = NULL;
    int fd = -1, rc = status;

    snprintf(name, sizeof name, "%s-%lld", h->shm.stem, (long long)region->id);
    h->shm.control->seat[h->seat].mem_nbytes = region->block_nbytes;
    h->shm.control->seat[h->seat].mem_common = !region->stride;
    if (rc == FSDP_OK && h->seat == 0)
        rc = host_segment_create(&fd, name, region->map_nbytes, mine);
    FSDP_TRY_GOTO(mem_meet(h, rc, mine, err), out); /* the name is there */
    if (fd < 0 && (fd = shm_open(name, O_RDWR | O_CLOEXEC, 0)) < 0)
        rc = fsdp_err_sys(mine, errno, "shared memory %s", name);
    if (rc == FSDP_OK)
        rc = reserve_part(h, region, fd, mine);
    FSDP_TRY_GOTO(mem_meet(h, rc, mine, err), out); /* all have it open, with room for all */
    shm_unlink(name);
    rc = host_segment_map(&base, fd, region->map_nbytes, mine);
    FSDP_TRY_GOTO(mem_meet(h, rc, mine, err), out);
    region->base = base;
    base = NULL;
out:
    if (rc)
        shm_unlink(name);
    if (base)
        munmap(base, region->map_nbytes);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int regions_grow(struct host_comm *h, struct fsdp_err *err)
{
    struct host_shm *shm = &h->shm;
    int max = shm->max_regions ? 2 * shm->max_regions : 8;

    if (shm->nregions < shm->max_regions)
        return FSDP_OK;
    struct host_region *more = fsdp_alloc((size_t)max, sizeof *more, "comm regions", err);
    if (!more)
        return FSDP_ENOMEM;
    if (shm->nregions)
        memcpy(more, shm->regions, (size_t)shm->nregions * sizeof *more);
    fsdp_free(shm->regions);
    shm->regions = more;
    shm->max_regions = max;
    return FSDP_OK;
}

/* Alone on its node, a rank shares with nobody. */
static int mem_private(struct host_region *region, struct fsdp_err *err)
{
    void *base = NULL;
    int rc = host_segment_map(&base, -1, region->map_nbytes, err);
    region->base = base;
    return rc;
}

/* A block of nbytes for each seat, or for all of them. Returns this seat's. */
static void *add_region(struct host_comm *h, size_t nbytes, bool common, struct fsdp_err *err)
{
    const size_t nseats = (size_t)h->nseats;
    struct host_region region = {.id = h->shm.next_region};
    struct fsdp_err mine = FSDP_ERR_INIT;
    int rc;

    if (nbytes > PTRDIFF_MAX / nseats - PAGE_NBYTES) {
        fsdp_err_set(err, FSDP_EINVAL, "comm %s: mem_alloc of %zu bytes", h->group->name, nbytes);
        return NULL;
    }
    region.block_nbytes = round_up(nbytes ? nbytes : 1, PAGE_NBYTES * (common ? nseats : 1));
    region.stride = common ? 0 : region.block_nbytes;
    region.map_nbytes = region.block_nbytes * (common ? 1 : nseats);
    pthread_mutex_lock(&h->shm.mem_lock);
    rc = regions_grow(h, &mine);
    pthread_mutex_unlock(&h->shm.mem_lock);
    h->shm.next_region++;
    if (h->nseats > 1)
        rc = mem_share(h, &region, rc, &mine, err);
    else if (rc == FSDP_OK)
        rc = mem_private(&region, err);
    else if (err)
        *err = mine;
    if (rc)
        return NULL;
    pthread_mutex_lock(&h->shm.mem_lock);
    h->shm.regions[h->shm.nregions++] = region;
    pthread_mutex_unlock(&h->shm.mem_lock);
    return region.base + (size_t)h->seat * region.stride;
}

void *host_mem_alloc(struct host_comm *h, size_t nbytes, struct fsdp_err *err)
{
    return add_region(h, nbytes, false, err);
}

void *host_mem_common(struct host_comm *h, size_t nbytes, struct fsdp_err *err)
{
    return add_region(h, nbytes, true, err);
}

void host_mem_free(struct host_comm *h, void *ptr)
{
    struct host_shm *shm = &h->shm;

    pthread_mutex_lock(&shm->mem_lock);
    for (int i = 0; i < shm->nregions; i++) {
        struct host_region region = shm->regions[i];
        if (region.base + (size_t)h->seat * region.stride == ptr) {
            shm->regions[i] = shm->regions[--shm->nregions];
            munmap(region.base, region.map_nbytes);
            break;
        }
    }
    pthread_mutex_unlock(&shm->mem_lock);
}

bool host_is_common(struct host_comm *h, const void *ptr)
{
    bool is_common = false;

    pthread_mutex_lock(&h->shm.mem_lock);
    for (int i = 0; i < h->shm.nregions && !is_common; i++) {
        const struct host_region *region = &h->shm.regions[i];
        is_common = !region->stride && (uintptr_t)ptr >= (uintptr_t)region->base &&
                    (uintptr_t)ptr - (uintptr_t)region->base < region->block_nbytes;
    }
    pthread_mutex_unlock(&h->shm.mem_lock);
    return is_common;
}

struct host_ref host_ref_of(struct host_comm *h, const void *ptr, size_t nbytes)
{
    struct host_ref ref = {.region = -1};

    pthread_mutex_lock(&h->shm.mem_lock);
    for (int i = 0; i < h->shm.nregions; i++) {
        const struct host_region *region = &h->shm.regions[i];
        uintptr_t block = (uintptr_t)region->base + (size_t)h->seat * region->stride;
        uintptr_t at = (uintptr_t)ptr;
        if (at >= block && at - block <= region->block_nbytes &&
            nbytes <= region->block_nbytes - (at - block)) {
            ref = (struct host_ref){.region = region->id, .offset = at - block};
            break;
        }
    }
    pthread_mutex_unlock(&h->shm.mem_lock);
    return ref;
}

void *host_ref_at(struct host_comm *h, int seat, struct host_ref ref)
{
    void *ptr = NULL;

    pthread_mutex_lock(&h->shm.mem_lock);
    for (int i = 0; i < h->shm.nregions && !ptr; i++) {
        const struct host_region *region = &h->shm.regions[i];
        if (region->id == ref.region)
            ptr = region->base + (size_t)seat * region->stride + ref.offset;
    }
    pthread_mutex_unlock(&h->shm.mem_lock);
    return ptr;
}
