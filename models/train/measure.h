/* SPDX-License-Identifier: Apache-2.0 */
/* measure.h: what is measured of a step outside of its arithmetic. */
#ifndef TRAIN_MEASURE_H
#define TRAIN_MEASURE_H

#include "fsdp/fsdp.h"

/* Unix time. */
double train_wall_now(void);
/* Seconds that this rank has spent in collectives, as far as nothing was computed meanwhile. On the
 * CPU a lane runs its work at once, so that is all of them; on a GPU it is what fsdp_exposed_open
 * has measured. Local. */
double train_exposed_comm(const struct fsdp *fsdp);
/* Bytes of memory that are taken: of the GPU, or resident in this process. 0: not known. Local. */
double train_memory_used(const struct fsdp_device *device);

#endif
