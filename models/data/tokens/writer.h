/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.h: writes token files. Until tokens_give_names the three parts are NAME.part,
 * NAME.learned.part and NAME.index.part. NAME.learned is created at the first token that is not
 * learned, and then gets the bits of all earlier tokens.
 */
#ifndef TOKENS_WRITER_H
#define TOKENS_WRITER_H

#include "format.h"

/* What is in the files: the counts and checksums of header, and the bits of the last byte of
 * NAME.learned while it is not full. */
struct tokens_state {
    struct tokens_header header;
    unsigned char bits;
};

struct tokens_writer;

/* state: info's constant fields; all else is 0, or as tokens_writer_sync gave it for files that are
 * there (`resume`), which lose what is behind. FSDP_EEXIST: a new file that is there. Links are not
 * followed. Local, blocks. */
int tokens_writer_open(struct tokens_writer **out, const char *path,
                       const struct tokens_state *state, bool resume, struct fsdp_err *err);
/* Closes; the files stay as they are. */
void tokens_writer_close(struct tokens_writer *writer);
/* Appends tokens of the current document; learned[i]: is ids[i] learned? NULL: all are. */
int tokens_writer_put(struct tokens_writer *writer, const int32_t *ids, const bool *learned,
                      size_t ntokens, struct fsdp_err *err);
int tokens_writer_end_document(struct tokens_writer *writer, struct fsdp_err *err);
/* Flushes all to disk, and sets *state to describe it. nbytes, nbad and source_hash are not counted
 * here. */
int tokens_writer_sync(struct tokens_writer *writer, struct tokens_state *state,
                       struct fsdp_err *err);
/* Puts the rest on disk, and the header with those. *state is then all of it. */
int tokens_writer_seal(struct tokens_writer *writer, const struct tokens_info *info,
                       struct tokens_state *state, struct fsdp_err *err);
/* Gives the files of a sealed writer their names, in place of what has them. May be called again
 * where it was interrupted. */
int tokens_give_names(const char *path, bool has_learned, struct fsdp_err *err);
/* What is written so far, without what the caller counts. */
const struct tokens_info *tokens_writer_info(const struct tokens_writer *writer);

/* NAME.part, NAME.learned.part, NAME.index.part; the caller's. NULL: FSDP_ENOMEM. */
char *tokens_part_path(const char *path, enum tokens_part part, struct fsdp_err *err);

#endif
