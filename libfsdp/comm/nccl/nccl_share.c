/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator takes of a GPU that computes meanwhile. A kernel of NCCL's occupies
 * multiprocessors that products need: as many as it has blocks (CTAs). So gathers inside a node are
 * left to the copy engines, and the kernels of gathers and sums get few blocks.
 *
 * Copy engines gather where all ranks of a communicator reach each other by NVLink, both buffers
 * are in its windows, and the driver is CUDA 12.5's or newer. NCCL sees to that at each call, and
 * takes a kernel where it is not so; before 2.28 it refuses a communicator that asks for them.
 * Between nodes 2.30 copies, too, but no gather of ours there is in windows.
 *
 * NCCL's variables count more than what a communicator is told, but for NCCL_MIN_CTAS and
 * NCCL_MIN_NCHANNELS, which it cuts to the greatest number that it was told. Where the user set any
 * of them, nothing is told.
 */
#include <stdio.h>
#include <stdlib.h>

#include "nccl.h"

#ifndef NCCL_CTA_POLICY_ZERO
#define NCCL_CTA_POLICY_ZERO 0x02 /* headers before 2.28 */
#endif

enum {
    COPIES_SINCE = NCCL_VERSION(2, 28, 0),
    MOST_CTAS = 16, /* two for each of a node's eight links to the network */
};

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

static bool user_chose_ctas(void)
{
    return is_set("NCCL_MIN_CTAS") || is_set("NCCL_MAX_CTAS") || is_set("NCCL_MIN_NCHANNELS") ||
           is_set("NCCL_MAX_NCHANNELS");
}

int nccl_share_variables(void)
{
    return (is_set("NCCL_CTA_POLICY") ? 1 : 0) | (user_chose_ctas() ? 2 : 0);
}

static bool in_one_node(const struct fsdp_comm_group *group)
{
    for (int p = 1; p < group->size; p++)
        if (group->node[p] != group->node[0])
            return false;
    return true;
}

void nccl_share_choose(struct nccl_comm *h, ncclConfig_t *config, int version)
{
    const struct fsdp_comm_group *group = h->group;

    h->copies = group->use == FSDP_COMM_FOR_GATHERS && !group->nccl.no_copy_engines &&
                version >= COPIES_SINCE && !is_set("NCCL_CTA_POLICY") && in_one_node(group);
    if (h->copies)
        config->CTAPolicy = NCCL_CTA_POLICY_ZERO;
    if (group->use != FSDP_COMM_FOR_ALL && !user_chose_ctas())
        h->most_ctas = group->nccl.most_ctas ? group->nccl.most_ctas : MOST_CTAS;
    if (h->most_ctas)
        config->maxCTAs = h->most_ctas;
}

void nccl_share_about(const void *state, char *text, size_t text_nbytes)
{
    const struct nccl_comm *h = state;
    int version = 0;
    char ctas[32] = "";

    ncclGetVersion(&version);
    if (h->most_ctas)
        snprintf(ctas, sizeof ctas, " of at most %d blocks", h->most_ctas);
    snprintf(text, text_nbytes, "NCCL %d.%d.%d, %s%s", version / 10000, version / 100 % 100,
             version % 100,
             h->copies ? "by copy engines where it can, else by kernels" : "by kernels", ctas);
}
