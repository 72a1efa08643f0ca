/* SPDX-License-Identifier: Apache-2.0 */
/* How a communicator fails, and the names in its errors. The first failure counts; it comes from
 * whichever thread sees it: the caller's, the watch thread, or a peer's by a datagram. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

/* ---- names ----------------------------------------------------------------------------------- */

const char *nccl_kind_name(int kind)
{
    static const char *const names[] = {
        [FSDP_COMM_ALL_GATHER] = "all_gather", [FSDP_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [FSDP_COMM_ALL_REDUCE] = "all_reduce", [FSDP_COMM_BROADCAST] = "broadcast",
        [FSDP_COMM_BARRIER] = "barrier",
    };
    bool known = kind > 0 && kind < (int)(sizeof names / sizeof names[0]);
    return known ? names[kind] : "something unknown";
}

const char *nccl_op_text(char text[128], const struct nccl_op *op)
{
    bool known = op->dtype >= 0 && op->dtype < FSDP_NDTYPES;

    snprintf(text, 128, "%s #%llu (nelem %llu, %s, root %d)", nccl_kind_name(op->kind),
             (unsigned long long)op->seq, (unsigned long long)op->nelem,
             known ? fsdp_dtype_name((enum fsdp_dtype)op->dtype) : "?", op->root);
    return text;
}

const char *nccl_peer_name(char text[96], const struct nccl_comm *h, int peer)
{
    snprintf(text, 96, "rank %d (host %s)", h->group->world_rank[peer], h->group->host[peer]);
    return text;
}

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

int nccl_fail_set(const struct nccl_comm *h, struct nccl_fail *fail, int status, const char *fmt,
                  ...)
{
    va_list ap;

    memset(fail, 0, sizeof *fail); /* it travels whole */
    fail->status = status;
    fail->reporter = h->group->world_rank[h->group->rank];
    va_start(ap, fmt);
    vsnprintf(fail->what, sizeof fail->what, fmt, ap);
    va_end(ap);
    return status;
}

int nccl_fail_own(const struct nccl_comm *h, struct nccl_fail *fail, int status, const char *fmt,
                  ...)
{
    char me[96];
    va_list ap;

    nccl_fail_set(h, fail, status, "%s", nccl_peer_name(me, h, h->group->rank));
    fail->is_own = true;
    const size_t len = strlen(fail->what);
    va_start(ap, fmt);
    vsnprintf(fail->what + len, sizeof fail->what - len, fmt, ap);
    va_end(ap);
    return status;
}

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

void nccl_fail(struct nccl_comm *h, const struct nccl_fail *fail)
{
    char where[64] = "", seen[48] = "";

    if (fail->reporter != h->group->world_rank[h->group->rank] && !fail->is_own)
        snprintf(seen, sizeof seen, ", says rank %d", fail->reporter);
    pthread_mutex_lock(&h->lock);
    if (!h->fail.status) {
        nccl_retire(h, NULL);
        const struct nccl_op *op = &h->pending[(h->done + 1) % NCCL_NPENDING].op;
        if (h->done < h->enqueued)
            snprintf(where, sizeof where, " (this rank was in %s #%llu)", nccl_kind_name(op->kind),
                     (unsigned long long)op->seq);
        fsdp_err_set(&h->sticky, fail->status, "comm %s: %s%s%s", h->group->name, fail->what, seen,
                     where);
        h->fail = *fail;
        fail_lanes(h);
        atomic_store(&h->failed, true);
    }
    pthread_mutex_unlock(&h->lock);
    nccl_wake(h);
}
