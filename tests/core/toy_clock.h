/* SPDX-License-Identifier: Apache-2.0 */
/* toy_clock.h: a clock of round numbers. */
#ifndef TEST_TOY_CLOCK_H
#define TEST_TOY_CLOCK_H

#include "fsdp/clock.h"

/* 100 TFLOP/s, 1000 GB/s of memory, 25 GB/s of links, 10 us a collective; nothing slows compute. */
static inline struct fsdp_clock toy_clock(double ntokens)
{
    return (struct fsdp_clock){.device = {.name = "toy",
                                          .flops_16 = 1e14,
                                          .product_share = 1,
                                          .attention_share = 1,
                                          .memory_nbytes_per_s = 1e12,
                                          .memory_share = 1},
                               .net = {.node_nranks = 4,
                                       .node_nbytes_per_s = 25e9,
                                       .nic_nbytes_per_s = 25e9,
                                       .flat_share = 1,
                                       .rail_share = 1,
                                       .start_s = 1e-5,
                                       .host_nbytes_per_s = 25e9},
                               .ntokens = ntokens};
}

#endif
