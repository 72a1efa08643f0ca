/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.h: tokenizes files of text and JSON Lines into token files (tokens.h), with several
 * threads and bounded memory. The output depends only on the sources, the tokenizer and the
 * options, not on the number of threads or on interruptions.
 */
#ifndef DATA_ENCODE_H
#define DATA_ENCODE_H

#include "data/line/text.h"
#include "tokens.h"

struct data_remote;

/* By the file's name (.jsonl, .ndjson and .json are JSON Lines, before a .gz or .zst, too); or all
 * of one kind. Each file of text is a document. */
enum encode_format { ENCODE_AUTO, ENCODE_TEXT, ENCODE_LINES };

struct encode_progress {
    uint64_t done, nbytes; /* of the sources, as they lie (packed); nbytes 0: not known */
    uint64_t ndocuments, ntokens;
    double seconds;
};
/* Called at intervals by the calling thread. A status other than FSDP_OK stops the work, which can
 * be resumed, and is returned. */
typedef int encode_progress_f(void *ctx, const struct encode_progress *progress,
                              struct fsdp_err *err);

/* Everything is the caller's. */
struct encode_opts {
    uint32_t version;
    int npaths;
    const char *const *paths; /* files, folders, patterns, addresses; "-" is standard input */
    enum encode_format format;
    const struct data_remote *remote; /* reads addresses; NULL: none are read */
    const struct data_text *text;
    const char *text_key; /* of JSON Lines; NULL: "text" */
    bool skip_bad_lines;  /* skip and count lines that are not documents; else they are errors */
    int token_nbytes;     /* 2, 4; 0: by the vocabulary */
    int nthreads;         /* 0: as many as the process may use */
    bool resume;          /* continue where an equal command stopped */
    bool overwrite;       /* replace what is there under the names; else it is FSDP_EEXIST */
    encode_progress_f *progress; /* NULL: none */
    void *progress_ctx;
};
#define ENCODE_OPTS_VERSION 1
#define ENCODE_OPTS_INIT                                                                           \
    {                                                                                              \
        .version = ENCODE_OPTS_VERSION                                                             \
    }

/* Writes `path` (NAME.u16 or NAME.u32) and its companion files under names that end with .part.
 * When all are complete it renames them, the index last. *out describes them. Logs the lines left
 * out of each file. FSDP_EINVAL names file, line and column of a line that is not a document.
 * Local, blocks. */
int encode_run(struct tokens_info *out, const char *path, const struct encode_opts *opts,
               struct fsdp_err *err);

/* A hash of the sources' bytes and of where each file ends, which encode_run stores, without
 * tokenizing: of opts, paths, format and remote count. Not of standard input. Local, blocks. */
int encode_source_hash(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err);

#endif
