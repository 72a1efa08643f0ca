/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in NCCL's windows: kernels of one NVLink domain then read and write peers' memory
 * directly, sum 16-bit types in fp32, and need fewer of the GPU's processors. Where a window cannot
 * be had (another library, no NVLink, NCCL_WIN_ENABLE=0) the memory is used as any other.
 */
#include <string.h>

#include "nccl.h"

static void block_free(struct nccl_comm *h, struct nccl_block *b)
{
    pthread_mutex_lock(&h->issue);
    /* After a failure the window went, or goes, with the communicator. */
    if (h->comm && !atomic_load(&h->failed))
        nccl_lib_window_free(h->comm, b->window);
    pthread_mutex_unlock(&h->issue);
    if (!b->shared)
        ncclMemFree(b->ptr);
    fsdp_free(b);
}

/* Collective in the group: all register, or none. */
static int block_register(struct nccl_comm *h, struct nccl_block *b, size_t nbytes,
                          struct fsdp_err *err)
{
    char text[COMM_WHAT_NBYTES];

    ncclResult_t rc = ncclInvalidUsage;

    pthread_mutex_lock(&h->issue);
    if (!atomic_load(&h->failed)) {
        rc = nccl_lib_window(&b->window, h->comm, b->ptr, nbytes);
        rc = nccl_lib_settle(h->comm, rc, &h->failed, fsdp_time_now() + h->group->timeout_s, h->oob,
                             NULL);
        h->unsettled = b->unsettled = rc == ncclInProgress || rc == ncclRemoteError;
        h->held |= rc != ncclInProgress && rc != ncclSuccess;
    }
    pthread_mutex_unlock(&h->issue);
    FSDP_TRY(nccl_status(h, err));
    if (rc == ncclSuccess)
        return FSDP_OK;
    return fsdp_err_set(err, nccl_lib_status(rc), "comm %s: registering %zu bytes: %s",
                        h->group->name, nbytes, nccl_lib_error(text, h->comm, rc));
}

static void block_add(struct nccl_comm *h, struct nccl_block *b)
{
    pthread_mutex_lock(&h->blocks_lock);
    b->next = h->blocks;
    h->blocks = b;
    pthread_mutex_unlock(&h->blocks_lock);
}

/* Of a window: whole units, and at least one. */
static size_t round_window(size_t nbytes)
{
    size_t nunits = (nbytes + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT;
    return (nunits ? nunits : 1) * NCCL_WIN_REQUIRED_ALIGNMENT;
}

void *nccl_mem_alloc(void *state, size_t nbytes, struct fsdp_err *err)
{
    struct nccl_comm *h = state;
    char text[COMM_WHAT_NBYTES];
    struct nccl_block *b = fsdp_alloc(1, sizeof *b, "comm memory", err);

    if (!b)
        return NULL;
    nbytes = round_window(nbytes);
    ncclResult_t rc = ncclMemAlloc(&b->ptr, nbytes);
    if (rc != ncclSuccess) {
        fsdp_err_set(err, FSDP_ENOMEM, "comm %s: allocating %zu bytes: %s", h->group->name, nbytes,
                     nccl_lib_error(text, NULL, rc));
        fsdp_free(b);
        return NULL;
    }
    block_add(h, b);
    if (fsdp_zero(h->lane, b->ptr, nbytes, err) == FSDP_OK &&
        fsdp_lane_sync(h->lane, err) == FSDP_OK && block_register(h, b, nbytes, err) == FSDP_OK)
        return b->ptr;
    if (!b->unsettled) /* else it is freed with the communicator */
        nccl_mem_free(h, b->ptr);
    return NULL;
}

int nccl_mem_share(void *state, void *ptr, size_t nbytes, struct fsdp_err *err)
{
    struct nccl_comm *h = state;
    struct nccl_block *b = fsdp_alloc(1, sizeof *b, "comm memory", err);

    if (!b)
        return FSDP_ENOMEM;
    b->ptr = ptr;
    b->shared = true;
    block_add(h, b);
    int rc = block_register(h, b, round_window(nbytes), err);
    if (rc && !b->unsettled) /* else it ends with the communicator */
        nccl_mem_free(h, ptr);
    return rc;
}

void nccl_mem_free(void *state, void *ptr)
{
    struct nccl_comm *h = state;

    pthread_mutex_lock(&h->blocks_lock);
    struct nccl_block **at = &h->blocks, *b;
    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    b = *at;
    if (b)
        *at = b->next;
    pthread_mutex_unlock(&h->blocks_lock);
    if (b)
        block_free(h, b);
}

void nccl_mem_free_all(struct nccl_comm *h)
{
    while (h->blocks) {
        struct nccl_block *b = h->blocks;
        h->blocks = b->next;
        block_free(h, b);
    }
}
