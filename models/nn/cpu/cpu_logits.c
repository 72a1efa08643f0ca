/* SPDX-License-Identifier: Apache-2.0 */
/* A model's last step: scaled and capped logits, and their cross-entropy. */
#include <math.h>

#include "cpu.h"

/* What is done to a logit: cap * tanh(scale x / cap), or scale x where cap is 0. */
struct step {
    float scale, cap;
};

static struct step step_of(float logit_scale, float softcap)
{
    return (struct step){logit_scale == 0.0f ? 1.0f : logit_scale, softcap};
}

static bool changes(struct step step)
{
    return step.scale != 1.0f || step.cap != 0.0f;
}

/* z may be x. */
FSDP_CPU_CLONES static void step_piece(float *z, const float *x, size_t nelem, struct step step)
{
    const float inner = step.scale / step.cap, cap = step.cap;
    if (cap == 0.0f) {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++)
            z[i] = step.scale * x[i];
    } else {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++)
            z[i] = cap * nn_tanh(inner * x[i]);
    }
}

/* grad *= dz/dx. With e = exp(-2 |u|), 1 - tanh(u)² is 4 e / (1 + e)²; 1 where there is no cap. */
FSDP_CPU_CLONES static void step_gradient(float *restrict grad, const float *restrict x,
                                          size_t nelem, struct step step)
{
    const float twice = step.cap == 0.0f ? 0.0f : 2.0f * step.scale / step.cap;
    for (size_t i = 0; i < nelem; i++) {
        float u = twice * x[i], e = nn_exp(u > 0 ? -u : u), r = 1.0f / (1.0f + e);
        grad[i] *= step.scale * (4.0f * e * r * r);
    }
}

static void logits_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_logits *a = arg;
    float room[NN_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE) {
        const size_t n = to - at < NN_PIECE ? to - at : NN_PIECE;
        float *z = nn_change(a->logits, a->dtype, at, n, room);
        step_piece(z, z, n, step_of(a->logit_scale, a->softcap));
        nn_write(a->logits, a->dtype, at, n, z);
    }
}

static void logits(struct nn_logits *a)
{
    if (changes(step_of(a->logit_scale, a->softcap)))
        fsdp_cpu_for(a->nelem, NN_GRAIN, logits_part, a);
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

FSDP_CPU_CLONES static void exp_piece(float *to, const float *in, size_t nelem, float most)
{
    FSDP_INDEPENDENT
    for (size_t i = 0; i < nelem; i++)
        to[i] = nn_exp(in[i] - most);
}

FSDP_CPU_CLONES static void scale_row(float *x, size_t nelem, float scale)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] *= scale;
}

/* exp(x - most) of one row into out (which may be x), and the sum of it. Pieces are summed while
 * they are in the nearest cache. */
static double exp_row(float *out, const float *x, size_t nelem, float most)
{
    enum { PIECE = 1024 };
    double sum = 0;
    for (size_t from = 0; from < nelem; from += PIECE) {
        size_t n = nelem - from < PIECE ? nelem - from : PIECE;
        exp_piece(out + from, x + from, n, most);
        sum += (double)nn_sum(out + from, n);
    }
    return sum;
}

/* z of elements [from, from + nelem) of a row. */
static const float *read_step(const struct nn_cross_entropy *a, const void *row, size_t from,
                              size_t nelem, float *room)
{
    const struct step step = step_of(a->logit_scale, a->softcap);
    const float *x = nn_read(row, a->dtype, from, nelem, room);
    if (!changes(step))
        return x;
    step_piece(room, x, nelem, step);
    return room;
}

/* What is known of a row's z. */
struct row_sums {
    size_t target;
    float most, z_target;
    double sum, sum_z; /* of exp(z - most); of z, where labels are smoothed */
};

/* The gradient by z: each * exp(z - most) - flat, and less the peak at the target. */
struct row_slopes {
    float each, flat, peak;
};

static double row_weight(const struct nn_cross_entropy *a, size_t row)
{
    return a->weights ? (double)a->weights[row] : 1;
}

static double row_loss(const struct nn_cross_entropy *a, size_t row, const struct row_sums *r)
{
    const double above = log(r->sum), lse = above + (double)r->most, eps = (double)a->smoothing;
    double loss = above - ((double)r->z_target - (double)r->most);

    if (eps > 0)
        loss = (1 - eps) * loss + eps * (above - (r->sum_z / a->vocab - (double)r->most));
    return row_weight(a, row) * (loss + (double)a->z_loss * lse * lse);
}

static struct row_slopes row_slopes(const struct nn_cross_entropy *a, size_t row,
                                    const struct row_sums *r)
{
    const float scale = a->scale * (a->loss_scale ? *a->loss_scale : 1) * (float)row_weight(a, row);
    double turn = 1;

    if (a->z_loss != 0.0f)
        turn += 2 * (double)a->z_loss * (log(r->sum) + (double)r->most);
    return (struct row_slopes){.each = (float)((double)scale * turn / r->sum),
                               .flat = scale * a->smoothing / (float)a->vocab,
                               .peak = scale * (1 - a->smoothing)};
}

/* exp(z - most) of elements [from, from + nelem) become gradients by z. */
static void take_slopes(float *x, size_t from, size_t nelem, size_t target, struct row_slopes s)
{
    scale_row(x, nelem, s.each);
    for (size_t i = 0; i < nelem && s.flat != 0.0f; i++)
        x[i] -= s.flat;
    if (target >= from && target - from < nelem)
        x[target - from] -= s.peak;
}

/* Elements [from, from + nelem) of a row become gradients. */
static void entropy_gradient(const struct nn_cross_entropy *a, void *row, size_t from, size_t nelem,
                             const struct row_sums *r, struct row_slopes slopes)
{
    const struct step step = step_of(a->logit_scale, a->softcap);
    float room[NN_PIECE], grad[NN_PIECE];
    const float *z = read_step(a, row, from, nelem, room);

    exp_piece(grad, z, nelem, r->most);
    take_slopes(grad, from, nelem, r->target, slopes);
    if (changes(step))
        step_gradient(grad, nn_read(row, a->dtype, from, nelem, room), nelem, step);
    fsdp_cpu_convert(nn_at(row, a->dtype, from), a->dtype, grad, FSDP_F32, nelem);
}

static double sum_of(const struct nn_cross_entropy *a, const float *z, size_t nelem)
{
    return a->smoothing > 0 ? (double)nn_sum(z, nelem) : 0;
}

/* A row of a 16-bit type, or of logits that a step changes, in pieces: as a row of fp32 with these
 * values. */
static double entropy_pieces(const struct nn_cross_entropy *a, void *x, size_t row, size_t target)
{
    const size_t vocab = (size_t)a->vocab;
    struct row_sums r = {.target = target, .most = -INFINITY};
    float room[NN_PIECE];

    for (size_t from = 0, n; from < vocab; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        const float *z = read_step(a, x, from, n, room);
        r.most = fmaxf(r.most, nn_max(z, n));
        r.sum_z += sum_of(a, z, n);
        if (target >= from && target - from < n)
            r.z_target = z[target - from];
    }
    for (size_t from = 0, n; from < vocab; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        exp_piece(room, read_step(a, x, from, n, room), n, r.most);
        r.sum += (double)nn_sum(room, n);
    }
    const struct row_slopes slopes = row_slopes(a, row, &r);
    for (size_t from = 0, n; from < vocab && a->grad; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        entropy_gradient(a, x, from, n, &r, slopes);
    }
    return row_loss(a, row, &r);
}

/* The row's loss; its logits become gradients if they are wanted. */
static double entropy_row(const struct nn_cross_entropy *a, size_t row)
{
    const size_t vocab = (size_t)a->vocab;
    float *x = nn_at(a->logits, a->dtype, row * (size_t)nn_cross_entropy_ld(a));

    if (a->targets[row] < 0) {
        if (a->grad)
            memset(x, 0, vocab * fsdp_dtype_nbytes(a->dtype));
        return 0;
    }
    const size_t target = (size_t)a->targets[row];
    if (a->dtype != FSDP_F32 || changes(step_of(a->logit_scale, a->softcap)))
        return entropy_pieces(a, x, row, target);
    struct row_sums r = {.target = target, .most = nn_max(x, vocab), .z_target = x[target]};
    for (size_t from = 0; from < vocab && a->smoothing > 0; from += NN_PIECE)
        r.sum_z += sum_of(a, x + from, vocab - from < NN_PIECE ? vocab - from : NN_PIECE);
    r.sum = exp_row(x, x, vocab, r.most);
    if (a->grad)
        take_slopes(x, 0, vocab, target, row_slopes(a, row, &r));
    return row_loss(a, row, &r);
}

enum { SPAN_ROWS = 256 };

/* Rows from `first` on; their losses are added up afterwards, in order. */
struct span {
    const struct nn_cross_entropy *a;
    int first;
    double loss[SPAN_ROWS];
};

static void entropy_rows(void *arg, int worker, size_t from, size_t to)
{
    struct span *span = arg;
    (void)worker;
    for (size_t r = from; r < to; r++)
        span->loss[r] = entropy_row(span->a, (size_t)span->first + r);
}

static void cross_entropy(const struct nn_cross_entropy *a)
{
    struct span span = {.a = a};
    double loss = 0;
    for (; span.first < a->rows; span.first += SPAN_ROWS) {
        const int rest = a->rows - span.first, nrows = rest < SPAN_ROWS ? rest : SPAN_ROWS;
        fsdp_cpu_for((size_t)nrows, 4, entropy_rows, &span);
        for (int r = 0; r < nrows; r++)
            loss += span.loss[r];
    }
    *a->loss_sum += loss;
}

NN_CPU_ENQUEUE(logits, nn_logits)
NN_CPU_ENQUEUE(cross_entropy, nn_cross_entropy)
