/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: units that are unsharded by hand, for the rest of core. */
#ifndef CORE_ACCESS_H
#define CORE_ACCESS_H

#include "core/engine.h"

/* FSDP_EINVAL names a unit that is unsharded by hand, and the call that would change its values. */
int access_check_resharded(const struct fsdp *f, const char *call, struct fsdp_err *err);
void access_destroy(struct fsdp *f);

#endif
