/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: what a module sees between enter and leave (view.c). */
#ifndef CORE_VIEW_H
#define CORE_VIEW_H

#include "core/engine.h"

/* Where op leaves a unit's backward, zeroes the gradients that nobody asked to write, so that what
 * is reduced next is whole. Enqueues on the compute lane. */
int view_complete(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err);
/* Shows the unit's parameters, in a backward phase also its gradients; hides them again. */
int view_show(struct fsdp *f, int unit, enum fsdp_phase phase, int micro, struct fsdp_err *err);
void view_hide(struct fsdp *f, int unit, enum fsdp_phase phase);

#endif
