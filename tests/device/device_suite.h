/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_suite.h: what every device must do: arithmetic against fp64 references, lanes, events,
 * initial values. A program runs it for a backend with run_arithmetic and test_lanes.
 */
#ifndef DEVICE_SUITE_H
#define DEVICE_SUITE_H

#include "suite_adamw8bit.h"
#include "suite_lanes.h"
#include "suite_math.h"
#include "suite_optim.h"
#include "suite_whole.h"

static void run_arithmetic(struct fsdp_lane *lane)
{
    test_adamw(lane);
    test_narrow_adamw(lane);
    test_bare_adamw(lane);
    test_narrow_grads(lane);
    test_by_chance(lane);
    test_norm(lane);
    test_norm_inf(lane);
    test_sgd(lane);
    test_adam(lane);
    test_lion(lane);
    test_adamw8bit(lane);
    test_dynamic_codes(lane);
    test_adafactor(lane);
    test_muon(lane);
    test_schedulefree(lane);
    test_ema(lane);
    test_loss_scale(lane);
    test_casts(lane);
    test_quantize(lane);
    test_nf4(lane);
    test_nf4_pieces(lane);
    test_pieces(lane);
    test_init(lane);
    test_odd_ranges(lane);
}

#endif
