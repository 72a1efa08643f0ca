/* SPDX-License-Identifier: Apache-2.0 */
/* The memo. Pickles keep every value and recall few of them, so a first pass over the opcodes notes
 * which; the others have no entry, and nothing but their container holds them. */
#ifndef CKPT_PICKLE_MEMO_H
#define CKPT_PICKLE_MEMO_H

#include "pickle.h"

struct ckpt_pk_memo {
    uint64_t *recalled; /* a bit for each index */
    uint32_t *before;   /* [nwords] bits in the words before */
    size_t nwords, max_words;
    struct ckpt_pk **values; /* of the indices that are recalled */
};

/* Damaged input is noted as far as it makes sense: the machine will stop there. */
int ckpt_pk_memo_create(struct ckpt_pk_memo *memo, const unsigned char *data, size_t nbytes,
                        struct fsdp_err *err);
void ckpt_pk_memo_free(struct ckpt_pk_memo *memo);

/* Where the value of an index is kept; NULL: it is not recalled. */
static inline struct ckpt_pk **ckpt_pk_memo_at(const struct ckpt_pk_memo *memo, uint64_t index)
{
    const uint64_t word = index / 64, bit = UINT64_C(1) << index % 64;
    if (word >= memo->nwords || !(memo->recalled[word] & bit))
        return NULL;
    return &memo->values[memo->before[word] +
                         (uint32_t)__builtin_popcountll(memo->recalled[word] & (bit - 1))];
}

#endif
