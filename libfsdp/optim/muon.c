/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muon (Jordan et al., https://kellerjordan.github.io/posts/muon): the momentum of a matrix, made
 * orthogonal by a Newton-Schulz iteration, as torch.optim.Muon with adjust_lr_fn match_rms_adamw,
 * but in fp32. What is no matrix is AdamW's. Ranks exchange whole matrices in `sums`: each fills in
 * its rows, and one of them makes the sum orthogonal.
 */
#include <math.h>

#include "optimizer.h"

enum { ITERATIONS = 5 };
static const float NS_A = 3.4445f, NS_B = -4.7750f, NS_C = 2.0315f;

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
    if (!(opts->momentum >= 0 && opts->momentum < 1))
        return fsdp_err_set_blame(err, FSDP_EINVAL, "momentum",
                                  "muon: momentum is %g; it must be at least 0 and below 1",
                                  opts->momentum);
    if (opts->dampening != 0)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "dampening",
                                  "muon: it has no dampening, and optim.dampening is %g",
                                  opts->dampening);
    if (opts->master == FSDP_MASTER_WHOLE)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "master",
        "muon: it needs whole rows of its masters, so that they cannot be split, nor left "
        "out: set optim.master whole");
}

/* ---- Newton-Schulz --------------------------------------------------------------------------- */

/* Of the matrix as fsdp_muon_unit makes it. */
static uint64_t least_of(const struct fsdp_tensor *t)
{
    return t->shape[0] < t->shape[1] ? t->shape[0] : t->shape[1];
}

/* x and its next | the products of rows with rows, and what they are made into */
static uint64_t muon_nroom(const struct fsdp_tensor *tensor)
{
    const uint64_t least = least_of(tensor);
    return 2 * fsdp_tensor_nelem(tensor) + 2 * least * least;
}

/* next = NS_A x + (NS_B g + NS_C g g) x with g = x xᵀ: x [rows, cols]. */
static int iterate(struct fsdp_lane *lane, float *next, const float *x, float *gram, size_t rows,
                   size_t cols, struct fsdp_err *err)
{
    float *square = gram + rows * rows;
    const struct fsdp_matmul_args all[] = {
        {gram, x, x, NULL, rows, cols, rows, 1, 0, true},
        {square, gram, gram, gram, rows, rows, rows, NS_C, NS_B, false},
        {next, square, x, x, rows, rows, cols, 1, NS_A, false},
    };

    for (int i = 0; i < 3; i++)
        FSDP_TRY(fsdp_matmul(lane, &all[i], err));
    return FSDP_OK;
}

/* The matrix, made orthogonal where it lies. */
static int orthogonalize(struct fsdp_lane *lane, const struct optimizer_run *run,
                         struct fsdp_err *err)
{
    const struct fsdp_tensor *t = run->tensor;
    const size_t nelem = fsdp_tensor_nelem(t), least = least_of(t);
    float *both[] = {run->room, run->room + nelem}, *gram = run->room + 2 * nelem;
    struct fsdp_muon_matrix matrix = {run->sums, both[0], t->shape[0], t->shape[1]};

    FSDP_TRY(fsdp_muon_unit(lane, &matrix, err));
    for (int i = 0; i < ITERATIONS; i++)
        FSDP_TRY(iterate(lane, both[(i + 1) % 2], both[i % 2], gram, least, nelem / least, err));
    matrix.x = both[ITERATIONS % 2];
    return fsdp_muon_back(lane, &matrix, err);
}

static int muon_phase(struct fsdp_lane *lane, const struct optimizer_run *run, int phase,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = run->tensor;
    const double lr = run->lr * run->hyper.lr_scale;
    const uint64_t most = t->shape[0] > t->shape[1] ? t->shape[0] : t->shape[1];
    const struct fsdp_muon_args rows = {.master = run->master,
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
        return fsdp_muon_begin(lane, &rows, err);
    if (phase == 1 && run->chosen) /* of a skipped step the matrix is zero, and stays so */
        return orthogonalize(lane, run, err);
    if (phase == 1)
        return fsdp_zero(lane, run->sums, fsdp_tensor_nelem(t) * sizeof *run->sums, err);
    FSDP_TRY(fsdp_muon_end(lane, &rows, err));
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
    .nroom = muon_nroom,
    .phase = muon_phase,
};
