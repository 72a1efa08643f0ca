/* SPDX-License-Identifier: Apache-2.0 */
/* ref_run.h: one rank of a training run from reference weights: device, mesh, model, engine. */
#ifndef REF_RUN_H
#define REF_RUN_H

#include <sys/mman.h>

#include "fsdp/sys/device_ops.h"
#include "family/model.h"
#include "ranks.h"
#include "ref_files.h"
#include "tap.h"

struct ref_rank {
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp_module_tree *tree;
    const struct model_ops *ops;
    struct model *model;
    struct fsdp *f;
};

struct ref_setup {
    const char *folder;    /* of tests/data */
    const char *config;    /* the path of a config.json instead, whose weights are made up */
    int B, T;              /* micro-batch of a rank */
    const int32_t *starts; /* (B, T) of each micro-batch, as in model_batch; NULL: none */
    bool threaded, two_level;
    double router_z_loss; /* of a mixture of experts */
    struct fsdp_opts opts;
    const struct fsdp_device_ops *device_ops; /* NULL: the CPU's */
    void (*use_ops)(struct model *model);     /* and the operators that go with them */
};

static inline void ref_rank_close(struct ref_rank *r)
{
    fsdp_destroy(r->f);
    if (r->model)
        r->ops->destroy(r->model);
    fsdp_module_tree_destroy(r->tree);
    fsdp_mesh_destroy(r->mesh);
    fsdp_device_close(r->device);
}

/* What no reference holds, such as an adapter's begin: of small numbers, around 1 where they are
 * magnitudes, or around `around`; another `first` gives others. */
static inline float *ref_made_up(const struct fsdp_slice *slice, uint64_t nelem, uint32_t first,
                                 float around)
{
    const bool is_magnitude = strstr(slice->tensor.name, MODEL_MAGNITUDE) != NULL;
    float *values = malloc((size_t)nelem * sizeof *values);

    for (uint64_t i = 0; i < nelem && values; i++)
        values[i] = (float)(((uint32_t)i + first) * 2654435761u >> 8 & 1023) / 10240 - .05f +
                    (is_magnitude ? 1 : around);
    return values;
}

/* Those of a model without a reference: each tensor has others, and vectors are around 1. */
static inline float *ref_made_up_weight(const struct fsdp_slice *slice, uint64_t nelem)
{
    const char *name = slice->tensor.name;
    const uint64_t seed = fsdp_hash(FSDP_HASH_SEED, name, strlen(name));

    return ref_made_up(slice, nelem, (uint32_t)seed, slice->tensor.ndim == 1 ? 1 : 0);
}

/* Writes a parameter's rows into the shard that holds them. */
static inline int ref_load_slice(void *ctx, enum fsdp_slice_kind kind,
                                 const struct fsdp_slice *slice, const struct fsdp_slice_io *io,
                                 struct fsdp_err *err)
{
    const struct ref_tensors *weights = ctx;
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor);
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    if (kind != FSDP_SLICE_MODEL || !nelem)
        return FSDP_OK;
    const uint64_t all = fsdp_tensor_nelem(&slice->tensor);
    if (!weights->data || strstr(slice->tensor.name, ".lora_")) {
        float *made_up =
            weights->data ? ref_made_up(slice, all, 1, 0) : ref_made_up_weight(slice, all);
        int rc = io->write(io->ctx, 0, made_up + slice->box.offset[0] * row,
                           nelem * sizeof *made_up, err);
        free(made_up);
        return rc;
    }
    const float *values = ref_tensor(weights, slice->tensor.name, all);
    if (!values)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "%s is not in the reference", slice->tensor.name);
    return io->write(io->ctx, 0, values + slice->box.offset[0] * row, nelem * sizeof *values, err);
}

static inline int ref_rank_open(struct ref_rank *r, const struct ref_setup *setup,
                                struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                                struct fsdp_err *err)
{
    const char *config = setup->config ? setup->config : ref_path(setup->folder, "config.json");
    const unsigned flags = setup->threaded ? FSDP_DEVICE_THREADED : 0;
    struct fsdp_mesh_shape shape;
    struct fsdp_opts opts = setup->opts;

    memset(r, 0, sizeof *r);
    FSDP_TRY(model_find(&r->ops, config, err));
    FSDP_TRY(r->ops->create(&r->model, config, err));
    FSDP_TRY(fsdp_module_tree_create(&r->tree, err));
    const struct model_dtypes dtypes = {.activation = opts.param_dtype, .grad = opts.reduce_dtype};
    r->ops->set_dtypes(r->model, &dtypes);
    FSDP_TRY(fsdp_device_open_ops(
        &r->device, setup->device_ops ? setup->device_ops : &fsdp_device_cpu_ops, 0, flags, err));
    if (setup->use_ops)
        setup->use_ops(r->model);
    if (setup->starts)
        r->ops->set_packed(r->model);
    FSDP_TRY(r->ops->describe(r->model, r->tree, setup->B, setup->T, err));
    FSDP_TRY(fsdp_mesh_shape_for(&shape, opts.sharding_strategy, 0, nodes, err));
    if (fsdp_opts_regather_size(&opts))
        FSDP_TRY(fsdp_mesh_shape_regather(&shape, fsdp_opts_regather_size(&opts), err));
    if (setup->two_level)
        FSDP_TRY(fsdp_mesh_shape_two_level(&shape, nodes, err));
    FSDP_TRY(fsdp_mesh_create(&r->mesh, shape, "auto", 60, nodes, oob, r->device, err));
    if (!opts.wrap_classes)
        opts.wrap_classes = r->ops->wrap_classes(r->model);
    FSDP_TRY(fsdp_create(&r->f, r->tree, &opts, r->device, r->mesh, err));
    struct ref_tensors weights = {0};
    if (!setup->config)
        weights = ref_tensors_open(ref_path(setup->folder, "model.safetensors"));
    int rc = fsdp_state_each(r->f, ref_load_slice, &weights, err);
    ref_tensors_close(&weights);
    return rc ? rc : fsdp_state_loaded(r->f, err);
}

/* One optimizer step on this rank's rows of a step of nrows rows of T + 1 tokens. Micro-step m of
 * rank r takes rows (r * accumulation + m) * B ... */
static inline int ref_rank_step(struct ref_rank *r, const struct ref_setup *setup,
                                const int32_t *tokens, int nrows, struct fsdp_step_args args,
                                double *loss, double *norm, struct fsdp_err *err)
{
    double *control =
        fsdp_device_alloc(r->device, FSDP_CONTROL_NELEM * sizeof *control, "control word", err);
    struct fsdp_step_result result;
    const double ntokens = (double)nrows * setup->T;

    if (!control)
        return FSDP_ENOMEM;
    for (int m = 0; m < setup->opts.accumulation; m++) {
        int row = (r->mesh->rank * setup->opts.accumulation + m) * setup->B;
        struct model_batch batch = {.tokens = tokens + (size_t)row * (size_t)(setup->T + 1),
                                    .B = setup->B,
                                    .T = setup->T,
                                    .starts = setup->starts,
                                    .loss_scale = 1 / ntokens,
                                    .router_weight = 1.0 / setup->opts.accumulation,
                                    .router_position = 1 / ntokens,
                                    .router_z_loss = setup->router_z_loss};
        FSDP_TRY(fsdp_micro_begin(r->f, FSDP_TRAIN, m, err));
        FSDP_TRY(r->ops->run(r->model, r->f, &batch, true, &control[0], err));
        FSDP_TRY(fsdp_micro_end(r->f, err));
    }
    args.control = control;
    FSDP_TRY(fsdp_step(r->f, &args, &result, err));
    fsdp_device_free(r->device, control);
    *loss = result.control[0] / ntokens;
    *norm = result.grad_norm;
    return FSDP_OK;
}

/* Memory that ranks and test share. */
static inline void *ref_shared(size_t nbytes)
{
    void *ptr = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return ptr == MAP_FAILED ? NULL : ptr;
}

#endif
