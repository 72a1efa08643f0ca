/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant.h: ggml's blocks. A block of 32 has one scale (and, in q5_1, one minimum); a block of 256
 * ("K") has parts of 16 or 32 elements, whose scales and minima are small integers times a scale of
 * the block. All numbers are little-endian; scales are f16.
 */
#ifndef CKPT_GGUF_QUANT_H
#define CKPT_GGUF_QUANT_H

#include "util/encoding.h"

/* q8_0, q4_0, q5_0, q5_1 give the bytes of gguf-py. */
extern const struct ckpt_encoding ckpt_quant_q8_0, ckpt_quant_q4_0, ckpt_quant_q5_0,
    ckpt_quant_q5_1;
/* The nearest that a search finds: decoded, no farther from the elements than ggml's own. */
extern const struct ckpt_encoding ckpt_quant_q4_k, ckpt_quant_q5_k, ckpt_quant_q6_k;

#endif
