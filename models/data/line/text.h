/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: how text becomes tokens. One rule for training data, fsdp-tokenize and prompts. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H

#include "fsdp/base.h"

struct chat_template;
struct tokenizer;

/* Which tokens a document has besides those of its text: none; those that the tokenizer's
 * post-processor adds (a token at the beginning, for instance); and the end token behind it. */
enum data_special { DATA_SPECIAL_NONE, DATA_SPECIAL_MODEL, DATA_SPECIAL_EOS };
/* The turns of a chat that are learned: those of the assistant, the last of these, or all text. */
enum data_train_on { DATA_TRAIN_ASSISTANT, DATA_TRAIN_LAST, DATA_TRAIN_ALL };

/* Constant; threads share it. What it points to is the caller's. */
struct data_text {
    const struct tokenizer *tokenizer; /* NULL: bytes are tokens */
    const char *refusal;               /* why text has no tokens; NULL: it has */
    const struct chat_template *chat;  /* renders messages; NULL: there is none */
    const char *chat_refusal;          /* why there is none; NULL: the model's folder has none */
    uint64_t chat_hash;                /* of the template's source */
    const char *date;                  /* of the template's strftime_now; NULL: today */
    int vocab_size;                    /* ids must be below it; 0: any */
    int end;                           /* the end token; -1: none */
    enum data_special special;
    enum data_train_on train_on;
};

/* A number that changes with what a document's tokens depend on. Pure. */
uint64_t data_text_hash(const struct data_text *text, const char *text_key);

/* Text becomes tokens byte by byte, which suits a model of 256 tokens alone. For any other model
 * the user has to ask for it (`asked`); otherwise FSDP_EUNSUPPORTED, the fault of setting
 * `tokenizer`. vocab_size 0: any. `instead` completes the advice, such as "give token ids". Pure.
 */
int text_check_vocab(int vocab_size, bool asked, const char *instead, struct fsdp_err *err);

#endif
