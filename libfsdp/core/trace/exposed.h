/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exposed.h: how long the compute lane waits for communication, in every training step. Timed
 * events lie around its waits for the lanes that communicate, and around its own collectives; they
 * are read some steps later, so that the host never waits for them.
 */
#ifndef CORE_EXPOSED_H
#define CORE_EXPOSED_H

#include "core/engine.h"

/* A pass through a program's list begins. What earlier passes have measured is added up. */
int exposed_pass(struct fsdp *f, enum fsdp_program program, struct fsdp_err *err);
/* Operation i of the current list is issued: before its waits, after them, and after its work.
 * Enqueues. */
int exposed_begin(struct fsdp *f, int i, struct fsdp_err *err);
int exposed_waited(struct fsdp *f, int i, struct fsdp_err *err);
int exposed_ran(struct fsdp *f, int i, struct fsdp_err *err);
void exposed_close(struct engine_tracing *tracing);

#endif
