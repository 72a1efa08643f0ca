/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "impl.h"

int tokenizer_vocab_size(const struct tokenizer *t)
{
    return (int)(t->vocab.nids > t->added.nids ? t->vocab.nids : t->added.nids);
}

int tokenizer_plain_size(const struct tokenizer *t)
{
    return (int)t->vocab.nids;
}

bool tokenizer_is_bytes(const struct tokenizer *t)
{
    return !t->words;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return t->hash;
}

const char *tokenizer_path(const struct tokenizer *t)
{
    return t->path;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

int tokenizer_post(const struct tokenizer *t, bool behind, const int32_t **ids)
{
    *ids = behind ? t->after : t->before;
    return behind ? t->nafter : t->nbefore;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *token, size_t nbytes)
{
    for (size_t i = 0; i < t->added.ntokens; i++)
        if (t->added.tokens[i].nbytes == nbytes &&
            !memcmp(t->added.tokens[i].content, token, nbytes))
            return t->added.tokens[i].id;
    return vocab_find(&t->vocab, token, nbytes);
}
