/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "family/hf.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"
#include "tokenize.h"

static int open_template(struct tokenize_text *t, const char *folder, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = chat_template_open(&t->chat, folder, &why);

    if (rc == FSDP_ENOMEM)
        return fsdp_err_pass(err, rc, &why);
    if (rc) {
        snprintf(t->chat_refusal, sizeof t->chat_refusal, "%s", why.text);
        t->text.chat_refusal = t->chat_refusal;
    }
    t->text.chat = t->chat;
    return t->chat ? chat_template_hash(&t->text.chat_hash, folder, err) : FSDP_OK;
}

/* Tokens that are bytes are those of no tokenizer, as in a run. */
static int open_tokenizer(struct tokenize_text *t, const char *path, struct fsdp_err *err)
{
    if (!strcmp(path, "bytes"))
        return FSDP_OK;
    FSDP_TRY(tokenizer_open(&t->tokenizer, path, err));
    if (tokenizer_is_bytes(t->tokenizer) && tokenizer_vocab_size(t->tokenizer) == 256)
        return FSDP_OK;
    t->text.tokenizer = t->tokenizer;
    return FSDP_OK;
}

/* The first eos_token_id of the config.json in a model's folder, as a run takes it; -1: there is
 * none. */
static int model_end(int *out, const char *folder, struct fsdp_err *err)
{
    enum { MOST_VOCAB = 1 << 30, MOST_ENDS = 64 };
    static const char *const outer[] = {"eos_token_id", NULL};
    int ends[MOST_ENDS], nends = 0, nvocab = MOST_VOCAB;
    struct hf_config *hf = NULL;
    char *path = fsdp_sprintf(err, "%s/config.json", folder);

    *out = -1;
    int rc = !path ? FSDP_ENOMEM : access(path, F_OK) ? FSDP_OK : hf_config_open(&hf, path, err);
    if (rc == FSDP_OK && hf && hf_has(hf, "text_config"))
        rc = hf_enter(hf, "text_config", outer, "{}", err);
    if (rc == FSDP_OK && hf)
        rc = hf_ints(hf, "eos_token_id", -1, MOST_VOCAB, ends, MOST_ENDS, &nends, err);
    if (rc == FSDP_OK && hf)
        rc = hf_int(hf, "vocab_size", false, 1, MOST_VOCAB, &nvocab, err);
    if (rc == FSDP_OK && nends && ends[0] < nvocab)
        *out = ends[0];
    hf_config_close(hf);
    fsdp_free(path);
    return rc;
}

static int choose_end(struct tokenize_text *t, const char *path, struct fsdp_err *err)
{
    int end;

    FSDP_TRY(model_end(&end, path, err));
    if (end < 0 && t->tokenizer)
        end = tokenizer_eos(t->tokenizer);
    t->text.end = end;
    if (t->text.special != DATA_SPECIAL_EOS || end >= 0)
        return FSDP_OK;
    if (!t->text.tokenizer) { /* bytes have no special tokens */
        t->text.special = DATA_SPECIAL_NONE;
        return FSDP_OK;
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' names no end token (eos_token_id of config.json, or eos_token of "
                        "tokenizer_config.json), which "
                        "--special eos puts behind documents; give --special model or none",
                        path);
}

int tokenize_text_open(struct tokenize_text *t, const struct tokenize_settings *set,
                       struct fsdp_err *err)
{
    struct stat st;

    *t = (struct tokenize_text){.text = {.date = set->date,
                                         .end = -1,
                                         .special = (enum data_special)set->special,
                                         .train_on = (enum data_train_on)set->train_on}};
    int rc = open_tokenizer(t, set->tokenizer, err);
    if (!rc)
        rc = choose_end(t, set->tokenizer, err);
    if (!rc && stat(set->tokenizer, &st) == 0 && S_ISDIR(st.st_mode))
        rc = open_template(t, set->tokenizer, err);
    if (rc)
        tokenize_text_close(t);
    return rc;
}

void tokenize_text_close(struct tokenize_text *t)
{
    chat_template_destroy(t->chat);
    tokenizer_close(t->tokenizer);
    t->chat = NULL;
    t->tokenizer = NULL;
}
