/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CRC_H
#define CKPT_CRC_H

#include "ckpt/ckpt.h"

/* What a CRC contributes to that of a whole that continues for nbytes behind it; the whole's CRC is
 * the xor of all contributions, in any order. */
uint64_t ckpt_crc64_shift(uint64_t crc, uint64_t nbytes);
uint32_t ckpt_crc32c_shift(uint32_t crc, uint64_t nbytes);

/* The CRC-32 of zip files (and of their writers' `zlib.crc32`). Start with 0. */
uint32_t ckpt_crc32(uint32_t crc, const void *data, size_t nbytes);
uint32_t ckpt_crc32_shift(uint32_t crc, uint64_t nbytes);

/* Two CRC-64 of nbytes bytes differ by `difference`. Is that what one wrong byte, or two
 * neighbours, make? *pos: of the first; *error: the xor of right and wrong, the first in the low
 * byte. About 2 ns a byte; true by accident once in 2^48 bytes. */
bool ckpt_crc64_locate(uint64_t *pos, uint16_t *error, uint64_t difference, uint64_t nbytes);

/* What the box of a tensor, given row-major and in the tensor's dtype, contributes to the tensor's
 * fingerprint. The xor over boxes that tile the tensor is the fingerprint. */
uint64_t ckpt_fingerprint_part(const struct fsdp_tensor *tensor, const struct fsdp_box *box,
                               const void *data);

/* The same, and data's CRC-32C in the same pass: *crc32c resumes from what it is; NULL: none. */
uint64_t ckpt_fingerprint_part_summed(uint32_t *crc32c, const struct fsdp_tensor *tensor,
                                      const struct fsdp_box *box, const void *data);

#endif
