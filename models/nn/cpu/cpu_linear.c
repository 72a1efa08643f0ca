/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

static void linear_forward(const struct nn_linear *a)
{
    nn_run_product(nn_linear_forward_product(a));
}

static void linear_backward_input(const struct nn_linear *a)
{
    nn_run_product(nn_linear_backward_input_product(a));
}

static void linear_backward_weight(const struct nn_linear *a)
{
    const struct nn_row_sum sum = {.out = a->db,
                                   .in = a->dy,
                                   .nrows = a->rows,
                                   .ncols = a->nout,
                                   .ld = nn_linear_ldy(a),
                                   .beta = a->beta,
                                   .out_dtype = a->dw_dtype,
                                   .in_dtype = a->y_dtype};
    if (a->db)
        nn_sum_rows(&sum);
    nn_run_product(nn_linear_backward_weight_product(a));
}

NN_CPU_ENQUEUE_PRODUCT(linear_forward, nn_linear)
NN_CPU_ENQUEUE(linear_backward_input, nn_linear)
NN_CPU_ENQUEUE_PRODUCT(linear_backward_weight, nn_linear)
