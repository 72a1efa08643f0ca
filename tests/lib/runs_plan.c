/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own list for a published run: a tree of the model's dimensions, planned. */
#include <string.h>
#include <strings.h>

#include "runs.h"

#define TRY(expression) FSDP_TRY(expression)

static int add_work(struct fsdp_module_tree *tree, int module, const struct work_list *list,
                    struct fsdp_err *err)
{
    for (int i = 0; i < list->nitems; i++)
        TRY(fsdp_module_add_work(tree, module, &list->item[i], err));
    return FSDP_OK;
}

static int add_matrix(struct fsdp_module_tree *tree, int module, const char *name, double rows,
                      double cols, struct fsdp_err *err)
{
    const uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
    char full[96];

    snprintf(full, sizeof full, "%s.%s", fsdp_module_name(tree, module), name);
    return fsdp_module_add_param(
        tree, module,
        &(struct fsdp_param_desc){
            .name = full, .ndim = 2, .shape = shape, .flags = FSDP_PARAM_LINEAR},
        NULL, err);
}

static int add_layer(struct fsdp_module_tree *tree, int layer, const struct foreign_run *run,
                     const struct work_list *work, struct fsdp_err *err)
{
    const struct decoder *m = &run->model;
    const double kv_dim = m->dim * m->kv_heads / m->heads;
    const struct fsdp_act_bytes act = {.saved = 1024, .recomputed = 1024};
    char name[32];
    int module;

    snprintf(name, sizeof name, "layers.%d", layer);
    TRY(fsdp_module_add(tree, 0, name, "Layer", &module, err));
    TRY(add_matrix(tree, module, "qo", 2 * m->dim, m->dim, err));
    TRY(add_matrix(tree, module, "kv", 2 * kv_dim, m->dim, err));
    TRY(add_matrix(tree, module, "mlp", (m->gated ? 3 : 2) * m->ffn, m->dim, err));
    TRY(fsdp_module_set_act(tree, module, act, err));
    return add_work(tree, module, work, err);
}

/* The root is a unit of embedding and head. */
static int make_tree(struct fsdp_module_tree *tree, const struct foreign_run *run,
                     struct fsdp_err *err)
{
    const struct decoder *m = &run->model;
    struct work_list layer = {.nitems = 0}, head = {.nitems = 0};
    int root, embed, out;

    decoder_layer_work(&layer, m, &run->batch);
    decoder_head_work(&head, m, &run->batch);
    TRY(fsdp_module_add(tree, -1, "", "Model", &root, err));
    TRY(fsdp_module_add(tree, root, "embed", "Embedding", &embed, err));
    TRY(add_matrix(tree, embed, "weight", m->vocab, m->dim, err));
    for (int i = 0; i < (int)m->layers; i++)
        TRY(add_layer(tree, i, run, &layer, err));
    TRY(fsdp_module_add(tree, root, "head", "Head", &out, err));
    if (!m->tied)
        TRY(add_matrix(tree, out, "weight", m->vocab, m->dim, err));
    return add_work(tree, out, &head, err);
}

/* ZeRO-3 that gathers no layer twice, or all weights at once (zero3w), has no strategy here: as
 * FULL_SHARD. */
static struct fsdp_mesh_shape shape_of(const struct runs_row *r, struct fsdp_opts *opts)
{
    const int nranks = r->shard * r->replicas;
    struct fsdp_mesh_shape shape = {.shard_size = r->shard, .replicate_size = r->replicas};

    if (strcasestr(r->strategy, "zero3") || strcasestr(r->strategy, "hsdp") ||
        strcasestr(r->strategy, "full"))
        opts->sharding_strategy = r->replicas > 1 ? FSDP_HYBRID_SHARD : FSDP_FULL_SHARD;
    else if (strcasestr(r->strategy, "zero2"))
        opts->sharding_strategy = r->replicas > 1 ? FSDP_HYBRID_SHARD_ZERO2 : FSDP_SHARD_GRAD_OP;
    else if (strcasestr(r->strategy, "zero1"))
        opts->sharding_strategy = FSDP_ZERO1;
    else {
        opts->sharding_strategy = FSDP_NO_SHARD;
        shape = (struct fsdp_mesh_shape){.shard_size = 1, .replicate_size = nranks};
    }
    return shape;
}

int runs_plan(struct runs_plan *out, const struct runs_row *r, struct fsdp_device *device,
              struct fsdp_err *err)
{
    static const char *const classes[] = {"Layer", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape = shape_of(r, &opts);
    double value[RUNS_NCONSTANTS] = {0};
    struct foreign_run run;

    *out = (struct runs_plan){.nlists = r->accum > 2 ? 2 : 1};
    runs_foreign(&run, r, value);
    opts.wrap_classes = classes;
    opts.param_dtype = r->gather_nbytes > 2 ? FSDP_F32 : FSDP_BF16;
    opts.gather_codec = r->gather_nbytes < 2 ? &fsdp_gather_float8 : NULL;
    opts.reduce_dtype = r->reduce_nbytes > 2 ? FSDP_F32 : FSDP_BF16;
    if (run.batch.again.products + run.batch.again.attention + run.batch.again.bytes > 0)
        opts.activation_checkpointing = FSDP_AC_FULL;
    TRY(fsdp_module_tree_create(&out->tree, err));
    TRY(make_tree(out->tree, &run, err));
    for (int i = 0; i < out->nlists; i++) {
        opts.accumulation = out->nlists > 1 ? 2 + i : r->accum;
        TRY(fsdp_plan(&out->list[i], out->tree, &opts, device, shape, err));
    }
    return FSDP_OK;
}

void runs_plan_free(struct runs_plan *plan)
{
    for (int i = 0; i < plan->nlists; i++)
        fsdp_destroy(plan->list[i]);
    fsdp_module_tree_destroy(plan->tree);
    *plan = (struct runs_plan){0};
}

/* Every micro-step after the second takes as long as the third. */
static int list_seconds(double *seconds, const struct runs_row *r, const struct runs_plan *plan,
                        const struct fsdp_clock *clock, struct fsdp_err *err)
{
    struct fsdp_schedule_times times[2];

    for (int i = 0; i < plan->nlists; i++)
        TRY(fsdp_schedule_time(plan->list[i], FSDP_TRAIN, clock, &times[i], err));
    *seconds = times[0].step_s;
    if (plan->nlists > 1)
        *seconds += (r->accum - 2) * (times[1].step_s - times[0].step_s);
    return FSDP_OK;
}

int runs_predict(double *tokens_per_s, const struct runs_row *r, const struct runs_plan *plan,
                 const double value[RUNS_NCONSTANTS], struct fsdp_err *err)
{
    struct fsdp_clock clock;
    double seconds;

    TRY(runs_clock(&clock, r, value, err));
    if (runs_is_foreign(r)) {
        struct foreign_run run;
        struct foreign_times times;
        runs_foreign(&run, r, value);
        foreign_step(&times, &run, &clock);
        seconds = times.step_s;
    } else {
        TRY(list_seconds(&seconds, r, plan, &clock, err));
    }
    *tokens_per_s = r->micro_batch * r->seq * r->accum * r->shard * r->replicas / seconds / r->gpus;
    return FSDP_OK;
}
