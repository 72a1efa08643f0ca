/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_PICKLE_GLOBALS_H
#define CKPT_PICKLE_GLOBALS_H

#include "pickle.h"

/* NULL for a global that is not in the table. */
const struct ckpt_pk_global *ckpt_pk_global_find(const char *module, size_t module_nbytes,
                                                 const char *name, size_t name_nbytes);

#endif
