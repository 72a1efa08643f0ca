/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: how a run tokenizes text: data.tokenizer, the chat template, end tokens. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include "config/config.h"
#include "data/line/text.h"
#include "family/model.h"

struct train_text {
    struct tokenizer *tokenizer; /* NULL: bytes are tokens, or text is refused */
    struct chat_template *chat;
    char refusal[FSDP_ERR_TEXT_NBYTES], chat_refusal[FSDP_ERR_TEXT_NBYTES]; /* "": none */
    /* One per source, then one for the held-out data. */
    struct data_text of[CONFIG_MAX_SOURCES + 1];
    int *token_nbytes; /* [vocab_size] of the model: bytes of text per token; NULL: not known */
};

/* folder: holds the model's tokenizer and template. A fault in these is an error only when text or
 * chats are read. A tokenizer that data.tokenizer names must
 * always be valid. After a failure nothing is left open. Local, blocks. */
int train_text_open(struct train_text *text, const struct config *config, const char *folder,
                    const struct model_ops *ops, const struct model *model, struct fsdp_err *err);
void train_text_close(struct train_text *text);

#endif
