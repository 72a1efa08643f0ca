/* SPDX-License-Identifier: Apache-2.0 */
/* index.h: the file of a Hugging Face folder that says which weights are in which of its files. */
#ifndef CKPT_HF_INDEX_H
#define CKPT_HF_INDEX_H

#include <jansson.h>

#include "source/source.h"

struct ckpt_hf_index {
    json_t *map; /* tensor: file, of those not met yet; NULL: there is no index */
    const char *folder;
    double total_size; /* of all tensors, in bytes; 0: it does not say */
};

bool ckpt_hf_names_have(const struct ckpt_names *names, const char *name);
/* Which files of the folder are weights of it, and why the others are not. */
struct ckpt_hf_belonging {
    bool (*takes)(const void *ctx, const char *name);
    const void *ctx;
    const char *why_not;
};
/* *files loses the others, and a warning says so. */
void ckpt_hf_files_keep(struct ckpt_names *files, const struct ckpt_hf_belonging *belonging,
                        const struct ckpt *ckpt);

/* Reads the index `name` of ckpt->folder. Its files must be among *files, which loses what it does
 * not list. */
int ckpt_hf_index_open(struct ckpt_hf_index *out, struct ckpt *ckpt, const char *name,
                       struct ckpt_names *files, struct fsdp_err *err);
void ckpt_hf_index_close(struct ckpt_hf_index *index);
/* A file holds a tensor: refused where the index does not place it there. */
int ckpt_hf_index_meet(struct ckpt_hf_index *index, const char *tensor, const char *file,
                       struct fsdp_err *err);
/* All files were looked at: refuses a tensor that none holds. */
int ckpt_hf_index_done(const struct ckpt_hf_index *index, struct fsdp_err *err);

/* The layout is complete: sets ckpt->lacks where the index counts more bytes than its tensors have.
 * Folders that transformers writes are no such: a tied tensor that was counted for each of its
 * names, sizes of another type than the stored one, and quantized models, whose bytes programs
 * count in several ways. name: of the index. */
int ckpt_hf_index_total(struct ckpt *ckpt, const struct ckpt_hf_index *index, const char *name,
                        struct fsdp_err *err);

/* Without an index: of "STEM-00001-of-00003EXT" all three must be there. */
int ckpt_hf_refuse_incomplete(const struct ckpt_names *files, const char *folder, const char *stem,
                              const char *ext, struct fsdp_err *err);

#endif
