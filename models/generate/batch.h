/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h: a file of prompts, JSON Lines in and out. A line is an object with "prompt" (a text),
 * "tokens" (ids) or "messages" (a chat, optionally with "tools"). "seed" and "max_tokens" are
 * optional. The output line has all keys of the input line and "completion" (or
 * "completion_tokens"), "finish_reason" (stop or length) and "ntokens". Output lines have the order
 * of the input lines.
 */
#ifndef GENERATE_BATCH_H
#define GENERATE_BATCH_H

#include <stdio.h>

#include "chat.h"
#include "loop.h"

struct generate_batch;

struct generate_batch_opts {
    const struct generate_session *session;
    const struct generate_words *words; /* of texts */
    const struct generate_chat *chat;   /* of messages */
    bool prompts_are_chats;             /* a prompt is the user's message of a chat */
    struct generate_sequence defaults;  /* seed and max_tokens */
};

/* Reads and checks all lines; path "-" is standard input. What opts names is borrowed. Errors name
 * file, line and what was found. Local, blocks. */
int generate_batch_open(struct generate_batch **out, const char *path,
                        const struct generate_batch_opts *opts, struct fsdp_err *err);
void generate_batch_close(struct generate_batch *b);
/* Tokens of the longest sequence with its prompt. */
int generate_batch_room(const struct generate_batch *b);

/* Sets the output: path, or NULL for standard output. A file is written as PATH.part, a whole
 * line at a time, and renamed to PATH at the end. FSDP_EINVAL where one of them is the file of the
 * prompts. FSDP_EEXIST where either is there already, unless
 * `overwrite`. With `resume`, the lines that PATH.part has are not made again; FSDP_EINVAL where
 * they are not of these prompts. Local, blocks. */
int generate_batch_output(struct generate_batch *b, const char *path, bool overwrite, bool resume,
                          struct fsdp_err *err);
/* The source of prompts for generate_loop. */
struct generate_source generate_batch_source(struct generate_batch *b);
/* After the loop: writes all lines and renames the file. If the loop was interrupted, the lines so
 * far stay in PATH.part. */
int generate_batch_finish(struct generate_batch *b, struct fsdp_err *err);

#endif
