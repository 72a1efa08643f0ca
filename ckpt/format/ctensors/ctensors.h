/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctensors.h: weights as compressed-tensors quantizes them. Of the weight of a linear layer,
 * M.weight [out, in] of type T (f32, bf16 or f16), a file holds
 *
 *   M.weight         F8_E4M3 [out, in]           schemes of FP8: the codes
 *   M.weight_packed  I32 [out, ceil(in / 4)]     schemes of integers: four codes in each, the first
 *                                                in the lowest byte; a code is the integer + 128
 *   M.weight_shape   I64 [2]                     schemes of integers: out, in
 *   M.weight_scale   T [1], [out, 1] or [out, in / group]
 *
 * Scales and codes come from the largest magnitudes alone. They are computed as compressed-tensors
 * computes them, with every result rounded to T, so that they are equal to the bit. Pure.
 */
#ifndef CKPT_CTENSORS_H
#define CKPT_CTENSORS_H

#include <jansson.h>

#include "fsdp/base.h"

/* What has one scale. */
enum ckpt_ct_strategy { CKPT_CT_TENSOR, CKPT_CT_CHANNEL, CKPT_CT_GROUP };

struct ckpt_ct_scheme {
    const char *name, *format;
    bool integers;    /* of 8 bits, packed; else FP8 */
    bool activations; /* are quantized, too, when the model runs: one scale for each token */
    enum ckpt_ct_strategy strategy;
    uint32_t group; /* of strategy GROUP: elements of a row */
};

/* By the name that users give it. FSDP_EINVAL: there is none such. */
int ckpt_ct_scheme_of(const struct ckpt_ct_scheme **out, const char *name, struct fsdp_err *err);
/* Scales of a row of so many elements; of strategy TENSOR 1, which all rows share. */
uint64_t ckpt_ct_nscales(const struct ckpt_ct_scheme *scheme, uint64_t row_nelem);
/* Bytes of the codes of a row. */
uint64_t ckpt_ct_row_nbytes(const struct ckpt_ct_scheme *scheme, uint64_t row_nelem);

/* The largest magnitude of values; NaN if one is not finite. */
float ckpt_ct_largest(const float *values, uint64_t nelem);
/* The scale that follows from it, a value of type `dtype`. */
float ckpt_ct_scale(const struct ckpt_ct_scheme *scheme, enum fsdp_dtype dtype, float largest);
/* Codes of nelem elements that share a scale, one byte each. The values, which are of type `dtype`,
 * are overwritten. */
void ckpt_ct_encode(uint8_t *dst, const struct ckpt_ct_scheme *scheme, enum fsdp_dtype dtype,
                    float scale, float *values, uint64_t nelem);

/* What a tensor of a Hugging Face folder is to a quantizer. */
enum ckpt_ct_role {
    CKPT_CT_PLAIN,   /* not the weight of a linear layer */
    CKPT_CT_LINEAR,  /* of a layer to quantize */
    CKPT_CT_HEAD,    /* of a layer that is never quantized, and listed as such */
    CKPT_CT_ROUTER,  /* the same */
    CKPT_CT_EXPERT,  /* of experts */
    CKPT_CT_UNKNOWN, /* a matrix that may be the weight of a linear layer */
};
enum ckpt_ct_role ckpt_ct_role_of(const struct fsdp_tensor *tensor);

/* quantization_config of config.json. ignored: names of linear layers that are not quantized. A new
 * reference; NULL without memory. */
json_t *ckpt_ct_config(const struct ckpt_ct_scheme *scheme, const char *const *ignored,
                       int nignored);

#endif
