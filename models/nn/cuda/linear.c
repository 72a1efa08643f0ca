/* SPDX-License-Identifier: Apache-2.0 */
/* Linear maps as matrix products. */
#include "gemm.h"

/* ---- operators ------------------------------------------------------------------------------- */

#define PRODUCT(name)                                                                              \
    int nn_cuda_##name(struct fsdp_lane *lane, const struct nn_linear *args, struct fsdp_err *err) \
    {                                                                                              \
        const struct nn_product g = nn_##name##_product(args);                                     \
        return args->out ? gemm(lane, &g, err) : FSDP_OK;                                          \
    }
PRODUCT(linear_forward)
PRODUCT(linear_backward_input)

static int activated(struct fsdp_lane *lane, struct nn_product g, const struct nn_activated *args,
                     enum nn_epilogue epilogue, bool *done, struct fsdp_err *err)
{
    *done = false;
    if (args->act != NN_GELU_TANH)
        return FSDP_OK;
    g.epilogue = epilogue;
    g.aux = args->pre;
    return gemm_in_one(lane, &g, done, err);
}

int nn_cuda_activated_forward(struct fsdp_lane *lane, const struct nn_activated *args, bool *done,
                              struct fsdp_err *err)
{
    return activated(lane, nn_linear_forward_product(&args->map), args, NN_GELU_OF_SUM, done, err);
}

int nn_cuda_activated_backward_input(struct fsdp_lane *lane, const struct nn_activated *args,
                                     bool *done, struct fsdp_err *err)
{
    return activated(lane, nn_linear_backward_input_product(&args->map), args, NN_GELU_GRADIENT,
                     done, err);
}

/* ---- maps of the same x ---------------------------------------------------------------------- */

int nn_cuda_maps_forward(struct fsdp_lane *lane, const struct nn_maps *a, bool *done,
                         struct fsdp_err *err)
{
    struct nn_product g = nn_linear_forward_product(&a->first);

    g.count = a->count;
    g.b_step = a->w_step;
    g.c_step = a->y_step;
    g.bias_step = a->b_step;
    return gemm_in_one(lane, &g, done, err);
}

/* With the gradients of biases, or not at all. */
int nn_cuda_maps_backward_weight(struct fsdp_lane *lane, const struct nn_maps *a, bool *done,
                                 struct fsdp_err *err)
{
    struct nn_product g = nn_linear_backward_weight_product(&a->first);
    const bool transposed = a->first.ldw != 0;

    *done = false;
    if (!g.c)
        return FSDP_OK;
    if (a->first.db) {
        g.epilogue = transposed ? NN_SUMS_OF_B : NN_SUMS_OF_A;
        g.aux = a->first.db;
    }
    g.count = a->count;
    *(transposed ? &g.b_step : &g.a_step) = a->y_step;
    g.c_step = a->w_step;
    g.bias_step = a->b_step;
    return gemm_in_one(lane, &g, done, err);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* dw, and the sums of dy, which is its operand b or a, where they need not be added to. */
static int both_gradients(struct fsdp_lane *lane, const struct nn_product *g,
                          const struct nn_cuda_sum *sum, bool *done, struct fsdp_err *err)
{
    struct nn_product with = *g;

    *done = false;
    if (!g->c || !sum->out || sum->out_dtype != g->c_dtype || sum->beta != 0.0f)
        return FSDP_OK;
    with.epilogue = sum->in == g->a.at ? NN_SUMS_OF_A : NN_SUMS_OF_B;
    with.aux = sum->out;
    return gemm_in_one(lane, &with, done, err);
}

/* db, where it is wanted, then dw likewise. */
static int backward_weight(struct fsdp_lane *lane, const struct nn_product *g,
                           const struct nn_cuda_sum *sum, struct fsdp_err *err)
{
    bool done;

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(both_gradients(lane, g, sum, &done, err));
    if (done)
        return FSDP_OK;
    if (sum->out)
        FSDP_TRY(nn_cuda_sum_rows(lane, sum, err));
    return g->c ? gemm(lane, g, err) : FSDP_OK;
}

static struct nn_cuda_sum bias_sum(const struct nn_linear *one)
{
    return (struct nn_cuda_sum){.out = one->db,
                                .out_dtype = one->dw_dtype,
                                .in = one->dy,
                                .in_dtype = one->y_dtype,
                                .nrows = one->rows,
                                .ncols = one->nout,
                                .ld = nn_linear_ldy(one),
                                .beta = one->beta};
}

int nn_cuda_linear_backward_weight(struct fsdp_lane *lane, const struct nn_linear *a,
                                   struct fsdp_err *err)
{
    const struct nn_product g = nn_linear_backward_weight_product(a);
    const struct nn_cuda_sum sum = bias_sum(a);
    return backward_weight(lane, &g, &sum, err);
}

/* ---- experts --------------------------------------------------------------------------------- */

/* The gradients of an expert without rows. */
static int zero_gradients(struct fsdp_lane *lane, const struct nn_grouped *a,
                          const struct nn_linear *one, struct fsdp_err *err)
{
    if (one->db)
        FSDP_TRY(fsdp_zero(lane, one->db, nn_grouped_bias_nbytes(a), err));
    return one->out ? fsdp_zero(lane, one->out, nn_grouped_matrix_nbytes(a), err) : FSDP_OK;
}

static int run_expert(struct fsdp_lane *lane, const struct nn_linear *one, enum nn_way way,
                      struct fsdp_err *err)
{
    struct nn_product g = nn_linear_product(one, way);
    const struct nn_cuda_sum sum = bias_sum(one);

    g.passing = true;
    return way == NN_TO_WEIGHT ? backward_weight(lane, &g, &sum, err) : gemm(lane, &g, err);
}

/* One product after the other, whose sizes the host has to know. */
static int run_experts(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                       const int32_t *first, struct fsdp_err *err)
{
    for (int e = 0; e < a->experts; e++) {
        const int rows = first[e + 1] - first[e];
        const struct nn_linear one = nn_grouped_linear(a, way, e, first[e], rows);
        if (rows)
            FSDP_TRY(run_expert(lane, &one, way, err));
        else if (way == NN_TO_WEIGHT && a->beta == 0.0f)
            FSDP_TRY(zero_gradients(lane, a, &one, err));
    }
    return FSDP_OK;
}

/* The sums of dy of all experts, whose sizes the device knows. */
static int sum_biases(struct fsdp_lane *lane, const struct nn_grouped *a, struct fsdp_err *err)
{
    const struct nn_cuda_sum sum = {.out = a->db,
                                    .out_dtype = a->dw_dtype,
                                    .in = a->dy,
                                    .in_dtype = a->dtype,
                                    .ncols = a->nout,
                                    .ld = a->nout,
                                    .beta = a->beta,
                                    .first = a->first,
                                    .ngroups = a->experts};
    return nn_cuda_sum_rows(lane, &sum, err);
}

/* All in one, whose sizes the device knows. */
static int run_at_once(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                       struct fsdp_err *err)
{
    if (way == NN_TO_WEIGHT && a->db)
        FSDP_TRY(sum_biases(lane, a, err));
    return a->out ? nn_cuda_grouped_product(lane, a, a->dtype, way, err) : FSDP_OK;
}

/* How many rows each expert has, on the host, which waits for it where it was not told before. */
static int bring_first(const int32_t **out, int32_t room[NN_MAX_EXPERTS + 1],
                       struct fsdp_lane *lane, const struct nn_grouped *a, struct fsdp_err *err)
{
    *out = a->first_host;
    if (a->first_host && a->first_host[0] == 0)
        return FSDP_OK;
    *out = room;
    FSDP_TRY(fsdp_copy(lane, room, a->first, ((size_t)a->experts + 1) * sizeof *room, err));
    return fsdp_lane_sync(lane, err);
}

/* Biases and their gradients are not rounded. */
static int run_in_8_bits(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                         struct fsdp_err *err)
{
    const bool in_one = nn_cuda_groups_in_one(a);
    int32_t room[NN_MAX_EXPERTS + 1];
    const int32_t *first = NULL;

    if (way == NN_TO_WEIGHT && a->db)
        FSDP_TRY(sum_biases(lane, a, err));
    if (!a->out)
        return FSDP_OK;
    if (!in_one)
        FSDP_TRY(bring_first(&first, room, lane, a, err));
    return nn_cuda_grouped_f8(lane, a, way, first, err);
}

static int run_grouped(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                       struct fsdp_err *err)
{
    int32_t room[NN_MAX_EXPERTS + 1];
    const int32_t *first;

    if (!a->out && !a->db)
        return FSDP_OK;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->f8.dtype)
        return run_in_8_bits(lane, a, way, err);
    if (nn_cuda_groups_in_one(a))
        return run_at_once(lane, a, way, err);
    FSDP_TRY(bring_first(&first, room, lane, a, err));
    return run_experts(lane, a, way, first, err);
}

int nn_cuda_grouped_forward(struct fsdp_lane *lane, const struct nn_grouped *a,
                            struct fsdp_err *err)
{
    return run_grouped(lane, a, NN_FORWARD, err);
}

int nn_cuda_grouped_backward_input(struct fsdp_lane *lane, const struct nn_grouped *a,
                                   struct fsdp_err *err)
{
    return run_grouped(lane, a, NN_TO_INPUT, err);
}

int nn_cuda_grouped_backward_weight(struct fsdp_lane *lane, const struct nn_grouped *a,
                                    struct fsdp_err *err)
{
    return run_grouped(lane, a, NN_TO_WEIGHT, err);
}
