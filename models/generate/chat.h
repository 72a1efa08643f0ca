/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chat.h: the tokens of a chat, rendered with the model's own template. They are those of
 * transformers' apply_chat_template: a template writes its special tokens itself, and none are
 * added.
 */
#ifndef GENERATE_CHAT_H
#define GENERATE_CHAT_H

#include <jansson.h>

#include "session.h"
#include "text/chat/chat.h"
#include "words.h"

struct generate_chat {
    struct chat_template *template;
    const struct generate_words *words; /* borrowed, like what follows */
    const char *system;                 /* system message; NULL: none is added */
    const char *date;                   /* YYYY-MM-DD; NULL: today */
    const json_t *variables;            /* further variables of the template; NULL: none */
    /* Why there is no template; an error only if there are chats. NULL: there is one. */
    const char *refusal;
};

/* Finds the template in `folder` (may be NULL), else in the model's folder. Set the other members
 * first. FSDP_ENOTFOUND says what to do. Close it, also after an error.
 * Local, blocks. */
int generate_chat_open(struct generate_chat *chat, struct generate_session *s, const char *folder,
                       struct fsdp_err *err);
void generate_chat_close(struct generate_chat *chat);

/* Renders and tokenizes messages and the prompt for an answer. The system message is put first,
 * unless the messages begin with one. tools: a list, or NULL. The caller frees *out. Errors are
 * those of the template and the tokenizer. Local. */
int generate_chat_encode(int32_t **out, int *ntokens, const struct generate_chat *chat,
                         const json_t *messages, const json_t *tools, struct fsdp_err *err);

/* The same for one message of the user. */
int generate_chat_encode_prompt(int32_t **out, int *ntokens, const struct generate_chat *chat,
                                const char *text, size_t nbytes, struct fsdp_err *err);

/* A new message; NULL: not UTF-8, or no memory. */
json_t *generate_chat_message(const char *role, const char *text, size_t nbytes);

/* Adds a variable "NAME=VALUE" to *variables, which is created if it is NULL. VALUE is JSON;
 * anything that does not look like JSON is a text. FSDP_EINVAL says what is wrong. Local. */
int generate_chat_variable(json_t **variables, const char *text, struct fsdp_err *err);
/* Sets *out to `text`. FSDP_EINVAL: it is not a date. Pure. */
int generate_chat_date(const char **out, const char *text, struct fsdp_err *err);

#endif
