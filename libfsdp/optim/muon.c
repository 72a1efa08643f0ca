/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muon (Jordan et al., https://kellerjordan.github.io/posts/muon): the momentum of a matrix, made
 * orthogonal by a Newton-Schulz iteration, as torch.optim.Muon with adjust_lr_fn match_rms_adamw,
 * but in fp32. What is no matrix is AdamW's. Ranks exchange whole matrices in `sums`: each fills in
 * its rows, and one of them makes the sum orthogonal.
 */
#include <math.h>

#include "fsdp/sys/cpu.h"
#include "optimizer.h"

enum { ITERATIONS = 5 };
static const float NS_A = 3.4445f, NS_B = -4.7750f, NS_C = 2.0315f, NS_EPS = 1e-7f;

static const struct optimizer *muon_instead(const struct fsdp_tensor *tensor)
{
    return tensor->ndim == 2 && optimizer_is_matrix(tensor) ? NULL : &optimizer_adamw;
}

static uint64_t muon_nsums(const struct fsdp_tensor *tensor)
{
    return fsdp_tensor_nelem(tensor);
}

static int muon_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    if (!(opts->momentum >= 0 && opts->momentum < 1)) {
        fsdp_err_set(err, FSDP_EINVAL, "muon: momentum is %g; it must be at least 0 and below 1",
                     opts->momentum);
        return fsdp_err_blame(err, FSDP_EINVAL, "momentum");
    }
    if (opts->dampening != 0) {
        fsdp_err_set(err, FSDP_EINVAL, "muon: it has no dampening, and optim.dampening is %g",
                     opts->dampening);
        return fsdp_err_blame(err, FSDP_EINVAL, "dampening");
    }
    if (opts->master != FSDP_MASTER_SPLIT)
        return FSDP_OK;
    fsdp_err_set(err, FSDP_EUNSUPPORTED,
                 "muon: it needs whole rows of its masters, so that they cannot be split: set "
                 "optim.master whole");
    return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "master");
}

/* ---- products of matrices -------------------------------------------------------------------- */

/* c = alpha a b + beta c, of a [rows, inner] and b [inner, cols]. */
struct product {
    float *c;
    const float *a, *b;
    size_t rows, inner, cols;
    float alpha, beta;
};

FSDP_CPU_CLONES static void multiply_row(const struct product *p, size_t row)
{
    float *restrict c = p->c + row * p->cols;

    for (size_t j = 0; j < p->cols; j++)
        c[j] = p->beta == 0 ? 0 : p->beta * c[j];
    for (size_t k = 0; k < p->inner; k++) {
        const float a = p->alpha * p->a[row * p->inner + k];
        const float *restrict b = p->b + k * p->cols;
        for (size_t j = 0; j < p->cols; j++)
            c[j] += a * b[j];
    }
}

static void multiply_part(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t row = from; row < to; row++)
        multiply_row(arg, row);
}

static void multiply_matrices(struct product p)
{
    fsdp_cpu_for(p.rows, 1, multiply_part, &p);
}

/* out [cols, rows] = in [rows, cols] transposed */
static void transpose(float *out, const float *in, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[j * rows + i] = in[i * cols + j];
}

/* ---- Newton-Schulz --------------------------------------------------------------------------- */

/* x [rows, cols], rows <= cols; turned and next have its size, gram and square rows * rows. */
static void iterate(float *x, float *turned, float *next, float *gram, float *square, size_t rows,
                    size_t cols)
{
    for (int i = 0; i < ITERATIONS; i++) {
        transpose(turned, x, rows, cols);
        multiply_matrices((struct product){gram, x, turned, rows, cols, rows, 1, 0});
        for (size_t k = 0; k < rows * rows; k++)
            square[k] = gram[k];
        multiply_matrices((struct product){square, gram, gram, rows, rows, rows, NS_C, NS_B});
        for (size_t k = 0; k < rows * cols; k++)
            next[k] = x[k];
        multiply_matrices((struct product){next, square, x, rows, rows, cols, 1, NS_A});
        for (size_t k = 0; k < rows * cols; k++)
            x[k] = next[k];
    }
}

struct muon_arg {
    double *matrix;
    size_t rows, cols;
    const struct fsdp_loss_scale *loss_scale;
};

/* The matrix, made orthogonal where it lies. */
static int orthogonalize(void *arg, struct fsdp_err *err)
{
    const struct muon_arg *a = arg;
    const size_t nelem = a->rows * a->cols, least = a->rows < a->cols ? a->rows : a->cols;
    const bool tall = a->rows > a->cols;

    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    float *x = fsdp_alloc(3 * nelem + 2 * least * least, sizeof *x, "muon's matrices", err);
    if (!x)
        return FSDP_ENOMEM;
    float *turned = x + nelem, *next = turned + nelem, *gram = next + nelem;
    double sum = 0;
    for (size_t i = 0; i < nelem; i++)
        sum += a->matrix[i] * a->matrix[i];
    const float norm = fmaxf((float)sqrt(sum), NS_EPS);
    for (size_t i = 0; i < nelem; i++)
        (tall ? turned : x)[i] = (float)a->matrix[i] / norm;
    if (tall)
        transpose(x, turned, a->rows, a->cols);
    iterate(x, turned, next, gram, gram + least * least, least, nelem / least);
    if (tall)
        transpose(turned, x, least, nelem / least);
    for (size_t i = 0; i < nelem; i++)
        a->matrix[i] = (double)(tall ? turned : x)[i];
    fsdp_free(x);
    return FSDP_OK;
}

/* ---- a rank's rows --------------------------------------------------------------------------- */

struct rows_arg {
    float *master, *momentum_buffer;
    const float *grad, *grad_scale;
    const struct fsdp_loss_scale *loss_scale;
    double *rows; /* of the matrix that is exchanged */
    size_t nelem;
    float momentum, keep, rate;
    bool nesterov;
};

static int fill_rows(void *arg, struct fsdp_err *err)
{
    const struct rows_arg *a = arg;
    const float scale = a->grad_scale ? *a->grad_scale : 1.0f, weight = 1 - a->momentum;
    (void)err;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    for (size_t i = 0; i < a->nelem; i++) {
        const float g = a->grad[i] * scale;
        const float b = a->momentum_buffer[i] + weight * (g - a->momentum_buffer[i]);
        a->momentum_buffer[i] = b;
        a->rows[i] = (double)(a->nesterov ? g + a->momentum * (b - g) : b);
    }
    return FSDP_OK;
}

static int take_rows(void *arg, struct fsdp_err *err)
{
    const struct rows_arg *a = arg;
    (void)err;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    for (size_t i = 0; i < a->nelem; i++)
        a->master[i] = a->master[i] * a->keep - a->rate * (float)a->rows[i];
    return FSDP_OK;
}

static int muon_phase(struct fsdp_lane *lane, const struct optimizer_run *run, int phase,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = run->tensor;
    const double lr = run->lr * run->hyper.lr_scale;
    const uint64_t most = t->shape[0] > t->shape[1] ? t->shape[0] : t->shape[1];
    struct muon_arg matrix = {run->sums, t->shape[0], t->shape[1], run->loss_scale};
    struct rows_arg rows = {.master = run->master,
                            .momentum_buffer = run->state[0],
                            .grad = run->grad,
                            .grad_scale = run->grad_scale,
                            .loss_scale = run->loss_scale,
                            .rows = run->sums + run->first,
                            .nelem = run->nelem,
                            .momentum = (float)run->opts->momentum,
                            .keep = (float)(1 - lr * run->hyper.weight_decay),
                            .rate = (float)(lr * 0.2 * sqrt((double)most)),
                            .nesterov = run->opts->nesterov};

    if (phase == 0)
        return fsdp_lane_call(lane, fill_rows, &rows, sizeof rows, err);
    if (phase == 1 && run->chosen)
        return fsdp_lane_call(lane, orthogonalize, &matrix, sizeof matrix, err);
    if (phase == 1)
        return fsdp_zero(lane, run->sums, fsdp_tensor_nelem(t) * sizeof *run->sums, err);
    FSDP_TRY(fsdp_lane_call(lane, take_rows, &rows, sizeof rows, err));
    return optimizer_write_param(lane, run, err);
}

const struct optimizer optimizer_muon = {
    .name = "muon",
    .state = {{.slot.name = "momentum_buffer"}},
    .betas = true, /* of what is no matrix, as eps */
    .eps = true,
    .sums_twice = true,
    .instead = muon_instead,
    .check = muon_check,
    .nsums = muon_nsums,
    .phase = muon_phase,
};
