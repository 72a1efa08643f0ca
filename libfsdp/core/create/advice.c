/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When memory is short: what would save how much. Each knob is turned on a copy of the options, and
 * the engine that would come of it is planned; the difference is what it saves.
 */
#include "advice.h"
#include "arena.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* An engine that could be. */
struct choice {
    struct fsdp_opts opts;
    struct fsdp_mesh_shape shape;
    unsigned divisor; /* of the activations */
};

/* ---- knobs: false where there is nothing to turn --------------------------------------------- */

static bool checkpoint_all(struct choice *c)
{
    bool turned = c->opts.activation_checkpointing != FSDP_AC_FULL || c->opts.checkpoint_modules;
    c->opts.activation_checkpointing = FSDP_AC_FULL;
    c->opts.checkpoint_modules = NULL;
    return turned;
}

static bool checkpoint_some(struct choice *c)
{
    bool turned = c->opts.activation_checkpointing == FSDP_AC_NONE;
    c->opts.activation_checkpointing = FSDP_AC_SELECTIVE;
    return turned;
}

static bool reshard(struct choice *c)
{
    bool turned = c->opts.reshard_after_forward != 1;
    c->opts.reshard_after_forward = 1;
    c->shape.regather_size = 0;
    return turned;
}

static bool shard_all(struct choice *c)
{
    bool turned = c->opts.sharding_strategy != FSDP_FULL_SHARD;
    c->opts.sharding_strategy = FSDP_FULL_SHARD;
    c->shape = (struct fsdp_mesh_shape){.shard_size = c->shape.shard_size * c->shape.replicate_size,
                                        .replicate_size = 1,
                                        .node_block = c->shape.node_block};
    return turned;
}

static bool more_ranks(struct choice *c)
{
    if (c->opts.sharding_strategy == FSDP_NO_SHARD)
        return false;
    c->shape.shard_size *= 2;
    return true;
}

static bool smaller_batch(struct choice *c)
{
    c->divisor = 2;
    return true;
}

static bool gather_bf16(struct choice *c)
{
    bool turned = c->opts.param_dtype == FSDP_F32;
    c->opts.param_dtype = FSDP_BF16;
    return turned;
}

static bool narrow_moments(struct choice *c)
{
    bool turned = c->opts.optim.moment_dtype == FSDP_F32;
    c->opts.optim.moment_dtype = FSDP_BF16;
    return turned;
}

static bool split_masters(struct choice *c)
{
    bool turned = c->opts.optim.master == FSDP_MASTER_WHOLE;
    c->opts.optim.master = FSDP_MASTER_SPLIT;
    return turned;
}

static bool no_masters(struct choice *c)
{
    bool turned = c->opts.optim.master != FSDP_MASTER_NONE;
    c->opts.optim.master = FSDP_MASTER_NONE;
    return turned;
}

static bool offload_optimizer(struct choice *c)
{
    bool turned = c->opts.offload == FSDP_OFFLOAD_NONE;
    c->opts.offload = FSDP_OFFLOAD_OPTIMIZER;
    return turned;
}

/* The advice is how, and not where: any folder would do. */
static bool turn_to_files(struct choice *c, enum fsdp_offload offload)
{
    const char *dir = c->opts.offload_dir;
    bool turned = c->opts.offload != offload || !dir || !*dir;
    c->opts.offload = offload;
    c->opts.offload_dir = ".";
    return turned;
}

static bool offload_to_files(struct choice *c)
{
    return turn_to_files(c, FSDP_OFFLOAD_OPTIMIZER);
}

static bool offload_params_and_files(struct choice *c)
{
    return turn_to_files(c, FSDP_OFFLOAD_PARAMS);
}

static bool offload_params(struct choice *c)
{
    bool turned = c->opts.offload != FSDP_OFFLOAD_PARAMS;
    c->opts.offload = FSDP_OFFLOAD_PARAMS;
    c->opts.offload_dir = NULL;
    return turned;
}

static bool offload_activations(struct choice *c)
{
    bool turned = !c->opts.offload_activations;
    c->opts.offload_activations = true;
    return turned;
}

static bool keep_activations(struct choice *c)
{
    bool turned = c->opts.offload_activations;
    c->opts.offload_activations = false;
    return turned;
}

static bool offload_gradients(struct choice *c)
{
    bool turned = !c->opts.offload_gradients && c->opts.update_at != FSDP_UPDATE_AT_REDUCE;
    c->opts.offload_gradients = true;
    return turned;
}

static bool keep_gradients(struct choice *c)
{
    bool turned = c->opts.offload_gradients;
    c->opts.offload_gradients = false;
    return turned;
}

static bool reduce_bf16(struct choice *c)
{
    bool turned = c->opts.reduce_dtype == FSDP_F32;
    c->opts.reduce_dtype = FSDP_BF16;
    return turned;
}

static bool narrow_grads(struct choice *c)
{
    bool turned = c->opts.grad_dtype == FSDP_F32;
    c->opts.grad_dtype = FSDP_BF16;
    return turned;
}

static bool update_at_reduce(struct choice *c)
{
    bool turned = c->opts.update_at != FSDP_UPDATE_AT_REDUCE;
    if (c->opts.offload_gradients) /* there is no shard on the device, either */
        return false;
    c->opts.update_at = FSDP_UPDATE_AT_REDUCE;
    c->opts.optim.clip_late = true;
    return turned;
}

static bool reduce_each(struct choice *c)
{
    bool turned = c->opts.reduce_last;
    c->opts.reduce_last = false;
    return turned;
}

static bool no_prefetch(struct choice *c)
{
    bool turned = c->opts.forward_prefetch || c->opts.backward_prefetch;
    c->opts.forward_prefetch = c->opts.backward_prefetch = 0;
    return turned;
}

static bool one_buffer(struct choice *c)
{
    bool turned = c->opts.grad_buffers > 1;
    c->opts.grad_buffers = 1;
    return turned;
}

static const struct knob {
    const char *what;
    bool (*turn)(struct choice *c);
} knobs[] = {
    {"activation_checkpointing full", checkpoint_all},
    {"activation_checkpointing selective", checkpoint_some},
    {"half the rows in a micro-batch", smaller_batch},
    {"twice the ranks in a shard group", more_ranks},
    {"reshard_after_forward true", reshard},
    {"sharding strategy FULL_SHARD over all ranks", shard_all},
    {"param_dtype bfloat16", gather_bf16},
    {"optim.moment_dtype bfloat16", narrow_moments},
    {"optim.master split", split_masters},
    {"optim.master none", no_masters},
    {"offload optimizer", offload_optimizer},
    {"offload optimizer, to files (offload_dir)", offload_to_files},
    {"offload params", offload_params},
    {"offload params, the rest to files (offload_dir)", offload_params_and_files},
    {"offload_activations true", offload_activations},
    {"offload_activations false", keep_activations},
    {"offload_gradients true", offload_gradients},
    {"offload_gradients false", keep_gradients},
    {"reduce_dtype bfloat16", reduce_bf16},
    {"grad_dtype bfloat16", narrow_grads},
    {"update_at reduce, clip_late true", update_at_reduce},
    {"reduce_last false", reduce_each},
    {"no prefetch", no_prefetch},
    {"grad_buffers 1", one_buffer},
};
enum { NKNOBS = sizeof knobs / sizeof knobs[0], NTOLD = 3 };

/* ---- which memory ---------------------------------------------------------------------------- */

/* The device gave what it was asked for, and the host did not. */
static bool host_is_short(const struct fsdp *f, const struct fsdp_opts *opts)
{
    const bool in_file =
        opts->offload == FSDP_OFFLOAD_OPTIMIZER && opts->offload_dir && *opts->offload_dir;
    const bool away = (opts->offload != FSDP_OFFLOAD_NONE && !in_file) ||
                      opts->offload_activations || opts->offload_gradients;
    return away && !fsdp_device_is_host(f->device) && f->mem.device && !f->mem.host;
}

/* Is a row of the memory that is short? */
static bool counts(const struct fsdp *f, int row, bool host)
{
    return host ? f->mem.rows[row].host && !f->mem.rows[row].file : arena_counts(f, row);
}

static uint64_t needed(const struct fsdp *f, bool host)
{
    uint64_t nbytes = 0;
    for (int i = 0; i < f->mem.nrows; i++)
        nbytes += counts(f, i, host) ? f->mem.rows[i].nbytes : 0;
    return nbytes;
}

/* ---- planning what could be ------------------------------------------------------------------ */

static void divide_activations(struct fsdp_module_tree *tree, unsigned divisor)
{
    for (int m = 0; m < tree->nmodules; m++) {
        struct fsdp_act_bytes *act = &tree->modules[m].act;
        act->saved /= divisor;
        act->recomputed /= divisor;
        act->cheap /= divisor;
        act->work /= divisor;
    }
}

/* Bytes of a rank with one knob turned, or what it needs now where that cannot be. */
static uint64_t planned(const struct fsdp *f, const struct fsdp_opts *opts, const struct knob *knob,
                        bool host)
{
    struct choice c = {.opts = *opts, .shape = fsdp_planned_shape(f), .divisor = 1};
    struct fsdp_module_tree tree = *f->tree;
    struct fsdp *other = NULL;
    uint64_t nbytes = needed(f, host);

    if (!knob->turn(&c))
        return nbytes;
    tree.modules = fsdp_alloc((size_t)tree.nmodules, sizeof *tree.modules, "advice", NULL);
    if (!tree.modules)
        return nbytes;
    memcpy(tree.modules, f->tree->modules, (size_t)tree.nmodules * sizeof *tree.modules);
    divide_activations(&tree, c.divisor);
    c.opts.memory_limit = 0;
    if (fsdp_plan(&other, &tree, &c.opts, f->device, c.shape, NULL) == FSDP_OK)
        nbytes = needed(other, host);
    fsdp_destroy(other);
    fsdp_free(tree.modules);
    return nbytes;
}

struct saving {
    const char *what;
    uint64_t nbytes;
};

/* What saves at least a hundredth, the largest first; returns their number. */
static int find_savings(struct saving out[NKNOBS], const struct fsdp *f,
                        const struct fsdp_opts *opts)
{
    const bool host = host_is_short(f, opts);
    uint64_t now = needed(f, host), then = now, before;
    int count = 0;

    for (int k = 0; k < NKNOBS; k++) {
        before = then;
        then = planned(f, opts, &knobs[k], host);
        /* Files are suggested where they save more than the host's memory does. */
        const bool vain = knobs[k].turn == offload_to_files && then >= before;
        if (then >= now || now - then < now / 100 || vain)
            continue;
        int at = count++;
        for (; at > 0 && out[at - 1].nbytes < now - then; at--)
            out[at] = out[at - 1];
        out[at] = (struct saving){knobs[k].what, now - then};
    }
    return count;
}

/* ---- telling --------------------------------------------------------------------------------- */

void advice_give(const struct fsdp *f, const struct fsdp_opts *opts, struct fsdp_err *err)
{
    struct saving savings[NKNOBS];
    char nbytes[FSDP_NBYTES_TEXT];
    const bool host = host_is_short(f, opts);
    int count = find_savings(savings, f, opts);

    fsdp_err_hint(err, err->status, "; the plan of a rank is %s%s",
                  fsdp_nbytes_text(nbytes, needed(f, host)), host ? " of host memory" : "");
    for (int k = 0; k < count && k < NTOLD; k++)
        fsdp_err_hint(err, err->status, "%s %s saves %s", k ? "," : ";", savings[k].what,
                      fsdp_nbytes_text(nbytes, savings[k].nbytes));
}

void advice_log(const struct fsdp *f, const struct fsdp_opts *opts)
{
    struct saving savings[NKNOBS];
    char nbytes[FSDP_NBYTES_TEXT];
    const bool host = host_is_short(f, opts);
    int count = find_savings(savings, f, opts);

    fsdp_log(FSDP_LOG_ERROR, "%smemory of a rank, as planned:", host ? "host " : "");
    for (int i = 0; i < f->mem.nrows; i++) /* of the memory that is short */
        if (counts(f, i, host))
            fsdp_log(FSDP_LOG_ERROR, "  %-46s %12s", f->mem.rows[i].what,
                     fsdp_nbytes_text(nbytes, f->mem.rows[i].nbytes));
    fsdp_log(FSDP_LOG_ERROR, "  %-46s %12s", "in all", fsdp_nbytes_text(nbytes, needed(f, host)));
    fsdp_log(FSDP_LOG_ERROR, "what would save how much, each alone:");
    for (int k = 0; k < count; k++)
        fsdp_log(FSDP_LOG_ERROR, "  %-46s %12s", savings[k].what,
                 fsdp_nbytes_text(nbytes, savings[k].nbytes));
}
