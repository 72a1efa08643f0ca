/* SPDX-License-Identifier: Apache-2.0 */
/*
 * belongs.h: what belongs to a checkpoint. The one table of the names that the writers of this
 * library make; removal takes nothing else.
 *
 * A published native checkpoint is what its manifest lists: files and extras. Where there is no
 * manifest that can be read (an unfinished save, a removal that was killed late), and for the other
 * formats, the names decide.
 */
#ifndef CKPT_BELONGS_H
#define CKPT_BELONGS_H

#include "store/store.h"

/* ---- names of leftovers ---------------------------------------------------------------------- */

enum ckpt_leftover {
    CKPT_LEFTOVER_NONE,
    CKPT_LEFTOVER_TEMP, /* NAME.tmp.<uuid>: a save; NAME.tmp.<16 hexadecimal digits>: a tool */
    CKPT_LEFTOVER_DEL,  /* NAME.del.<uuid>: a removal */
    CKPT_LEFTOVER_PROBE /* .check-<uuid> */
};
bool ckpt_name_is_uuid(const char *text);
/* What an entry of a folder is by its name; *name_nbytes: of NAME. */
enum ckpt_leftover ckpt_leftover_of(size_t *name_nbytes, const char *entry);

/* ---- names within ---------------------------------------------------------------------------- */

enum ckpt_place {
    CKPT_PLACE_NATIVE = 1,
    CKPT_PLACE_HF = 2,
    CKPT_PLACE_DCP = 4,
    CKPT_PLACE_GGUF = 16,  /* one file */
    CKPT_PLACE_TEMP = 8,   /* a tool's temporary folder: outputs below out/ and old/ */
    CKPT_PLACE_TORCH = 32, /* a folder of pytorch_model*.bin, or one file */
    CKPT_PLACE_OUTPUT = CKPT_PLACE_NATIVE | CKPT_PLACE_HF | CKPT_PLACE_DCP | CKPT_PLACE_TORCH,
};
/* Does a writer make a file, or a folder, of this name (a relative path) in any of these places? */
bool ckpt_belongs_name(const char *path, bool folder, unsigned places);

/* ---- a tree ---------------------------------------------------------------------------------- */

struct ckpt_belongs_list { /* what a manifest lists */
    const char *below;     /* the part of the tree: "", "out/", "old/" */
    char **paths;          /* sorted; owned */
    size_t npaths;
};
struct ckpt_belongs {
    unsigned places;
    bool no_file; /* the tree's name is a leftover's, and no writer makes a file of that name */
    struct ckpt_belongs_list lists[2];
    int nlists;
};
/* For the tree at path, by its name and its manifest. A manifest that is not there or damaged is
 * none. */
int ckpt_belongs_load(struct ckpt_belongs *out, const struct ckpt_store_ops *ops, const char *path,
                      struct fsdp_err *err);
void ckpt_belongs_free(struct ckpt_belongs *belongs);
/* A ckpt_tree_judge_f; ctx: a struct ckpt_belongs. */
bool ckpt_belongs(const void *ctx, const struct ckpt_store_item *item);

#endif
