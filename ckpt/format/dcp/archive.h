/* SPDX-License-Identifier: Apache-2.0 */
/* Blobs that the writer of .metadata makes itself. */
#ifndef CKPT_DCP_BLOB_H
#define CKPT_DCP_BLOB_H

#include <jansson.h>

#include "dcp_write.h"
#include "util/text.h"

/* Each appends a whole blob. */
int ckpt_dcp_value_blob(struct ckpt_text *out, const struct ckpt_dcp_tag *tag, const json_t *value,
                        struct fsdp_err *err);
int ckpt_dcp_scalar_blob(struct ckpt_text *out, const struct ckpt_dcp_tag *tag, float value,
                         struct fsdp_err *err);

#endif
