/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h: how a tokenization that was stopped can continue: NAME.part.journal. It is text:
 *
 *      fsdp-tokenize 1
 *      ...             what the bytes of the token file depend on: options, tokenizer, sources
 *      end CRC
 *      at ...          how far the .part files were on disk; the last line whose checksum is right
 *
 * While it is open it is locked, so that no two processes make one token file.
 */
#ifndef ENCODE_JOURNAL_H
#define ENCODE_JOURNAL_H

#include "reader.h"
#include "writer.h"

struct encode_state {
    struct encode_place place;
    uint64_t joined; /* as in struct encode_join */
    uint64_t nbytes, nbad;
    struct tokens_state tokens;
    bool is_whole; /* all is on disk; the files only lack their names */
};

struct encode_journal;
/* head: the lines of this command. What an equal command left is *found, where one may continue
 * it (opts.resume); else there is nothing but what may be replaced (opts.overwrite). FSDP_EEXIST,
 * FSDP_EMISMATCH: another command's. Local, blocks. */
int encode_journal_open(struct encode_journal **out, const char *path, const char *head,
                        const struct encode_opts *opts, struct encode_state *state, bool *found,
                        struct fsdp_err *err);
int encode_journal_put(struct encode_journal *journal, const struct encode_state *state,
                       struct fsdp_err *err);
/* The work is done, or nothing of it is worth to be kept. */
void encode_journal_remove(struct encode_journal *journal);
void encode_journal_close(struct encode_journal *journal);

/* Those lines, to be freed. */
int encode_head(char **out, const struct encode_sources *sources, const struct data_text *text,
                const struct tokens_info *info, struct fsdp_err *err);

#endif
