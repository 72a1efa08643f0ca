/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: all that is decided before there is memory: units, schedule, sizes. */
#ifndef CORE_PLAN_H
#define CORE_PLAN_H

#include "core/engine.h"

/* Plans an engine of f->tree, f->opts, f->device and f->mesh. Local. */
int plan_make(struct fsdp *f, struct fsdp_err *err);
/* What ranks must agree on, as text, which the caller frees (free). */
int plan_text(char **out, struct fsdp *f, struct fsdp_err *err);
/* Forgets what was borrowed for the call that made the engine. */
void plan_forget_borrowed(struct fsdp *f);

#endif
