/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

static int dtype_of(enum fsdp_dtype *out, const struct ckpt_pk *value, const char *what,
                    struct fsdp_err *err)
{
    const struct ckpt_pk_global *global = ckpt_pk_global_of(value);
    if (!global || (global->role != CKPT_PK_DTYPE && global->role != CKPT_PK_STORAGE))
        return BAD("%s: it is not a tensor in a form that torch writes", what);
    if (global->dtype == CKPT_PK_NO_DTYPE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: %s.%s is not supported", what,
                            global->module, global->name);
    *out = (enum fsdp_dtype)global->dtype;
    return FSDP_OK;
}

static int storage_parse(struct ckpt_view_args *v, const struct ckpt_pk *id, const char *what,
                         struct fsdp_err *err)
{
    const struct ckpt_pk *tuple = id && id->type == CKPT_PK_T_PERSID ? id->u.items[0] : NULL;
    const struct ckpt_pk_global *type = ckpt_pk_global_of(ckpt_pk_item(tuple, 1));
    uint64_t nelem, elem_nbytes = 1;

    v->key = ckpt_pk_item(tuple, 2);
    if (!ckpt_pk_is_text(ckpt_pk_item(tuple, 0), "storage") || !type || !v->key ||
        v->key->type != CKPT_PK_T_TEXT || !ckpt_pk_u64(&nelem, ckpt_pk_item(tuple, 4)))
        return BAD("%s: its storage is not described as torch does", what);
    if (type->role != CKPT_PK_UNTYPED) {
        enum fsdp_dtype dtype = FSDP_U8;
        FSDP_TRY(dtype_of(&dtype, ckpt_pk_item(tuple, 1), what, err));
        elem_nbytes = fsdp_dtype_nbytes(dtype);
        v->dtype = dtype;
    }
    if (nelem > UINT64_MAX / 16)
        return BAD("%s: its storage claims %llu elements", what, (unsigned long long)nelem);
    v->storage_nbytes = nelem * elem_nbytes;
    return FSDP_OK;
}

static bool is_true(const struct ckpt_pk *value)
{
    return value && value->type == CKPT_PK_T_BOOL && value->u.integer;
}

/* The arguments of the function that makes a tensor, which may be wrapped; NULL: it makes none. */
static const struct ckpt_pk *unwrap(bool *v3, const struct ckpt_pk *value)
{
    if (ckpt_pk_is_call(value, CKPT_PK_PARAMETER))
        value = ckpt_pk_item(value, 0);
    const bool typed = ckpt_pk_is_call(value, CKPT_PK_FROM_TYPE);
    const struct ckpt_pk_global *function =
        typed ? ckpt_pk_global_of(ckpt_pk_item(value, 0)) : ckpt_pk_global_of(value);
    const struct ckpt_pk *arguments = typed ? ckpt_pk_item(value, 2) : value;

    if (!function || !arguments || (!typed && value->type != CKPT_PK_T_CALL) ||
        (function->role != CKPT_PK_TENSOR_V2 && function->role != CKPT_PK_TENSOR_V3))
        return NULL;
    *v3 = function->role == CKPT_PK_TENSOR_V3;
    return arguments;
}

bool ckpt_view_is(const struct ckpt_pk *value)
{
    bool v3;
    return unwrap(&v3, value) != NULL;
}

int ckpt_view_parse(struct ckpt_view_args *out, const struct ckpt_pk *value, const char *what,
                    struct fsdp_err *err)
{
    *out = (struct ckpt_view_args){.dtype = FSDP_U8};
    bool v3 = false;
    int ndim = -1;
    if (!(value = unwrap(&v3, value)))
        return BAD("%s: it is not a tensor in a form that torch writes", what);
    FSDP_TRY(storage_parse(out, ckpt_pk_item(value, 0), what, err));
    if (v3)
        FSDP_TRY(dtype_of(&out->dtype, ckpt_pk_item(value, 6), what, err));
    const struct ckpt_pk *size = ckpt_pk_item(value, 2);
    if (ckpt_pk_is_list(size) && size->nitems > FSDP_MAX_DIMS)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s has %u dimensions; at most %d are supported", what, size->nitems,
                            FSDP_MAX_DIMS);
    if (!ckpt_pk_u64(&out->offset, ckpt_pk_item(value, 1)) ||
        !ckpt_pk_dims(out->size, &out->ndim, size) ||
        !ckpt_pk_dims(out->stride, &ndim, ckpt_pk_item(value, 3)) || ndim != out->ndim)
        return BAD("%s: its size and strides are not as torch writes them", what);
    const struct ckpt_pk *metadata = ckpt_pk_item(value, v3 ? 7 : 6);
    out->negative = is_true(ckpt_pk_get(metadata, "neg"));
    out->conjugate = is_true(ckpt_pk_get(metadata, "conj")) && out->dtype == FSDP_C64;
    return FSDP_OK;
}

int ckpt_view_prove(bool *plain, uint64_t *nelem, const struct ckpt_view_args *v, const char *what,
                    struct fsdp_err *err)
{
    uint64_t last = v->offset, dense = 1, room = v->storage_nbytes / fsdp_dtype_nbytes(v->dtype);
    bool empty = false;

    *plain = true;
    for (int d = 0; d < v->ndim; d++)
        empty |= !v->size[d];
    *nelem = 0;
    if (empty)
        return FSDP_OK;
    for (int d = v->ndim - 1; d >= 0; d--) {
        uint64_t steps = v->size[d] - 1;
        if (steps && v->stride[d] &&
            (v->stride[d] > room || last > room || steps > room / v->stride[d]))
            return BAD("%s: its strides leave its storage", what);
        last += steps * v->stride[d];
        *plain &= !steps || v->stride[d] == dense;
        if (v->size[d] > UINT64_MAX / 16 / dense)
            return BAD("%s: it has too many elements", what);
        dense *= v->size[d];
    }
    if (last >= room)
        return BAD("%s: it needs more elements than its storage has", what);
    *nelem = dense;
    return FSDP_OK;
}
