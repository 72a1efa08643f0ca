/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CONVERT_H
#define CKPT_CONVERT_H

#include "fsdp/base.h"

/* May `from` be converted to `to`? Equal types and all floating types may. */
bool ckpt_convert_can(enum fsdp_dtype to, enum fsdp_dtype from);
/* Converts through float, rounding to nearest even. Values beyond the range become infinite; in
 * F8_E4M3, which has no infinity, the largest value, as PyTorch does. dst and src do not overlap.
 */
void ckpt_convert(void *dst, enum fsdp_dtype to, const void *src, enum fsdp_dtype from,
                  size_t nelem);

#endif
