/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: settings of tokenizing, shared by training data, fsdp-tokenize and prompts. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H

#include "fsdp/base.h"

struct chat_template;
struct tokenizer;

/* Which special tokens are added to a document: none; those of the tokenizer's post-processor (for
 * instance one at the beginning); or these and the end token. */
enum data_special { DATA_SPECIAL_NONE, DATA_SPECIAL_MODEL, DATA_SPECIAL_EOS };
/* The turns of a chat that are learned: those of the assistant, the last of these, or all text. */
enum data_train_on { DATA_TRAIN_ASSISTANT, DATA_TRAIN_LAST, DATA_TRAIN_ALL };

/* Constant; threads share it. What it points to is the caller's. */
struct data_text {
    const struct tokenizer *tokenizer; /* NULL: bytes are tokens */
    const char *refusal;               /* why text cannot be tokenized; NULL: it can */
    const struct chat_template *chat;  /* renders messages; NULL: there is none */
    const char *chat_refusal;          /* why there is none; NULL: the model's folder has none */
    uint64_t chat_hash;                /* of the template's source */
    const char *date;                  /* of the template's strftime_now; NULL: today */
    int vocab_size;                    /* ids must be below it; 0: any */
    int end;                           /* the end token; -1: none */
    enum data_special special;
    enum data_train_on train_on;
};

/* A hash of all settings that affect a document's tokens. Pure. */
uint64_t data_text_hash(const struct data_text *text, const char *text_key);

/* Checks that bytes may be tokens. This suits only a model with 256 tokens. For any other model the
 * user must request it (`asked`); otherwise FSDP_EUNSUPPORTED blames the setting `tokenizer`.
 * vocab_size 0: any. `instead` completes the advice, such as "give token ids". Pure.
 */
int text_check_vocab(int vocab_size, bool asked, const char *instead, struct fsdp_err *err);

#endif
