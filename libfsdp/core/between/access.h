/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: units that are unsharded by hand, for the rest of core. */
#ifndef CORE_ACCESS_H
#define CORE_ACCESS_H

#include "core/engine.h"

void access_destroy(struct fsdp *f);

#endif
