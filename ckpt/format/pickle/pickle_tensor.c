/* SPDX-License-Identifier: Apache-2.0 */
/* How torch pickles a tensor: a call, and the persistent id of a storage. */
#include "pickle_write.h"

/* Globals "module\nname\n" for the pickle writer; static, since it keys by address. */
static const char *storage_global(enum fsdp_dtype dtype)
{
    static const char *const names[FSDP_NDTYPES] = {
        [FSDP_F32] = "torch\nFloatStorage\n",        [FSDP_BF16] = "torch\nBFloat16Storage\n",
        [FSDP_F16] = "torch\nHalfStorage\n",         [FSDP_F64] = "torch\nDoubleStorage\n",
        [FSDP_I64] = "torch\nLongStorage\n",         [FSDP_I32] = "torch\nIntStorage\n",
        [FSDP_I16] = "torch\nShortStorage\n",        [FSDP_I8] = "torch\nCharStorage\n",
        [FSDP_U8] = "torch\nByteStorage\n",          [FSDP_BOOL] = "torch\nBoolStorage\n",
        [FSDP_C64] = "torch\nComplexFloatStorage\n",
    };
    return names[dtype];
}

const char *ckpt_pkw_dtype(enum fsdp_dtype dtype)
{
    static const char *const names[FSDP_NDTYPES] = {
        [FSDP_F32] = "torch\nfloat32\n",
        [FSDP_BF16] = "torch\nbfloat16\n",
        [FSDP_F16] = "torch\nfloat16\n",
        [FSDP_F64] = "torch\nfloat64\n",
        [FSDP_I64] = "torch\nint64\n",
        [FSDP_I32] = "torch\nint32\n",
        [FSDP_I16] = "torch\nint16\n",
        [FSDP_I8] = "torch\nint8\n",
        [FSDP_U64] = "torch\nuint64\n",
        [FSDP_U32] = "torch\nuint32\n",
        [FSDP_U16] = "torch\nuint16\n",
        [FSDP_U8] = "torch\nuint8\n",
        [FSDP_BOOL] = "torch\nbool\n",
        [FSDP_F8_E4M3] = "torch\nfloat8_e4m3fn\n",
        [FSDP_F8_E5M2] = "torch\nfloat8_e5m2\n",
        [FSDP_C64] = "torch\ncomplex64\n",
        [FSDP_F8_E8M0] = "torch\nfloat8_e8m0fnu\n",
    };
    return names[dtype];
}

/* _rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()); dtypes that torch has no
 * typed storage for come as bytes, with the dtype behind. */
void ckpt_pkw_tensor(struct ckpt_pkw *w, const struct fsdp_tensor *tensor, const char *storage)
{
    const char *typed = storage_global(tensor->dtype);
    const uint64_t nelem = fsdp_tensor_nelem(tensor);
    uint64_t stride[FSDP_MAX_DIMS], step = 1;

    for (int d = tensor->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= tensor->shape[d] ? tensor->shape[d] : 1;
    }
    ckpt_pkw_global(w, typed ? "torch._utils\n_rebuild_tensor_v2\n"
                             : "torch._utils\n_rebuild_tensor_v3\n");
    ckpt_pkw_op(w, PK_MARK); /* the arguments of the function */
    ckpt_pkw_op(w, PK_MARK); /* the storage's persistent id */
    ckpt_pkw_text(w, "storage");
    ckpt_pkw_global(w, typed ? typed : "torch.storage\nUntypedStorage\n");
    ckpt_pkw_text(w, storage);
    ckpt_pkw_text(w, "cpu");
    ckpt_pkw_u64(w, typed ? nelem : nelem * fsdp_dtype_nbytes(tensor->dtype));
    ckpt_pkw_op(w, PK_TUPLE);
    ckpt_pkw_op(w, PK_BINPERSID);
    ckpt_pkw_int(w, 0);
    ckpt_pkw_dims(w, tensor->shape, tensor->ndim);
    ckpt_pkw_dims(w, stride, tensor->ndim);
    ckpt_pkw_op(w, PK_NEWFALSE); /* requires_grad */
    ckpt_pkw_global(w, "collections\nOrderedDict\n");
    ckpt_pkw_op(w, PK_EMPTY_TUPLE);
    ckpt_pkw_op(w, PK_REDUCE);
    if (!typed)
        ckpt_pkw_global(w, ckpt_pkw_dtype(tensor->dtype));
    ckpt_pkw_op(w, PK_TUPLE);
    ckpt_pkw_op(w, PK_REDUCE);
}
