/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CORE_PROGRESS_H
#define CORE_PROGRESS_H

#include "core/engine.h"

/* The cursor has come to operation i of the current program. */
void progress_note(struct engine_cursor *cursor, int i);
/* An operation held the caller for so long; counted if it is a collective. */
void progress_spent(struct engine_cursor *cursor, const struct sched_op *op, double seconds);

#endif
