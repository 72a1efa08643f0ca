/* SPDX-License-Identifier: Apache-2.0 */
/* line_impl.h: errors and tokenizing, shared by the files of this folder. */
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
/* Appends a token id. FSDP_EINVAL: it is not in the model's vocabulary. */
int data_line_add_token(struct data_line *line, int64_t token, bool learned, struct fsdp_err *err);
/* A text, and which of its bytes are learned. A token is learned if it overlaps one of the spans,
 * or, with `behind`, if it begins in one. */
struct data_line_text {
    const char *at;
    size_t nbytes;
    struct data_spans learned; /* borrowed */
    size_t nprompt;            /* bytes of the prompt before the (last) answer; 0: there is none */
    bool add_special, behind;
};
int data_line_add_text(struct data_line *line, const struct data_line_text *text,
                       struct fsdp_err *err);
/* Appends the end token of a document, unless it is already the last token. */
int data_line_add_end(struct data_line *line, struct fsdp_err *err);
/* Appends the tokens of a line's messages; chat.c. */
int data_line_add_chat(struct data_line *line, const json_t *root, struct fsdp_err *err);

#endif
