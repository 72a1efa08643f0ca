/* SPDX-License-Identifier: Apache-2.0 */
/* overrides.h: fsdp_opts.unit_overrides: which modules they make units of, and what they change
 * there.
 */
#ifndef CORE_OVERRIDES_H
#define CORE_OVERRIDES_H

#include "units.h"

/* Marks the modules that a row names: each becomes a unit. FSDP_EINVAL for a row that is
 * malformed or names no module. Pure. */
int overrides_wrap(bool *is_unit, const struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
                   struct fsdp_err *err);
/* Sets what rows can change for every unit and flat: as opts say, then what the rows say.
 * FSDP_EINVAL where a module uses a tied parameter that lives in a unit of other dtypes. Pure. */
int overrides_apply(struct units *units, const struct fsdp_module_tree *tree,
                    const struct fsdp_opts *opts, struct fsdp_err *err);

/* "BF16", or "BF16 and F32": what parameters travel in; likewise without those in NF4; what they
 * are computed in, or gradients reduced in. Into out, which is returned. */
enum overrides_what { OVERRIDES_GATHERED, OVERRIDES_PLAIN, OVERRIDES_COMPUTED, OVERRIDES_REDUCED };
const char *overrides_dtypes(char *out, size_t out_nbytes, const struct units *units,
                             enum overrides_what what);

#endif
