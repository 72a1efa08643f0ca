/* SPDX-License-Identifier: Apache-2.0 */
/* The model's kind of norm. */
#include "stack.h"

static int rms_forward(const struct model *m, struct fsdp_lane *lane, const struct stack_norm *norm,
                       struct fsdp_err *err)
{
    const struct nn_rmsnorm args = {.y = norm->y,
                                    .rstd = norm->rstd,
                                    .x_copy = norm->x_copy,
                                    .x = norm->x,
                                    .w = norm->w,
                                    .rows = norm->rows,
                                    .dim = norm->dim,
                                    .eps = (float)m->traits.norm_eps,
                                    .w_offset = (float)m->traits.norm_offset,
                                    .dtype = norm->dtype,
                                    .w_dtype = norm->w_dtype};
    return m->nn->rmsnorm_forward(lane, &args, err);
}

static int layer_forward(const struct model *m, struct fsdp_lane *lane,
                         const struct stack_norm *norm, struct fsdp_err *err)
{
    const struct nn_layernorm args = {.y = norm->y,
                                      .mean = norm->mean,
                                      .rstd = norm->rstd,
                                      .x_copy = norm->x_copy,
                                      .x = norm->x,
                                      .w = norm->w,
                                      .b = norm->b,
                                      .rows = norm->rows,
                                      .dim = norm->dim,
                                      .eps = (float)m->traits.norm_eps,
                                      .dtype = norm->dtype,
                                      .w_dtype = norm->w_dtype};
    return m->nn->layernorm_forward(lane, &args, err);
}

int stack_norm_forward(const struct model *m, struct fsdp_lane *lane, const struct stack_norm *norm,
                       struct fsdp_err *err)
{
    return m->traits.norm == TRAITS_RMS ? rms_forward(m, lane, norm, err)
                                        : layer_forward(m, lane, norm, err);
}

static int rms_backward(const struct model *m, struct fsdp_lane *lane,
                        const struct stack_norm *norm, struct fsdp_err *err)
{
    const struct nn_rmsnorm_backward args = {.dy = norm->y,
                                             .dx = norm->dx,
                                             .dw = norm->dw,
                                             .x = norm->x,
                                             .w = norm->w,
                                             .rstd = norm->rstd,
                                             .rows = norm->rows,
                                             .dim = norm->dim,
                                             .dx_beta = norm->dx_beta,
                                             .dw_beta = norm->dw_beta,
                                             .w_offset = (float)m->traits.norm_offset,
                                             .dtype = norm->dtype,
                                             .w_dtype = norm->w_dtype,
                                             .dw_dtype = norm->dw_dtype};
    return m->nn->rmsnorm_backward(lane, &args, err);
}

static int layer_backward(const struct model *m, struct fsdp_lane *lane,
                          const struct stack_norm *norm, struct fsdp_err *err)
{
    const struct nn_layernorm_backward args = {.dy = norm->y,
                                               .dx = norm->dx,
                                               .dw = norm->dw,
                                               .db = norm->db,
                                               .x = norm->x,
                                               .w = norm->w,
                                               .b = norm->b,
                                               .mean = norm->mean,
                                               .rstd = norm->rstd,
                                               .rows = norm->rows,
                                               .dim = norm->dim,
                                               .dx_beta = norm->dx_beta,
                                               .dw_beta = norm->dw_beta,
                                               .dtype = norm->dtype,
                                               .w_dtype = norm->w_dtype,
                                               .dw_dtype = norm->dw_dtype};
    return m->nn->layernorm_backward(lane, &args, err);
}

int stack_norm_backward(const struct model *m, struct fsdp_lane *lane,
                        const struct stack_norm *norm, struct fsdp_err *err)
{
    return m->traits.norm == TRAITS_RMS ? rms_backward(m, lane, norm, err)
                                        : layer_backward(m, lane, norm, err);
}
