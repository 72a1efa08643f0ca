/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bitsandbytes stores of a matrix NAME, as transformers names it:
 *
 *   NAME                 two elements a byte
 *   NAME.absmax          of each block, in 8 bits
 *   NAME.nested_absmax   what these are scaled by
 *   NAME.quant_map, NAME.nested_quant_map                       code books
 *   NAME.quant_state.bitsandbytes__nf4                          JSON in bytes
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "nf4.h"

enum { STATE_NBYTES = 4096, NAME_NBYTES = 1024 };

/* CRC-64 of the code books in fp32: the 16 values of NF4, and the 256 of 8 bits. */
static const uint64_t crc_of_values = UINT64_C(0x71f6bf2642f37136),
                      crc_of_scales = UINT64_C(0x43aea27ef6c8e5ec);

static const struct ckpt_tensor *part_of(const struct ckpt *ckpt, const char *name,
                                         const char *part)
{
    char full[NAME_NBYTES];
    const int n = snprintf(full, sizeof full, "%s.%s", name, part);
    return n < (int)sizeof full ? ckpt_tensor_find(ckpt, full) : NULL;
}

bool weights_is_packed(const struct ckpt *ckpt, const char *name)
{
    return part_of(ckpt, name, "absmax") && part_of(ckpt, name, "quant_map");
}

int weights_check_packed(const struct ckpt *ckpt, const struct fsdp *f,
                         const struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    for (int i = 0; i < fsdp_param_count(tree); i++) {
        const char *name = fsdp_param_tensor(tree, i).name;
        if (weights_is_packed(ckpt, name) && !fsdp_param_is_nf4(f, i))
            return fsdp_err_set(
                err, FSDP_EUNSUPPORTED,
                "%s: tensor '%s' is quantized by bitsandbytes: set lora.base to nf4 "
                "to train adapters on such a model, and train no part of it whole",
                ckpt_path(ckpt), name);
    }
    return FSDP_OK;
}

/* ---- reading a part -------------------------------------------------------------------------- */

struct bytes {
    char *data;
    size_t nbytes, most;
};

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct bytes *b = ctx;
    if (pos > b->most || nbytes > b->most - pos)
        return fsdp_err_set(err, FSDP_ECORRUPT, "a part of a quantized tensor is too long");
    memcpy(b->data + pos, src, nbytes);
    return FSDP_OK;
}

/* All of a part, which has `dtype` and at most `most` bytes. */
static int read_part(struct bytes *out, struct ckpt *ckpt, const char *name, const char *part,
                     enum fsdp_dtype dtype, struct fsdp_err *err)
{
    const struct ckpt_tensor *tensor = part_of(ckpt, name, part);
    const struct fsdp_slice_io io = {.ctx = out, .write = take};
    struct fsdp_slice slice = {.nreplica = 1};

    if (!tensor || tensor->tensor.dtype != dtype || tensor->tensor.ndim != 1)
        return fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "%s: tensor '%s' is quantized, but '%s.%s' is no vector of %s: only NF4 "
            "with double quantization is read",
            ckpt_path(ckpt), name, name, part, fsdp_dtype_name(dtype));
    slice.tensor = tensor->tensor;
    slice.box.length[0] = slice.tensor.shape[0];
    out->nbytes = slice.tensor.shape[0] * fsdp_dtype_nbytes(dtype);
    if (slice.tensor.shape[0] > out->most || out->nbytes > out->most)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: '%s.%s' is too long", ckpt_path(ckpt), name,
                            part);
    return ckpt_read_slice(ckpt, &slice, &io, err);
}

static int check_book(struct ckpt *ckpt, const char *name, const char *part, uint64_t crc,
                      struct fsdp_err *err)
{
    char data[STATE_NBYTES];
    struct bytes book = {.data = data, .most = sizeof data};

    FSDP_TRY(read_part(&book, ckpt, name, part, FSDP_F32, err));
    if (ckpt_crc64(0, book.data, book.nbytes) == crc)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%s: '%s.%s' is another code book than bitsandbytes'", ckpt_path(ckpt),
                        name, part);
}

/* ---- the state ------------------------------------------------------------------------------- */

static bool has_shape(const json_t *shape, const struct fsdp_tensor *tensor)
{
    bool same = json_array_size(shape) == (size_t)tensor->ndim;
    for (int d = 0; same && d < tensor->ndim; d++)
        same = json_integer_value(json_array_get(shape, (size_t)d)) == (json_int_t)tensor->shape[d];
    return same;
}

/* NULL: it is as here. Else which key is not. */
static const char *find_other(const json_t *state, const struct fsdp_tensor *tensor)
{
    const char *type = json_string_value(json_object_get(state, "quant_type"));
    const json_t *offset = json_object_get(state, "nested_offset");

    return !type || strcmp(type, "nf4") ? "quant_type"
           : json_integer_value(json_object_get(state, "blocksize")) != FSDP_NF4_BLOCK ? "blocksize"
           : json_integer_value(json_object_get(state, "nested_blocksize")) != FSDP_NF4_SUPER
               ? "nested_blocksize"
           : !has_shape(json_object_get(state, "shape"), tensor) ? "shape"
           : !json_is_number(offset)                             ? "nested_offset"
                                                                 : NULL;
}

int weights_packed_offset(float *out, struct ckpt *ckpt, const struct fsdp_tensor *tensor,
                          struct fsdp_err *err)
{
    char data[STATE_NBYTES];
    struct bytes bytes = {.data = data, .most = sizeof data};
    int rc = FSDP_OK;

    FSDP_TRY(read_part(&bytes, ckpt, tensor->name, "quant_state.bitsandbytes__nf4", FSDP_U8, err));
    FSDP_TRY(check_book(ckpt, tensor->name, "quant_map", crc_of_values, err));
    FSDP_TRY(check_book(ckpt, tensor->name, "nested_quant_map", crc_of_scales, err));
    json_t *state = json_loadb(bytes.data, bytes.nbytes, 0, NULL);
    const char *other = state ? find_other(state, tensor) : "JSON";
    if (other)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "%s: tensor '%s' is quantized otherwise than here (%s): NF4 in blocks of "
                          "%d, with double quantization in blocks of %d, is read",
                          ckpt_path(ckpt), tensor->name, other, FSDP_NF4_BLOCK, FSDP_NF4_SUPER);
    else
        *out = (float)json_number_value(json_object_get(state, "nested_offset"));
    json_decref(state);
    return rc;
}
