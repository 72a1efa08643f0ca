/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a zip archive of stored (uncompressed) files, as torch.save writes: with or without zip64
 * and data descriptors. Nothing in it is believed. */
#ifndef CKPT_ZIP_H
#define CKPT_ZIP_H

#include "fsdp/base.h"

/* nbytes from pos of the archive; the reader asks only for what lies inside it. */
typedef int ckpt_zip_pread_f(void *ctx, void *dst, size_t nbytes, uint64_t pos,
                             struct fsdp_err *err);

struct ckpt_zip_entry {
    const char *name; /* without a 0 byte behind */
    size_t name_nbytes;
    uint64_t header_pos; /* of the local header */
    uint64_t nbytes;
    uint32_t crc32; /* 0: not known */
};

struct ckpt_zip {
    ckpt_zip_pread_f *pread;
    void *ctx;
    const char *what;       /* names the archive in errors; borrowed */
    uint64_t directory_pos; /* data end before it */
    size_t nentries;
    struct ckpt_zip_entry *entries; /* in the order of the central directory */
    size_t *by_name;                /* [nentries] their places, sorted by name */
    char *directory;
};

/* Reads the central directory of an archive of nbytes. */
int ckpt_zip_open(struct ckpt_zip *out, ckpt_zip_pread_f *pread, void *ctx, uint64_t nbytes,
                  const char *what, struct fsdp_err *err);
void ckpt_zip_close(struct ckpt_zip *zip);
/* *out = NULL if there is no file of that name; FSDP_ECORRUPT if there are two. */
int ckpt_zip_find(const struct ckpt_zip_entry **out, const struct ckpt_zip *zip, const char *name,
                  struct fsdp_err *err);
/* Where the entry's bytes begin; holds its local header against the central directory. */
int ckpt_zip_locate(uint64_t *pos, const struct ckpt_zip *zip, const struct ckpt_zip_entry *entry,
                    struct fsdp_err *err);

#endif
