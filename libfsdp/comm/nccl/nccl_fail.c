/* SPDX-License-Identifier: Apache-2.0 */
/* How a communicator fails, and the queue of operations. The first failure counts; it comes from
 * whichever thread sees it: the caller's, the watch thread, or a peer's by a datagram. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

/* ---- the queue ------------------------------------------------------------------------------- */

int nccl_retire(struct nccl_comm *h, struct fsdp_err *err)
{
    bool done = true;

    while (h->done < h->enqueued && done) {
        struct nccl_pending *p = &h->pending[(h->done + 1) % NCCL_NPENDING];
        done = p->issued;
        if (done)
            FSDP_TRY(fsdp_event_done(p->end, &done, err));
        h->done += done;
    }
    return FSDP_OK;
}

/* ---- failure --------------------------------------------------------------------------------- */

int nccl_status(void *state, struct fsdp_err *err)
{
    struct nccl_comm *h = state;

    if (!atomic_load(&h->failed))
        return FSDP_OK;
    pthread_mutex_lock(&h->lock);
    int rc = h->sticky.status;
    if (rc && err)
        *err = h->sticky;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

/* What is on its way is lost. Its lanes must say so, before it is ended and they seem done. */
static void fail_lanes(struct nccl_comm *h)
{
    for (uint64_t n = h->done + 1; n <= h->enqueued; n++)
        fsdp_lane_fail(h->pending[n % NCCL_NPENDING].lane, &h->sticky);
    h->done = h->enqueued;
}

void nccl_wake(struct nccl_comm *h)
{
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) < 0)
        one = 0; /* it counts already */
}

void nccl_fail(struct nccl_comm *h, const struct comm_fail *fail)
{
    pthread_mutex_lock(&h->lock);
    if (!h->fail.status) {
        nccl_retire(h, NULL);
        const struct comm_op *op = &h->pending[(h->done + 1) % NCCL_NPENDING].op;
        comm_fail_error(&h->sticky, h->group, fail, h->done < h->enqueued ? op : NULL);
        h->fail = *fail;
        fail_lanes(h);
        atomic_store(&h->failed, true);
    }
    pthread_mutex_unlock(&h->lock);
    nccl_wake(h);
}
