/* SPDX-License-Identifier: Apache-2.0 */
#include "gradcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* One parameter being checked. */
struct probe {
    const char *name;
    size_t nelem;
    float *value, *grad, *direction, *shifted;
};

struct check {
    struct fsdp *f;
    gradcheck_pass_f *pass;
    void *ctx;
    uint64_t random;
    double loss; /* at the parameters' own values */
};

/* Uniform in [-1, 1). */
static double uniform_signed(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) / (double)(UINT64_C(1) << 52) - 1.0;
}

struct fsdp_opts gradcheck_opts(void)
{
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    opts.wrap_policy = FSDP_WRAP_NONE;
    /* With beta1 0 the first moment is the gradient itself. */
    opts.optim.betas[0] = 0;
    opts.optim.clip_grad_norm = 0;
    return opts;
}

/* ---- values and gradients, through the engine's state ---------------------------------------- */

struct transfer {
    const char *name; /* parameter, or state.NAME.exp_avg */
    enum fsdp_slice_kind kind;
    float *read;
    const float *write;
    size_t nelem;
    bool found;
};

static int transfer_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                          const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct transfer *t = ctx;
    if (kind != t->kind || strcmp(slice->tensor.name, t->name))
        return FSDP_OK;
    t->found = fsdp_box_nelem(&slice->box, slice->tensor.ndim) == t->nelem;
    if (!t->found)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: this rank does not hold all of it", t->name);
    const size_t nbytes = t->nelem * sizeof(float);
    return t->read ? io->read(io->ctx, 0, t->read, nbytes, err)
                   : io->write(io->ctx, 0, t->write, nbytes, err);
}

static int transfer(struct fsdp *f, struct transfer t, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(fsdp_state_each(f, transfer_slice, &t, err));
    if (!t.found)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "%s is not in the engine's state", t.name);
    return t.write ? fsdp_state_loaded(f, err) : FSDP_OK;
}

static int read_value(struct fsdp *f, const struct probe *p, struct fsdp_err *err)
{
    struct transfer t = {
        .name = p->name, .kind = FSDP_SLICE_MODEL, .read = p->value, .nelem = p->nelem};
    return transfer(f, t, err);
}

static int write_value(struct fsdp *f, const struct probe *p, const float *value,
                       struct fsdp_err *err)
{
    struct transfer t = {
        .name = p->name, .kind = FSDP_SLICE_MODEL, .write = value, .nelem = p->nelem};
    return transfer(f, t, err);
}

static int read_grad(struct fsdp *f, const struct probe *p, struct fsdp_err *err)
{
    char *name = fsdp_sprintf(err, "state.%s.exp_avg", p->name);
    if (!name)
        return FSDP_ENOMEM;
    struct transfer t = {
        .name = name, .kind = FSDP_SLICE_OPTIM, .read = p->grad, .nelem = p->nelem};
    int rc = transfer(f, t, err);
    fsdp_free(name);
    return rc;
}

static void probe_close(struct probe *p)
{
    fsdp_free(p->value);
    fsdp_free(p->grad);
    fsdp_free(p->direction);
    fsdp_free(p->shifted);
}

static int probe_open(struct probe *p, const struct fsdp_module_tree *tree, int param,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor tensor = fsdp_param_tensor(tree, param);
    float **const arrays[] = {&p->value, &p->grad, &p->direction, &p->shifted};

    *p = (struct probe){.name = tensor.name, .nelem = fsdp_tensor_nelem(&tensor)};
    for (int i = 0; i < 4; i++)
        if (!(*arrays[i] = fsdp_alloc(p->nelem, sizeof(float), "gradient check", err)))
            return FSDP_ENOMEM; /* the caller closes */
    return FSDP_OK;
}

static int randomize_param(struct fsdp *f, const struct fsdp_module_tree *tree, int param,
                           uint64_t *random, struct fsdp_err *err)
{
    const struct fsdp_tensor tensor = fsdp_param_tensor(tree, param);
    const double scale = tensor.ndim < 2 ? 0.3 : sqrt(3.0 / (double)tensor.shape[tensor.ndim - 1]);
    struct probe p;
    int rc;

    FSDP_TRY_GOTO(probe_open(&p, tree, param, err), out);
    FSDP_TRY_GOTO(read_value(f, &p, err), out);
    for (size_t i = 0; i < p.nelem; i++)
        p.value[i] =
            (float)((tensor.ndim < 2 ? (double)p.value[i] : 0) + scale * uniform_signed(random));
    rc = write_value(f, &p, p.value, err);
out:
    probe_close(&p);
    return rc;
}

int gradcheck_randomize(struct fsdp *f, const struct fsdp_module_tree *tree, uint64_t seed,
                        struct fsdp_err *err)
{
    uint64_t random = seed * 2 + 1;
    for (int i = 0; i < fsdp_param_count(tree); i++)
        FSDP_TRY(randomize_param(f, tree, i, &random, err));
    return FSDP_OK;
}

/* ---- finite differences ---------------------------------------------------------------------- */

static int evaluate(struct check *c, enum fsdp_program program, double *loss, struct fsdp_err *err)
{
    *loss = 0;
    FSDP_TRY(fsdp_micro_begin(c->f, program, 0, err));
    FSDP_TRY(c->pass(c->ctx, c->f, program == FSDP_TRAIN, loss, err));
    FSDP_TRY(fsdp_micro_end(c->f, err));
    return fsdp_sync(c->f, err);
}

static int loss_at(struct check *c, const struct probe *p, double step, double *loss,
                   struct fsdp_err *err)
{
    for (size_t i = 0; i < p->nelem; i++)
        p->shifted[i] = (float)((double)p->value[i] + step * (double)p->direction[i]);
    FSDP_TRY(write_value(c->f, p, p->shifted, err));
    return evaluate(c, FSDP_EVAL, loss, err);
}

static double norm_of(const float *x, size_t nelem)
{
    double sq = 0;
    for (size_t i = 0; i < nelem; i++)
        sq += (double)x[i] * (double)x[i];
    return sqrt(sq);
}

/* Direction k of a parameter, of norm 1: the gradient's own; then in turns a few elements with
 * random signs, which also meets those whose gradient is said to be zero, and a random half of the
 * gradient, which tells errors apart that cancel. */
static void choose_direction(struct check *c, const struct probe *p, int k)
{
    enum { FEW = 16 };
    memset(p->direction, 0, p->nelem * sizeof *p->direction);
    if (k % 2 == 0)
        for (size_t i = 0; i < p->nelem; i++)
            p->direction[i] = k == 0 || uniform_signed(&c->random) > 0 ? p->grad[i] : 0;
    double norm = norm_of(p->direction, p->nelem);
    if (!(norm > 0)) {
        for (int i = 0; i < FEW; i++) {
            size_t at = (size_t)((uniform_signed(&c->random) + 1) / 2 * (double)p->nelem);
            p->direction[at] = uniform_signed(&c->random) < 0 ? -1 : 1;
        }
        norm = norm_of(p->direction, p->nelem);
    }
    for (size_t i = 0; i < p->nelem; i++)
        p->direction[i] = (float)((double)p->direction[i] / norm);
}

/* Derivative of the loss along the direction. Steps are halved; where three in a row agree best,
 * the error of second order is taken out. *noise: what rounding of the losses may add to it. */
static int differentiate(struct check *c, const struct probe *p, double *out, double *noise,
                         struct fsdp_err *err)
{
    enum { NSTEPS = 11 };
    double slope[NSTEPS], best = INFINITY;
    double step = 0.1 * fmax(norm_of(p->value, p->nelem), 0.1);

    *out = NAN;
    for (int k = 0; k < NSTEPS; k++, step /= 2) {
        double up, down;
        FSDP_TRY(loss_at(c, p, step, &up, err));
        FSDP_TRY(loss_at(c, p, -step, &down, err));
        slope[k] = (up - down) / (2 * step);
        if (k < 2)
            continue;
        const double change = slope[k] - slope[k - 1], before = slope[k - 1] - slope[k - 2];
        const double rounding = FLT_EPSILON / 4 * fabs(c->loss) / step;
        const double spread = fmax(fabs(change), fabs(before) / 8) + rounding;
        if (spread < best) {
            best = spread;
            *out = slope[k] + change / 3;
            *noise = rounding;
        }
    }
    return write_value(c->f, p, p->value, err);
}

static int check_direction(struct check *c, const struct probe *p, struct gradcheck_row *row,
                           struct fsdp_err *err)
{
    double numeric, noise = 0, analytic = 0;

    for (size_t i = 0; i < p->nelem; i++)
        analytic += (double)p->grad[i] * (double)p->direction[i];
    FSDP_TRY(differentiate(c, p, &numeric, &noise, err));
    const double typical = row->grad_norm / sqrt((double)p->nelem);
    const double size = fmax(fmax(fabs(numeric), fabs(analytic)), typical);
    /* What rounding makes of a derivative near zero must not look like an error. */
    const double relative = fabs(numeric - analytic) / fmax(size, 200 * noise);
    row->worst = isfinite(relative) ? fmax(row->worst, relative) : INFINITY;
    row->below_noise = row->below_noise && size < 2 * noise;
    return FSDP_OK;
}

static int check_param(struct check *c, const struct probe *p, int ndirections,
                       struct gradcheck_row *row, struct fsdp_err *err)
{
    FSDP_TRY(read_grad(c->f, p, err));
    *row = (struct gradcheck_row){
        .name = p->name, .grad_norm = norm_of(p->grad, p->nelem), .below_noise = true};
    if (!isfinite(row->grad_norm))
        row->worst = INFINITY;
    for (int k = 0; k < ndirections && isfinite(row->worst); k++) {
        choose_direction(c, p, k);
        FSDP_TRY(check_direction(c, p, row, err));
    }
    row->below_noise = row->below_noise && isfinite(row->worst);
    return FSDP_OK;
}

/* Twice, so that the gradients' memory holds something when they are written. A gradient that is
 * not finite spoils the parameters even so, hence they are written back. */
static int take_gradients(struct check *c, const struct probe *probes, int nprobes,
                          struct fsdp_err *err)
{
    const struct fsdp_step_args step = {.lr = 0};

    for (int pass = 0; pass < 2; pass++) {
        FSDP_TRY(evaluate(c, FSDP_TRAIN, &c->loss, err));
        FSDP_TRY(fsdp_step(c->f, &step, NULL, err));
        for (int i = 0; i < nprobes; i++)
            FSDP_TRY(write_value(c->f, &probes[i], probes[i].value, err));
    }
    return FSDP_OK;
}

int gradcheck_run(struct gradcheck_row *rows, struct fsdp *f, const struct fsdp_module_tree *tree,
                  int ndirections, uint64_t seed, gradcheck_pass_f *pass, void *ctx,
                  struct fsdp_err *err)
{
    const int nparams = fsdp_param_count(tree);
    struct check c = {.f = f, .pass = pass, .ctx = ctx, .random = seed * 2 + 1};
    struct probe *probes;
    int rc = FSDP_OK;

    if (ndirections < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "%d directions: at least one is needed", ndirections);
    if (!(probes = fsdp_alloc((size_t)nparams, sizeof *probes, "gradient check", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < nparams; i++) {
        FSDP_TRY_GOTO(probe_open(&probes[i], tree, i, err), out);
        FSDP_TRY_GOTO(read_value(f, &probes[i], err), out);
    }
    FSDP_TRY_GOTO(take_gradients(&c, probes, nparams, err), out);
    for (int i = 0; i < nparams; i++)
        FSDP_TRY_GOTO(check_param(&c, &probes[i], ndirections, &rows[i], err), out);
out:
    for (int i = 0; i < nparams; i++)
        probe_close(&probes[i]);
    fsdp_free(probes);
    return rc;
}
