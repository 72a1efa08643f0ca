/* SPDX-License-Identifier: Apache-2.0 */
/* The added tokens of a tokenizer.json, and those that tokenizer_config.json adds to them. */
#include <stdlib.h>
#include <string.h>

#include "impl.h"

/* The id that the original gives an added token, whatever the file says: that of the vocabulary,
 * or else the next one. */
static json_int_t next_added_id(const struct tokenizer *t, const json_t *vocab,
                                const json_t *content)
{
    const char *text = json_string_value(content);
    const size_t nbytes = json_string_length(content);
    const json_int_t size =
        (json_int_t)(json_is_object(vocab) ? json_object_size(vocab) : json_array_size(vocab));
    const json_t *own = json_object_getn(vocab, text, nbytes);
    json_int_t highest = -1;

    if (own)
        return json_integer_value(own);
    if (json_is_array(vocab) && vocab_find(&t->vocab, text, nbytes) >= 0)
        return vocab_find(&t->vocab, text, nbytes);
    for (size_t i = 0; i < t->added.ntokens; i++)
        if (t->added.tokens[i].id > highest)
            highest = t->added.tokens[i].id;
    return highest >= size ? highest + 1 : size;
}

static int check_added(const struct tokenizer *t, const json_t *vocab,
                       const struct added_token *token, const json_t *content, struct fsdp_err *err)
{
    const json_int_t want = next_added_id(t, vocab, content);

    for (size_t i = 0; i < t->added.ntokens; i++)
        if (t->added.tokens[i].nbytes == token->nbytes &&
            !memcmp(t->added.tokens[i].content, token->content, token->nbytes))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%.40s' is there twice", token->content);
    if (want != token->id)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%.40s' has the id %d, but transformers gives it the id %d, which the "
                            "vocabulary leads to: is a token missing before it?",
                            token->content, token->id, (int)want);
    return FSDP_OK;
}

static int read_added(struct tokenizer *t, const json_t *list, const json_t *vocab,
                      struct fsdp_err *err)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const json_t *content = json_object_get(item, "content"), *id = json_object_get(item, "id");
        if (!json_is_string(content) || !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= VOCAB_MAX_IDS)
            return fsdp_err_set(err, FSDP_EINVAL, "added_tokens[%zu] has no id or no content", i);
        const bool special = json_is_true(json_object_get(item, "special"));
        const json_t *normalized = json_object_get(item, "normalized");
        struct added_token token = {
            .id = (int32_t)json_integer_value(id),
            .content = (char *)json_string_value(content),
            .nbytes = json_string_length(content),
            .special = special,
            .single_word = json_is_true(json_object_get(item, "single_word")),
            .lstrip = json_is_true(json_object_get(item, "lstrip")),
            .rstrip = json_is_true(json_object_get(item, "rstrip")),
            .normalized = normalized ? json_is_true(normalized) : !special,
        };
        if (!token.nbytes)
            continue;
        const int rc = check_added(t, vocab, &token, content, err);
        if (rc != FSDP_OK)
            return fsdp_err_prefix(err, rc, "added_tokens[%zu]: ", i);
        FSDP_TRY(added_add(t, &token, err));
    }
    return FSDP_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

static bool is_added(const struct tokenizer *t, const json_t *content)
{
    for (size_t i = 0; i < t->added.ntokens; i++)
        if (t->added.tokens[i].nbytes == json_string_length(content) &&
            !memcmp(t->added.tokens[i].content, json_string_value(content),
                    t->added.tokens[i].nbytes))
            return true;
    return false;
}

/* A token that transformers adds when it reads the file: a text, or an object with flags.
 * id: what it should have; -1: any. */
static int add_from_config(struct tokenizer *t, const json_t *item, const json_t *vocab,
                           json_int_t id, struct fsdp_err *err)
{
    const json_t *content = json_is_object(item) ? json_object_get(item, "content") : item;

    if (!json_is_string(content) || !json_string_length(content) || is_added(t, content))
        return FSDP_OK;
    const json_int_t next = next_added_id(t, vocab, content);
    if (next >= VOCAB_MAX_IDS || (id >= 0 && id != next))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "tokenizer_config.json gives '%.40s' the id %lld, and the vocabulary "
                            "leads to %lld",
                            json_string_value(content), (long long)id, (long long)next);
    const json_t *special = json_object_get(item, "special");
    const struct added_token token = {
        .id = (int32_t)next,
        .content = (char *)json_string_value(content),
        .nbytes = json_string_length(content),
        .special = id < 0 || json_is_true(special),
        .single_word = json_is_true(json_object_get(item, "single_word")),
        .lstrip = json_is_true(json_object_get(item, "lstrip")),
        .rstrip = json_is_true(json_object_get(item, "rstrip")),
        .normalized = json_is_true(json_object_get(item, "normalized")),
    };
    return added_add(t, &token, err);
}

/* added_tokens_decoder: tokens by id, in the order of ids. */
static int add_by_id(struct tokenizer *t, const json_t *tokens, const json_t *vocab,
                     struct fsdp_err *err)
{
    const char *key, *next_key;
    json_t *item;

    for (long done = -1, next; json_is_object(tokens); done = next) {
        next = VOCAB_MAX_IDS;
        next_key = NULL;
        json_object_foreach((json_t *)tokens, key, item)
        {
            const long id = strtol(key, NULL, 10);
            if (id > done && id < next && !is_added(t, json_object_get(item, "content"))) {
                next = id;
                next_key = key;
            }
        }
        if (!next_key)
            break;
        FSDP_TRY(add_from_config(t, json_object_get(tokens, next_key), vocab, next, err));
    }
    return FSDP_OK;
}

static int add_named(struct tokenizer *t, const json_t *vocab, struct fsdp_err *err)
{
    static const char *const keys[] = {
        "bos_token",           "eos_token", "unk_token",  "sep_token",
        "pad_token",           "cls_token", "mask_token", "additional_special_tokens",
        "extra_special_tokens"};

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *value = json_object_get(t->config, keys[k]), *item;
        const char *name;
        size_t i;
        if (k < 7)
            FSDP_TRY(add_from_config(t, value, vocab, -1, err));
        else if (json_is_array(value))
            json_array_foreach(value, i, item) FSDP_TRY(add_from_config(t, item, vocab, -1, err));
        else
            json_object_foreach((json_t *)value, name, item)
                FSDP_TRY(add_from_config(t, item, vocab, -1, err));
    }
    return FSDP_OK;
}

/* Some classes of transformers put add_prefix_space over the file's, others do not. */
static int check_prefix(const struct tokenizer *t, const json_t *step, struct fsdp_err *err)
{
    const json_t *want = json_object_get(t->config, "add_prefix_space"),
                 *has = json_object_get(step, "add_prefix_space");
    const char *type = json_string_value(json_object_get(step, "type"));

    if (type && !strcmp(type, "ByteLevel") && json_is_true(want) && json_is_false(has))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "tokenizer_config.json says add_prefix_space, and pre-tokenizer "
                            "ByteLevel says not: make them agree");
    return FSDP_OK;
}

int tokenizer_read_added(struct tokenizer *t, const json_t *root, struct fsdp_err *err)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");

    FSDP_TRY(read_added(t, json_object_get(root, "added_tokens"), vocab, err));
    if (!t->config)
        return FSDP_OK;
    FSDP_TRY(check_prefix(t, json_object_get(root, "pre_tokenizer"), err));
    FSDP_TRY(add_by_id(t, json_object_get(t->config, "added_tokens_decoder"), vocab, err));
    return add_named(t, vocab, err);
}
