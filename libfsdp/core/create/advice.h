/* SPDX-License-Identifier: Apache-2.0 */
/* advice.h: what to do when memory is short. */
#ifndef CORE_ADVICE_H
#define CORE_ADVICE_H

#include "core/engine.h"

/* Adds to *err, an error about memory, what the plan needs and which settings would save most.
 * `opts` are those that f was planned with. Local. */
void advice_give(const struct fsdp *f, const struct fsdp_opts *opts, struct fsdp_err *err);
/* Logs the plan as a table, and what every setting would save. Local. */
void advice_log(const struct fsdp *f, const struct fsdp_opts *opts);

#endif
