/* SPDX-License-Identifier: Apache-2.0 */
/*
 * activations.h: what modules keep for their backward passes, in host memory between the two. The
 * modules directly inside the root, each with those inside it, take turns in places on the device
 * (sched_place_acts), where they compute.
 */
#ifndef CORE_ACTIVATIONS_H
#define CORE_ACTIVATIONS_H

#include "core/engine.h"

/* What a module keeps, from its place to the host, and back. Enqueue. */
int acts_offload(struct fsdp *f, int module, struct fsdp_lane *lane, struct fsdp_err *err);
int acts_reload(struct fsdp *f, int module, struct fsdp_lane *lane, struct fsdp_err *err);

#endif
