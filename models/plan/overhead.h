/* SPDX-License-Identifier: Apache-2.0 */
/* overhead.h: device memory that a rank takes outside the plan of its engine. Pure. */
#ifndef PLAN_OVERHEAD_H
#define PLAN_OVERHEAD_H

#include "fsdp/mesh.h"

/* origin: where the number is from, "in the code", "measured on ...", "assumed". Both static. */
struct plan_overhead {
    const char *what;
    uint64_t nbytes;
    const char *origin;
};
/* Of a rank on a GPU in a mesh of this shape; returns the count, writes at most max. */
int plan_overhead(struct plan_overhead *rows, int max, struct fsdp_mesh_shape shape);

#endif
