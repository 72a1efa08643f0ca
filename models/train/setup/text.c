/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "data/line/line.h"
#include "text.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

static void keep_refusal(char *out, const struct fsdp_err *why)
{
    snprintf(out, FSDP_ERR_TEXT_NBYTES, "%s", why->text);
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

/* The folder's own tokenizer. Without one, a model with 256 tokens reads bytes. */
static int open_own(struct train_text *t, const char *folder, int vocab_size, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = tokenizer_open(&t->tokenizer, folder, &why);

    if (rc == FSDP_ENOTFOUND) {
        why = (struct fsdp_err)FSDP_ERR_INIT;
        rc = text_check_vocab(vocab_size, false,
                              "put the model's tokenizer into its folder, or give token ids "
                              "(data.format u16, u32, llmc, or jsonl with input_ids)",
                              &why);
    }
    if (rc == FSDP_ENOMEM)
        return fsdp_err_pass(err, rc, &why);
    if (rc)
        keep_refusal(t->refusal, &why);
    return FSDP_OK;
}

/* The one that data.tokenizer names. */
static int open_named(struct train_text *t, const struct config *c, struct fsdp_err *err)
{
    char where[CONFIG_TEXT + 128];
    const int rc = tokenizer_open(&t->tokenizer, c->data.tokenizer, err);

    config_where(where, sizeof where, c, "data.tokenizer");
    fsdp_err_prefix(err, rc, "%s: ", where);
    return fsdp_err_blame(err, rc, "data.tokenizer");
}

/* Known before anything is tokenized. A few added tokens that the model does not have are common,
 * and most texts never use them. */
static void check_size(struct train_text *t, const char *folder, int vocab_size)
{
    const int nplain = t->tokenizer ? tokenizer_plain_size(t->tokenizer) : 0;

    if (vocab_size <= 0 || nplain <= vocab_size)
        return;
    snprintf(t->refusal, sizeof t->refusal,
             "%s has %d tokens, and the model %s has %d (vocab_size in its config.json). Give the "
             "tokenizer of the model (data.tokenizer), or, for a model of random values, set "
             "vocab_size to %d or more",
             tokenizer_path(t->tokenizer), nplain, folder, vocab_size,
             tokenizer_vocab_size(t->tokenizer));
    tokenizer_close(t->tokenizer);
    t->tokenizer = NULL;
}

static int open_tokenizer(struct train_text *t, const struct config *c, const char *folder,
                          int vocab_size, struct fsdp_err *err)
{
    const char *which = c->data.tokenizer;

    if (!strcmp(which, "bytes"))
        return FSDP_OK;
    if (!strcmp(which, "auto"))
        FSDP_TRY(open_own(t, folder, vocab_size, err));
    else
        FSDP_TRY(open_named(t, c, err));
    if (t->tokenizer && vocab_size == 256 && tokenizer_is_bytes(t->tokenizer)) {
        tokenizer_close(t->tokenizer);
        t->tokenizer = NULL;
    }
    check_size(t, folder, vocab_size);
    return FSDP_OK;
}

/* Bytes of text per token, for losses per byte. */
static int measure_tokens(struct train_text *t, int vocab_size, struct fsdp_err *err)
{
    if (t->refusal[0])
        return FSDP_OK;
    t->token_nbytes = fsdp_alloc((size_t)vocab_size, sizeof *t->token_nbytes, "tokens", err);
    if (!t->token_nbytes)
        return FSDP_ENOMEM;
    for (int i = 0; i < vocab_size; i++)
        t->token_nbytes[i] = t->tokenizer ? (int)tokenizer_nbytes(t->tokenizer, i) : i < 256;
    return FSDP_OK;
}

/* ---- the template ---------------------------------------------------------------------------- */

static int open_template(struct train_text *t, const char *folder, uint64_t *hash,
                         struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = chat_template_open(&t->chat, folder, &why);

    if (rc == FSDP_ENOMEM)
        return fsdp_err_pass(err, rc, &why);
    if (rc)
        keep_refusal(t->chat_refusal, &why);
    return t->chat ? chat_template_hash(hash, folder, err) : FSDP_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int end_token(const struct train_text *t, int64_t document_end,
                     const struct model_info *info, int vocab_size)
{
    if (document_end != CONFIG_DOCUMENT_END_AUTO)
        return document_end < 0 ? -1 : (int)document_end;
    if (info->neos && info->eos[0] >= 0 && info->eos[0] < vocab_size)
        return info->eos[0];
    return t->tokenizer ? tokenizer_eos(t->tokenizer) : -1;
}

static void fill_texts(struct train_text *t, const struct config *c, const struct model_info *info,
                       int vocab_size, uint64_t chat_hash)
{
    const struct data_text all = {
        .tokenizer = t->tokenizer,
        .refusal = t->refusal[0] ? t->refusal : NULL,
        .chat = t->chat,
        .chat_refusal = t->chat_refusal[0] ? t->chat_refusal : NULL,
        .chat_hash = chat_hash,
        .date = c->data.date[0] ? c->data.date : NULL,
        .vocab_size = vocab_size,
        .special = (enum data_special)c->data.special,
        .train_on = (enum data_train_on)c->data.train_on,
    };
    const int nsources = config_nsources(c);

    for (int i = 0; i <= nsources; i++) {
        struct config_source source;
        if (i < nsources)
            config_source(&source, c, i);
        else
            config_source_plain(&source, c);
        t->of[i] = all;
        t->of[i].end = end_token(t, source.document_end, info, vocab_size);
    }
}

static int check_date(const char *date, struct fsdp_err *err)
{
    if (!date[0] || chat_date_is_valid(date))
        return FSDP_OK;
    return fsdp_err_set_blame(err, FSDP_EINVAL, "data.date",
                              "data.date: '%s' is not a day as YYYY-MM-DD", date);
}

int train_text_open(struct train_text *t, const struct config *c, const char *folder,
                    const struct model_ops *ops, const struct model *model, struct fsdp_err *err)
{
    const int vocab_size = ops->vocab_size(model);
    struct model_info info;
    uint64_t chat_hash = 0;
    int rc;

    ops->info(model, &info);
    FSDP_TRY_GOTO(check_date(c->data.date, err), out);
    FSDP_TRY_GOTO(open_tokenizer(t, c, folder, vocab_size, err), out);
    FSDP_TRY_GOTO(measure_tokens(t, vocab_size, err), out);
    FSDP_TRY_GOTO(open_template(t, folder, &chat_hash, err), out);
    fill_texts(t, c, &info, vocab_size, chat_hash);
out:
    if (rc)
        train_text_close(t);
    return rc;
}

void train_text_close(struct train_text *t)
{
    fsdp_free(t->token_nbytes);
    chat_template_destroy(t->chat);
    tokenizer_close(t->tokenizer);
    *t = (struct train_text){0};
}
