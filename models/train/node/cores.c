/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "binding.h"
#include "cores.h"

static bool overlap(const cpu_set_t *a, const cpu_set_t *b)
{
    cpu_set_t both;
    CPU_AND(&both, a, b);
    return CPU_COUNT(&both) > 0;
}

void train_cores_judge(struct train_cores *out, const cpu_set_t *masks, const int *nonline,
                       int rank, const struct fsdp_node_map *nodes)
{
    *out = (struct train_cores){.mask = masks[rank], .nonline = nonline[rank], .crowded = -1};
    for (int q = 0; q < nodes->nranks; q++)
        if (binding_same_machine(nodes, rank, q))
            CPU_OR(&out->all, &out->all, &masks[q]);
    for (int r = 0; r < nodes->nranks; r++) {
        int nlocal = 0, sharers = 0, ncores = CPU_COUNT(&masks[r]);
        /* Later ranks are looked at for this rank's sharers alone. */
        if (out->crowded >= 0 && r != rank)
            continue;
        for (int q = 0; q < nodes->nranks; q++) {
            if (!binding_same_machine(nodes, r, q))
                continue;
            nlocal++;
            sharers += overlap(&masks[r], &masks[q]);
        }
        if (r == rank)
            out->sharers = sharers;
        if (out->crowded < 0 && sharers > ncores && nonline[r] >= nlocal) {
            out->crowded = r;
            out->crowded_ncores = ncores;
            out->crowded_sharers = sharers;
        }
    }
}

int train_cores_find(struct train_cores *out, struct fsdp_oob *oob,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    size_t nranks = (size_t)oob->size;
    cpu_set_t mine, *masks = fsdp_alloc(nranks, sizeof *masks, "cores of ranks", err);
    int *nonline = fsdp_alloc(nranks, sizeof *nonline, "cores of ranks", err);
    int here = (int)sysconf(_SC_NPROCESSORS_ONLN), rc = masks && nonline ? FSDP_OK : FSDP_ENOMEM;

    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) /* more cores than a mask holds */
        for (int i = 0; i < here && i < CPU_SETSIZE; i++)
            CPU_SET(i, &mine);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &mine, sizeof mine, masks, err);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &here, sizeof here, nonline, err);
    if (rc == FSDP_OK)
        train_cores_judge(out, masks, nonline, oob->rank, nodes);
    fsdp_free(masks);
    fsdp_free(nonline);
    return rc;
}

int train_cores_share(const struct train_cores *cores)
{
    int ncores = CPU_COUNT(&cores->mask);
    return cores->sharers > 0 && ncores > cores->sharers ? ncores / cores->sharers : 1;
}

int train_cores_planned(const struct fsdp_node_map *nodes, bool bound)
{
    struct train_cores cores = {.sharers = 0};
    int ncores;

    for (int r = 0; r < nodes->nranks; r++)
        cores.sharers += binding_same_machine(nodes, r, 0);
    if (bound && (ncores = binding_planned(cores.sharers)))
        return ncores;
    if (sched_getaffinity(0, sizeof cores.mask, &cores.mask) != 0)
        return 1;
    return train_cores_share(&cores);
}

const char *train_cores_list(char *out, size_t nbytes, const cpu_set_t *mask)
{
    size_t len = 0;

    out[0] = 0;
    for (int first = 0; first < CPU_SETSIZE; first++) {
        int last = first;
        char range[32];
        if (!CPU_ISSET(first, mask))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, mask))
            last++;
        snprintf(range, sizeof range, last > first ? "%s%d-%d" : "%s%d", len ? "," : "", first,
                 last);
        if (len + strlen(range) + sizeof ",..." > nbytes) {
            snprintf(out + len, nbytes - len, ",...");
            break;
        }
        len += (size_t)snprintf(out + len, nbytes - len, "%s", range);
        first = last;
    }
    return out;
}
