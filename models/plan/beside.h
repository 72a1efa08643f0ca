/* SPDX-License-Identifier: Apache-2.0 */
/* beside.h: device memory that a rank takes beside the plan of its engine. Pure. */
#ifndef PLAN_BESIDE_H
#define PLAN_BESIDE_H

#include "fsdp/mesh.h"

/* origin: where the number is from, "in the code", "measured on ...", "assumed". Both static. */
struct plan_beside {
    const char *what;
    uint64_t nbytes;
    const char *origin;
};
/* Of a rank on a GPU in a mesh of this shape; returns the count, writes at most max. */
int plan_beside(struct plan_beside *rows, int max, struct fsdp_mesh_shape shape);

#endif
