/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: all memory of a rank, planned and taken once; and activation checkpointing, which
 * decides part of it. */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include "core/engine.h"

/* Decides which modules are recomputed, and how much of them. FSDP_EINVAL for a pattern that names
 * none. */
int checkpointing_create(struct fsdp *f, struct fsdp_err *err);
/* Then, which modules' activations are offloaded, and where. FSDP_EUNSUPPORTED where the whole
 * model is recomputed at once. */
int acts_plan(struct fsdp *f, struct fsdp_err *err);
/* Has the module, or the one around it, a place? */
bool acts_in_place(const struct fsdp *f, int module);
/* Plans all memory: the rows. Local. */
int arena_plan(struct fsdp *f, struct fsdp_err *err);
/* Is a row memory of the device; and bytes of all that are. */
bool arena_counts(const struct fsdp *f, int row);
uint64_t arena_nbytes(const struct fsdp *f);
/* Allocates the device's part of it, unless it is over the limit, and what is offloaded.
 * offload_dir as in fsdp_opts. Local. */
int arena_create(struct fsdp *f, const char *offload_dir, struct fsdp_err *err);
/* Allocates what the communicators move. Collective. */
int arena_register(struct fsdp *f, struct fsdp_err *err);
/* After that has succeeded on all ranks: registers what reductions move with every communicator
 * that reduces. Collective. */
int arena_share(struct fsdp *f, struct fsdp_err *err);
void arena_destroy(struct fsdp *f);

#endif
