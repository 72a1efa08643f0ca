/* SPDX-License-Identifier: Apache-2.0 */
/* nf4.h: folders whose matrices bitsandbytes has quantized. Private to models/. */
#ifndef WEIGHTS_NF4_H
#define WEIGHTS_NF4_H

#include "ckpt/ckpt.h"
#include "fsdp/fsdp.h"

/* FSDP_EUNSUPPORTED where the checkpoint holds a parameter quantized that is not in NF4 here: the
 * error names it and says what to set. Local. */
int weights_check_packed(const struct ckpt *ckpt, const struct fsdp *f,
                         const struct fsdp_module_tree *tree, struct fsdp_err *err);

/* nested_offset of a parameter that is held quantized. FSDP_EUNSUPPORTED names what is not as here.
 * Local, blocks. */
int weights_packed_offset(float *out, struct ckpt *ckpt, const struct fsdp_tensor *tensor,
                          struct fsdp_err *err);

#endif
