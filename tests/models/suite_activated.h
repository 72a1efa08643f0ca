/* SPDX-License-Identifier: Apache-2.0 */
/* suite_activated.h: products that give activations, or multiply with their slopes, against the
 * operators that follow a product. On a device, whose memory nn_mirror.h fills. */
#ifndef SUITE_ACTIVATED_H
#define SUITE_ACTIVATED_H

#include "nn_mirror.h"
#include "suite_nn_dtypes.h"

enum { LT_ROWS = 37, LT_NIN = 72, LT_NOUT = 136 };

/* A real library may have no algorithm. */
static bool activated_may_lack;

typedef int activated_f(struct fsdp_lane *, const struct nn_activated *, bool *, struct fsdp_err *);

/* Runs it on the device's copies of what it reads and writes; *done as it says. */
static int run_activated(activated_f *fn, struct nn_activated a, bool is_forward, bool *done)
{
    struct nn_linear *m = &a.map;
    const int width = is_forward ? m->nout : m->nin;

    m->x = mirror_up(m->x, mirror_nbytes(area(m->rows, m->nin), m->dtype), false);
    m->w = mirror_up(m->w, mirror_nbytes(w_nelem(m), m->w_dtype), false);
    m->b = mirror_up(m->b, mirror_nbytes((size_t)m->nout, m->w_dtype), false);
    m->dy = mirror_up(m->dy, mirror_nbytes(area(m->rows, m->nout), m->dtype), false);
    m->out = mirror_up(m->out, mirror_nbytes(area(m->rows, width), m->dtype), true);
    a.pre = mirror_up(a.pre, mirror_nbytes(area(m->rows, width), m->dtype), true);
    return mirror_down(fn(mirror.lane, &a, done, &err));
}

static struct nn_linear lt_map(int rows, int nin, int nout, int ldw, enum fsdp_dtype dtype)
{
    struct nn_linear a = {.rows = rows, .nin = nin, .nout = nout, .ldw = ldw};
    a.dtype = a.y_dtype = a.w_dtype = a.dw_dtype = dtype;
    return a;
}

static void check_activated(int rc, bool done, const char *what, const struct pair *out, int nout)
{
    if (!rc && !done && activated_may_lack)
        tap_skip("%s %s: the library has no algorithm", fsdp_dtype_name(type), what);
    else
        check(rc || !done, what, out, nout);
}

static void test_activated_forward(int rows, int ldw, bool biased)
{
    struct pair x = pair((size_t)rows * LT_NIN, 1), w = pair((size_t)LT_NIN * (size_t)ldw, 1);
    struct pair b = pair(LT_NOUT, 1), pre = pair((size_t)rows * LT_NOUT, 9), y = pair(pre.nelem, 9);
    struct pair out[2] = {pre, y};
    struct nn_activated a = {lt_map(rows, LT_NIN, LT_NOUT, ldw, type), pre.narrow, NN_GELU_TANH};
    struct nn_linear wide = lt_map(rows, LT_NIN, LT_NOUT, ldw, FSDP_F32);
    bool done = false;

    a.map.x = x.narrow, a.map.w = w.narrow, a.map.b = biased ? b.narrow : NULL;
    a.map.out = y.narrow;
    wide.x = x.wide, wide.w = w.wide, wide.b = biased ? b.wide : NULL, wide.out = pre.wide;
    int rc = run_activated(mirror.ops->activated_forward, a, true, &done);
    rc |= nn->linear_forward(ref_lane(), &wide, &err);
    const struct nn_pointwise act = {y.wide, pre.wide, pre.nelem, NN_GELU_TANH, FSDP_F32};
    rc |= nn->pointwise_forward(ref_lane(), &act, &err);
    check_activated(rc, done, "activation behind a product", out, 2);
    drop(x), drop(w), drop(b), drop(pre), drop(y);
}

static void test_activated_input(int rows, int ldw)
{
    struct pair dy = pair((size_t)rows * LT_NOUT, 1), w = pair((size_t)LT_NIN * (size_t)ldw, 1);
    struct pair pre = pair((size_t)rows * LT_NIN, 2), dx = pair(pre.nelem, 9);
    struct nn_activated a = {lt_map(rows, LT_NIN, LT_NOUT, ldw, type), pre.narrow, NN_GELU_TANH};
    struct nn_linear wide = lt_map(rows, LT_NIN, LT_NOUT, ldw, FSDP_F32);
    float *slope = malloc(pre.nelem * sizeof *slope);
    uint16_t *old = malloc(pre.nelem * 2);
    bool done = false;

    memcpy(old, pre.narrow, pre.nelem * 2);
    memcpy(slope, pre.wide, pre.nelem * sizeof *slope);
    a.map.dy = dy.narrow, a.map.w = w.narrow, a.map.out = dx.narrow;
    wide.dy = dy.wide, wide.w = w.wide, wide.out = dx.wide;
    int rc = run_activated(mirror.ops->activated_backward_input, a, false, &done);
    rc |= nn->linear_backward_input(ref_lane(), &wide, &err);
    struct nn_pointwise act = {dx.wide, slope, pre.nelem, NN_GELU_TANH, FSDP_F32};
    rc |= nn->pointwise_backward(ref_lane(), &act, &err); /* slope: the gradient */
    memcpy(dx.wide, slope, pre.nelem * sizeof *slope);
    check_activated(rc | (memcmp(old, pre.narrow, pre.nelem * 2) != 0), done,
                    "slope of an activation behind a product", &dx, 1);
    drop(dy), drop(w), drop(pre), drop(dx), free(slope), free(old);
}

/* Of `type`, with rows of weights side by side and apart. */
static void run_activations(void)
{
    test_activated_forward(LT_ROWS, LT_NOUT, true);
    test_activated_forward(8, LT_NOUT + 16, false);
    test_activated_input(LT_ROWS, LT_NOUT);
    test_activated_input(8, LT_NOUT + 16);
}

#endif
