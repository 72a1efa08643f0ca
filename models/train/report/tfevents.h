/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tfevents.h: TensorBoard's event files. A file is a row of records: length, its checksum, a
 * message in Protocol Buffers, its checksum. Written by hand, because an event needs ten fields.
 */
#ifndef TFEVENTS_H
#define TFEVENTS_H

#include <sys/types.h>

#include "fsdp/base.h"

struct tfevents;

/* A new file in folder, which is created, whose name sorts behind those that are there: a reader
 * takes files in that order. after: steps later than this one that earlier files have are void; a
 * reader drops them. Local, blocks. */
int tfevents_open(struct tfevents **out, const char *folder, int64_t after, double wall,
                  struct fsdp_err *err);
void tfevents_close(struct tfevents *events);

/* Values of one step are collected, and then written at once. */
void tfevents_begin(struct tfevents *events, int64_t step, double wall);
int tfevents_scalar(struct tfevents *events, const char *tag, double value, struct fsdp_err *err);
/* Markdown. */
int tfevents_text(struct tfevents *events, const char *tag, const char *text, struct fsdp_err *err);
/* Of values[nvalues], at least one, finite. */
int tfevents_histogram(struct tfevents *events, const char *tag, const double *values, int nvalues,
                       struct fsdp_err *err);
int tfevents_end(struct tfevents *events, struct fsdp_err *err);

#endif
