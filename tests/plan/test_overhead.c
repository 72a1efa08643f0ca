/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank takes outside its plan. */
#include <string.h>

#include "plan/overhead.h"
#include "tap.h"

static int communicators(struct fsdp_mesh_shape shape)
{
    struct plan_overhead rows[4];
    const int n = plan_overhead(rows, 4, shape);
    return n == 3 ? (int)(rows[2].nbytes >> 20) / 384 : n == 2 ? 0 : -1;
}

int main(void)
{
    const struct fsdp_mesh_shape one = {1, 1, 0, 0, 0}, full = {8, 1, 0, 0, 0},
                                 hybrid = {8, 4, 0, 0, 0}, levels = {64, 1, 0, 8, 0},
                                 ddp = {1, 8, 0, 0, 0};
    struct plan_overhead rows[4];

    ok(plan_overhead(rows, 1, full) == 3 && rows[0].nbytes == 64 << 20 &&
           !strcmp(rows[0].origin, "in the code"),
       "no more rows are written than asked for");
    ok(communicators(one) == 0, "one rank has no communicator of NCCL");
    ok(communicators(full) == 3, "FULL_SHARD: all ranks, gathers, reductions");
    ok(communicators(hybrid) == 4, "HYBRID_SHARD: between replicas, too");
    ok(communicators(levels) == 5, "two levels: gathers and reductions over the nodes, too");
    ok(communicators(ddp) == 2, "NO_SHARD: all ranks, replicas");
    ok(plan_overhead(rows, 4, full) == 3 && strstr(rows[2].origin, "assumed"),
       "what is assumed says so");
    return tap_done();
}
