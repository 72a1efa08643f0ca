/* SPDX-License-Identifier: Apache-2.0 */
/* suite.h: what is under test: the CPU's operators and a lane of it, unless the test sets others.
 */
#ifndef SUITE_H
#define SUITE_H

#include "nn_ref.h"

static const struct nn_ops *nn = &nn_cpu_ops;
static struct fsdp_lane *suite_lane;
static struct fsdp_err err = FSDP_ERR_INIT;

/* A product of F32 with a 16-bit type, whose F32 part a backend may take as the sum of two 16-bit
 * numbers, is allowed this much more than others. */
static double suite_mixed_slack __attribute__((unused)) = 1;
/* Tensor cores cut what they add, and so miss half a unit in the last place by a little. */
static double suite_unit_slack __attribute__((unused)) = 1;
/* A bias is added to alpha AB + beta C after that was rounded. */
static bool suite_bias_apart __attribute__((unused)) = false;
/* Of attention in 16-bit types. Beyond 1: probabilities are rounded to them before their product
 * with v, as libraries do, so that outputs are held to this many times the gradients' bound. */
static double suite_bf16_attention_slack __attribute__((unused)) = 1;
static double suite_f16_attention_slack __attribute__((unused)) = 1;

static inline struct fsdp_lane *ref_lane(void)
{
    struct fsdp_device *device;
    if (!suite_lane && (fsdp_device_open(&device, "cpu", 0, NULL) ||
                        fsdp_lane_create(&suite_lane, device, "compute", NULL)))
        abort();
    return suite_lane;
}

#endif
