/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "comm_cpu.h"

const char *comm_kind_name(int kind)
{
    static const char *const names[FSDP_COMM_NKINDS] = {
        [FSDP_COMM_ALL_GATHER] = "all_gather", [FSDP_COMM_REDUCE_SCATTER] = "reduce_scatter",
        [FSDP_COMM_ALL_REDUCE] = "all_reduce", [FSDP_COMM_BROADCAST] = "broadcast",
        [FSDP_COMM_BARRIER] = "barrier",
    };
    return kind > 0 && kind < FSDP_COMM_NKINDS ? names[kind] : "something unknown";
}

const char *comm_peer_name(char text[COMM_PEER_NBYTES], const struct fsdp_comm_group *group,
                           int peer)
{
    snprintf(text, COMM_PEER_NBYTES, "rank %d (host %s)", group->world_rank[peer],
             group->host[peer]);
    return text;
}

/* ---- failures -------------------------------------------------------------------------------- */

int comm_fail_set(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...)
{
    va_list ap;

    memset(fail, 0, sizeof *fail); /* it travels whole */
    fail->status = status;
    fail->reporter = group->world_rank[group->rank];
    va_start(ap, fmt);
    vsnprintf(fail->what, sizeof fail->what, fmt, ap);
    va_end(ap);
    return status;
}

int comm_fail_own(const struct fsdp_comm_group *group, struct comm_fail *fail, int status,
                  const char *fmt, ...)
{
    char me[COMM_PEER_NBYTES];
    va_list ap;

    comm_fail_set(group, fail, status, "%s ", comm_peer_name(me, group, group->rank));
    fail->is_own = true;
    const size_t len = strlen(fail->what);
    va_start(ap, fmt);
    vsnprintf(fail->what + len, sizeof fail->what - len, fmt, ap);
    va_end(ap);
    return status;
}

void comm_fail_error(struct fsdp_err *out, const struct fsdp_comm_group *group,
                     const struct comm_fail *fail, const struct comm_op *op)
{
    char where[64] = "", seen[48] = "";

    if (op)
        snprintf(where, sizeof where, " (this rank was in %s #%llu)", comm_kind_name(op->kind),
                 (unsigned long long)op->seq);
    /* Who saw it matters unless it is this rank, the culprit itself, or a death. */
    if (fail->reporter != group->world_rank[group->rank] && fail->status != FSDP_EPEER &&
        !fail->is_own)
        snprintf(seen, sizeof seen, ", says rank %d", fail->reporter);
    fsdp_err_set(out, fail->status, "comm %s: %s%s%s", group->name, fail->what, seen, where);
}

/* ---- operations ------------------------------------------------------------------------------ */

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

static const char *op_text(char text[128], const struct comm_op *op)
{
    snprintf(text, 128, "%s #%llu (nelem %llu, %s, root %d)", comm_kind_name(op->kind),
             (unsigned long long)op->seq, (unsigned long long)op->nelem,
             fsdp_dtype_name((enum fsdp_dtype)op->dtype), op->root);
    return text;
}

int comm_op_match(const struct fsdp_comm_group *group, const struct comm_op *mine, int peer,
                  const struct comm_op *theirs, struct comm_fail *fail)
{
    char other[COMM_PEER_NBYTES], my_op[128], their_op[128];

    if (!memcmp(mine, theirs, sizeof *mine))
        return FSDP_OK;
    return comm_fail_own(group, fail, FSDP_EMISMATCH, "called %s, but %s called %s",
                         op_text(my_op, mine), comm_peer_name(other, group, peer),
                         op_text(their_op, theirs));
}
