/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the reader of torch's distributed checkpoints share. */
#ifndef CKPT_DCP_H
#define CKPT_DCP_H

#include <jansson.h>

#include "source/format_ops.h"
#include "format/dcp/blob.h"
#include "format/pickle/pickle.h"

#define CKPT_DCP_METADATA_NAME ".metadata"

/* Members of ckpt_dcp_ops. nearby.c: folders of checkpoints of torch's. */
int ckpt_dcp_recognize(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                       struct fsdp_err *err);
int ckpt_dcp_recognize_within(bool *out, struct ckpt *ckpt, struct fsdp_err *err);
int ckpt_dcp_explain(const struct ckpt *ckpt, const struct ckpt_names *names, struct fsdp_err *err);

/* A Python value as JSON, a new reference; NULL where JSON cannot hold it, with *why (static). */
json_t *ckpt_dcp_json(const struct ckpt_pk *value, const char **why);
/* The value in a blob as JSON; *out is a new reference. One with parts that JSON cannot hold, or
 * that are not read on principle, is {"unreadable": "why"}: it must not keep anyone from the
 * weights. One that may hold weights itself is kept as a tensor that cannot be read. */
int ckpt_dcp_value(json_t **out, struct ckpt *ckpt, const struct ckpt_blob_place *at,
                   const char *name, struct fsdp_err *err);

/* After the layout is sealed: the optimizer step, and which tensors belong to a parameter. */
int ckpt_dcp_finish(struct ckpt *ckpt, struct fsdp_err *err);

#endif
