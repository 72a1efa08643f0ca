/* SPDX-License-Identifier: Apache-2.0 */
/* encoding.h: elements that are stored in blocks, each of which takes the same bytes. */
#ifndef CKPT_ENCODING_H
#define CKPT_ENCODING_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_encoding {
    const char *name;
    uint32_t block_nelem, block_nbytes;
    /* src_nelem is a multiple of block_nelem. Thread safe. */
    void (*encode)(void *dst, const float *src, size_t src_nelem);
};

#endif
