/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "bind.h"

int train_bind(struct binding *out, const struct train_gpu *gpu, bool off, struct fsdp_oob *oob,
               const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const struct binding_opts opts = {
        .off = off,
        .gpu = gpu->look.pci,
        .near = CPU_COUNT(&gpu->look.near) ? &gpu->look.near : NULL,
    };
    return binding_choose(out, oob, nodes, &opts, err);
}

/* The next rank of a node after `rank` (-1: the first), nranks behind the last. */
static int next_rank(const struct fsdp_node_map *nodes, int node, int rank)
{
    do
        rank++;
    while (rank < nodes->nranks && nodes->node_of[rank] != node);
    return rank;
}

static bool alike(const struct binding *all, const struct fsdp_node_map *nodes, int a, int b)
{
    int ra = next_rank(nodes, a, -1), rb = next_rank(nodes, b, -1);

    while (ra < nodes->nranks && rb < nodes->nranks && !strcmp(all[ra].text, all[rb].text)) {
        ra = next_rank(nodes, a, ra);
        rb = next_rank(nodes, b, rb);
    }
    return ra >= nodes->nranks && rb >= nodes->nranks;
}

/* A row for each run of ranks of which the same is said. */
static void show_node(struct report *report, const struct binding *all,
                      const struct fsdp_node_map *nodes, int node)
{
    const char *host = nodes->host ? nodes->host[next_rank(nodes, node, -1)] : "";

    for (int first = next_rank(nodes, node, -1), next; first < nodes->nranks; first = next) {
        int last = first;
        char what[FSDP_HOST_NBYTES + 48];

        while ((next = next_rank(nodes, node, last)) < nodes->nranks &&
               !strcmp(all[first].text, all[next].text))
            last = next;
        if (last > first)
            snprintf(what, sizeof what, "ranks %d to %d on %s", first, last, host);
        else
            snprintf(what, sizeof what, "rank %d on %s", first, host);
        report_row(report, what, "%s", all[first].text);
    }
}

int train_bind_show(struct report *report, const struct binding *mine, struct fsdp_oob *oob,
                    const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    struct binding *all = fsdp_alloc((size_t)oob->size, sizeof *all, "bindings", err);
    int nalike = 0, rc = fsdp_oob_agree(oob, all ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc == FSDP_OK)
        rc = oob->allgather(oob, mine, sizeof *mine, all, err);
    if (rc == FSDP_OK) {
        report_title(report, "binding");
        for (int node = 0; node < nodes->nnodes; node++)
            if (node && alike(all, nodes, 0, node))
                nalike++;
            else
                show_node(report, all, nodes, node);
        if (nalike)
            report_row(report, "on other nodes", "%d like the first", nalike);
    }
    fsdp_free(all);
    return rc;
}
