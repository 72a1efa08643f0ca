/* SPDX-License-Identifier: Apache-2.0 */
/* The device's side of the clock: a roofline for each piece of work. */
#include <math.h>

#include "rates.h"

static double flops_peak(const struct fsdp_device_clock *d, enum fsdp_dtype type)
{
    switch (type) {
    case FSDP_F8_E4M3:
    case FSDP_F8_E5M2:
        return d->flops_8 > 0 ? d->flops_8 : d->flops_16;
    case FSDP_BF16:
    case FSDP_F16:
        return d->flops_16 > 0 ? d->flops_16 : d->flops_32;
    default:
        return d->flops_32 > 0 ? d->flops_32 : d->flops_16;
    }
}

static bool is_8(enum fsdp_dtype type)
{
    return type == FSDP_F8_E4M3 || type == FSDP_F8_E5M2;
}

/* Causal or not, k is how many keys a query sees: scores, and their products with the values. */
double fsdp_work_flops(const struct fsdp_work *w)
{
    switch (w->kind) {
    case FSDP_WORK_PRODUCT:
        return 2 * w->m * w->n * w->k;
    case FSDP_WORK_ATTENTION:
        return (w->gradient ? 10 : 4) * w->m * w->n * w->k;
    default:
        return 0;
    }
}

const char *fsdp_pass_name(enum fsdp_pass pass)
{
    static const char *const names[FSDP_NPASSES] = {"copy", "branch",  "activation",
                                                    "loss", "squares", "update"};
    return names[pass];
}

double fsdp_pass_seconds(const struct fsdp_device_clock *d, enum fsdp_pass pass, bool gradient,
                         enum fsdp_dtype type, double nbytes)
{
    const double measured = rates_pass(&d->copies, pass, gradient, type, nbytes);
    const double rate = measured > 0 ? measured : d->memory_nbytes_per_s * d->memory_share;
    return rate > 0 ? nbytes / rate : 0;
}

double fsdp_touch_seconds(const struct fsdp_device_clock *d, double nbytes)
{
    return fsdp_pass_seconds(d, FSDP_PASS_COPY, false, FSDP_F32, nbytes);
}

/* A product is bound by arithmetic or by memory. The share of the peak falls where a dimension is
 * small. */
static double product_seconds(const struct fsdp_device_clock *d, const struct fsdp_work *w)
{
    const double flops = fsdp_work_flops(w), half = d->product_half;
    const double measured = rates_at(&d->products, w->type, w->m, w->n, w->k);
    const double elem = (double)fsdp_dtype_nbytes(w->type);
    const double nbytes = elem * (w->m * w->k + w->k * w->n + w->m * w->n);

    if (!(w->m > 0 && w->n > 0 && w->k > 0))
        return 0;
    if (measured > 0)
        return flops / measured;
    const double share = is_8(w->type) && d->flops_8 > 0 && d->product_share_8 > 0
                             ? d->product_share_8
                             : d->product_share;
    const double shape = (1 + half / w->m) * (1 + half / w->n) * (1 + half / w->k);
    const double rate = flops_peak(d, w->type) * share / shape;
    const double arithmetic = rate > 0 ? flops / rate : 0;
    const double memory = fsdp_touch_seconds(d, nbytes);
    return arithmetic > memory ? arithmetic : memory;
}

/* 10 FLOP where forward has 4: the scores again, and four products of gradients. */
static double attention_seconds(const struct fsdp_device_clock *d, const struct fsdp_work *w)
{
    const double size = w->heads > 0 ? w->n / w->heads : w->n;
    const double measured = rates_attention(&d->attention, w->type, w->k, size, w->gradient);
    const double flops = fsdp_work_flops(w);
    const double scores = w->heads * w->m * w->k * d->score_nbytes;
    double rate = flops_peak(d, w->type) * d->attention_share;

    if (measured > 0)
        return flops / measured;
    if (w->gradient && d->attention_gradient > 0)
        rate /= d->attention_gradient;
    return (rate > 0 ? flops / rate : 0) + (w->gradient ? 2 : 1) * fsdp_touch_seconds(d, scores);
}

double fsdp_work_seconds(const struct fsdp_device_clock *d, const struct fsdp_work *w)
{
    const double pointwise = d->pointwise > 0 ? d->pointwise : 1;
    double each = 0;

    switch (w->kind) {
    case FSDP_WORK_PRODUCT:
        each = product_seconds(d, w);
        break;
    case FSDP_WORK_ATTENTION:
        each = attention_seconds(d, w);
        break;
    default:
        each = fsdp_pass_seconds(d, w->pass, w->gradient, w->type, w->nbytes * pointwise);
        break;
    }
    return w->times * each;
}

int fsdp_clock_check(const struct fsdp_clock *c, struct fsdp_err *err)
{
    const struct {
        const char *what;
        double value;
        bool above; /* 0 is not allowed */
    } numbers[] = {
        {"peak of products", c->device.flops_16 + c->device.flops_32, true},
        {"share of that peak", c->device.product_share, true},
        {"share of it in attention", c->device.attention_share, true},
        {"memory bandwidth", c->device.memory_nbytes_per_s, true},
        {"share of the memory bandwidth", c->device.memory_share, true},
        {"time of a step", c->device.step_s, false},
        {"bandwidth inside a node", c->net.node_nbytes_per_s, true},
        {"bandwidth of a network card", c->net.nic_nbytes_per_s, true},
        {"share of flat rings", c->net.flat_share, true},
        {"fall of that share", c->net.flat_fall, false},
        {"share of rails", c->net.rail_share, true},
        {"bandwidth between host and device", c->net.host_nbytes_per_s, true},
        {"bandwidth of the host's memory", c->net.host_memory_nbytes_per_s, false},
        {"latency", c->net.start_s, false},
        {"latency of a hop inside a node", c->net.node_hop_s, false},
        {"latency of a hop between nodes", c->net.net_hop_s, false},
        {"contention", c->net.contention, false},
        {"ranks of a node", c->net.node_nranks, true},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!(numbers[i].value >= 0) || !isfinite(numbers[i].value) ||
            (numbers[i].above && !(numbers[i].value > 0)))
            return fsdp_err_set(err, FSDP_EINVAL, "a clock whose %s is %g: it must be %s",
                                numbers[i].what, numbers[i].value,
                                numbers[i].above ? "above 0" : "0 or more");
    return FSDP_OK;
}
