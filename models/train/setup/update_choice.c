/* SPDX-License-Identifier: Apache-2.0 */
/* Where offloaded state is updated, if fsdp.offload_update leaves it open. */
#include "update_choice.h"

#include <math.h>

#include "plan/stock.h"

/* The clock of such a device, with nodes of as many ranks; of one that is not known, the H100's. */
static int stock_clock(struct fsdp_clock *out, const struct train_parts *p,
                       const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const int node_nranks = nodes->nranks / (nodes->nnodes > 0 ? nodes->nnodes : 1);
    struct fsdp_device_look look = {.model = ""};

    fsdp_device_look(p->device, &look, NULL);
    const char *known = stock_word_of(look.model), *word = known ? known : "h100";
    *out = (struct fsdp_clock){.ntokens = p->batch.micro_rows * (double)p->config->data.seq_len};
    FSDP_TRY(stock_device(&out->device, word, err));
    return stock_network(&out->net, word, "400Gbx8", node_nranks, err);
}

/* Does the plan fit the memory of a node's host? */
static bool fits_host(const struct train_parts *p, const struct fsdp *f, int node_nranks)
{
    enum { MOST_ROWS = 64 };
    struct fsdp_memory_row rows[MOST_ROWS];
    const int nrows = fsdp_memory_plan(f, rows, MOST_ROWS);
    double nbytes = 0;

    for (int i = 0; i < nrows && i < MOST_ROWS; i++)
        nbytes += !rows[i].counts && !rows[i].file ? (double)rows[i].nbytes : 0;
    return p->host_nbytes <= 0 || nbytes * node_nranks <= p->host_nbytes;
}

/* Seconds of a step that is updated there; infinite where its plan does not fit the host. */
static int price(double *out, const struct train_parts *p, const struct fsdp_opts *opts,
                 enum fsdp_offload_update where, struct fsdp_mesh_shape shape,
                 const struct fsdp_clock *clock, struct fsdp_err *err)
{
    enum { MOST_ACCUMULATION = 3 }; /* the difference is that of any number from then on */
    struct fsdp_opts changed = *opts;
    struct fsdp_schedule_times times;
    struct fsdp *f = NULL;

    changed.offload_update = where;
    if (changed.accumulation > MOST_ACCUMULATION)
        changed.accumulation = MOST_ACCUMULATION;
    FSDP_TRY(fsdp_plan(&f, p->tree, &changed, p->device, shape, err));
    const int rc = fsdp_schedule_time(f, FSDP_TRAIN, clock, &times, err);
    *out = fits_host(p, f, clock->net.node_nranks) ? times.step_s : INFINITY;
    fsdp_destroy(f);
    return rc;
}

/* By so much the step must be faster on the host: a plan tells no less apart, and bits change. */
#define LEAST_GAIN 0.1

void train_choose_update(struct fsdp_opts *opts, const struct train_parts *p,
                         const struct fsdp_node_map *nodes, struct fsdp_mesh_shape shape)
{
    struct fsdp_err ignored = FSDP_ERR_INIT; /* what cannot be planned is not chosen */
    struct fsdp_clock stock;
    double device_s, host_s;

    if (opts->offload_update != FSDP_OFFLOAD_UPDATE_AUTO)
        return;
    opts->offload_update = FSDP_OFFLOAD_UPDATE_DEVICE;
    if (opts->offload == FSDP_OFFLOAD_NONE || !opts->offload_gradients ||
        fsdp_device_is_host(p->device))
        return;
    if (!p->clock && stock_clock(&stock, p, nodes, &ignored))
        return;
    const struct fsdp_clock *clock = p->clock ? p->clock : &stock;
    if (!price(&host_s, p, opts, FSDP_OFFLOAD_UPDATE_HOST, shape, clock, &ignored) &&
        !price(&device_s, p, opts, FSDP_OFFLOAD_UPDATE_DEVICE, shape, clock, &ignored) &&
        host_s < (1 - LEAST_GAIN) * device_s)
        opts->offload_update = FSDP_OFFLOAD_UPDATE_HOST;
}

int train_agree_update(struct fsdp_opts *opts, struct fsdp_oob *oob, struct fsdp_err *err)
{
    char own = (char)opts->offload_update;
    char *all = fsdp_alloc((size_t)oob->size, 1, "where updates run", err);
    int rc = fsdp_oob_agree(oob, all ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &own, 1, all, err);
    if (rc == FSDP_OK)
        opts->offload_update = (enum fsdp_offload_update)all[0];
    fsdp_free(all);
    return rc;
}
