/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operator in 16-bit types against itself in fp32 on the same (rounded) inputs, which other
 * tests hold to fp64. An operator rounds once, when it stores, so an element may be off by half a
 * unit in its last place; the little next to it is for sums that come in another order.
 */
#ifndef SUITE_NN_DTYPES_H
#define SUITE_NN_DTYPES_H

#include "suite.h"

static enum fsdp_dtype type; /* under test */

/* The same values in `type` and, rounded alike, in fp32. */
struct pair {
    void *narrow;
    float *wide;
    size_t nelem;
    const float *bias; /* of ncol columns, added to sums that were rounded before; NULL: none */
    size_t ncol, ld;
};

static struct pair pair(size_t nelem, double scale)
{
    struct pair p = {.narrow = malloc(nelem * 2), .wide = ref_values(nelem, scale), .nelem = nelem};
    fsdp_cpu_convert(p.narrow, type, p.wide, FSDP_F32, nelem);
    fsdp_cpu_convert(p.wide, FSDP_F32, p.narrow, type, nelem);
    return p;
}

static void drop(struct pair p)
{
    free(p.narrow);
    free(p.wide);
}

/* The sum before the bias came to it, which a device may have rounded; 0 where it does not. */
static double rounded_before(struct pair p, size_t i)
{
    const bool has_bias = suite_bias_apart && p.bias && i % p.ld < p.ncol;
    return has_bias ? (double)p.wide[i] - p.bias[i % p.ld] : 0;
}

/* The largest |narrow - wide| as a part of what is allowed: half a unit of the last place for each
 * rounding, and 2e-6 of the largest value. NaN counts as much. */
static double excess(struct pair p)
{
    const double unit = type == FSDP_BF16 ? 0x1p-8 : 0x1p-11, least = 0x1p-25;
    float *got = malloc(p.nelem * sizeof *got);
    double most = 0, worst = 0;

    fsdp_cpu_convert(got, FSDP_F32, p.narrow, type, p.nelem);
    for (size_t i = 0; i < p.nelem; i++)
        most = fmax(most, fabs((double)p.wide[i]));
    for (size_t i = 0; i < p.nelem; i++) {
        double off = fabs((double)got[i] - p.wide[i]);
        double rounded = fabs((double)p.wide[i]) + fabs(rounded_before(p, i));
        double part = off / (unit * rounded + 2e-6 * most + least);
        worst = part <= worst ? worst : isfinite(part) ? part : 1e30;
    }
    free(got);
    return worst;
}

static void check(int rc, const char *what, const struct pair *out, int nout)
{
    double worst = 0;
    for (int i = 0; i < nout; i++)
        worst = fmax(worst, excess(out[i]));
    ok(!rc && worst <= suite_unit_slack, "%s %s: %.2f of the bound", fsdp_dtype_name(type), what,
       worst);
}

static float *room(size_t nelem)
{
    return ref_output(nelem ? nelem : 1, 0);
}

/* ---- products ------------------------------------------------------------------------------- */

/* biased: with rows of y and dy that lie apart, too; what lies between rows must stay. */
static void test_linear(int rows, int nin, int nout, bool biased, float beta)
{
    const int ldy = biased ? nout + 3 : nout;
    const size_t ny = (size_t)(rows - 1) * ldy + (size_t)nout;
    struct pair x = pair((size_t)rows * nin, 1), w = pair((size_t)nout * nin, 1);
    struct pair dy = pair(ny, 1), y = pair(ny, 9), dx = pair(x.nelem, 9), dw = pair(w.nelem, 9);
    struct pair bias = pair((size_t)nout, 1), db = pair((size_t)nout, 9);
    if (biased && beta != 0)
        y.bias = bias.wide, y.ncol = (size_t)nout, y.ld = (size_t)ldy;
    struct pair out[4] = {y, dx, dw, db};
    struct nn_linear a = {.rows = rows, .nin = nin, .nout = nout, .ldy = ldy, .beta = beta}, b = a;
    a.dtype = a.y_dtype = a.w_dtype = a.dw_dtype = type;
    float *work = room(nn->linear_work_nelem(&a));
    int rc = 0;

    a.x = x.narrow, a.w = w.narrow, a.dy = dy.narrow, a.work = work;
    b.x = x.wide, b.w = w.wide, b.dy = dy.wide;
    if (biased)
        a.b = bias.narrow, a.db = db.narrow, b.b = bias.wide, b.db = db.wide;
    a.out = y.narrow, b.out = y.wide;
    rc |= nn->linear_forward(ref_lane(), &a, &err) | nn->linear_forward(ref_lane(), &b, &err);
    a.out = dx.narrow, b.out = dx.wide;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err) |
          nn->linear_backward_input(ref_lane(), &b, &err);
    a.out = dw.narrow, b.out = dw.wide;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err) |
          nn->linear_backward_weight(ref_lane(), &b, &err);
    check(rc, biased ? "linear with bias" : "linear", out, 4);
    drop(x), drop(w), drop(dy), drop(y), drop(dx), drop(dw), drop(bias), drop(db), free(work);
}

/* As at the head of a model: fp32 logits and their gradients, which no 16-bit type holds, and fp32
 * weight gradients. */
static void test_linear_mixed(int rows, int nin, int nout)
{
    struct pair bias = pair((size_t)nout, 1);
    float *db[2] = {room((size_t)nout), room((size_t)nout)};
    double *rdb = ref_wide((size_t)nout);
    struct pair x = pair((size_t)rows * nin, 1), w = pair((size_t)nout * nin, 1);
    struct pair dy = pair((size_t)rows * nout, 1), dx = pair(x.nelem, 9);
    struct nn_linear a = {.rows = rows, .nin = nin, .nout = nout}, b = a;
    a.dtype = a.w_dtype = type;
    float *work = room(nn->linear_work_nelem(&a));
    float *y[2] = {room(dy.nelem), room(dy.nelem)}, *dw[2] = {room(w.nelem), room(w.nelem)};
    double *ry = ref_wide(dy.nelem), *rdw = ref_wide(w.nelem);
    int rc = 0;

    for (size_t i = 0; i < dy.nelem; i++)
        dy.wide[i] = (float)ref_random();
    a.x = x.narrow, a.w = w.narrow, a.dy = dy.wide, a.work = work;
    b.x = x.wide, b.w = w.wide, b.dy = dy.wide;
    a.b = bias.narrow, a.db = db[0], b.b = bias.wide, b.db = db[1];
    a.out = y[0], b.out = y[1];
    rc |= nn->linear_forward(ref_lane(), &a, &err) | nn->linear_forward(ref_lane(), &b, &err);
    a.out = dx.narrow, b.out = dx.wide;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err) |
          nn->linear_backward_input(ref_lane(), &b, &err);
    a.out = dw[0], b.out = dw[1];
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err) |
          nn->linear_backward_weight(ref_lane(), &b, &err);
    struct pair again = pair(x.nelem, 3);
    a.out = again.narrow, a.after_weight = true;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err);
    ok(!rc && !memcmp(again.narrow, dx.narrow, x.nelem * 2),
       "%s dx has the same bits after dw of the same dy", fsdp_dtype_name(type));
    drop(again);
    for (size_t i = 0; i < dy.nelem; i++)
        ry[i] = y[1][i];
    for (size_t i = 0; i < w.nelem; i++)
        rdw[i] = dw[1][i];
    for (int i = 0; i < nout; i++)
        rdb[i] = db[1][i];
    const double bound = 1e-6 * suite_mixed_slack;
    ok(!rc && ref_error(y[0], ry, dy.nelem) < bound && ref_error(dw[0], rdw, w.nelem) < bound &&
           ref_error(db[0], rdb, (size_t)nout) < bound &&
           excess(dx) <= 1 + 0.01 * suite_mixed_slack,
       "%s linear with fp32 outputs: %.1e %.1e, dx %.2f", fsdp_dtype_name(type),
       ref_error(y[0], ry, dy.nelem), ref_error(dw[0], rdw, w.nelem), excess(dx));
    drop(x), drop(w), drop(dy), drop(dx), free(work), free(y[0]), free(y[1]), free(dw[0]);
    free(dw[1]), free(ry), free(rdw), drop(bias), free(db[0]), free(db[1]), free(rdb);
}

static void test_transposed(int rows, int nin, int nout, float beta)
{
    const int ldw = nout + 3;
    struct pair x = pair((size_t)rows * nin, 1), w = pair((size_t)nin * ldw, 1);
    struct pair dy = pair((size_t)rows * nout, 1), y = pair(dy.nelem, 9), dx = pair(x.nelem, 9);
    struct pair bias = pair((size_t)nout, 1), db = pair((size_t)nout, 9), dw = pair(w.nelem, 9);
    if (beta != 0)
        y.bias = bias.wide, y.ncol = y.ld = (size_t)nout;
    struct pair out[4] = {y, dx, dw, db};
    struct nn_linear a = {.rows = rows, .nin = nin, .nout = nout, .ldw = ldw, .beta = beta}, b = a;
    a.dtype = a.y_dtype = a.w_dtype = a.dw_dtype = type;
    float *work = room(nn->linear_work_nelem(&a));
    int rc = 0;

    a.x = x.narrow, a.w = w.narrow, a.b = bias.narrow, a.dy = dy.narrow, a.db = db.narrow;
    a.work = work;
    b.x = x.wide, b.w = w.wide, b.b = bias.wide, b.dy = dy.wide, b.db = db.wide;
    a.out = y.narrow, b.out = y.wide;
    rc |= nn->linear_forward(ref_lane(), &a, &err) | nn->linear_forward(ref_lane(), &b, &err);
    a.out = dx.narrow, b.out = dx.wide;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err) |
          nn->linear_backward_input(ref_lane(), &b, &err);
    a.out = dw.narrow, b.out = dw.wide;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err) |
          nn->linear_backward_weight(ref_lane(), &b, &err);
    check(rc, "transposed", out, 4);
    drop(x), drop(w), drop(dy), drop(y), drop(dx), drop(bias), drop(db), drop(dw), free(work);
}

/* ---- the head: logits whose rows lie apart, and their loss ----------------------------------- */

/* The rows of `from`, ld apart, into a pair, whose fp32 side may become the same values. */
static bool gather_rows(struct pair to, const uint16_t *from, int rows, int cols, int ld, bool both)
{
    bool kept = true;
    for (int r = 0; r < rows; r++) {
        memcpy((uint16_t *)to.narrow + (size_t)r * cols, from + (size_t)r * ld, (size_t)cols * 2);
        for (int i = cols; i < ld && r + 1 < rows; i++)
            kept &= from[(size_t)r * ld + i] == 0x1234;
    }
    if (both)
        fsdp_cpu_convert(to.wide, FSDP_F32, to.narrow, type, to.nelem);
    return kept;
}

static void test_head(int rows, int nin, int vocab, int ld, float softcap)
{
    const size_t n = (size_t)rows * vocab;
    struct pair x = pair((size_t)rows * nin, 1), w = pair((size_t)vocab * nin, 1), y = pair(n, 1);
    struct pair dx = pair(x.nelem, 9), dw = pair(w.nelem, 9), out[3] = {y, dx, dw};
    struct nn_linear a = {.rows = rows, .nin = nin, .nout = vocab}, b = a;
    a.dtype = a.y_dtype = a.w_dtype = a.dw_dtype = type;
    float *work = room(nn->linear_work_nelem(&a));
    uint16_t *logits = malloc((size_t)rows * (size_t)ld * 2);
    int32_t *targets = malloc((size_t)rows * sizeof *targets);
    double loss = 0, want = 0;
    int rc = 0;

    for (size_t i = 0; i < (size_t)rows * (size_t)ld; i++)
        logits[i] = 0x1234;
    for (int r = 0; r < rows; r++)
        targets[r] = r % 4 == 1 ? -100 : (r * 7) % vocab;
    a.ldy = ld;
    a.x = x.narrow, a.w = w.narrow, a.dy = logits, a.work = work;
    b.x = x.wide, b.w = w.wide, b.dy = y.wide;
    a.out = logits, b.out = y.wide;
    rc |= nn->linear_forward(ref_lane(), &a, &err) | nn->linear_forward(ref_lane(), &b, &err);
    bool kept = gather_rows(y, logits, rows, vocab, ld, false);
    check(rc, "logits whose rows lie apart", out, 1);
    gather_rows(y, logits, rows, vocab, ld, true);
    struct nn_cross_entropy c = {.logits = logits,
                                 .targets = targets,
                                 .loss_sum = &loss,
                                 .rows = rows,
                                 .vocab = vocab,
                                 .ld = ld,
                                 .scale = 0.25f,
                                 .logit_scale = softcap == 0.0f ? 0.0f : 0.8f,
                                 .softcap = softcap,
                                 .smoothing = 0.1f,
                                 .z_loss = 1e-3f,
                                 .grad = true,
                                 .dtype = type};
    struct nn_cross_entropy d = c;
    d.logits = y.wide, d.loss_sum = &want, d.ld = 0, d.dtype = FSDP_F32;
    rc |= nn->cross_entropy(ref_lane(), &c, &err) | nn->cross_entropy(ref_lane(), &d, &err);
    kept &= gather_rows(y, logits, rows, vocab, ld, false);
    check(rc, "their gradients", out, 1);
    ok(kept && want > 0 && fabs(loss - want) <= 1e-6 * want,
       "their loss, and nothing between rows");
    gather_rows(y, logits, rows, vocab, ld, true);
    a.out = dx.narrow, b.out = dx.wide;
    rc |= nn->linear_backward_input(ref_lane(), &a, &err) |
          nn->linear_backward_input(ref_lane(), &b, &err);
    a.out = dw.narrow, b.out = dw.wide;
    rc |= nn->linear_backward_weight(ref_lane(), &a, &err) |
          nn->linear_backward_weight(ref_lane(), &b, &err);
    check(rc, "products of them", out + 1, 2);
    drop(x), drop(w), drop(y), drop(dx), drop(dw), free(work), free(logits), free(targets);
}

/* ---- the others ----------------------------------------------------------------------------- */

/* No token twice: a repeated one is rounded at each addition. */
static void test_embedding(int rows, int vocab, int dim, float beta)
{
    struct pair w = pair((size_t)vocab * dim, 1), dy = pair((size_t)rows * dim, 1);
    struct pair y = pair(dy.nelem, 1), dw = pair(w.nelem, 1), out[2] = {y, dw};
    int32_t *tokens = malloc((size_t)rows * sizeof *tokens);
    struct nn_embedding a = {.rows = rows, .vocab = vocab, .dim = dim, .beta = beta}, b = a;
    int rc = 0;

    for (int r = 0; r < rows; r++)
        tokens[r] = vocab - 1 - r;
    a.tokens = b.tokens = tokens;
    a.dtype = a.w_dtype = a.dw_dtype = type;
    a.w = w.narrow, a.dy = dy.narrow, b.w = w.wide, b.dy = dy.wide;
    a.out = y.narrow, b.out = y.wide;
    rc |= nn->embedding_forward(ref_lane(), &a, &err) | nn->embedding_forward(ref_lane(), &b, &err);
    a.out = dw.narrow, b.out = dw.wide;
    rc |=
        nn->embedding_backward(ref_lane(), &a, &err) | nn->embedding_backward(ref_lane(), &b, &err);
    check(rc, "embedding", out, 2);
    drop(w), drop(dy), drop(y), drop(dw), free(tokens);
}

static void test_rmsnorm(int rows, int dim, float offset, float beta)
{
    const size_t n = (size_t)rows * dim;
    struct pair x = pair(n, 2), w = pair((size_t)dim, 1), dy = pair(n, 1), y = pair(n, 1);
    struct pair dx = pair(n, 1), dw = pair((size_t)dim, 1), copy = pair(n, 1);
    struct pair out[5] = {y, dx, dw, dy, copy};
    float *rstd = room((size_t)rows);
    struct nn_rmsnorm f = {.y = y.wide,
                           .rstd = rstd,
                           .x_copy = copy.wide,
                           .x = x.wide,
                           .w = w.wide,
                           .rows = rows,
                           .dim = dim,
                           .eps = 1e-5f,
                           .w_offset = offset};
    struct nn_rmsnorm_backward b = {.dy = dy.wide,
                                    .dx = dx.wide,
                                    .dw = dw.wide,
                                    .x = x.wide,
                                    .w = w.wide,
                                    .rstd = rstd,
                                    .rows = rows,
                                    .dim = dim,
                                    .dx_beta = beta,
                                    .dw_beta = beta,
                                    .w_offset = offset};
    int rc = nn->rmsnorm_forward(ref_lane(), &f, &err) | nn->rmsnorm_backward(ref_lane(), &b, &err);

    f.y = y.narrow, f.x = x.narrow, f.w = w.narrow, f.x_copy = copy.narrow;
    f.dtype = f.w_dtype = type;
    b.dy = dy.narrow, b.dx = dx.narrow, b.dw = dw.narrow, b.x = x.narrow, b.w = w.narrow;
    b.dtype = b.w_dtype = b.dw_dtype = type;
    rc |= nn->rmsnorm_forward(ref_lane(), &f, &err) | nn->rmsnorm_backward(ref_lane(), &b, &err);
    check(rc, "rmsnorm", out, 5);
    drop(x), drop(w), drop(dy), drop(y), drop(dx), drop(dw), drop(copy), free(rstd);
}

static void test_layernorm(int rows, int dim, float beta)
{
    const size_t n = (size_t)rows * dim, nw = (size_t)dim;
    struct pair x = pair(n, 2), w = pair(nw, 1), bias = pair(nw, 1), dy = pair(n, 1);
    struct pair y = pair(n, 1), dx = pair(n, 1), dw = pair(nw, 1), db = pair(nw, 1);
    struct pair out[5] = {y, dx, dw, db, dy};
    float *rstd = room((size_t)rows), *mean = room((size_t)rows);
    struct nn_layernorm f = {.y = y.wide,
                             .mean = mean,
                             .rstd = rstd,
                             .x = x.wide,
                             .w = w.wide,
                             .b = bias.wide,
                             .rows = rows,
                             .dim = dim,
                             .eps = 1e-5f};
    struct nn_layernorm_backward b = {.dy = dy.wide,
                                      .dx = dx.wide,
                                      .dw = dw.wide,
                                      .db = db.wide,
                                      .x = x.wide,
                                      .w = w.wide,
                                      .b = bias.wide,
                                      .mean = mean,
                                      .rstd = rstd,
                                      .rows = rows,
                                      .dim = dim,
                                      .dx_beta = beta,
                                      .dw_beta = beta};
    int rc =
        nn->layernorm_forward(ref_lane(), &f, &err) | nn->layernorm_backward(ref_lane(), &b, &err);

    f.y = y.narrow, f.x = x.narrow, f.w = w.narrow, f.b = bias.narrow;
    f.dtype = f.w_dtype = type;
    b.dy = dy.narrow, b.dx = dx.narrow, b.dw = dw.narrow, b.db = db.narrow, b.x = x.narrow;
    b.w = w.narrow, b.b = bias.narrow;
    b.dtype = b.w_dtype = b.dw_dtype = type;
    rc |=
        nn->layernorm_forward(ref_lane(), &f, &err) | nn->layernorm_backward(ref_lane(), &b, &err);
    check(rc, "layernorm", out, 5);
    drop(x), drop(w), drop(bias), drop(dy), drop(y), drop(dx), drop(dw), drop(db), free(rstd);
    free(mean);
}

static void test_rope(int B, int T, int heads, int D, int R)
{
    const size_t ntable = (size_t)T * R / 2;
    struct pair x = pair((size_t)B * T * heads * D, 1), cosine = pair(ntable, 0);
    float *sine = room(ntable), *wide_cos = room(ntable), *wide_sin = room(ntable);
    double *inv_freq = ref_wide((size_t)R / 2);

    for (int i = 0; i < R / 2; i++)
        inv_freq[i] = pow(10000.0, -2.0 * i / R);
    struct nn_rope_table table = {
        .cos = cosine.wide, .sin = sine, .inv_freq = inv_freq, .T = T, .half = R / 2, .scale = 1.3};
    struct nn_rope a = {.x = x.wide, .cos = cosine.wide, .sin = sine, .B = B, .T = T};
    a.heads = heads, a.D = D, a.R = R;
    int rc = nn->rope_table(ref_lane(), &table, &err) | nn->rope(ref_lane(), &a, &err);
    a.x = x.narrow, a.dtype = type;
    rc |= nn->rope(ref_lane(), &a, &err);
    check(rc, "rope", &x, 1);
    struct pair out = pair(x.nelem, 1);
    fsdp_cpu_convert(x.wide, FSDP_F32, x.narrow, type, x.nelem);
    a.x = out.narrow, a.from = x.narrow;
    rc = nn->rope(ref_lane(), &a, &err);
    struct pair wide = pair((size_t)B * T * (heads * D + 8), 1);
    a.x = wide.narrow, a.ld = heads * D + 8;
    rc |= nn->rope(ref_lane(), &a, &err);
    a.x = x.narrow, a.from = NULL, a.ld = 0;
    rc |= nn->rope(ref_lane(), &a, &err);
    bool same = !memcmp(out.narrow, x.narrow, 2 * x.nelem);
    for (size_t row = 0, width = (size_t)heads * D; row < (size_t)B * T; row++)
        same = same && !memcmp(nn_at(wide.narrow, type, row * (width + 8)),
                               nn_at(x.narrow, type, row * width), 2 * width);
    ok(!rc && same, "%s rope of another place, and to rows with space between them",
       fsdp_dtype_name(type));
    drop(out);
    drop(wide);
    /* A table of buffer_dtype holds values of that type. */
    table.cos = wide_cos, table.sin = wide_sin, table.dtype = type;
    rc = nn->rope_table(ref_lane(), &table, &err);
    fsdp_cpu_convert(cosine.narrow, type, cosine.wide, FSDP_F32, ntable);
    fsdp_cpu_convert(cosine.wide, FSDP_F32, cosine.narrow, type, ntable);
    ok(!rc && !memcmp(wide_cos, cosine.wide, ntable * sizeof *wide_cos), "%s tables are rounded",
       fsdp_dtype_name(type));
    drop(x), drop(cosine), free(sine), free(wide_cos), free(wide_sin), free(inv_freq);
}

static void test_glu(enum nn_act act, size_t n)
{
    struct pair gate = pair(n, 9), up = pair(n, 9), dy = pair(n, 1), y = pair(n, 1);
    struct pair out[4] = {y, gate, up, dy};
    struct nn_glu f = {.y = y.wide, .gate = gate.wide, .up = up.wide, .nelem = n, .act = act};
    int rc = nn->glu_forward(ref_lane(), &f, &err);

    f.y = dy.wide;
    rc |= nn->glu_backward(ref_lane(), &f, &err);
    f = (struct nn_glu){y.narrow, gate.narrow, up.narrow, n, act, type};
    rc |= nn->glu_forward(ref_lane(), &f, &err);
    f.y = dy.narrow;
    rc |= nn->glu_backward(ref_lane(), &f, &err);
    check(rc, "glu", out, 4);
    drop(gate), drop(up), drop(dy), drop(y);
}

static void test_pointwise(enum nn_act act, size_t n)
{
    struct pair x = pair(n, 6), dy = pair(n, 1), y = pair(n, 1), out[3] = {y, x, dy};
    struct nn_pointwise f = {.y = y.wide, .x = x.wide, .nelem = n, .act = act};
    int rc = nn->pointwise_forward(ref_lane(), &f, &err);

    f.y = dy.wide;
    rc |= nn->pointwise_backward(ref_lane(), &f, &err);
    f = (struct nn_pointwise){y.narrow, x.narrow, n, act, type};
    rc |= nn->pointwise_forward(ref_lane(), &f, &err);
    f.y = dy.narrow;
    rc |= nn->pointwise_backward(ref_lane(), &f, &err);
    check(rc, "pointwise", out, 3);
    drop(x), drop(dy), drop(y);
}

static void test_scale_add(size_t n, float alpha, float beta)
{
    struct pair x = pair(n, 1), out = pair(n, 1);
    struct nn_scale_add a = {
        .out = out.wide, .x = x.wide, .nelem = n, .alpha = alpha, .beta = beta};
    int rc = nn->scale_add(ref_lane(), &a, &err);

    a.out = out.narrow, a.x = x.narrow, a.dtype = type;
    rc |= nn->scale_add(ref_lane(), &a, &err);
    check(rc, "scale_add", &out, 1);
    drop(x), drop(out);
}

/* From the columns of a wider matrix; bits are copied, and what lies between stays. */
static void test_copy_blocks(int rows, int nblocks, int width, int x_row, int x_block)
{
    const int out_block = width + (width % 8 ? 1 : 8), out_row = nblocks * out_block;
    struct pair x = pair((size_t)rows * x_row, 1), out = pair((size_t)rows * out_row, 1);
    struct nn_copy_blocks a = {out.wide, x.wide,    rows,  nblocks, width,
                               out_row,  out_block, x_row, x_block, FSDP_F32};
    int rc = nn->copy_blocks(ref_lane(), &a, &err);

    a.out = out.narrow, a.x = x.narrow, a.dtype = type;
    rc |= nn->copy_blocks(ref_lane(), &a, &err);
    ok(!rc && excess(out) == 0, "%s copies of %d x %d blocks of %d", fsdp_dtype_name(type), rows,
       nblocks, width);
    drop(x), drop(out);
}

static void test_logits(size_t n)
{
    struct pair x = pair(n, 40);
    struct nn_logits a = {.logits = x.wide, .nelem = n, .logit_scale = 0.7f, .softcap = 30};
    int rc = nn->logits(ref_lane(), &a, &err);

    a.logits = x.narrow, a.dtype = type;
    rc |= nn->logits(ref_lane(), &a, &err);
    check(rc, "logits", &x, 1);
    drop(x);
}

static void test_dropout(int B, size_t row_nelem, float beta)
{
    const size_t n = (size_t)B * row_nelem;
    struct pair x = pair(n, 1), y = pair(n, 1);
    struct nn_dropout a = {.out = y.wide,
                           .x = x.wide,
                           .B = B,
                           .row_nelem = row_nelem,
                           .beta = beta,
                           .drop = {0.3f, 7, 2}};
    int rc = nn->dropout(ref_lane(), &a, &err);
    a.out = y.narrow, a.x = x.narrow, a.dtype = type;
    rc |= nn->dropout(ref_lane(), &a, &err);
    check(rc, "dropout", &y, 1);
    drop(x), drop(y);
}

/* |narrow - wide| / |wide|. */
static double error_of(const struct pair *p)
{
    double *want = ref_wide(p->nelem), e;
    float *got = room(p->nelem);

    for (size_t j = 0; j < p->nelem; j++)
        want[j] = p->wide[j];
    fsdp_cpu_convert(got, FSDP_F32, p->narrow, type, p->nelem);
    e = ref_error(got, want, p->nelem);
    free(want), free(got);
    return e;
}

/* The backward pass of 16 bits sees the rounded o of its own forward pass, which moves the row sums
 * of d_o o by a unit in the last place: gradients get a bound in the norm instead. */
static void test_attention(struct nn_attention a)
{
    const size_t nq = (size_t)a.B * a.Tq * a.NH * a.D, nk = (size_t)a.B * a.Tk * a.NKV * a.D;
    struct pair q = pair(nq, 1), k = pair(nk, 1), v = pair(nk, 1), o = pair(nq, 1);
    struct pair d_o = pair(nq, 1), sinks = pair((size_t)a.NH, 1), dsinks = pair((size_t)a.NH, 1);
    struct pair *grads[4] = {&q, &k, &v, &dsinks};
    const bool has_sinks = a.softcap > 0; /* capped scores and sinks are tested together */
    a.dtype = type;
    const size_t narrow_work = nn->attention_work_nelem(&a);
    a.dtype = FSDP_F32;
    const size_t wide_work = nn->attention_work_nelem(&a);
    float *lse = room((size_t)a.B * a.NH * a.Tq);
    float *work = room(narrow_work > wide_work ? narrow_work : wide_work);
    const bool is_bf16 = type == FSDP_BF16;
    const double slack = is_bf16 ? suite_bf16_attention_slack : suite_f16_attention_slack;
    const double bound = (is_bf16 ? 4e-3 : 5e-4) * slack;

    a.q = q.wide, a.k = k.wide, a.v = v.wide, a.o = o.wide, a.lse = lse, a.d_o = d_o.wide;
    a.sinks = has_sinks ? sinks.wide : NULL, a.dsinks = dsinks.wide, a.dsinks_beta = 1;
    a.work = work, a.scale = 0.3f;
    int rc =
        nn->attention_forward(ref_lane(), &a, &err) | nn->attention_backward(ref_lane(), &a, &err);

    a.q = q.narrow, a.k = k.narrow, a.v = v.narrow, a.o = o.narrow, a.d_o = d_o.narrow;
    a.sinks = has_sinks ? sinks.narrow : NULL, a.dsinks = dsinks.narrow;
    a.dtype = a.w_dtype = a.dw_dtype = type;
    rc |= nn->attention_forward(ref_lane(), &a, &err);
    if (slack > 1)
        ok(!rc && error_of(&o) < bound, "%s attention of %d x %d, %d heads of %d: %.1e",
           fsdp_dtype_name(type), a.B, a.Tq, a.NH, a.D, error_of(&o));
    else
        check(rc, "attention", &o, 1);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    for (int i = 0; i < (has_sinks ? 4 : 3); i++)
        ok(!rc && error_of(grads[i]) < bound, "%s attention, window %d, cap %g, d%c: %.1e",
           fsdp_dtype_name(type), a.window, (double)a.softcap, "qkvs"[i], error_of(grads[i]));
    drop(q), drop(k), drop(v), drop(o), drop(d_o), drop(sinks), drop(dsinks), free(lse), free(work);
}

/* Lengths are fp32 sums of the same values. ldw: as in nn_lengths */
static void test_lengths(int nin, int nout, int r, int ldw)
{
    const size_t nw = ldw ? (size_t)(nin - 1) * (size_t)ldw + (size_t)nout : (size_t)nin * nout;
    struct pair w = pair(nw, 1), a = pair((size_t)r * nin, 1), b = pair((size_t)nout * r, 1);
    float *length[2] = {room((size_t)nout), room((size_t)nout)};
    struct nn_lengths l = {.nin = nin, .nout = nout, .r = r, .ldw = ldw, .scale = 0.75f};
    double worst = 0;

    l.length = length[0], l.w = w.wide, l.a = a.wide, l.b = b.wide;
    int rc = nn->lengths(ref_lane(), &l, &err);
    l.length = length[1], l.w = w.narrow, l.a = a.narrow, l.b = b.narrow;
    l.dtype = type;
    rc |= nn->lengths(ref_lane(), &l, &err);
    for (int i = 0; i < nout; i++)
        worst = fmax(worst, fabs((double)length[1][i] / length[0][i] - 1));
    ok(!rc && worst < 1e-6, "%s lengths of %d x %d, %d apart: %.1e", fsdp_dtype_name(type), nout,
       nin, ldw, worst);
    drop(w), drop(a), drop(b), free(length[0]), free(length[1]);
}

static void test_columns(int rows, int cols, float beta)
{
    const size_t n = (size_t)rows * cols, nm = (size_t)cols;
    struct pair x = pair(n, 1), dy = pair(n, 1), m = pair(nm, 1), bias = pair(nm, 1);
    struct pair y = pair(n, 1), dm = pair(nm, 1), out[2] = {y, dm};
    float *length = ref_values(nm, 1);
    int rc = 0;

    for (int c = 0; c < cols; c++)
        length[c] += 1.5f;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct nn_columns a = {.length = length, .rows = rows, .cols = cols, .beta = beta};
        a.x = narrow ? x.narrow : x.wide, a.dy = narrow ? dy.narrow : dy.wide;
        a.magnitude = narrow ? m.narrow : m.wide, a.b = narrow ? bias.narrow : bias.wide;
        a.dtype = a.w_dtype = a.dw_dtype = narrow ? type : FSDP_F32;
        a.out = narrow ? y.narrow : y.wide;
        rc |= nn->columns_forward(ref_lane(), &a, &err);
        a.out = narrow ? dm.narrow : dm.wide;
        rc |= nn->columns_backward(ref_lane(), &a, &err);
    }
    check(rc, "columns", out, 2);
    drop(x), drop(dy), drop(m), drop(bias), drop(y), drop(dm), free(length);
}

static struct nn_attention heads(int B, int T, int NH, int NKV, int D)
{
    return (struct nn_attention){.B = B, .Tq = T, .Tk = T, .NH = NH, .NKV = NKV, .D = D};
}

/* Rows of documents that are cut by these ends, row after row; `starts` is the caller's. */
static inline struct nn_attention documents(struct nn_attention a, const int *ends)
{
    int32_t *starts = malloc((size_t)a.B * (size_t)a.Tq * sizeof *starts);

    for (int b = 0; b < a.B; b++)
        for (int t = 0, first = 0; t < a.Tq; t++) {
            starts[b * a.Tq + t] = first;
            if (t + 1 == *ends || t + 1 == a.Tq) {
                ends++;
                a.documents++;
                first = t + 1;
            }
        }
    a.starts = starts;
    return a;
}

/* Windows, capped scores, sinks. */
static void test_attention_traits(void)
{
    struct nn_attention a = heads(2, 70, 4, 2, 18);
    a.window = 13;
    test_attention(a);
    a.softcap = 2;
    test_attention(a);
    a.window = 0, a.Tk = 101;
    test_attention(a);
    a.window = 65, a.Tq = 1;
    test_attention(a);
}

/* Wide heads and rows, for which devices have kernels of their own. */
static void test_wide(void)
{
    test_attention(heads(1, 19, 2, 1, 100));
    test_attention(heads(1, 11, 2, 1, 200));
    test_rmsnorm(3, 8203, 0, 0);
    test_layernorm(3, 8203, 0);
}

/* (optional) */
static void test_dora(void)
{
    if (!nn->lengths)
        return;
    test_lengths(67, 33, 3, 0);
    test_lengths(67, 33, 3, 35);
    test_columns(67, 131, 1);
}

static inline void run_traits(void)
{
    static const enum fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};
    for (int t = 0; t < 2; t++) {
        type = types[t];
        test_attention_traits();
    }
    for (int t = 0; t < 2; t++) {
        type = types[t];
        test_wide();
        test_dora();
    }
}

static inline void run_types(void)
{
    static const enum fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};
    for (int t = 0; t < 2; t++) {
        type = types[t];
        for (int biased = 0; biased < 2; biased++) {
            test_linear(7, 19, 13, biased, 0);
            test_linear(530, 70, 33, biased, 1);
            test_linear(9, 600, 1030, biased, 1);
            test_linear(1, 40, 30, biased, 0);
        }
        test_linear_mixed(33, 50, 603);
        test_transposed(7, 19, 13, 0);
        test_transposed(65, 600, 530, 1);
        test_head(9, 40, 1031, 1040, 0);
        test_head(5, 33, 67, 67, 0);
        test_head(3, 16, 8200, 8256, 0);
        test_head(3, 16, 4099, 4160, 0);
        test_head(3, 16, 4099, 4160, 4);
        test_head(9, 40, 1031, 1040, 4);
        test_head(5, 33, 67, 67, 4);
        test_embedding(5, 11, 1030, 0);
        test_embedding(5, 11, 7, 1);
        test_rmsnorm(70, 515, 0, 0);
        test_rmsnorm(1000, 31, 0, 1);
        test_rmsnorm(70, 515, 1, 0);
        test_rmsnorm(1000, 31, 1, 1);
        test_layernorm(70, 515, 0);
        test_layernorm(1000, 31, 1);
        test_rope(2, 5, 3, 22, 22);
        test_rope(2, 5, 3, 23, 10);
        test_rope(1, 7, 2, 48, 32);
        for (int act = NN_SILU; act <= NN_CLAMPED_SWISH; act++)
            test_glu((enum nn_act)act, 2051);
        for (int act = NN_SILU; act <= NN_RELU; act++)
            test_pointwise((enum nn_act)act, 2051);
        test_scale_add(2051, 0.22f, 0);
        test_scale_add(37, 0.22f, 1);
        test_copy_blocks(67, 2, 24, 80, 24);
        test_copy_blocks(11, 35, 1, 70, 2);
        test_copy_blocks(9, 3, 16, 96, 32);
        test_logits(2051);
        test_dropout(3, 1100, 0);
        test_dropout(2, 37, 1);
        test_attention(heads(2, 37, 4, 2, 10));
        test_attention(heads(1, 130, 2, 2, 16));
    }
}

#endif
