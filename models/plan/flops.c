/* SPDX-License-Identifier: Apache-2.0 */
#include "flops.h"

double flops_keys(int64_t T, int64_t window, bool bidirectional)
{
    const double n = (double)T, w = (double)window;

    if (T < 1)
        return 0;
    if (bidirectional)
        return window > 0 && window < T ? w : n;
    if (window <= 0 || window >= T)
        return (n + 1) / 2;
    /* The first w tokens see 1, 2, ... w, and the others w. */
    return (w * (w + 1) / 2 + (n - w) * w) / n;
}

/* An element of a matrix is multiplied and added once for each token. Of each token that is seen, a
 * head multiplies its keys and its values. */
double flops_forward(const struct flops_model *m, int64_t T)
{
    const double dims = m->head_dim + (m->value_dim ? m->value_dim : m->head_dim);
    const double all = flops_keys(T, 0, m->bidirectional);
    const double windowed = flops_keys(T, m->window, m->bidirectional);
    const double keys = (m->nlayers - m->nwindowed) * all + m->nwindowed * windowed;
    const double matrices = m->nlayers * (m->layer + m->active * m->expert) + m->head;

    return 2 * (matrices + keys * m->nheads * dims);
}

/* Backward makes two products of each: the gradients of both factors, or of a frozen matrix that of
 * the other. */
double flops_train(const struct flops_model *m, int64_t T)
{
    return 3 * flops_forward(m, T) - 2 * m->frozen;
}
