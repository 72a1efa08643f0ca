/* SPDX-License-Identifier: Apache-2.0 */
/* zip_write.h: the records of a zip archive of stored files, as torch.save writes them: what lies
 * around the files' bytes, for a caller who puts both where they belong. Pure. */
#ifndef CKPT_ZIP_WRITE_H
#define CKPT_ZIP_WRITE_H

#include "util/text.h"

/* Where the bytes of a file with `later` begin: a multiple of this. */
#define CKPT_ZIP_ALIGN 64

struct ckpt_zip_member {
    const char *folder, *file; /* its name is both, with a slash between */
    uint64_t pos;              /* of its header in the archive */
    uint64_t nbytes;
    uint32_t crc32;
    bool later; /* the checksum is known only behind the bytes: a descriptor has it */
};

/* The header before the bytes; its padding aligns those of one with `later`. */
void ckpt_zip_add_local(struct ckpt_text *text, const struct ckpt_zip_member *member);
/* How long that is. */
size_t ckpt_zip_local_nbytes(const struct ckpt_zip_member *member);
/* Behind the bytes of one with `later`. */
void ckpt_zip_add_descriptor(struct ckpt_text *text, const struct ckpt_zip_member *member);
size_t ckpt_zip_descriptor_nbytes(const struct ckpt_zip_member *member);
/* Its line of the directory, which follows the last file. */
void ckpt_zip_add_central(struct ckpt_text *text, const struct ckpt_zip_member *member);
/* The end of an archive whose directory has nmembers lines, nbytes bytes, and begins at pos. */
void ckpt_zip_add_end(struct ckpt_text *text, uint64_t nmembers, uint64_t nbytes, uint64_t pos);

#endif
