/* SPDX-License-Identifier: Apache-2.0 */
/* What the name of a tensor may be. */
#ifndef CKPT_TENSOR_NAME_H
#define CKPT_TENSOR_NAME_H

#include "fsdp/base.h"

#define CKPT_TENSOR_NAME_RESERVED "__metadata__" /* a safetensors header uses it itself */

/* Why no checkpoint format can store a tensor under this name; NULL if all can. A torch checkpoint
 * can store CKPT_TENSOR_NAME_RESERVED; `dcp` says that it is one. The text follows "tensor 'x': ".
 */
const char *ckpt_tensor_name_wrong(const char *name, bool dcp);

/* Does only an optimizer keep a tensor that is called so (exp_avg, momentum_buffer)? The last part
 * of a name, behind its last dot. */
bool ckpt_tensor_name_is_moment(const char *leaf);
/* Is it an optimizer's in files of boxes: state.<parameter>.<name>, and behind a container, where
 * two optimizers have equal names, state.<parameter>.<moment> or .step? */
bool ckpt_tensor_name_is_optim(const char *name);

#endif
