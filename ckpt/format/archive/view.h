/* SPDX-License-Identifier: Apache-2.0 */
/* view.h: how torch makes a tensor of a storage, as a pickle says it. Pure. */
#ifndef CKPT_VIEW_H
#define CKPT_VIEW_H

#include "format/pickle/pickle.h"

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks [, metadata]); v3 has the
 * dtype before the metadata. */
struct ckpt_view_args {
    enum fsdp_dtype dtype;
    const struct ckpt_pk *key; /* a text: names the storage */
    uint64_t storage_nbytes;
    uint64_t offset; /* in elements */
    int ndim;
    uint64_t size[FSDP_MAX_DIMS], stride[FSDP_MAX_DIMS];
    bool negative, conjugate;
};

/* Does a value stand for a tensor or a parameter? */
bool ckpt_view_is(const struct ckpt_pk *value);
/* `what` names it in errors. FSDP_EUNSUPPORTED for a dtype that the toolkit does not know. */
int ckpt_view_parse(struct ckpt_view_args *out, const struct ckpt_pk *value, const char *what,
                    struct fsdp_err *err);
/* Refuses a view that leaves its storage. *plain: row-major; *nelem: of the tensor. */
int ckpt_view_prove(bool *plain, uint64_t *nelem, const struct ckpt_view_args *view,
                    const char *what, struct fsdp_err *err);

#endif
