/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "magnitudes.h"

struct lengths {
    bool transposed; /* weights are (in, out) */
    double *squares; /* [n] of the weight's outputs */
    size_t n;
};

/* Of a weight. */
static int add_up(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct lengths *lengths = ctx;
    const size_t rows = (size_t)param->tensor.shape[0], cols = (size_t)param->tensor.shape[1];

    lengths->n = lengths->transposed ? cols : rows;
    lengths->squares = fsdp_alloc(lengths->n, sizeof *lengths->squares, "magnitudes", err);
    if (!lengths->squares)
        return FSDP_ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            const double x = param->value[r * cols + c];
            lengths->squares[lengths->transposed ? c : r] += x * x;
        }
    return FSDP_OK;
}

/* Of its magnitudes. */
static int put_roots(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    const struct lengths *lengths = ctx;

    (void)err;
    for (size_t i = 0; i < lengths->n; i++)
        param->value[i] = (float)sqrt(lengths->squares[i]);
    return FSDP_OK;
}

static int param_of(const struct fsdp_module_tree *tree, const char *name)
{
    for (int p = 0; p < fsdp_param_count(tree); p++)
        if (!strcmp(fsdp_param_tensor(tree, p).name, name))
            return p;
    return -1;
}

/* The weight of the module whose name has nbytes; -1: there is none. */
static int weight_of(const struct fsdp_module_tree *tree, const char *module, size_t nbytes)
{
    char name[CONFIG_TEXT], stored[CONFIG_TEXT];

    snprintf(name, sizeof name, "%.*s.weight", (int)nbytes, module);
    const int own = param_of(tree, name);
    return own < 0 && ckpt_adapter_stored_name(stored, sizeof stored, name) ? param_of(tree, stored)
                                                                            : own;
}

static int begin_one(const struct train_parts *parts, int param, int weight, bool transposed,
                     struct fsdp_err *err)
{
    struct lengths lengths = {.transposed = transposed};
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;

    opts.param = weight;
    int rc = fsdp_full_params(parts->fsdp, &opts, add_up, &lengths, err);
    opts.param = param;
    opts.writeback = true;
    if (rc == FSDP_OK)
        rc = fsdp_full_params(parts->fsdp, &opts, put_roots, &lengths, err);
    fsdp_free(lengths.squares);
    return rc;
}

int train_magnitudes_begin(const struct train_parts *parts, struct fsdp_err *err)
{
    struct model_info info;

    parts->ops->info(parts->model, &info);
    for (int p = 0; parts->adapter.lora.dora && p < fsdp_param_count(parts->tree); p++) {
        const char *name = fsdp_param_tensor(parts->tree, p).name;
        const char *end = strstr(name, MODEL_MAGNITUDE);
        const int weight = end ? weight_of(parts->tree, name, (size_t)(end - name)) : -1;
        if (weight >= 0)
            FSDP_TRY(begin_one(parts, p, weight, info.transposed, err));
    }
    return FSDP_OK;
}
