/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.h: one document of JSON Lines: its tokens, and which of them are learned. A line is
 *
 *      {"text"}                      all of it is learned
 *      {"prompt", "completion"}      the completion is learned
 *      {"messages", "tools"}         a chat, by the model's template; chat.c says what is learned
 *      {"input_ids", "labels"}       ids and labels of transformers
 */
#ifndef DATA_LINE_H
#define DATA_LINE_H

#include "fsdp/base.h"
#include "text.h"

struct tokenizer_encoder;

enum { DATA_IGNORE = -100 }; /* label of a token that is not learned */

/* A document; labels[i] is tokens[i] or DATA_IGNORE. The caller gives path, number and text, and
 * one thread uses it. */
struct data_line {
    int32_t *tokens, *labels;
    size_t ntokens, room;
    const char *path; /* what errors name */
    uint64_t number;
    const struct data_text *text;
    const char *text_key; /* the field that holds a text; NULL: "text" */
    /* While it is parsed: the line, and the field that an error is in (NULL: none). */
    const char *source, *key;
    size_t source_nbytes;
    int32_t highest;                   /* of all input_ids so far; the caller begins with -1 */
    uint64_t nbytes;                   /* of the text that became tokens in the line parsed last */
    uint64_t nignored;                 /* of its tokens, those that are not learned */
    struct tokenizer_encoder *encoder; /* made when it is needed first */
};
/* FSDP_EINVAL names file, line and column (of what is not JSON: its end), and what was found. */
int data_line_parse(struct data_line *line, const char *text, size_t nbytes, struct fsdp_err *err);
/* Text that is not JSON as a document, or a part of one: its tokens without special ones. ends, if
 * not NULL, is filled as by tokenizer_encode. */
void data_line_free(struct data_line *line);

#endif
