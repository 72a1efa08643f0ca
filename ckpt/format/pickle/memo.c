/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "memo.h"
#include "op.h"

struct scan {
    const unsigned char *data;
    size_t nbytes, pos;
};

/* A little-endian number; 0 at the end of the input, where pos moves beyond it. */
static uint64_t read_number(struct scan *s, size_t nbytes)
{
    uint64_t out = 0;
    if (nbytes > s->nbytes - s->pos) {
        s->pos = s->nbytes;
        return 0;
    }
    for (size_t i = nbytes; i > 0; i--)
        out = out << 8 | s->data[s->pos + i - 1];
    s->pos += nbytes;
    return out;
}

static void skip(struct scan *s, uint64_t nbytes)
{
    s->pos = nbytes > s->nbytes - s->pos ? s->nbytes : s->pos + (size_t)nbytes;
}

static void skip_line(struct scan *s)
{
    const unsigned char *from = s->data + s->pos;
    const unsigned char *end = memchr(from, '\n', s->nbytes - s->pos);
    s->pos = end ? s->pos + (size_t)(end - from) + 1 : s->nbytes;
}

/* Moves behind the operand of an opcode. */
static void skip_operand(struct scan *s, unsigned char op)
{
    switch (op) {
    case PK_BININT1:
    case PK_BINPUT:
    case PK_PROTO:
        return skip(s, 1);
    case PK_BININT2:
        return skip(s, 2);
    case PK_BININT:
    case PK_LONG_BINPUT:
        return skip(s, 4);
    case PK_BINFLOAT:
    case PK_FRAME:
        return skip(s, 8);
    case PK_LONG1:
    case PK_SHORT_BINUNICODE:
    case PK_SHORT_BINBYTES:
        return skip(s, read_number(s, 1));
    case PK_LONG4:
    case PK_BINUNICODE:
    case PK_BINBYTES:
        return skip(s, read_number(s, 4));
    case PK_BINUNICODE8:
    case PK_BINBYTES8:
    case PK_BYTEARRAY8:
        return skip(s, read_number(s, 8));
    case PK_GLOBAL:
        skip_line(s);
        return skip_line(s);
    default:
        return;
    }
}

static int note_index(struct ckpt_pk_memo *memo, uint64_t index, struct fsdp_err *err)
{
    const size_t word = (size_t)(index / 64);
    if (word >= memo->max_words) {
        size_t max = memo->max_words ? 2 * memo->max_words : 16;
        while (max <= word)
            max *= 2;
        uint64_t *grown = fsdp_alloc(max, sizeof *grown, "pickle memo", err);
        if (!grown)
            return FSDP_ENOMEM;
        if (memo->nwords)
            memcpy(grown, memo->recalled, memo->nwords * sizeof *grown);
        fsdp_free(memo->recalled);
        memo->recalled = grown;
        memo->max_words = max;
    }
    memo->nwords = word < memo->nwords ? memo->nwords : word + 1;
    memo->recalled[word] |= UINT64_C(1) << index % 64;
    return FSDP_OK;
}

int ckpt_pk_memo_create(struct ckpt_pk_memo *memo, const unsigned char *data, size_t nbytes,
                        struct fsdp_err *err)
{
    struct scan s = {.data = data, .nbytes = nbytes};
    size_t nvalues = 0;

    while (s.pos < nbytes) {
        const unsigned char op = data[s.pos++];
        if (op == PK_STOP)
            break;
        if (op != PK_BINGET && op != PK_LONG_BINGET) {
            skip_operand(&s, op);
            continue;
        }
        const uint64_t index = read_number(&s, op == PK_BINGET ? 1 : 4);
        if (index <= nbytes) /* the machine keeps nothing above */
            FSDP_TRY(note_index(memo, index, err));
    }
    if (!memo->nwords)
        return FSDP_OK;
    memo->before = fsdp_alloc_unset(memo->nwords, sizeof *memo->before, "pickle memo", err);
    if (!memo->before)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < memo->nwords; i++) {
        memo->before[i] = (uint32_t)nvalues;
        nvalues += (size_t)__builtin_popcountll(memo->recalled[i]);
    }
    memo->values = fsdp_alloc(nvalues, sizeof *memo->values, "pickle memo", err);
    return memo->values ? FSDP_OK : FSDP_ENOMEM;
}

void ckpt_pk_memo_free(struct ckpt_pk_memo *memo)
{
    fsdp_free(memo->recalled);
    fsdp_free(memo->before);
    fsdp_free(memo->values);
}
