/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every wait of this backend does between two sleeps. Reasons to give up, in the order asked:
 * this rank aborted; a peer said why it failed; an awaited peer is gone; the job's channel knows of
 * a lost rank; the deadline passed.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "host.h"

static const double GRACE_S = 0.2; /* how long a death waits for a better account of it */

int host_explain(struct host_comm *h, bool owns_tcp, struct comm_fail *fail)
{
    struct fsdp_err lost = FSDP_ERR_INIT;
    struct comm_fail other;

    for (double end = fsdp_time_now() + GRACE_S; fsdp_time_now() < end;) {
        if (host_shm_told(h, &other) || (owns_tcp && host_tcp_told(h, &other))) {
            *fail = other;
            return fail->status;
        }
        if (h->oob->health(h->oob, &lost)) {
            return comm_fail_pass(h->group, fail, &lost);
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return fail->status;
}

int host_watch_check(struct host_watch *watch, struct comm_fail *fail)
{
    struct host_comm *h = watch->h;
    const bool probes = comm_wait_probes(&watch->wait);
    struct comm_late late = {0};

    if (host_interrupted(h, fail) || host_shm_told(h, fail))
        return fail->status;
    if (!probes)
        return FSDP_OK;
    if (watch->owns_tcp && host_tcp_told(h, fail))
        return fail->status;
    if (watch->dead(h, watch->ctx, fail))
        return host_explain(h, watch->owns_tcp, fail);
    const int rc = comm_wait_check(&watch->wait, h->group, h->oob, fail);
    if (rc != FSDP_ETIMEDOUT)
        return rc;
    watch->late(h, watch->ctx, &late);
    return comm_fail_late(h->group, fail, &late);
}
