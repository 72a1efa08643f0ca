/* SPDX-License-Identifier: Apache-2.0 */
/* train_trace.h: a trace of some steps of a run (log.trace), recorded by the engine. */
#ifndef TRAIN_TRACE_H
#define TRAIN_TRACE_H

#include "config/config.h"
#include "fsdp/fsdp.h"
#include "report.h"

struct train_trace;

/* Opens the file, on rank 0, and takes the memory. step: where the run begins. What is given is
 * borrowed until close. Collective, blocks, agreed. */
int train_trace_open(struct train_trace **out, const struct config *config, int64_t step,
                     struct fsdp *fsdp, struct fsdp_oob *oob, struct report *report,
                     struct fsdp_err *err);
void train_trace_close(struct train_trace *trace);
/* In what follows trace may be NULL: nothing is done. */

/* The training step after `step` steps begins. Local. */
void train_trace_next(struct train_trace *trace, int64_t step);
/* Is it time to write, after `step` steps? The same on every rank. */
bool train_trace_due(const struct train_trace *trace, int64_t step, bool at_end);
/* Gathers and writes; a file that cannot be written is warned of. Collective, blocks. */
int train_trace_write(struct train_trace *trace, struct fsdp_err *err);
/* How much communication was exposed, per rank. By rank 0. */
void train_trace_report(const struct train_trace *trace);

#endif
