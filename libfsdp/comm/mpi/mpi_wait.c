/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "mpi.h"

static const double SPIN_S = 100e-6;
enum { NAP_NS = 50000 };

static int check(struct mpi_comm *m, int code, const char *call, int peer, struct comm_fail *fail)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len = 0;

    if (code == MPI_SUCCESS)
        return FSDP_OK;
    MPI_Error_string(code, text, &len);
    if (peer < 0)
        return comm_fail_set(m->group, fail, FSDP_EPEER, "%s: %.300s", call, text);
    return comm_fail_peer(m->group, fail, FSDP_EPEER, peer, ": %s: %.300s", call, text);
}

int comm_mpi_send(struct mpi_comm *m, const void *buf, size_t nbytes, int peer,
                  struct comm_fail *fail)
{
    int i = m->nrequests++;

    m->from[i] = peer;
    return check(m,
                 MPI_Isend(buf, (int)nbytes, MPI_BYTE, m->mpi_rank[peer], m->data_tag, m->world,
                           &m->request[i]),
                 "MPI_Isend", peer, fail);
}

int comm_mpi_recv(struct mpi_comm *m, void *buf, size_t nbytes, int peer, struct comm_fail *fail)
{
    int i = m->nrequests++;

    m->from[i] = peer;
    return check(m,
                 MPI_Irecv(buf, (int)nbytes, MPI_BYTE, m->mpi_rank[peer], m->data_tag, m->world,
                           &m->request[i]),
                 "MPI_Irecv", peer, fail);
}

/* Has a peer said why it failed? */
static bool is_told(struct mpi_comm *m, struct comm_fail *fail)
{
    int done = 0;

    if (m->told == MPI_REQUEST_NULL || MPI_Test(&m->told, &done, MPI_STATUS_IGNORE) || !done)
        return false;
    *fail = m->told_fail;
    comm_fail_received(fail);
    return true;
}

bool comm_mpi_interrupted(struct mpi_comm *m, struct comm_fail *fail)
{
    if (!atomic_load(&m->interrupted))
        return false;
    pthread_mutex_lock(&m->status_lock);
    *fail = m->pending;
    pthread_mutex_unlock(&m->status_lock);
    return true;
}

/* Those that this rank still waits for, a few by name. */
static int fail_late(const struct mpi_comm *m, struct comm_fail *fail)
{
    struct comm_late late = {0};

    for (int peer = 0; peer < m->group->size; peer++) {
        bool is_late = false;
        for (int i = 0; i < m->nrequests; i++)
            is_late |= m->from[i] == peer && m->request[i] != MPI_REQUEST_NULL;
        if (is_late)
            comm_late_add(&late, m->group, peer, NULL);
    }
    return comm_fail_late(m->group, fail, &late);
}

/* Reasons to give up. */
static int look_around(struct mpi_comm *m, const struct comm_wait *wait, struct comm_fail *fail)
{
    if (is_told(m, fail))
        return fail->status;
    const int rc = comm_wait_check(wait, m->group, m->oob, fail);
    return rc == FSDP_ETIMEDOUT ? fail_late(m, fail) : rc;
}

int comm_mpi_wait(struct mpi_comm *m, struct comm_fail *fail)
{
    struct comm_wait wait = {0};

    for (;;) {
        const bool probes = comm_wait_probes(&wait);
        int ndone;
        int rc = check(
            m, MPI_Testsome(m->nrequests, m->request, &ndone, m->finished, MPI_STATUSES_IGNORE),
            "MPI_Testsome", -1, fail);
        if (rc || comm_mpi_interrupted(m, fail))
            return fail->status;
        if (ndone == MPI_UNDEFINED) /* none is left */
            break;
        if (ndone)
            comm_wait_progress(&wait);
        if (probes)
            FSDP_TRY(look_around(m, &wait, fail));
        if (fsdp_time_now() - wait.begin < SPIN_S)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    m->nrequests = 0;
    return FSDP_OK;
}
