/* SPDX-License-Identifier: Apache-2.0 */
/* magnitudes.h: what the magnitudes of new DoRA adapters begin with. */
#ifndef TRAIN_MAGNITUDES_H
#define TRAIN_MAGNITUDES_H

#include "setup.h"

/* Sets each to the lengths of the rows of its weight, which is loaded. Of a weight at a time every
 * rank holds all in fp32. Nothing without DoRA. Collective, blocks. */
int train_magnitudes_begin(const struct train_parts *parts, struct fsdp_err *err);

#endif
