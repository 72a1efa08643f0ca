/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json: what a checkpoint consists of. docs/ckpt-format.md describes it. */
#ifndef CKPT_MANIFEST_H
#define CKPT_MANIFEST_H

#include "layout.h"

#define CKPT_MANIFEST_NAME "manifest.json"
#define CKPT_MANIFEST_VERSION 1

/* The ordered tensors of one flat buffer: from these and the mesh, the cut can be computed again.
 */
struct ckpt_unit {
    char *name;
    bool trainable;
    int ntensors;
    int *tensors; /* indices in the layout */
};

struct ckpt_extra {
    char *path;      /* relative to the checkpoint */
    char *full_path; /* set by the format reader */
    uint64_t nbytes;
    uint32_t crc32c;
    bool has_crc32c; /* the manifest says it */
};

struct ckpt_manifest {
    char uuid[37];
    int64_t step;
    int shard_size, replicate_size;
    struct ckpt_layout layout; /* tensors and files; the pieces are in the files' headers */
    int nunits;
    struct ckpt_unit *units;
    int noptim;
    struct ckpt_slot {
        char *name; /* "exp_avg" of state.<parameter>.exp_avg */
        enum fsdp_slot_kind kind;
    } * optim; /* what optimizers keep of trainable parameters */
    int naliases;
    struct ckpt_alias *aliases; /* texts owned; sorted by name */
    int nextras;
    struct ckpt_extra *extras;
    char *state_json; /* NULL: none */
};

int ckpt_manifest_format(char **out, size_t *out_nbytes, const struct ckpt_manifest *manifest,
                         struct fsdp_err *err);
/* Checks all that can be checked without the data files; layout is indexed, not sealed. */
int ckpt_manifest_parse(struct ckpt_manifest *out, const char *data, size_t nbytes,
                        const char *path, struct fsdp_err *err);
void ckpt_manifest_free(struct ckpt_manifest *manifest);

#endif
