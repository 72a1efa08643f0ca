/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json. Its vocabulary and merges are read as they come, the small parts as trees. */
#include <string.h>

#include "tokenizer.h"

/* Parts of the file, as they lie in it. */
struct parts {
    struct ckpt_json_text added, pre, normalizer, post;
    char type[32]; /* of the model; empty: it has none */
    bool ignores_merges;
};

static void read_merge(struct ckpt_json_reader *r, struct gguf_vocab *vocab)
{
    struct ckpt_json_text part;
    struct ckpt_text both = {0};
    const char *at = r->at;
    while (at < r->end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    if (at < r->end && *at == '[') {
        if (ckpt_json_read_array(r))
            while (ckpt_json_read_item(r))
                if (ckpt_json_read_text(r, &part)) {
                    if (both.nbytes)
                        ckpt_text_add(&both, " ", 1);
                    ckpt_text_add(&both, part.data, part.nbytes);
                }
    } else if (ckpt_json_read_text(r, &part)) {
        ckpt_text_add(&both, part.data, part.nbytes);
    }
    gguf_put_text(&vocab->merges, both.data ? both.data : "", both.nbytes);
    vocab->merges.failed |= both.failed;
    vocab->nmerges++;
    ckpt_text_free(&both);
}

static int read_tokens(struct ckpt_json_reader *r, struct gguf_vocab *vocab, struct fsdp_err *err)
{
    struct ckpt_json_text token;
    uint64_t id;
    int rc = FSDP_OK;
    if (ckpt_json_read_object(r))
        while (ckpt_json_read_key(r, &token)) {
            const bool numbered = ckpt_json_read_u64(r, &id);
            if (rc == FSDP_OK && numbered)
                rc = gguf_vocab_set(vocab, id, &token, GGUF_TOKEN_NORMAL, err);
        }
    return rc;
}

static int read_bpe(struct ckpt_json_reader *r, struct gguf_vocab *vocab, struct parts *parts,
                    struct fsdp_err *err)
{
    struct ckpt_json_text key, raw;
    int rc = FSDP_OK;
    if (ckpt_json_read_object(r))
        while (ckpt_json_read_key(r, &key)) {
            if (ckpt_json_text_is(&key, "type") && ckpt_json_read_text(r, &raw)) {
                snprintf(parts->type, sizeof parts->type, "%.*s", (int)raw.nbytes, raw.data);
            } else if (ckpt_json_text_is(&key, "vocab")) {
                const int read = read_tokens(r, vocab, err);
                rc = rc ? rc : read;
            } else if (ckpt_json_text_is(&key, "merges")) {
                if (ckpt_json_read_array(r))
                    while (ckpt_json_read_item(r))
                        read_merge(r, vocab);
            } else if (!ckpt_json_text_is(&key, "type")) {
                ckpt_json_read_skip(r, &raw);
                if (ckpt_json_text_is(&key, "ignore_merges"))
                    parts->ignores_merges = ckpt_json_text_is(&raw, "true");
            }
        }
    return rc;
}

static int read_file(struct ckpt_json_reader *r, struct gguf_vocab *vocab, struct parts *parts,
                     struct fsdp_err *err)
{
    struct ckpt_json_text key;
    int rc = FSDP_OK;
    if (ckpt_json_read_object(r))
        while (ckpt_json_read_key(r, &key)) {
            struct ckpt_json_text *raw = ckpt_json_text_is(&key, "added_tokens")    ? &parts->added
                                         : ckpt_json_text_is(&key, "pre_tokenizer") ? &parts->pre
                                         : ckpt_json_text_is(&key, "normalizer")
                                             ? &parts->normalizer
                                         : ckpt_json_text_is(&key, "post_processor") ? &parts->post
                                                                                     : NULL;
            if (ckpt_json_text_is(&key, "model")) {
                const int read = read_bpe(r, vocab, parts, err);
                rc = rc ? rc : read;
            } else {
                ckpt_json_read_skip(r, raw);
            }
        }
    return rc;
}

/* ---- the small parts ------------------------------------------------------------------------- */

/* A new reference; NULL where the part is absent. It was proved to be JSON. */
static json_t *tree_of(const struct ckpt_json_text *raw)
{
    return raw->data ? json_loadb(raw->data, raw->nbytes, JSON_DECODE_ANY, NULL) : NULL;
}

static bool mentions(const struct ckpt_json_text *raw, const char *word)
{
    return raw->data && memmem(raw->data, raw->nbytes, word, strlen(word));
}

static int check_pre(struct gguf_vocab *vocab, const struct parts *parts, struct fsdp_err *err)
{
    json_t *pre = tree_of(&parts->pre), *normalizer = tree_of(&parts->normalizer);
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    const struct gguf_bpe_traits bpe = {.has_merges = vocab->nmerges != 0,
                                        .ignores_merges = parts->ignores_merges};
    int rc = FSDP_OK;
    vocab->pre = gguf_pre_of(pre, &bpe);
    if (!vocab->pre)
        rc = fsdp_err_set(
            err, FSDP_EUNSUPPORTED,
            "'%s': no name in llama.cpp is known for its pre_tokenizer %.*s, and GGUF holds "
            "a name alone",
            vocab->path, (int)(parts->pre.nbytes < 300 ? parts->pre.nbytes : 300), parts->pre.data);
    else if (type && strcmp(type, "NFC"))
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "'%s': its normalizer '%.32s' cannot be carried by GGUF", vocab->path,
                          type);
    json_decref(pre);
    json_decref(normalizer);
    return rc;
}

static bool is_special(const json_t *template, size_t at)
{
    return json_object_get(json_array_get(template, at), "SpecialToken") != NULL;
}

/* Which tokens a text gets before it and behind it. */
static void read_post(struct gguf_vocab *vocab, const struct parts *parts)
{
    json_t *post = tree_of(&parts->post);
    const json_t *list = json_object_get(post, "processors");
    const size_t count = json_is_array(list) ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *single =
            json_object_get(json_is_array(list) ? json_array_get(list, i) : post, "single");
        const size_t last = json_array_size(single);
        vocab->adds_bos |= last > 1 && is_special(single, 0);
        vocab->adds_eos |= last > 1 && is_special(single, last - 1);
    }
    json_decref(post);
}

static int read_added(struct gguf_vocab *vocab, const struct parts *parts, struct fsdp_err *err)
{
    json_t *added = tree_of(&parts->added);
    int rc = FSDP_OK;
    for (size_t i = 0; rc == FSDP_OK && i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        uint64_t id;
        if (ckpt_json_u64(&id, json_object_get(token, "id")))
            rc = gguf_vocab_set_added(vocab, id, token, err);
    }
    json_decref(added);
    return rc;
}

int gguf_vocab_read_json(bool *is, struct gguf_vocab *vocab, const char *data, size_t nbytes,
                         struct fsdp_err *err)
{
    struct ckpt_json_reader *r = fsdp_alloc(1, sizeof *r, "JSON reader", err);
    struct parts parts = {.type = ""};
    *is = false;
    if (!r)
        return FSDP_ENOMEM;
    ckpt_json_read_begin(r, data, nbytes, vocab->path, "", err);
    r->takes_nul = true;
    int rc = read_file(r, vocab, &parts, err);
    if (rc == FSDP_OK && !strcmp(parts.type, "BPE") && mentions(&parts.pre, "\"ByteLevel\"")) {
        *is = true;
        rc = check_pre(vocab, &parts, err);
        vocab->model = "gpt2";
        read_post(vocab, &parts);
    }
    if (rc == FSDP_OK && *is)
        rc = read_added(vocab, &parts, err);
    rc = ckpt_json_read_end(r, rc);
    fsdp_free(r);
    return rc;
}
