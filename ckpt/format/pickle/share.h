/* SPDX-License-Identifier: Apache-2.0 */
/* Equal values of a large pickle become one: its texts, all of them; and of what cannot change, or
 * no longer does, what came lately. Layers of a model repeat their shapes. */
#ifndef CKPT_PICKLE_SHARE_H
#define CKPT_PICKLE_SHARE_H

#include "memory.h"

enum { CKPT_PK_NSHAPES = 16 };

struct ckpt_pk_share {
    struct ckpt_pk **recent; /* by hash; NULL: nothing is shared */
    struct ckpt_pk **texts;  /* by hash */
    size_t ntexts, max_texts;
    struct ckpt_pk_shape *shapes[CKPT_PK_NSHAPES];
    int nshapes;
};

/* Begins to share. */
int ckpt_pk_share_create(struct ckpt_pk_share *share, struct fsdp_err *err);
void ckpt_pk_share_free(struct ckpt_pk_share *share);

/* Where an equal value is, or belongs: a tuple, integer, global, object or call. */
struct ckpt_pk **ckpt_pk_share_at(struct ckpt_pk_share *share, const struct ckpt_pk *value);
/* *out: where an equal text is, or belongs; the caller puts it there. */
int ckpt_pk_share_text(struct ckpt_pk ***out, struct ckpt_pk_share *share, const char *text,
                       size_t nbytes, struct fsdp_err *err);
/* The shape of objects of a class whose state is a dict; NULL where it is not one of few texts, or
 * there are too many shapes. */
const struct ckpt_pk_shape *ckpt_pk_share_shape(struct ckpt_pk_share *share,
                                                struct ckpt_pk_memory *mem,
                                                const struct ckpt_pk_global *global,
                                                const struct ckpt_pk *state);

#endif
