/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are bad, by what their ranks found. Pure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "health.h"

static void keep_less(double *to, double value)
{
    if (value < *to)
        *to = value;
}

static void keep_text(char *to, size_t nbytes, const char *text)
{
    if (!to[0])
        snprintf(to, nbytes, "%s", text);
}

void health_fold(struct health *rows, const struct health *ranks, const struct fsdp_node_map *nodes)
{
    for (int node = 0; node < nodes->nnodes; node++)
        rows[node].nranks = 0;
    for (int r = 0; r < nodes->nranks; r++) {
        const struct health *rank = &ranks[r];
        struct health *row = &rows[nodes->node_of[r]];
        if (row->nranks++ == 0) {
            *row = *rank;
            row->nranks = 1;
            continue;
        }
        if (strcmp(row->version, ranks[0].version) == 0)
            memcpy(row->version, rank->version, sizeof row->version);
        if (fabs(rank->clock_s) > fabs(row->clock_s))
            row->clock_s = rank->clock_s;
        keep_less(&row->shm_free, rank->shm_free);
        keep_less(&row->files, rank->files);
        keep_less(&row->locked, rank->locked);
        keep_less(&row->gpu_free, rank->gpu_free);
        keep_less(&row->gpu_links, rank->gpu_links);
        keep_less(&row->gpu_lanes, rank->gpu_lanes);
        keep_text(row->gpu_warning, sizeof row->gpu_warning, rank->gpu_warning);
        keep_less(&row->inside, rank->inside);
        keep_less(&row->across, rank->across);
        if (rank->write_rate > row->write_rate) /* one rank of a node writes */
            row->write_rate = rank->write_rate;
        keep_text(row->write_error, sizeof row->write_error, rank->write_error);
        keep_text(row->comm_error, sizeof row->comm_error, rank->comm_error);
    }
}

enum which { LOWER, UPPER };

/* Of a member of all rows, those that were not measured (0) left out; `which`: of the middle two. 0
 * where none was measured. */
static double median(const struct health *rows, int nnodes, size_t member, enum which which)
{
    int nvalues = 0;
    double *values = fsdp_alloc((size_t)nnodes, sizeof *values, "medians", NULL);

    if (!values)
        return 0;
    for (int i = 0; i < nnodes; i++) {
        double value;
        memcpy(&value, (const char *)&rows[i] + member, sizeof value);
        if (value > 0)
            values[nvalues++] = value;
    }
    qsort(values, (size_t)nvalues, sizeof *values, fsdp_compare_doubles);
    double found = nvalues ? values[which == LOWER ? (nvalues - 1) / 2 : nvalues / 2] : 0;
    fsdp_free(values);
    return found;
}

/* What a node has less of than `part` of what the others have. */
static bool find_outlier(char *out, size_t nbytes, const struct health *rows, int nnodes, int node)
{
    static const struct {
        const char *what, *unit;
        double scale, part;
        size_t member;
        enum which median; /* LOWER for what is timed, and so differs a little anyway */
    } members[] = {
        {"all-gather inside the node", "GB/s", 1e9, 0.5, offsetof(struct health, inside), LOWER},
        {"all-gather with other nodes", "GB/s", 1e9, 0.5, offsetof(struct health, across), LOWER},
        {"writing to the checkpoint folder", "GB/s", 1e9, 0.5, offsetof(struct health, write_rate),
         LOWER},
        {"/dev/shm", "GiB free", 0x1p30, 0.5, offsetof(struct health, shm_free), UPPER},
        {"limit of open files (ulimit -n)", "files", 1, 0.5, offsetof(struct health, files), UPPER},
        {"limit of locked memory (ulimit -l)", "KiB", 0x1p10, 0.5, offsetof(struct health, locked),
         UPPER},
        {"memory of a GPU", "GiB free", 0x1p30, 0.5, offsetof(struct health, gpu_free), UPPER},
        {"NVLinks of a GPU that work", "links", 1, 1, offsetof(struct health, gpu_links), UPPER},
        {"PCIe of a GPU", "lanes", 1, 1, offsetof(struct health, gpu_lanes), UPPER},
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        double value, usual = median(rows, nnodes, members[i].member, members[i].median);
        memcpy(&value, (const char *)&rows[node] + members[i].member, sizeof value);
        if ((value <= 0 && members[i].median == LOWER) || value >= usual * members[i].part)
            continue;
        snprintf(out, nbytes, "%s: %.4g %s, elsewhere %.4g", members[i].what,
                 value / members[i].scale, members[i].unit, usual / members[i].scale);
        return true;
    }
    return false;
}

bool health_broken(char *out, size_t nbytes, const struct health *rows, int node)
{
    const struct health *row = &rows[node];

    if (strcmp(row->version, rows[0].version) != 0)
        snprintf(out, nbytes, "runs version %s, node %s runs %s", row->version, rows[0].host,
                 rows[0].version);
    else if (row->comm_error[0])
        snprintf(out, nbytes, "does not reach other ranks: %s", row->comm_error);
    else if (row->write_error[0])
        snprintf(out, nbytes, "%s", row->write_error);
    else
        return false;
    return true;
}

bool health_fault(char *out, size_t nbytes, const struct health *rows, int nnodes, int node)
{
    return health_broken(out, nbytes, rows, node) || find_outlier(out, nbytes, rows, nnodes, node);
}

bool health_warning(char *out, size_t nbytes, const struct health *rows, int nnodes, int node)
{
    const double few_files = 1024, shm_a_rank = 64 << 20;
    const struct health *row = &rows[node];
    char free_text[FSDP_NBYTES_TEXT];

    (void)nnodes;
    if (fabs(row->clock_s - rows[0].clock_s) > 1)
        snprintf(out, nbytes, "the clock is %+.1f s off that of %s", row->clock_s, rows[0].host);
    else if (row->shm_free < shm_a_rank * row->nranks)
        snprintf(out, nbytes, "/dev/shm has %s free for %d rank%s: a container's --shm-size?",
                 fsdp_nbytes_text(free_text, (uint64_t)row->shm_free), row->nranks,
                 row->nranks == 1 ? "" : "s");
    else if (row->gpu_warning[0])
        snprintf(out, nbytes, "%s", row->gpu_warning);
    else if (row->files < few_files)
        snprintf(out, nbytes, "a process may open %.0f files (ulimit -n)", row->files);
    else
        return false;
    return true;
}
