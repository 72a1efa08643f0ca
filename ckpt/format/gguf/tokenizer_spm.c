/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.model of SentencePiece: a message of protocol buffers, of which these fields count:
 *
 *     1: a piece { 1: text  2: score  3: type, whose numbers are GGUF's }, repeated
 *     2: how it was trained { 3: kind of model: 1 unigram, 2 BPE }
 *     3: the normalizer { 3: whether a space is put before a text }
 */
#include <string.h>

#include "tokenizer.h"

struct reader {
    const unsigned char *at, *end;
    bool broken;
};

/* A field: a number in `number`, or bytes in `inner`. */
struct field {
    uint64_t id, number;
    struct reader inner;
};

static uint64_t read_varint(struct reader *r)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (r->at == r->end)
            break;
        value |= (uint64_t)(*r->at & 127) << shift;
        if (!(*r->at++ & 128))
            return value;
    }
    r->broken = true;
    return 0;
}

static bool take_bytes(struct reader *r, struct field *out, uint64_t nbytes)
{
    if (r->broken || nbytes > (uint64_t)(r->end - r->at)) {
        r->broken = true;
        return false;
    }
    out->inner = (struct reader){r->at, r->at + nbytes, false};
    r->at += nbytes;
    return true;
}

static bool read_field(struct reader *r, struct field *out)
{
    if (r->broken || r->at == r->end)
        return false;
    const uint64_t tag = read_varint(r);
    *out = (struct field){.id = tag >> 3};
    switch (tag & 7) {
    case 0:
        out->number = read_varint(r);
        return !r->broken;
    case 1:
        return take_bytes(r, out, 8);
    case 2:
        return take_bytes(r, out, read_varint(r));
    case 5:
        return take_bytes(r, out, 4);
    default:
        r->broken = true;
        return false;
    }
}

static int read_piece(struct gguf_vocab *vocab, uint64_t id, struct reader *r, struct fsdp_err *err)
{
    struct ckpt_json_text text = {"", 0};
    struct field field;
    float score = 0;
    uint64_t type = GGUF_TOKEN_NORMAL;
    while (read_field(r, &field)) {
        const size_t nbytes = (size_t)(field.inner.end - field.inner.at);
        if (field.id == 1)
            text = (struct ckpt_json_text){(const char *)field.inner.at, nbytes};
        else if (field.id == 2 && nbytes == sizeof score)
            memcpy(&score, field.inner.at, sizeof score);
        else if (field.id == 3)
            type = field.number;
    }
    if (r->broken || type < GGUF_TOKEN_NORMAL || type > GGUF_TOKEN_BYTE)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is no model of SentencePiece: piece %llu",
                            vocab->path, (unsigned long long)id);
    FSDP_TRY(gguf_vocab_set(vocab, id, &text, (enum gguf_token_type)type, err));
    vocab->scores[id] = score;
    return FSDP_OK;
}

/* The number of one field of a message; `value` where it has none. */
static uint64_t number_of(struct reader message, uint64_t id, uint64_t value)
{
    struct field field;
    while (read_field(&message, &field))
        value = field.id == id ? field.number : value;
    return value;
}

int gguf_vocab_read_spm(struct gguf_vocab *vocab, const char *data, size_t nbytes,
                        struct fsdp_err *err)
{
    const unsigned char *begin = (const unsigned char *)data;
    struct reader r = {begin, begin + nbytes, false};
    struct field field;
    uint64_t npieces = 0, kind = 1;
    vocab->adds_space = true;
    vocab->adds_bos = true;
    if (!(vocab->scores = fsdp_alloc(vocab->ntokens, sizeof *vocab->scores, "scores", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < vocab->ntokens; i++)
        vocab->scores[i] = -10000;
    while (read_field(&r, &field)) {
        if (field.id == 1)
            FSDP_TRY(read_piece(vocab, npieces++, &field.inner, err));
        else if (field.id == 2)
            kind = number_of(field.inner, 3, kind);
        else if (field.id == 3)
            vocab->adds_space = number_of(field.inner, 3, 1) != 0;
    }
    if (r.broken || !npieces)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is no model of SentencePiece", vocab->path);
    if (kind != 2)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' is a SentencePiece model of kind %llu: GGUF's tokenizer 'llama' "
                            "carries BPE (2) alone",
                            vocab->path, (unsigned long long)kind);
    vocab->model = "llama";
    vocab->pre = "default";
    return FSDP_OK;
}
