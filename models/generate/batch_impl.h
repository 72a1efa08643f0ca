/* SPDX-License-Identifier: Apache-2.0 */
/* batch_impl.h: what batch.c (lines in) and batch_out.c (lines out) share. */
#ifndef GENERATE_BATCH_IMPL_H
#define GENERATE_BATCH_IMPL_H

#include <jansson.h>

#include "batch.h"

struct batch_row {
    struct generate_batch *batch;
    struct generate_sequence seq;
    json_t *root; /* the line */
    int32_t *prompt;
    bool is_text, is_chat;
    /* The output. */
    void *stream;
    char *text;
    size_t text_nbytes, text_max;
    int32_t *tokens;
    size_t max_tokens;
    int ntokens;
    const char *reason; /* NULL: not finished */
};

struct generate_batch {
    const char *path;
    struct generate_batch_opts opts;
    struct batch_row *rows;
    size_t max_rows;
    int nrows, line, room;
    int next, nwritten; /* rows that were started, and rows that were written */
    FILE *file;
    const char *out; /* output path; NULL: standard output */
    char *part;      /* path of the unfinished file */
};

/* Writes finished rows, up to the first unfinished one. */
int batch_write_ready(struct generate_batch *b, struct fsdp_err *err);

#endif
