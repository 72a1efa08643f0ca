/* SPDX-License-Identifier: Apache-2.0 */
/* line_impl.h: what the files of a line share: its errors, and text as its tokens. */
#ifndef DATA_LINE_IMPL_H
#define DATA_LINE_IMPL_H

#include <jansson.h>

#include "line.h"

/* FSDP_EINVAL with file, line and column; data_line_refuse finds the column of line->key. */
int data_line_refuse_at(const struct data_line *line, size_t column, const char *what,
                        struct fsdp_err *err);
int data_line_refuse(const struct data_line *line, const char *what, struct fsdp_err *err);

/* Bytes [first, end) of a text. */
struct data_span {
    size_t first, end;
};
struct data_spans {
    struct data_span *at;
    size_t nspans, room;
};

/* Makes room for ntokens more. */
int data_line_grow(struct data_line *line, size_t ntokens, struct fsdp_err *err);
/* A token of the model's vocabulary; other numbers are refused. */
int data_line_add_token(struct data_line *line, int64_t token, bool learned, struct fsdp_err *err);
/* A text, and which of its bytes are learned. The tokens that overlap one of the spans are; where
 * `behind`, those that begin in one. */
struct data_line_text {
    const char *at;
    size_t nbytes;
    struct data_spans learned; /* borrowed */
    bool add_special, behind;
};
int data_line_add_text(struct data_line *line, const struct data_line_text *text,
                       struct fsdp_err *err);
/* The token that ends a document, unless it is the last already. */
int data_line_add_end(struct data_line *line, struct fsdp_err *err);
/* The messages of a line; chat.c. */
int data_line_add_chat(struct data_line *line, const json_t *root, struct fsdp_err *err);

#endif
