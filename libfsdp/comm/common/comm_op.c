/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "comm_op.h"

/* ---- operations ------------------------------------------------------------------------------ */

const char *comm_kind_name(int kind)
{
    static const char *const names[FSDP_COMM_NKINDS] = {
        [FSDP_COMM_ALL_GATHER] = "all_gather", [FSDP_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [FSDP_COMM_ALL_REDUCE] = "all_reduce", [FSDP_COMM_BROADCAST] = "broadcast",
        [FSDP_COMM_BARRIER] = "barrier",
    };
    return kind > 0 && kind < FSDP_COMM_NKINDS ? names[kind] : "something unknown";
}

const char *comm_op_text(char text[COMM_OP_NBYTES], const struct comm_op *op)
{
    const bool known = op->dtype >= 0 && op->dtype < FSDP_NDTYPES;

    snprintf(text, COMM_OP_NBYTES, "%s #%llu (nelem %llu, %s, root %d)", comm_kind_name(op->kind),
             (unsigned long long)op->seq, (unsigned long long)op->nelem,
             known ? fsdp_dtype_name((enum fsdp_dtype)op->dtype) : "?", op->root);
    return text;
}

const char *comm_peer_name(char text[COMM_PEER_NBYTES], const struct fsdp_comm_group *group,
                           int peer)
{
    snprintf(text, COMM_PEER_NBYTES, "rank %d (host %s)", group->world_rank[peer],
             group->host[peer]);
    return text;
}

int comm_op_is_next(const struct fsdp_comm_group *group, const struct comm_op *op, uint64_t ndone,
                    struct comm_fail *fail)
{
    if (op->seq == ndone + 1)
        return FSDP_OK;
    return comm_fail_set(group, fail, FSDP_EINTERNAL,
                         "%s #%llu ran before #%llu, which was enqueued first: its lane does not "
                         "wait for the other one",
                         comm_kind_name(op->kind), (unsigned long long)op->seq,
                         (unsigned long long)ndone + 1);
}

int comm_op_match(const struct fsdp_comm_group *group, const struct comm_op *mine, int peer,
                  const struct comm_op *theirs, struct comm_fail *fail)
{
    char other[COMM_PEER_NBYTES], my_op[COMM_OP_NBYTES], their_op[COMM_OP_NBYTES];

    if (!memcmp(mine, theirs, sizeof *mine))
        return FSDP_OK;
    return comm_fail_peer(group, fail, FSDP_EMISMATCH, group->rank, " called %s, but %s called %s",
                          comm_op_text(my_op, mine), comm_peer_name(other, group, peer),
                          comm_op_text(their_op, theirs));
}

/* ---- failures -------------------------------------------------------------------------------- */

/* All but the text. */
static int fail_begin(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                      int culprit)
{
    memset(fail, 0, sizeof *fail); /* it travels whole */
    fail->status = status;
    fail->reporter = group->world_rank[group->rank];
    fail->culprit = culprit;
    return status;
}

int comm_fail_set(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...)
{
    va_list ap;

    fail_begin(group, fail, status, -1);
    va_start(ap, fmt);
    vsnprintf(fail->what, sizeof fail->what, fmt, ap);
    va_end(ap);
    return status;
}

int comm_fail_peer(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                   int peer, const char *fmt, ...)
{
    va_list ap;

    fail_begin(group, fail, status, group->world_rank[peer]);
    const size_t nname = strlen(comm_peer_name(fail->what, group, peer));
    va_start(ap, fmt);
    vsnprintf(fail->what + nname, sizeof fail->what - nname, fmt, ap);
    va_end(ap);
    return status;
}

int comm_fail_abort(const struct fsdp_comm_group *group, struct comm_fail *fail,
                    const struct fsdp_err *why)
{
    char me[COMM_PEER_NBYTES], reason[FSDP_ERR_TEXT_NBYTES];

    fail_begin(group, fail, FSDP_ECANCELED, why->culprit);
    fail->told = why->of_other || why->culprit == fail->reporter;
    fail->cause = snprintf(fail->what, sizeof fail->what,
                           "%s aborted: ", comm_peer_name(me, group, group->rank));
    snprintf(fail->what + fail->cause, sizeof fail->what - (size_t)fail->cause, "%s",
             fsdp_err_reason(reason, why));
    return fail->status;
}

int comm_fail_pass(const struct fsdp_comm_group *group, struct comm_fail *fail,
                   const struct fsdp_err *lost)
{
    fail_begin(group, fail, lost->status, lost->culprit);
    fail->told = lost->of_other;
    fail->cause = lost->cause;
    snprintf(fail->what, sizeof fail->what, "%s", lost->text);
    comm_fail_received(fail);
    return fail->status;
}

void comm_fail_received(struct comm_fail *fail)
{
    fail->what[sizeof fail->what - 1] = 0;
    if (fail->cause < 0 || fail->cause > (int32_t)strlen(fail->what))
        fail->cause = 0;
}

void comm_fail_error(struct fsdp_err *out, const struct fsdp_comm_group *group,
                     const struct comm_fail *fail, const struct comm_op *op)
{
    fsdp_err_set(out, fail->status, "%s", fail->what);
    out->culprit = fail->culprit;
    out->of_other = fail->told && fail->reporter != group->world_rank[group->rank];
    out->cause = fail->cause;
    if (fail->cause)
        fsdp_err_relay(out, fail->status, "comm %s: ", group->name);
    else
        fsdp_err_prefix(out, fail->status, "comm %s: ", group->name);
    /* Who saw it matters unless it is this rank, the culprit itself, an abort or a death. */
    if (fail->reporter != group->world_rank[group->rank] && fail->reporter != fail->culprit &&
        fail->status != FSDP_EPEER && fail->status != FSDP_ECANCELED)
        fsdp_err_hint(out, fail->status, ", says rank %d", fail->reporter);
    if (op)
        fsdp_err_hint(out, fail->status, " (this rank was in %s #%llu)", comm_kind_name(op->kind),
                      (unsigned long long)op->seq);
}

/* ---- who is late ----------------------------------------------------------------------------- */

void comm_late_add(struct comm_late *late, const struct fsdp_comm_group *group, int peer,
                   const char *how)
{
    enum { MOST = 3 };
    char name[COMM_PEER_NBYTES];
    const size_t len = strlen(late->names);

    if (!late->npeers)
        late->first = peer;
    if (late->npeers++ < MOST)
        snprintf(late->names + len, sizeof late->names - len, "%s%s%s%s%s", len ? ", " : "",
                 comm_peer_name(name, group, peer), how ? " (" : "", how ? how : "",
                 how ? ")" : "");
    else
        late->nmore++;
}

const char *comm_late_text(char text[COMM_LATE_NBYTES], const struct comm_late *late)
{
    int len = snprintf(text, COMM_LATE_NBYTES, "%s", late->names);
    if (late->nmore)
        snprintf(text + len, COMM_LATE_NBYTES - (size_t)len, " and %d more", late->nmore);
    return text;
}

int comm_fail_late(const struct fsdp_comm_group *group, struct comm_fail *fail,
                   const struct comm_late *late)
{
    char who[COMM_LATE_NBYTES];

    comm_fail_set(group, fail, FSDP_ETIMEDOUT, "%s did not come within %g s",
                  comm_late_text(who, late), group->timeout_s);
    fail->culprit = late->npeers ? group->world_rank[late->first] : -1;
    return fail->status;
}

/* ---- waiting --------------------------------------------------------------------------------- */

bool comm_wait_probes(struct comm_wait *wait)
{
    static const double PROBE_S = 0.05;
    const double now = fsdp_time_now();

    if (!wait->begin)
        wait->begin = wait->probed = now;
    if (now - wait->probed < PROBE_S)
        return false;
    wait->probed = now;
    return true;
}

void comm_wait_progress(struct comm_wait *wait)
{
    wait->begin = fsdp_time_now();
}

int comm_wait_check(const struct comm_wait *wait, const struct fsdp_comm_group *group,
                    struct fsdp_oob *oob, struct comm_fail *fail)
{
    struct fsdp_err lost = FSDP_ERR_INIT;

    if (oob->health(oob, &lost))
        return comm_fail_pass(group, fail, &lost);
    return fsdp_time_now() - wait->begin < group->timeout_s ? FSDP_OK : FSDP_ETIMEDOUT;
}
