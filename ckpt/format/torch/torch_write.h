/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_write.h: a file as torch.save writes it of a state dict. Pure: these functions make the
 * bytes around the storages; the caller puts them, and the storages, into the file.
 *
 *     | head: data.pkl, byteorder, ... | gap 0 | storage 0 | gap 1 | storage 1 | ... | gap n |
 *
 * All sizes are known before any data is; only what lies behind a storage has its CRC-32. Storages
 * begin at multiples of 64 bytes, where torch.load(mmap=True) maps them.
 */
#ifndef CKPT_TORCH_WRITE_H
#define CKPT_TORCH_WRITE_H

#include "fsdp/base.h"

#define CKPT_TORCH_WEIGHTS_STEM "pytorch_model"
#define CKPT_TORCH_INDEX_NAME CKPT_TORCH_WEIGHTS_STEM ".bin.index.json"

struct ckpt_torch_entry { /* of the dict, in its order */
    const char *name;
    const struct fsdp_tensor *tensor;
    size_t storage; /* several may share one */
};
struct ckpt_torch_storage {
    uint64_t nbytes;
    uint64_t header_pos, pos; /* in the file */
    uint32_t crc32;
};
struct ckpt_torch_file {
    size_t nentries, nstorages;
    struct ckpt_torch_entry *entries;
    struct ckpt_torch_storage *storages;
    uint64_t nbytes; /* of the whole file */
};

/* A name of a single file: it ends in .pt, .pth or .bin. */
bool ckpt_torch_is_file_name(const char *name);

/* Entries and the storages' sizes are given: sets the rest but for the checksums. */
int ckpt_torch_file_place(struct ckpt_torch_file *file, struct fsdp_err *err);
/* The file's first bytes, up to the first storage that is not empty; or, where all are, all of it.
 * *out is freed with fsdp_free. */
int ckpt_torch_file_head(char **out, size_t *out_nbytes, const struct ckpt_torch_file *file,
                         struct fsdp_err *err);
/* What lies behind a storage that is not empty, up to the next such one; behind the last: up to the
 * end, which needs all checksums. */
int ckpt_torch_file_gap(char **out, size_t *out_nbytes, const struct ckpt_torch_file *file,
                        size_t storage, struct fsdp_err *err);
/* Is it the last one that is not empty? */
bool ckpt_torch_file_is_last(const struct ckpt_torch_file *file, size_t storage);

#endif
