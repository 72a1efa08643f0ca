/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled and capped logits, and their cross-entropy, against fp64. */
#ifndef SUITE_LOGITS_H
#define SUITE_LOGITS_H

#include "suite.h"

static double logit_step(double x, double scale, double cap)
{
    const double z = (scale == 0 ? 1 : scale) * x;
    return cap == 0 ? z : cap * tanh(z / cap);
}

static double row_loss(const double *x, int vocab, int target, double scale, double cap)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < vocab; i++)
        most = fmax(most, logit_step(x[i], scale, cap));
    for (int i = 0; i < vocab; i++)
        sum += exp(logit_step(x[i], scale, cap) - most);
    return log(sum) + most - logit_step(x[target], scale, cap);
}

/* Gradients of a row's loss: by differences of the loss, or of a long row by its formula. */
static void row_gradients(double *grad, double *x, int vocab, int target, double scale, double cap)
{
    const double h = 1e-5, loss = row_loss(x, vocab, target, scale, cap);
    const double z_target = logit_step(x[target], scale, cap);
    for (int i = 0; i < vocab; i++) {
        const double was = x[i], z = logit_step(was, scale, cap);
        const double up = logit_step(was + h, scale, cap), down = logit_step(was - h, scale, cap);
        if (vocab > 300) {
            grad[i] = (exp(z - z_target - loss) - (i == target)) * (up - down) / (2 * h);
            continue;
        }
        x[i] = was + h;
        grad[i] = row_loss(x, vocab, target, scale, cap);
        x[i] = was - h;
        grad[i] -= row_loss(x, vocab, target, scale, cap);
        grad[i] /= 2 * h;
        x[i] = was;
    }
}

struct entropy_case {
    int rows, vocab;
    double spread;
    float logit_scale, softcap;
    bool loss_only;
};

static void test_cross_entropy(struct entropy_case c)
{
    const size_t n = (size_t)c.rows * c.vocab;
    const double scale = 1.0 / 77;
    const float loss_scale = 1024; /* of fp16, next to the model's own */
    float *logits = ref_values(n, c.spread);
    double *want = ref_wide(n), *x = ref_wide((size_t)c.vocab), loss = 0.25, expected = loss;
    int32_t *targets = malloc((size_t)c.rows * sizeof *targets);

    for (int r = 0; r < c.rows; r++) {
        double *grad = want + (size_t)r * c.vocab;
        targets[r] = r == 0 ? c.vocab - 1 : r % 3 == 1 ? -100 : (r * 5) % c.vocab;
        if (targets[r] < 0) /* not counted: no loss, no gradient */
            continue;
        for (int i = 0; i < c.vocab; i++)
            x[i] = logits[(size_t)r * c.vocab + i];
        expected += row_loss(x, c.vocab, targets[r], c.logit_scale, c.softcap);
        row_gradients(grad, x, c.vocab, targets[r], c.logit_scale, c.softcap);
        for (int i = 0; i < c.vocab; i++)
            grad[i] *= 1024 * scale;
    }
    struct nn_cross_entropy a = {.logits = logits,
                                 .targets = targets,
                                 .loss_sum = &loss,
                                 .rows = c.rows,
                                 .vocab = c.vocab,
                                 .scale = (float)scale,
                                 .logit_scale = c.logit_scale,
                                 .softcap = c.softcap,
                                 .loss_scale = &loss_scale,
                                 .grad = !c.loss_only};
    int rc = nn->cross_entropy(ref_lane(), &a, &err);
    double error = c.loss_only ? 0 : ref_error(logits, want, n);
    /* A cap makes logits, and so exponents, from values near 1. */
    const double bound = c.softcap == 0.0f ? 3e-7 : 1e-6;
    ok(!rc && fabs(loss - expected) < 1e-7 * fabs(expected) && error < bound,
       "cross entropy %d x %d, spread %g, scale %g, cap %g%s: %.10g, off by %.1e; gradient %.1e",
       c.rows, c.vocab, c.spread, c.logit_scale, c.softcap, c.loss_only ? ", loss only" : "", loss,
       loss - expected, error);
    free(logits), free(want), free(x), free(targets);
}

static void test_logits(size_t n, double spread, float scale, float cap)
{
    float *x = ref_values(n, spread);
    double *want = ref_wide(n);

    for (size_t i = 0; i < n; i++)
        want[i] = logit_step(x[i], scale, cap);
    struct nn_logits a = {.logits = x, .nelem = n, .logit_scale = scale, .softcap = cap};
    int rc = nn->logits(ref_lane(), &a, &err);
    ok(!rc && ref_error(x, want, n) < 2e-7, "%zu logits, spread %g, scale %g, cap %g: %.1e", n,
       spread, scale, cap, ref_error(x, want, n));
    free(x), free(want);
}

static void run_logits(void)
{
    test_cross_entropy((struct entropy_case){7, 256, 3, .softcap = 0});
    test_cross_entropy((struct entropy_case){5, 2053, 30, .softcap = 0});
    test_cross_entropy((struct entropy_case){3, 3, 80, .softcap = 0});
    test_cross_entropy((struct entropy_case){9, 1031, 3, .loss_only = true});
    test_cross_entropy((struct entropy_case){600, 67, 3, .softcap = 0});
    test_cross_entropy((struct entropy_case){7, 256, 3, .logit_scale = 0.125f});
    test_cross_entropy((struct entropy_case){5, 2053, 40, .softcap = 30});
    test_cross_entropy((struct entropy_case){3, 131, 9, .softcap = 5});
    test_cross_entropy((struct entropy_case){6, 67, 9, .logit_scale = 0.7f, .softcap = 4});
    test_cross_entropy((struct entropy_case){9, 1031, 50, 0.7f, 30, .loss_only = true});
    test_cross_entropy((struct entropy_case){600, 67, 3, .softcap = 2});
    test_logits(1021, 40, 0, 30);
    test_logits(3, 1, 0.0625f, 0);
    test_logits(40009, 200, 0.5f, 30);
    test_logits(5, 1, 0, 0);
}

#endif
