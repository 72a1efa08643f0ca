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

struct entropy_case {
    int rows, vocab;
    double spread;
    float logit_scale, softcap;
    float smoothing, z_loss;
    bool loss_only, weighted;
};

/* lse: log sum exp z, may be NULL. */
static double row_loss(double *lse, const double *x, int target, const struct entropy_case *c)
{
    double most = -INFINITY, sum = 0, mean = 0;
    for (int i = 0; i < c->vocab; i++)
        most = fmax(most, logit_step(x[i], c->logit_scale, c->softcap));
    for (int i = 0; i < c->vocab; i++) {
        sum += exp(logit_step(x[i], c->logit_scale, c->softcap) - most);
        mean += logit_step(x[i], c->logit_scale, c->softcap) / c->vocab;
    }
    const double all = log(sum) + most, z = logit_step(x[target], c->logit_scale, c->softcap);
    if (lse)
        *lse = all;
    return (1 - c->smoothing) * (all - z) + c->smoothing * (all - mean) + c->z_loss * all * all;
}

/* Gradients of a row's loss: by differences of the loss, or of a long row by its formula. */
static void row_gradients(double *grad, double *x, int target, const struct entropy_case *c)
{
    const double h = 1e-5, scale = c->logit_scale, cap = c->softcap, eps = c->smoothing;
    double lse;
    row_loss(&lse, x, target, c);
    for (int i = 0; i < c->vocab; i++) {
        const double was = x[i], z = logit_step(was, scale, cap);
        const double up = logit_step(was + h, scale, cap), down = logit_step(was - h, scale, cap);
        if (c->vocab > 300) {
            grad[i] = exp(z - lse) * (1 + 2 * c->z_loss * lse) - eps / c->vocab;
            grad[i] -= i == target ? 1 - eps : 0;
            grad[i] *= (up - down) / (2 * h);
            continue;
        }
        x[i] = was + h;
        grad[i] = row_loss(NULL, x, target, c);
        x[i] = was - h;
        grad[i] -= row_loss(NULL, x, target, c);
        grad[i] /= 2 * h;
        x[i] = was;
    }
}

static void test_cross_entropy(struct entropy_case c)
{
    const size_t n = (size_t)c.rows * c.vocab;
    const double scale = 1.0 / 77;
    const float loss_scale = 1024; /* of fp16, next to the model's own */
    float *logits = ref_values(n, c.spread);
    double *want = ref_wide(n), *x = ref_wide((size_t)c.vocab), loss = 0.25, expected = loss;
    double size = loss; /* of what is summed, whose signs differ where it is weighted */
    int32_t *targets = malloc((size_t)c.rows * sizeof *targets);
    float *weights = ref_values((size_t)c.rows, 2);

    for (int r = 0; r < c.rows; r++) {
        double *grad = want + (size_t)r * c.vocab;
        targets[r] = r == 0 ? c.vocab - 1 : r % 3 == 1 ? -100 : (r * 5) % c.vocab;
        if (targets[r] < 0) /* not counted: no loss, no gradient */
            continue;
        for (int i = 0; i < c.vocab; i++)
            x[i] = logits[(size_t)r * c.vocab + i];
        const double weight = c.weighted ? (double)weights[r] : 1;
        const double part = weight * row_loss(NULL, x, targets[r], &c);
        expected += part;
        size += fabs(part);
        row_gradients(grad, x, targets[r], &c);
        for (int i = 0; i < c.vocab; i++)
            grad[i] *= 1024 * scale * weight;
    }
    struct nn_cross_entropy a = {.logits = logits,
                                 .targets = targets,
                                 .loss_sum = &loss,
                                 .rows = c.rows,
                                 .vocab = c.vocab,
                                 .scale = (float)scale,
                                 .logit_scale = c.logit_scale,
                                 .softcap = c.softcap,
                                 .smoothing = c.smoothing,
                                 .z_loss = c.z_loss,
                                 .weights = c.weighted ? weights : NULL,
                                 .loss_scale = &loss_scale,
                                 .grad = !c.loss_only};
    int rc = nn->cross_entropy(ref_lane(), &a, &err);
    double error = c.loss_only ? 0 : ref_error(logits, want, n);
    /* A cap makes logits, and so exponents, from values near 1. */
    const double bound = c.softcap == 0.0f ? 3e-7 : 1e-6, loss_bound = bound / 3;
    char habits[96] = "";

    if (c.smoothing > 0 || c.z_loss > 0 || c.weighted)
        snprintf(habits, sizeof habits, ", smoothing %g, z-loss %g%s", c.smoothing, c.z_loss,
                 c.weighted ? ", weights" : "");
    ok(!rc && fabs(loss - expected) < loss_bound * size && error < bound,
       "cross entropy %d x %d, spread %g, scale %g, cap %g%s%s: %.10g, off by %.1e; gradient %.1e",
       c.rows, c.vocab, c.spread, c.logit_scale, c.softcap, habits,
       c.loss_only ? ", loss only" : "", loss, loss - expected, error);
    free(logits), free(want), free(x), free(targets), free(weights);
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
    test_cross_entropy((struct entropy_case){9, 1031, 50, 0.7f, 30, 0, 0, .loss_only = true});
    test_cross_entropy((struct entropy_case){600, 67, 3, .softcap = 2});
    test_cross_entropy((struct entropy_case){7, 256, 3, .smoothing = 0.1f});
    test_cross_entropy((struct entropy_case){5, 2053, 30, .z_loss = 1e-2f});
    test_cross_entropy((struct entropy_case){5, 131, 9, .weighted = true});
    test_cross_entropy((struct entropy_case){600, 67, 3, 0, 0, 0.2f, 1e-3f, .weighted = true});
    test_cross_entropy((struct entropy_case){5, 2053, 40, 0.7f, 30, 0.1f, 1e-3f, .weighted = true});
    test_cross_entropy(
        (struct entropy_case){9, 1031, 50, 0, 5, 0.3f, 1e-4f, .loss_only = true, .weighted = true});
    test_logits(1021, 40, 0, 30);
    test_logits(3, 1, 0.0625f, 0);
    test_logits(40009, 200, 0.5f, 30);
    test_logits(5, 1, 0, 0);
}

#endif
