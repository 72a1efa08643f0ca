/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a .metadata in the making: meta.c collects and formats it, meta_train.c
 * adds what an optimizer keeps besides tensors. */
#ifndef CKPT_DCP_META_H
#define CKPT_DCP_META_H

#include <jansson.h>

#include "dcp_write.h"

struct ckpt_dcp_box {
    int tensor;
    const char *file; /* of files */
    struct fsdp_box box;
    uint64_t pos, nbytes;
};

struct ckpt_dcp_entry {
    char *stored, *name; /* in the checkpoint; here (NULL for a value) */
    json_t *path;        /* texts and integers */
    struct fsdp_tensor tensor;
    enum ckpt_role role;
    bool value;  /* a Python value: it is at `place` */
    int same_as; /* another entry whose boxes these are; -1 */
    struct ckpt_dcp_box place;
};

struct ckpt_dcp_meta {
    int nentries;
    size_t max_entries;
    struct ckpt_dcp_entry *entries;
    size_t nboxes, max_boxes;
    struct ckpt_dcp_box *boxes;
    int nfiles;
    size_t max_files;
    char **files;
};

/* Takes over `path`, also on failure. The entry's index, or a negative status. */
int ckpt_dcp_meta_add(struct ckpt_dcp_meta *meta, const char *stored, json_t *path,
                      struct fsdp_err *err);
/* The meta's own copy of a file's name; NULL with err set. */
const char *ckpt_dcp_meta_file(struct ckpt_dcp_meta *meta, const char *file, struct fsdp_err *err);

#endif
