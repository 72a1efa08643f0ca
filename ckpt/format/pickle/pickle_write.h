/* SPDX-License-Identifier: Apache-2.0 */
/* Making a pickle of protocol 2. Each call appends the opcodes of one value or step; the caller
 * keeps the order that Python's unpickler wants. Running out of memory is sticky, as in text.h. */
#ifndef CKPT_PICKLE_WRITE_H
#define CKPT_PICKLE_WRITE_H

#include <jansson.h>

#include "op.h"
#include "util/text.h"

/* Texts and globals that come again are written once and recalled. Keyed by address: the caller's
 * strings stay where they are until the pickle is finished. */
struct ckpt_pkw {
    struct ckpt_text text;
    size_t nkept, max_kept;
    struct ckpt_pkw_kept {
        const char *key; /* NULL: empty */
        uint32_t at;
    } * kept;
};

void ckpt_pkw_begin(struct ckpt_pkw *w);
/* Appends STOP; *out is freed with fsdp_free. `w` is finished whatever it returns. */
int ckpt_pkw_end(char **out, size_t *out_nbytes, struct ckpt_pkw *w, struct fsdp_err *err);

void ckpt_pkw_op(struct ckpt_pkw *w, enum ckpt_pickle_op op);
void ckpt_pkw_int(struct ckpt_pkw *w, int64_t value);
void ckpt_pkw_u64(struct ckpt_pkw *w, uint64_t value);
void ckpt_pkw_text(struct ckpt_pkw *w, const char *text);
/* The same; recalled when the same address comes again. */
void ckpt_pkw_kept_text(struct ckpt_pkw *w, const char *text);
/* `global` is "module\nname\n", a static text. */
void ckpt_pkw_global(struct ckpt_pkw *w, const char *global);
/* A tuple of sizes. */
void ckpt_pkw_dims(struct ckpt_pkw *w, const uint64_t *dims, int ndim);
/* torch.Size((...)) */
void ckpt_pkw_size(struct ckpt_pkw *w, const uint64_t *dims, int ndim);
/* Between begin and end: keys and values in turn; values. */
void ckpt_pkw_dict_begin(struct ckpt_pkw *w);
/* Before item `index`: a reader's stack need not hold them all. */
void ckpt_pkw_dict_next(struct ckpt_pkw *w, size_t index);
void ckpt_pkw_dict_end(struct ckpt_pkw *w);
void ckpt_pkw_list_begin(struct ckpt_pkw *w);
void ckpt_pkw_list_end(struct ckpt_pkw *w);
/* An instance of a class, without a state; one may follow, and then PK_BUILD. */
void ckpt_pkw_instance(struct ckpt_pkw *w, const char *global);
/* One whose state is a dict: keys and values between begin and end. */
void ckpt_pkw_object_begin(struct ckpt_pkw *w, const char *global);
void ckpt_pkw_object_end(struct ckpt_pkw *w);
/* pickle_tensor.c. A contiguous tensor that is all of the storage of this name. */
void ckpt_pkw_tensor(struct ckpt_pkw *w, const struct fsdp_tensor *tensor, const char *storage);
/* "torch\nfloat32\n": a global, static. */
const char *ckpt_pkw_dtype(enum fsdp_dtype dtype);
/* null, booleans, numbers, texts, lists and dicts. */
void ckpt_pkw_json(struct ckpt_pkw *w, const json_t *value);

#endif
