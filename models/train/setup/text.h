/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: how a run's text becomes tokens: data.tokenizer, the chat template, end tokens. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include "config/config.h"
#include "data/line/text.h"
#include "family/model.h"

struct train_text {
    struct tokenizer *tokenizer; /* NULL: bytes are tokens, or text is refused */
    struct chat_template *chat;
    char refusal[FSDP_ERR_TEXT_NBYTES], chat_refusal[FSDP_ERR_TEXT_NBYTES]; /* "": none */
    /* Of each source, and of the held-out data behind them. */
    struct data_text of[CONFIG_MAX_SOURCES + 1];
    int *token_nbytes; /* [vocab_size] of the model: bytes of text per token; NULL: not known */
};

/* model_config: path of config.json, in whose folder the model's tokenizer and template are. What
 * is wrong with these is an error only where text or chats are read, but for a tokenizer that
 * data.tokenizer names. A failed open is closed, too. Local, blocks. */
int train_text_open(struct train_text *text, const struct config *config, const char *model_config,
                    const struct model_ops *ops, const struct model *model, struct fsdp_err *err);
void train_text_close(struct train_text *text);

#endif
