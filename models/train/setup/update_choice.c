/* SPDX-License-Identifier: Apache-2.0 */
/* Where offloaded state is updated, if fsdp.offload_update leaves it open. */
#include "update_choice.h"

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

/* Seconds of a step that is updated there. */
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
    *out = times.step_s;
    fsdp_destroy(f);
    return rc;
}

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
        host_s < device_s)
        opts->offload_update = FSDP_OFFLOAD_UPDATE_HOST;
}
