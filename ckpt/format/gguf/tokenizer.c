/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "family.h"
#include "source/format_ops.h"
#include "tokenizer.h"

/* ---- reading --------------------------------------------------------------------------------- */

static int read_config_added(struct gguf_vocab *vocab, const json_t *config, struct fsdp_err *err)
{
    const char *id;
    json_t *token;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), id, token)
        FSDP_TRY(gguf_vocab_set_added(vocab, strtoull(id, NULL, 10), token, err));
    return FSDP_OK;
}

static int read_spm(bool *is, struct gguf_vocab *vocab, const struct ckpt *ckpt,
                    const json_t *config, struct fsdp_err *err)
{
    char *data;
    size_t nbytes;
    const json_t *adds = json_object_get(config, "add_bos_token");
    FSDP_TRY(ckpt_extra_load(&data, &nbytes, ckpt, "tokenizer.model", err));
    if (!data)
        return FSDP_OK;
    *is = true;
    vocab->path = ckpt_extra_path(ckpt, "tokenizer.model");
    int rc = gguf_vocab_read_spm(vocab, data, nbytes, err);
    fsdp_free(data);
    if (rc == FSDP_OK)
        rc = read_config_added(vocab, config, err);
    if (json_is_boolean(adds))
        vocab->adds_bos = json_is_true(adds);
    vocab->adds_eos = json_is_true(json_object_get(config, "add_eos_token"));
    return rc;
}

/* A byte-level tokenizer.json; else SentencePiece's file. */
static int read_vocab(struct gguf_vocab *vocab, const struct ckpt *ckpt, const json_t *config,
                      struct fsdp_err *err)
{
    const size_t ntokens = vocab->ntokens;
    const char *path = ckpt_extra_path(ckpt, "tokenizer.json");
    char *data;
    size_t nbytes;
    bool is = false;
    FSDP_TRY(ckpt_extra_load(&data, &nbytes, ckpt, "tokenizer.json", err));
    vocab->path = path;
    if (data) {
        const int rc = gguf_vocab_read_json(&is, vocab, data, nbytes, err);
        fsdp_free(data);
        FSDP_TRY(rc);
    }
    if (is)
        return FSDP_OK;
    gguf_vocab_destroy(vocab);
    FSDP_TRY(gguf_vocab_create(vocab, ntokens, err));
    FSDP_TRY(read_spm(&is, vocab, ckpt, config, err));
    if (is)
        return FSDP_OK;
    if (path)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' is not byte-level BPE: such a tokenizer is taken from "
                            "SentencePiece's tokenizer.model, which must lie next to it",
                            path);
    return fsdp_err_set(err, FSDP_ENOTFOUND,
                        "'%s' has no tokenizer (tokenizer.json or tokenizer.model), which a GGUF "
                        "file holds: %s",
                        ckpt->path,
                        ckpt_format(ckpt) == CKPT_NATIVE
                            ? "merge the checkpoint into a folder, copy the model's tokenizer "
                              "there, and make the GGUF file from that"
                            : "copy the model's there");
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_tokens(struct gguf_keys *keys, const struct gguf_vocab *vocab)
{
    char pad[32];
    gguf_key_text(keys, "tokenizer.ggml.model", vocab->model);
    gguf_key_text(keys, "tokenizer.ggml.pre", vocab->pre);
    gguf_key_texts(keys, "tokenizer.ggml.tokens", vocab->ntokens);
    for (size_t i = 0; i < vocab->ntokens; i++) {
        struct ckpt_json_text token = vocab->tokens[i];
        if (!token.data) { /* a row of the embedding that the tokenizer never gives */
            vocab->types[i] = GGUF_TOKEN_UNUSED;
            token.nbytes = (size_t)snprintf(pad, sizeof pad, "[PAD%zu]", i);
            token.data = pad;
        }
        gguf_put_text(&keys->bytes, token.data, token.nbytes);
    }
    if (vocab->scores)
        gguf_key_f32s(keys, "tokenizer.ggml.scores", vocab->scores, vocab->ntokens);
    gguf_key_i32s(keys, "tokenizer.ggml.token_type", vocab->types, vocab->ntokens);
    if (!vocab->scores) {
        gguf_key_texts(keys, "tokenizer.ggml.merges", vocab->nmerges);
        ckpt_text_add(&keys->bytes, vocab->merges.data ? vocab->merges.data : "",
                      vocab->merges.nbytes);
        keys->bytes.failed |= vocab->merges.failed;
    } else {
        gguf_key_bool(keys, "tokenizer.ggml.add_space_prefix", vocab->adds_space);
    }
}

/* By its text in tokenizer_config.json, else by its number in config.json. */
static int64_t special_id(const struct gguf_vocab *vocab, const json_t *tokenizer,
                          const json_t *config, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, "%s_token", name);
    const json_t *token = json_object_get(tokenizer, key);
    const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
    int64_t id = json_is_string(content) ? gguf_vocab_find(vocab, json_string_value(content)) : -1;
    snprintf(key, sizeof key, "%s_token_id", name);
    const json_t *number = json_object_get(config, key);
    if (json_is_array(number)) /* any of these ends a text; the first is the usual one */
        number = json_array_get(number, 0);
    if (id < 0 && json_is_integer(number))
        id = json_integer_value(number);
    return id < (int64_t)vocab->ntokens ? id : -1;
}

static void put_specials(struct gguf_keys *keys, const struct gguf_vocab *vocab,
                         const json_t *tokenizer, const json_t *config)
{
    static const struct {
        const char *name, *key;
    } specials[] = {{"bos", "tokenizer.ggml.bos_token_id"},
                    {"eos", "tokenizer.ggml.eos_token_id"},
                    {"unk", "tokenizer.ggml.unknown_token_id"},
                    {"pad", "tokenizer.ggml.padding_token_id"}};
    bool has_bos = false;
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        const int64_t id = special_id(vocab, tokenizer, config, specials[i].name);
        if (id >= 0)
            gguf_key_u32(keys, specials[i].key, (uint64_t)id);
        has_bos |= i == 0 && id >= 0;
    }
    gguf_key_bool(keys, "tokenizer.ggml.add_bos_token", vocab->adds_bos && has_bos);
    gguf_key_bool(keys, "tokenizer.ggml.add_eos_token", vocab->adds_eos);
}

/* ---- the name -------------------------------------------------------------------------------- */

/* That of the model's folder. llama.cpp takes a model with "phi-3" in its name for Microsoft's, and
 * does not load it without their tokens. */
static void put_name(struct gguf_keys *keys, const struct ckpt *ckpt,
                     const struct gguf_vocab *vocab)
{
    static const char *const tokens[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};
    const char *base = ckpt_path_base(ckpt->folder ? ckpt->folder : ckpt->path);
    bool fits = *base != 0;
    if (strcasestr(base, "phi-3") || strcasestr(base, "phi3"))
        for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
            fits &= gguf_vocab_find(vocab, tokens[i]) >= 0;
    if (fits)
        gguf_key_text(keys, "general.name", base);
}

/* ---- the chat template ----------------------------------------------------------------------- */

/* One template, or several with names, of which "default" is the one without. */
static void put_templates(struct gguf_keys *keys, const json_t *value)
{
    if (json_is_string(value))
        gguf_key_text(keys, "tokenizer.chat_template", json_string_value(value));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const char *text = json_string_value(json_object_get(entry, "template"));
        char key[96] = "tokenizer.chat_template";
        if (!name || !text)
            continue;
        if (strcmp(name, "default"))
            snprintf(key, sizeof key, "tokenizer.chat_template.%.60s", name);
        gguf_key_text(keys, key, text);
    }
}

static int put_chat_template(struct gguf_keys *keys, const struct ckpt *ckpt,
                             const json_t *tokenizer, struct fsdp_err *err)
{
    const json_t *value = json_object_get(tokenizer, "chat_template");
    char *data = NULL;
    size_t nbytes;
    json_t *root = NULL;
    if (!value)
        FSDP_TRY(ckpt_extra_load(&data, &nbytes, ckpt, "chat_template.jinja", err));
    if (data) {
        json_t *text = json_stringn(data, nbytes);
        put_templates(keys, text);
        json_decref(text);
        fsdp_free(data);
        return FSDP_OK;
    }
    if (!value)
        FSDP_TRY(ckpt_extra_json(&root, ckpt, "chat_template.json", err));
    put_templates(keys, value ? value : json_object_get(root, "chat_template"));
    json_decref(root);
    return FSDP_OK;
}

int gguf_keys_tokenizer(struct gguf_keys *keys, const struct ckpt *ckpt,
                        const struct gguf_config *config, uint64_t nvocab, struct fsdp_err *err)
{
    struct gguf_vocab vocab;
    json_t *tokenizer = NULL;
    int rc = gguf_vocab_create(&vocab, (size_t)nvocab, err);
    if (rc == FSDP_OK)
        rc = ckpt_extra_json(&tokenizer, ckpt, "tokenizer_config.json", err);
    if (rc == FSDP_OK)
        rc = read_vocab(&vocab, ckpt, tokenizer, err);
    if (rc == FSDP_OK) {
        put_name(keys, ckpt, &vocab);
        put_tokens(keys, &vocab);
        put_specials(keys, &vocab, tokenizer, config->root);
        rc = put_chat_template(keys, ckpt, tokenizer, err);
    }
    json_decref(tokenizer);
    gguf_vocab_destroy(&vocab);
    return rc;
}
