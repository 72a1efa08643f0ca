/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.h: the toolkit's own format, as docs/ckpt-format.md describes it: manifest.json says what
 * there must be, the files' headers say which boxes they hold. Begin at native.c (an opened
 * checkpoint) and published.c (which folders are finished ones).
 */
#ifndef CKPT_FORMAT_NATIVE_H
#define CKPT_FORMAT_NATIVE_H

#include "source/source.h"

/* Is there a manifest in this folder? Failing to look is an error: a checkpoint must not go unseen.
 */
int ckpt_is_published(bool *out, const struct ckpt_store_ops *ops, const char *folder,
                      struct fsdp_err *err);
/* Bytes of the folder that all data of a native checkpoint lies in, "<uuid>/", where an object
 * store holds it; else 0. */
size_t ckpt_attempt_nbytes(const struct ckpt_layout *layout);
/* The folder below `folder` that the data of its manifest lies in, NULL where it lies next to the
 * manifest. FSDP_ENOTFOUND if there is no manifest. */
int ckpt_attempt_of(char **out, const struct ckpt_store_ops *ops, const char *folder,
                    struct fsdp_err *err);
/* After a failed commit to an object store, whose last word may have been lost: no manifest of this
 * attempt is there any more. False where that cannot be told: the data must stay. */
bool ckpt_attempt_retract(const struct ckpt_store_ops *ops, const char *folder,
                          const char *attempt);
/* "step-<8 or more digits>" with nothing behind it: its step; -1 otherwise. */
int64_t ckpt_step_of_name(const char *name);

#endif
