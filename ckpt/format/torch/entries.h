/* SPDX-License-Identifier: Apache-2.0 */
/* entries.h: a nested state dict as a list: tensors and values, each with the keys that lead to it,
 * joined with dots as torch.distributed.checkpoint joins them. */
#ifndef CKPT_ENTRIES_H
#define CKPT_ENTRIES_H

#include "format/pickle/pickle.h"
#include "util/pool.h"

struct ckpt_entries {
    struct ckpt_pool names;   /* of the entries */
    struct ckpt_pool numbers; /* their keys that are places in lists */
    size_t count, max;
    struct ckpt_entry {
        const char *name;
        struct ckpt_pk *path; /* a tuple of the keys; owned */
        const struct ckpt_pk *value;
        int source; /* as it was given to ckpt_entries_add */
        bool is_tensor;
    } * items;
};

/* Adds what a pickle holds: a dict (of dicts and lists), or one tensor, which is called `alone`.
 * The pickle must outlive the entries. FSDP_ECORRUPT and FSDP_EUNSUPPORTED name the key. */
int ckpt_entries_add(struct ckpt_entries *out, const struct ckpt_pickle *pickle, int source,
                     const char *alone, const char *what, struct fsdp_err *err);
void ckpt_entries_free(struct ckpt_entries *entries);

#endif
