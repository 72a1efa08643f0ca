/* SPDX-License-Identifier: Apache-2.0 */
/* The planned schedule and memory, without a rank. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

#include "train.h"
#include "loop.h"
#include "plan/stock.h"
#include "train/setup/setup.h"

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

static void print_plan(const struct train_parts *p, FILE *to)
{
    if (fsdp_device_is_host(p->device))
        fprintf(to, "\nplanned for device cpu, with %d thread%s a rank\n", p->threads,
                p->threads == 1 ? "" : "s");
    else
        fprintf(to, "\nplanned for device %s, which is described: none was opened\n",
                fsdp_device_name(p->device));
    fprintf(to, "plan %016" PRIx64 "\n", fsdp_plan_hash(p->fsdp));
}

/* Of the device that was planned for; the host's rows, which are no part of it, stand below. */
static void print_memory(const struct train_parts *p, FILE *to)
{
    enum { MAX_ROWS = 32 };
    struct fsdp_memory_row rows[MAX_ROWS];
    char text[FSDP_NBYTES_TEXT];
    const double limit = p->config->fsdp.memory_limit * (double)(1 << 30);
    int nrows = fsdp_memory_plan(p->fsdp, rows, MAX_ROWS);
    uint64_t total = 0;

    nrows = nrows < MAX_ROWS ? nrows : MAX_ROWS;
    fprintf(to, "\nmemory of a rank, planned:\n");
    for (int host = 0; host < 2; host++) {
        for (int i = 0; i < nrows; i++)
            if (rows[i].counts == !host)
                fprintf(to, "  %-46s %12s\n", rows[i].what, fsdp_nbytes_text(text, rows[i].nbytes));
        for (int i = 0; i < nrows && !host; i++)
            total += rows[i].counts ? rows[i].nbytes : 0;
        if (!host)
            fprintf(to, "  %-46s %12s\n", "in all", fsdp_nbytes_text(text, total));
        if (!host && limit > 0)
            fprintf(to, "  %-46s %12s%s\n", "fsdp.memory_limit",
                    fsdp_nbytes_text(text, (uint64_t)limit),
                    (double)total > limit ? "  TOO LITTLE: a run is refused" : "  fits");
    }
}

static void print_padding(const struct config_batch *b, FILE *to)
{
    if (config_batch_waste(b) > 0)
        fprintf(to,
                "\npadding: %" PRId64 " rows in %d x %d micro-batches of %d: %.1f %% of the "
                "computation is wasted\n",
                b->rows, b->ranks, b->accumulation, b->micro_rows, 100 * config_batch_waste(b));
}

/* Is the file to be written one that the plan is made of? */
static bool is_input(const char *file, const char *input)
{
    return file && input && fsdp_file_is_same(file, input);
}

static int refuse_input(const struct train_parts *p, const char *file, const char *config,
                        struct fsdp_err *err)
{
    if (!is_input(file, config) && !is_input(file, p->model_config))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "--dump-schedule=%s would overwrite what it reads: name another file",
                        file);
}

/* The clock under the list; fsdp-plan has others. */
#define DUMPED_GPU "h100"

static int write_schedule(const struct train_parts *p, const char *file, int nranks_of_node,
                          struct fsdp_err *err)
{
    struct fsdp_clock clock = {.ntokens = 0};
    FILE *to = file ? fopen(file, "we") : stdout;

    if (!to)
        return fsdp_err_sys(err, errno, "cannot write %s", file);
    int rc = stock_device(&clock.device, DUMPED_GPU, err);
    if (rc == FSDP_OK)
        rc = stock_network(&clock.net, DUMPED_GPU, "", nranks_of_node, err);
    if (rc == FSDP_OK)
        rc = is_json(file) ? fsdp_schedule_trace(p->fsdp, &clock, to, err)
                           : fsdp_schedule_print(p->fsdp, &clock, to, err);
    if (!is_json(file)) {
        print_plan(p, to);
        print_memory(p, to);
        print_padding(&p->batch, to);
    }
    bool bad = ferror(to);
    errno = 0;
    bad |= (file ? fclose(to) : fflush(to)) != 0;
    if (rc == FSDP_OK && bad)
        rc = fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s",
                          file ? file : "standard output");
    return rc;
}

static void print_warning(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level;
    fprintf(stderr, "fsdp-launch: %s\n", text);
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

    fsdp_log_set(print_warning, NULL, FSDP_LOG_WARN);
    if (node_of)
        rc = train_parts_plan(&parts, config, noverrides, overrides, &nodes, &err);
    if (rc == FSDP_OK)
        rc = refuse_input(&parts, file, config, &err);
    if (rc == FSDP_OK)
        rc = write_schedule(&parts, file, nranks / nnodes, &err);
    if (rc != FSDP_OK) {
        fprintf(stderr, "fsdp-launch: %s\n", err.text);
        code = LAUNCH_USAGE;
    }
    train_parts_close(&parts);
    fsdp_free(node_of);
    fsdp_log_set(NULL, NULL, FSDP_LOG_INFO);
    return code;
}
