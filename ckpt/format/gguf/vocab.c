/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a vocabulary, by their numbers. */
#include <string.h>

#include "tokenizer.h"

int gguf_vocab_create(struct gguf_vocab *out, size_t ntokens, struct fsdp_err *err)
{
    *out = (struct gguf_vocab){.ntokens = ntokens};
    out->tokens = fsdp_alloc(ntokens, sizeof *out->tokens, "tokens", err);
    out->types = fsdp_alloc(ntokens, sizeof *out->types, "tokens", err);
    return out->tokens && out->types ? FSDP_OK : FSDP_ENOMEM;
}

void gguf_vocab_destroy(struct gguf_vocab *vocab)
{
    fsdp_free(vocab->tokens);
    fsdp_free(vocab->types);
    fsdp_free(vocab->scores);
    ckpt_text_free(&vocab->merges);
    ckpt_pool_free(&vocab->texts);
}

int gguf_vocab_set(struct gguf_vocab *vocab, uint64_t id, const struct ckpt_json_text *text,
                   enum gguf_token_type type, struct fsdp_err *err)
{
    if (id >= vocab->ntokens)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s': token %llu '%.*s' is beyond the %zu rows of the embedding: does "
                            "the tokenizer belong to these weights?",
                            vocab->path, (unsigned long long)id,
                            (int)(text->nbytes < 60 ? text->nbytes : 60), text->data,
                            vocab->ntokens);
    char *copy = ckpt_pool_text(&vocab->texts, text->nbytes + 1, err);
    if (!copy)
        return FSDP_ENOMEM;
    memcpy(copy, text->data, text->nbytes);
    copy[text->nbytes] = 0;
    vocab->tokens[id] = (struct ckpt_json_text){copy, text->nbytes};
    vocab->types[id] = type;
    return FSDP_OK;
}

/* llama.cpp looks for such a token in the text as it is: with a space where SentencePiece has its
 * mark. */
static size_t put_spaces(char *text)
{
    static const char mark[] = "\xe2\x96\x81";
    char *to = text;
    for (const char *from = text; *from;) {
        const bool is_mark = !strncmp(from, mark, sizeof mark - 1);
        *to++ = is_mark ? ' ' : *from;
        from += is_mark ? sizeof mark - 1 : 1;
    }
    *to = 0;
    return (size_t)(to - text);
}

int gguf_vocab_set_added(struct gguf_vocab *vocab, uint64_t id, const json_t *token,
                         struct fsdp_err *err)
{
    const char *content = json_string_value(json_object_get(token, "content"));
    const bool special = json_is_true(json_object_get(token, "special"));
    char *copy = content ? fsdp_strdup(content, err) : NULL;
    if (!content)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': added token %llu has no content", vocab->path,
                            (unsigned long long)id);
    if (!copy)
        return FSDP_ENOMEM;
    const size_t nbytes = special ? strlen(copy) : put_spaces(copy);
    const struct ckpt_json_text text = {copy, nbytes};
    const int rc =
        gguf_vocab_set(vocab, id, &text, special ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_USER, err);
    fsdp_free(copy);
    if (rc == FSDP_OK && vocab->scores)
        vocab->scores[id] = -1000;
    return rc;
}

int64_t gguf_vocab_find(const struct gguf_vocab *vocab, const char *text)
{
    for (size_t i = 0; i < vocab->ntokens; i++)
        if (vocab->tokens[i].data && ckpt_json_text_is(&vocab->tokens[i], text))
            return (int64_t)i;
    return -1;
}
