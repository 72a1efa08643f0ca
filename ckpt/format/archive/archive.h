/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An archive as torch.save writes it, in a file or a part of one:
 *
 *     archive/data.pkl    a pickle: values, and how tensors are made of storages
 *     archive/data/0      a storage's bytes
 *     archive/version, archive/byteorder, …
 *
 * The folder may have any name.
 */
#ifndef CKPT_ARCHIVE_H
#define CKPT_ARCHIVE_H

#include "format/pickle/pickle.h"
#include "source/source.h"
#include "view.h"
#include "zip.h"

enum {
    CKPT_ARCHIVE_EDGE_NBYTES = 4096,  /* read at once from both ends: all of a small one but data */
    CKPT_ARCHIVE_SMALL_NBYTES = 8192, /* smaller archives are read whole */
    CKPT_ARCHIVE_NAME_NBYTES = 512,   /* of a file in it */
};

struct ckpt_archive {
    struct ckpt *ckpt;
    int file;
    uint64_t pos, nbytes;                                       /* of the archive in the file */
    char what[2 * CKPT_MAX_PATH_NBYTES + CKPT_MAX_NAME_NBYTES]; /* names it in errors */
    uint64_t tail_pos;
    size_t nhead, ntail;
    char head[CKPT_ARCHIVE_SMALL_NBYTES], tail[CKPT_ARCHIVE_EDGE_NBYTES];
    struct ckpt_zip zip;
    char prefix[CKPT_ARCHIVE_NAME_NBYTES]; /* of all names in it, with the slash */
};

/* Opens nbytes at `pos` of a file of the layout, and checks what an archive must have. *a is large,
 * must not move, and its `what` is set by the caller. On failure nothing is left to close. */
int ckpt_archive_open(struct ckpt_archive *a, struct ckpt *ckpt, int file, uint64_t pos,
                      uint64_t nbytes, struct fsdp_err *err);
void ckpt_archive_close(struct ckpt_archive *a);
/* *entry = NULL if there is none of this name; else *pos is where its bytes begin in the archive.
 */
int ckpt_archive_find(const struct ckpt_zip_entry **entry, uint64_t *pos,
                      const struct ckpt_archive *a, const char *name, size_t name_nbytes,
                      struct fsdp_err *err);
/* The storage that a view is of: its entry, which has as many bytes as the view says, and *pos. */
int ckpt_archive_storage(const struct ckpt_zip_entry **entry, uint64_t *pos,
                         const struct ckpt_archive *a, const struct ckpt_view_args *view,
                         struct fsdp_err *err);
/* Has it storages with bytes? Then its pickle makes tensors of them. */
bool ckpt_archive_has_storages(const struct ckpt_archive *a);
/* data.pkl, parsed by `parse` (ckpt_pickle_parse or the like); its checksum is compared. *data is
 * freed with fsdp_free after *out is. */
typedef int ckpt_archive_parse_f(struct ckpt_pickle *out, const void *data, size_t nbytes,
                                 const char *what, struct fsdp_err *err);
int ckpt_archive_pickle(struct ckpt_pickle *out, char **data, struct ckpt_archive *a, size_t most,
                        ckpt_archive_parse_f *parse, struct fsdp_err *err);

#endif
