/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.h: one document of JSON Lines: its tokens, and which of them are learned (the loss covers
 * them). A line is
 *
 *      {"text"}                      all of it is learned
 *      {"prompt", "completion"}      the completion is learned
 *      {"messages", "tools"}         a chat, by the model's template; chat.c says what is learned
 *      {"input_ids", "labels"}       ids and labels of transformers
 *
 * and of pairs, as TRL has them,
 *
 *      {"prompt", "chosen", "rejected"}   texts, or lists of messages, where prompt may be left out
 *      {"prompt_ids", "chosen_ids", "rejected_ids"}
 */
#ifndef DATA_LINE_H
#define DATA_LINE_H

#include "fsdp/base.h"
#include "text.h"

struct tokenizer_encoder;

enum { DATA_IGNORE = -100 }; /* label of a token that is not learned */

/* A document; labels[i] is tokens[i] or DATA_IGNORE. The caller sets path, number and text. Not for
 * several threads at once. */
struct data_line {
    int32_t *tokens, *labels;
    size_t ntokens, room;
    const char *path; /* what errors name */
    uint64_t number;
    const struct data_text *text;
    const char *text_key; /* the field that holds a text; NULL: "text" */
    /* A line is a pair, {"prompt", "chosen", "rejected"}, of which this is read: the prompt and one
     * of its answers, which is learned. */
    bool is_pair, takes_rejected;
    const char *weight_key; /* the field that holds the weight; NULL: none */
    /* During parsing: the line, and the field at which an error is reported (NULL: none). */
    const char *source, *key;
    size_t source_nbytes;
    int32_t highest;   /* of all input_ids so far; the caller begins with -1 */
    uint64_t nbytes;   /* bytes of text that the last line tokenized */
    uint64_t nignored; /* tokens of the line that are not learned */
    double weight;     /* factor of its losses; 1 where the line says none */
    bool is_chat;      /* the line has messages */
    bool is_crossed;   /* a token begins in the prompt and ends in the answer: generation, which
                        * tokenizes the prompt alone, never gives it */
    struct tokenizer_encoder *encoder; /* created at first use */
};
/* FSDP_EINVAL names file, line and column, and what was found. For invalid JSON the column is where
 * parsing stopped. */
int data_line_parse(struct data_line *line, const char *text, size_t nbytes, struct fsdp_err *err);
void data_line_free(struct data_line *line);

#endif
