/* SPDX-License-Identifier: Apache-2.0 */
/* What a described model computes, each different shape once. */
#include "measure.h"

static void add_linear(struct measure_shapes *out, const struct fsdp_work *w)
{
    const struct measure_linear l = {w->m, w->k, w->n, w->type};

    for (int i = 0; i < out->nlinear; i++) {
        const struct measure_linear *x = &out->linear[i];
        if (x->rows == l.rows && x->nin == l.nin && x->nout == l.nout && x->type == l.type)
            return;
    }
    if (out->nlinear < MEASURE_MAX_SHAPES)
        out->linear[out->nlinear++] = l;
}

static void add_attention(struct measure_shapes *out, const struct fsdp_work *w)
{
    const struct measure_attention a = {w->m, w->k, w->heads, w->n / w->heads, w->type};

    for (int i = 0; i < out->nattention; i++) {
        const struct measure_attention *x = &out->attention[i];
        if (x->keys == a.keys && x->head_dim == a.head_dim && x->type == a.type)
            return;
    }
    if (out->nattention < MEASURE_MAX_SHAPES)
        out->attention[out->nattention++] = a;
}

static void add_pass(struct measure_shapes *out, const struct fsdp_work *w)
{
    const struct measure_pass p = {w->pass, w->nbytes, w->type};

    for (int i = 0; i < out->npass; i++)
        if (out->pass[i].pass == p.pass && out->pass[i].nbytes == p.nbytes)
            return;
    if (out->npass < MEASURE_MAX_SHAPES && p.pass != FSDP_PASS_COPY)
        out->pass[out->npass++] = p;
}

/* Sizes of rows, from the bytes that plan/work.c counts for a branch and for the loss; and of a
 * sequence, whose causal queries see (T + 1) / 2 keys on average. */
static void take_sizes(struct measure_shapes *out)
{
    const double rows = out->nlinear ? out->linear[0].rows : 0;

    for (int i = 0; i < out->npass && rows > 0; i++) {
        const double elem = (double)fsdp_dtype_nbytes(out->pass[i].type);
        const double each = out->pass[i].nbytes / rows / elem;
        if (out->pass[i].pass == FSDP_PASS_BRANCH && !out->dim)
            out->dim = (int)(each / 5 + .5);
        else if (out->pass[i].pass == FSDP_PASS_LOSS)
            out->vocab = (int)(each / 7 + .5);
    }
    for (int i = 0; i < out->nattention; i++) {
        const int T = (int)(2 * out->attention[i].keys - 1 + .5);
        out->seq_len = T > out->seq_len ? T : out->seq_len;
    }
}

/* A linear map's forward product (m, n, k) is followed by that to its input, (m, k, n). */
static bool is_forward(const struct fsdp_work *w, const struct fsdp_work *next)
{
    return w->kind == FSDP_WORK_PRODUCT && next && next->kind == FSDP_WORK_PRODUCT &&
           next->m == w->m && next->n == w->k && next->k == w->n;
}

void measure_shapes_of(struct measure_shapes *out, const struct fsdp_module_tree *tree)
{
    *out = (struct measure_shapes){.nlinear = 0};
    for (int module = 0; module < fsdp_module_count(tree); module++) {
        int n;
        const struct fsdp_work *work = fsdp_module_work(tree, module, &n);
        for (int i = 0; i < n; i++) {
            const struct fsdp_work *w = &work[i];
            if (is_forward(w, i + 1 < n ? w + 1 : NULL)) {
                add_linear(out, w);
                i++; /* where both are square, the second is no other map */
            } else if (w->kind == FSDP_WORK_ATTENTION && !w->gradient) {
                add_attention(out, w);
            } else if (w->kind == FSDP_WORK_BYTES && !w->gradient) {
                add_pass(out, w);
            }
        }
    }
    take_sizes(out);
}
