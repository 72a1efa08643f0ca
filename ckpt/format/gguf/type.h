/* SPDX-License-Identifier: Apache-2.0 */
/* type.h: the types of tensors in GGUF, and which of them a file of a given type has where. */
#ifndef CKPT_GGUF_TYPE_H
#define CKPT_GGUF_TYPE_H

#include "fsdp/base.h"
#include "util/encoding.h"

/* A type of ggml. */
struct ckpt_gguf_type {
    uint32_t id;
    enum fsdp_dtype dtype;                /* of what is encoded, or of the elements as they are */
    const struct ckpt_encoding *encoding; /* NULL: none */
    const struct ckpt_gguf_type *narrow;  /* for rows that are not whole blocks; NULL: F16 */
};
extern const struct ckpt_gguf_type ckpt_gguf_f32, ckpt_gguf_f16, ckpt_gguf_bf16, ckpt_gguf_q8_0,
    ckpt_gguf_q4_0, ckpt_gguf_q5_0, ckpt_gguf_q5_1, ckpt_gguf_q4_k, ckpt_gguf_q5_k, ckpt_gguf_q6_k;
/* The elements of a block of this type; 1 where it has none. */
uint32_t ckpt_gguf_block_nelem(const struct ckpt_gguf_type *type);

/* The type of a file, as --type names it. */
struct ckpt_gguf_file_type {
    const char *name;
    uint32_t id; /* general.file_type */
    const struct ckpt_gguf_type *base;
    bool more_bits; /* some tensors get more bits: the M of q4_k_m */
};
/* FSDP_EINVAL names those that there are. */
int ckpt_gguf_file_type_of(const struct ckpt_gguf_file_type **out, const char *name,
                           struct fsdp_err *err);
/* That which keeps elements of this dtype as they are; f32 for other dtypes. */
const struct ckpt_gguf_file_type *ckpt_gguf_file_type_like(enum fsdp_dtype dtype);

/* What decides a tensor's type besides its name. */
struct ckpt_gguf_mix {
    const struct ckpt_gguf_file_type *type;
    const char *arch;
    int nlayers, nexperts; /* nexperts: 0 where it has none */
    bool shares_kv;        /* several heads share keys and values */
    bool tied;             /* no output.weight: the embedding is it */
};
/* The type of a tensor whose rows have row_nelem elements, as llama_model_quantize chooses without
 * an importance matrix. */
const struct ckpt_gguf_type *ckpt_gguf_type_of(const struct ckpt_gguf_mix *mix, const char *name,
                                               int ndim, uint64_t row_nelem);

#endif
