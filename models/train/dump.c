/* SPDX-License-Identifier: Apache-2.0 */
/* The planned schedule, without a rank. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

#include "train.h"
#include "setup.h"

/* Blocks of ranks on nodes, as a launcher would lay them out. */
static int *lay_out(int nranks, int nnodes, struct fsdp_err *err)
{
    int *node_of = fsdp_alloc((size_t)nranks, sizeof *node_of, "nodes", err);

    for (int r = 0; node_of && r < nranks; r++)
        node_of[r] = r / (nranks / nnodes);
    return node_of;
}

static bool is_json(const char *file)
{
    size_t len = file ? strlen(file) : 0;
    return len > 5 && strcmp(file + len - 5, ".json") == 0;
}

static int write_schedule(const struct train_parts *p, const char *file, struct fsdp_err *err)
{
    struct fsdp_schedule_cost cost = FSDP_SCHEDULE_COST_INIT;
    FILE *to = file ? fopen(file, "we") : stdout;

    if (!to)
        return fsdp_err_sys(err, errno, "cannot write %s", file);
    cost.ntokens = (double)p->batch.micro_rows * (double)p->config->data.seq_len;
    int rc = is_json(file) ? fsdp_schedule_trace(p->fsdp, &cost, to, err)
                           : fsdp_schedule_print(p->fsdp, &cost, to, err);
    bool bad = ferror(to);
    errno = 0;
    bad |= (file ? fclose(to) : fflush(to)) != 0;
    if (rc == FSDP_OK && bad)
        rc = fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s",
                          file ? file : "standard output");
    return rc;
}

int train_dump_schedule(const char *config, int noverrides, char *const *overrides, int nranks,
                        int nnodes, const char *file)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct train_parts parts = {0};
    int *node_of = lay_out(nranks, nnodes, &err);
    struct fsdp_node_map nodes = {
        .nranks = nranks, .nnodes = nnodes, .node_of = node_of, .starter = FSDP_STARTED_HERE};
    int code = LAUNCH_DONE, rc = FSDP_ENOMEM;

    if (node_of)
        rc = train_parts_plan(&parts, config, noverrides, overrides, &nodes, &err);
    if (rc == FSDP_OK)
        rc = write_schedule(&parts, file, &err);
    if (rc != FSDP_OK) {
        fprintf(stderr, "fsdp-launch: %s\n", err.text);
        code = LAUNCH_USAGE;
    }
    train_parts_close(&parts);
    fsdp_free(node_of);
    return code;
}
