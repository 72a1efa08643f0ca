/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_PICKLE_GLOBALS_H
#define CKPT_PICKLE_GLOBALS_H

#include "pickle.h"

/* NULL for a global that is not in the table. */
const struct ckpt_pk_global *ckpt_pk_global_find(const char *module, size_t module_nbytes,
                                                 const char *name, size_t name_nbytes);
/* torch's name of a dtype ("float32", role CKPT_PK_DTYPE) or of its typed storage ("FloatStorage",
 * role CKPT_PK_STORAGE); NULL where there is none. */
const char *ckpt_pk_dtype_name(enum fsdp_dtype dtype, enum ckpt_pk_role role);

#endif
