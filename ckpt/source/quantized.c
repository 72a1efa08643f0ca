/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bitsandbytes stores of a matrix NAME, as transformers names it:
 *
 *   NAME                 U8: two elements a byte
 *   NAME.absmax          U8: the scale of each block
 *   NAME.nested_absmax   F32: what these are scaled by
 *   NAME.quant_map, NAME.nested_quant_map                       F32: code books
 *   NAME.quant_state.bitsandbytes__nf4                          U8: JSON
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "unpack.h"

enum { STATE_NBYTES = 4096, NAME_NBYTES = 1024 };
#define STATE "quant_state.bitsandbytes__nf4"

static const struct ckpt_tensor *part_of(const struct ckpt *ckpt, const char *name,
                                         const char *part)
{
    char full[NAME_NBYTES];
    const int n = snprintf(full, sizeof full, "%s.%s", name, part);
    return n < (int)sizeof full ? ckpt_tensor_find(ckpt, full) : NULL;
}

bool ckpt_is_quantized(const struct ckpt *ckpt, const char *name)
{
    return part_of(ckpt, name, "absmax") && part_of(ckpt, name, "quant_map");
}

/* ---- reading a part -------------------------------------------------------------------------- */

struct bytes {
    char *data;
    size_t most;
};

static int take_bytes(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct bytes *b = ctx;
    if (pos > b->most || nbytes > b->most - pos)
        return fsdp_err_set(err, FSDP_EINTERNAL, "a part of a quantized tensor is too long");
    memcpy(b->data + pos, src, nbytes);
    return FSDP_OK;
}

static int refuse_quantized(const struct ckpt *ckpt, const char *name, const char *what,
                            struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%s: tensor '%s' is quantized in a way that is not supported (%s): NF4 of "
                        "bitsandbytes in blocks of %d, with double quantization, is read",
                        ckpt->path, name, what, CKPT_NF4_BLOCK);
}

int ckpt_part_read(void *out, size_t max_nbytes, size_t *nbytes, struct ckpt *ckpt,
                   const struct ckpt_tensor *part, enum fsdp_dtype dtype, struct fsdp_err *err)
{
    struct bytes bytes = {out, max_nbytes};
    const struct fsdp_slice_io io = {.ctx = &bytes, .write = take_bytes};
    struct fsdp_slice slice = {.tensor = part->tensor, .nreplica = 1};
    const uint64_t nelem = fsdp_tensor_nelem(&part->tensor), elem = fsdp_dtype_nbytes(dtype);

    if (part->tensor.dtype != dtype || part->tensor.ndim != 1 || nelem > max_nbytes / elem)
        return refuse_quantized(ckpt, part->tensor.name, "another type or size", err);
    slice.box.length[0] = nelem;
    if (nbytes)
        *nbytes = nelem * elem;
    return ckpt_read_slice(ckpt, &slice, &io, err);
}

int ckpt_nf4_nested(float *out, size_t nelem, struct ckpt *ckpt, const char *name,
                    struct fsdp_err *err)
{
    const struct ckpt_tensor *part = part_of(ckpt, name, "nested_absmax");
    size_t nbytes;

    if (!part)
        return refuse_quantized(ckpt, name, "nested_absmax", err);
    FSDP_TRY(ckpt_part_read(out, nelem * sizeof *out, &nbytes, ckpt, part, FSDP_F32, err));
    return nbytes == nelem * sizeof *out ? FSDP_OK
                                         : refuse_quantized(ckpt, name, "nested_absmax", err);
}

/* ---- the state ------------------------------------------------------------------------------- */

/* Sets type and shape; NULL, or what is wrong. */
static const char *read_tensor(struct fsdp_tensor *out, const json_t *state)
{
    const char *dtype = json_string_value(json_object_get(state, "dtype"));
    const json_t *shape = json_object_get(state, "shape");
    struct fsdp_err ignored = FSDP_ERR_INIT;

    if (!dtype || fsdp_dtype_parse(&out->dtype, dtype, NULL) || !fsdp_dtype_is_float(out->dtype))
        return "dtype";
    if (!json_is_array(shape) || json_array_size(shape) > FSDP_MAX_DIMS)
        return "shape";
    out->ndim = (int)json_array_size(shape);
    for (int d = 0; d < out->ndim; d++) {
        const json_int_t length = json_integer_value(json_array_get(shape, (size_t)d));
        if (length < 1)
            return "shape";
        out->shape[d] = (uint64_t)length;
    }
    return fsdp_tensor_check(out, &ignored) ? "shape" : NULL;
}

static const char *read_state(struct ckpt_nf4 *out, const json_t *state)
{
    const char *type = json_string_value(json_object_get(state, "quant_type"));
    const json_t *offset = json_object_get(state, "nested_offset");

    if (!type || strcmp(type, "nf4"))
        return "quant_type";
    if (json_integer_value(json_object_get(state, "blocksize")) != CKPT_NF4_BLOCK)
        return "blocksize";
    if (json_integer_value(json_object_get(state, "nested_blocksize")) != CKPT_NF4_SUPER)
        return "nested_blocksize";
    if (!json_is_number(offset))
        return "nested_offset";
    out->offset = (float)json_number_value(offset);
    return read_tensor(&out->tensor, state);
}

/* Have codes and scales the sizes that the shape asks for? */
static bool sizes_fit(const struct ckpt_nf4 *nf4, const struct ckpt_tensor *codes,
                      const struct ckpt_tensor *scales)
{
    const uint64_t nelem = fsdp_tensor_nelem(&nf4->tensor);
    return codes && codes->tensor.dtype == FSDP_U8 && scales->tensor.dtype == FSDP_U8 &&
           fsdp_tensor_nelem(&codes->tensor) == (nelem + 1) / 2 &&
           fsdp_tensor_nelem(&scales->tensor) == (nelem + CKPT_NF4_BLOCK - 1) / CKPT_NF4_BLOCK;
}

int ckpt_nf4_read(struct ckpt_nf4 *out, struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    const struct ckpt_tensor *json = part_of(ckpt, name, STATE);
    const struct ckpt_tensor *values = part_of(ckpt, name, "quant_map");
    const struct ckpt_tensor *map = part_of(ckpt, name, "nested_quant_map");
    char text[STATE_NBYTES];
    size_t nbytes, nvalues, nmap;

    *out = (struct ckpt_nf4){.tensor = {.name = name}};
    if (!json || !values || !map)
        return refuse_quantized(ckpt, name, json ? "code books" : STATE, err);
    FSDP_TRY(ckpt_part_read(text, sizeof text, &nbytes, ckpt, json, FSDP_U8, err));
    FSDP_TRY(
        ckpt_part_read(out->values, sizeof out->values, &nvalues, ckpt, values, FSDP_F32, err));
    FSDP_TRY(ckpt_part_read(out->map, sizeof out->map, &nmap, ckpt, map, FSDP_F32, err));
    if (nvalues != sizeof out->values || nmap != sizeof out->map)
        return refuse_quantized(ckpt, name, "code books", err);
    json_t *state = json_loadb(text, nbytes, 0, NULL);
    const char *wrong = state ? read_state(out, state) : "no JSON";
    json_decref(state);
    if (!wrong && !sizes_fit(out, ckpt_tensor_find(ckpt, name), part_of(ckpt, name, "absmax")))
        wrong = "sizes";
    return wrong ? refuse_quantized(ckpt, name, wrong, err) : FSDP_OK;
}
