/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that pass over memory: the model's between its products, the engine's, and copies. */
#include <math.h>

#include "sweep.h"

enum { NBUFFERS = 6 };

/* Buffers of fp32 or 16 bits; each kernel takes what it needs of them. */
struct pass {
    enum fsdp_pass pass;
    bool backward;
    enum fsdp_dtype type;
    size_t nelem;  /* of each buffer */
    int rows, dim; /* dim: of a row */
    void *buffer[NBUFFERS];
    float *rstd;
    int32_t *targets;
    double *sum;
    int64_t nsteps;
};

static int run_norm(struct sweep *s, const struct pass *p, struct fsdp_err *err)
{
    const struct nn_rmsnorm forward = {.y = p->buffer[1],
                                       .rstd = p->rstd,
                                       .x_copy = p->buffer[2],
                                       .x = p->buffer[0],
                                       .w = p->buffer[3],
                                       .rows = p->rows,
                                       .dim = p->dim,
                                       .eps = 1e-5f,
                                       .dtype = p->type,
                                       .w_dtype = p->type};
    const struct nn_rmsnorm_backward backward = {.dy = p->buffer[1],
                                                 .dx = p->buffer[2],
                                                 .dw = p->buffer[4],
                                                 .x = p->buffer[0],
                                                 .w = p->buffer[3],
                                                 .rstd = p->rstd,
                                                 .rows = p->rows,
                                                 .dim = p->dim,
                                                 .dx_beta = 1,
                                                 .dtype = p->type,
                                                 .w_dtype = p->type,
                                                 .dw_dtype = p->type};
    return p->backward ? s->nn->rmsnorm_backward(s->lane, &backward, err)
                       : s->nn->rmsnorm_forward(s->lane, &forward, err);
}

static int run_activation(struct sweep *s, const struct pass *p, struct fsdp_err *err)
{
    const struct nn_glu glu = {.y = p->buffer[2],
                               .gate = p->buffer[0],
                               .up = p->buffer[1],
                               .nelem = p->nelem,
                               .act = NN_SILU,
                               .dtype = p->type};
    return p->backward ? s->nn->glu_backward(s->lane, &glu, err)
                       : s->nn->glu_forward(s->lane, &glu, err);
}

static int run_loss(struct sweep *s, const struct pass *p, struct fsdp_err *err)
{
    const struct nn_cross_entropy loss = {.logits = p->buffer[0],
                                          .targets = p->targets,
                                          .loss_sum = p->sum,
                                          .rows = p->rows,
                                          .vocab = p->dim,
                                          .scale = 1,
                                          .grad = true,
                                          .dtype = p->type};
    return s->nn->cross_entropy(s->lane, &loss, err);
}

static int run_pass(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct pass *p = ctx;

    switch (p->pass) {
    case FSDP_PASS_BRANCH:
        return run_norm(s, p, err);
    case FSDP_PASS_ACTIVATION:
        return run_activation(s, p, err);
    case FSDP_PASS_LOSS:
        return run_loss(s, p, err);
    case FSDP_PASS_SQUARES:
        return fsdp_sumsq(s->lane, p->sum, p->buffer[0], p->nelem, err);
    case FSDP_PASS_UPDATE:
        return sweep_update(s->lane, p->buffer, p->nelem, call + 1, err);
    default:
        return fsdp_copy(s->lane, p->buffer[call % 2 ? 3 : 1], p->buffer[call % 2 ? 2 : 0],
                         p->nelem * fsdp_dtype_nbytes(p->type), err);
    }
}

static void pass_free(struct sweep *s, struct pass *p)
{
    for (int i = 0; i < NBUFFERS; i++)
        fsdp_device_free(s->opts->device, p->buffer[i]);
    fsdp_device_free(s->opts->device, p->rstd);
    fsdp_device_free(s->opts->device, p->targets);
    fsdp_device_free(s->opts->device, p->sum);
}

static int pass_make(struct pass *p, struct sweep *s, struct fsdp_err *err)
{
    struct fsdp_device *device = s->opts->device;
    const size_t elem = fsdp_dtype_nbytes(p->type), most = s->pool_nelem;

    for (int i = 0; i < NBUFFERS; i++) {
        char *to = p->buffer[i] =
            fsdp_device_alloc(device, p->nelem * elem, "sweep of passes", err);
        if (!to)
            return FSDP_ENOMEM;
        for (size_t at = 0; at < p->nelem && i != 1 && i != 2; at += most) {
            const size_t part = p->nelem - at < most ? p->nelem - at : most;
            FSDP_TRY(fsdp_copy(s->lane, to + at * elem, sweep_values(s, p->type, part, i),
                               part * elem, err));
        }
    }
    p->rstd = fsdp_device_alloc(device, (size_t)p->rows * sizeof(float), "sweep of passes", err);
    p->targets =
        fsdp_device_alloc(device, (size_t)p->rows * sizeof(int32_t), "sweep of passes", err);
    p->sum = fsdp_device_alloc(device, sizeof(double), "sweep of passes", err);
    if (!p->rstd || !p->targets || !p->sum)
        return FSDP_ENOMEM;
    return fsdp_lane_sync(s->lane, err);
}

/* nbytes: as the clock counts the pass, which the rate refers to. */
static int time_pass(struct sweep *s, struct pass p, double nbytes, struct fsdp_err *err)
{
    double seconds;

    p.rows = p.rows > 0 ? p.rows : 1;
    int rc = fsdp_oob_agree(s->opts->oob, pass_make(&p, s, err), err);
    if (rc == FSDP_OK)
        rc = sweep_time(&seconds, s, run_pass, &p, err);
    pass_free(s, &p);
    FSDP_TRY(rc);
    const struct fsdp_rate rate = {p.type, nbytes, p.pass, p.backward + 1.0,
                                   seconds > 0 ? nbytes / seconds : 0};
    if (p.pass == FSDP_PASS_COPY)
        s->out->memory_nbytes_per_s = rate.per_s; /* the largest stands last */
    return sweep_add_rate(&s->out->copies, &s->out->ncopies, &s->out->max_copies, rate, err);
}

/* What one element of a pass's arrays stands for in its bytes, as plan/work.c counts them. */
static double nbytes_of_element(enum fsdp_pass pass, double elem)
{
    switch (pass) {
    case FSDP_PASS_BRANCH:
        return 5 * elem;
    case FSDP_PASS_ACTIVATION:
        return 6 * elem;
    case FSDP_PASS_LOSS:
        return 7 * elem;
    case FSDP_PASS_SQUARES:
        return sizeof(float);
    case FSDP_PASS_UPDATE:
        return SWEEP_UPDATE_NBYTES;
    default:
        return 2 * elem;
    }
}

/* Backward has 1.6 times the bytes (PLAN_BACKWARD_BYTES); a loss has its gradient in it. */
static int time_size(struct sweep *s, enum fsdp_pass pass, enum fsdp_dtype type, double nelem,
                     int dim, struct fsdp_err *err)
{
    const double each = nbytes_of_element(pass, (double)fsdp_dtype_nbytes(type));
    const bool two = pass == FSDP_PASS_BRANCH || pass == FSDP_PASS_ACTIVATION;
    const int rows = (int)(nelem / dim) > 0 ? (int)(nelem / dim) : 1;
    struct pass p = {
        .pass = pass, .type = type, .nelem = (size_t)rows * (size_t)dim, .rows = rows, .dim = dim};

    FSDP_TRY(time_pass(s, p, (double)p.nelem * each, err));
    p.backward = true;
    return two ? time_pass(s, p, (double)p.nelem * each * 1.6, err) : FSDP_OK;
}

int sweep_passes(struct sweep *s, struct fsdp_err *err)
{
    static const enum fsdp_pass fp32[] = {FSDP_PASS_SQUARES, FSDP_PASS_UPDATE, FSDP_PASS_COPY};
    const struct measure_shapes *shapes = s->opts->shapes;
    const bool host = fsdp_device_is_host(s->opts->device);
    const int dim = shapes && shapes->dim > 0 ? shapes->dim : 512;
    const int vocab = shapes && shapes->vocab > 0 ? shapes->vocab : 4096;
    const double least = host ? 1 << 12 : 1 << 16,
                 most = host ? 1 << 22 : (double)(s->largest_nbytes / sizeof(float));
    bool late;

    sweep_say(s, "passes over memory");
    for (int i = 0; shapes && i < shapes->npass; i++) {
        const struct measure_pass *m = &shapes->pass[i];
        const double each = nbytes_of_element(m->pass, (double)fsdp_dtype_nbytes(m->type));
        FSDP_TRY(time_size(s, m->pass, m->type, m->nbytes / each,
                           m->pass == FSDP_PASS_LOSS ? vocab : dim, err));
    }
    for (double n = least; n <= most; n *= 4) {
        FSDP_TRY(sweep_is_late(&late, s, err));
        if (late && s->out->memory_nbytes_per_s > 0)
            return FSDP_OK;
        for (int i = 0; i < 3; i++)
            FSDP_TRY(time_size(s, fp32[i], FSDP_F32, n, 128, err));
        if (s->opts->no_grid)
            continue;
        FSDP_TRY(time_size(s, FSDP_PASS_BRANCH, s->opts->type, n, dim, err));
        FSDP_TRY(time_size(s, FSDP_PASS_ACTIVATION, s->opts->type, n, dim, err));
        FSDP_TRY(time_size(s, FSDP_PASS_LOSS, s->opts->type, n, vocab, err));
    }
    return FSDP_OK;
}
