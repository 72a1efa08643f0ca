/* SPDX-License-Identifier: Apache-2.0 */
/* cursor.h: the cursor through the schedule: the one way in which its operations run. */
#ifndef CORE_CURSOR_H
#define CORE_CURSOR_H

#include "core/engine.h"

/* Moves the cursor over a driven operation, which must be the list's next. */
int exec_drive(struct fsdp *f, enum sched_kind kind, int module, enum fsdp_phase phase, int micro,
               struct fsdp_err *err);

#endif
