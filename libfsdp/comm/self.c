/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of one: every collective is a copy, on any device. The smallest backend, to start from. */
#include <stdio.h>

#include "fsdp/sys/comm_ops.h"

static bool self_usable(const struct fsdp_comm_group *group, const struct fsdp_device *device,
                        char *why, size_t why_nbytes)
{
    (void)device;
    if (group->size == 1)
        return true;
    snprintf(why, why_nbytes, "it serves groups of one rank, this one has %d", group->size);
    return false;
}

static int self_create(void **out, const struct fsdp_comm_group *group, struct fsdp_oob *oob,
                       struct fsdp_device *device, struct fsdp_err *err)
{
    (void)group;
    (void)oob;
    (void)device;
    (void)err;
    *out = NULL;
    return FSDP_OK;
}

static void self_destroy(void *state, bool healthy)
{
    (void)state;
    (void)healthy;
}

static void self_abort(void *state, const struct fsdp_err *why)
{
    /* Nothing waits here; comm.c refuses later calls. */
    (void)state;
    (void)why;
}

static int self_collective(void *state, const struct fsdp_comm_call *call, struct fsdp_lane *lane,
                           struct fsdp_err *err)
{
    (void)state;
    if (call->recv == call->send || !call->nelem)
        return FSDP_OK;
    return fsdp_copy(lane, call->recv, call->send, call->nelem * fsdp_dtype_nbytes(call->dtype),
                     err);
}

static int self_status(void *state, struct fsdp_err *err)
{
    (void)state;
    (void)err;
    return FSDP_OK;
}

const struct fsdp_comm_ops fsdp_comm_self_ops = {
    .abi = FSDP_COMM_OPS_ABI,
    .name = "self",
    .usable = self_usable,
    .create = self_create,
    .destroy = self_destroy,
    .abort = self_abort,
    .collective = self_collective,
    .status = self_status,
};
