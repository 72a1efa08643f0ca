/* SPDX-License-Identifier: Apache-2.0 */
/* texts.h: distinct texts with counts, numbered by first appearance. */
#ifndef VOCAB_TRAIN_TEXTS_H
#define VOCAB_TRAIN_TEXTS_H

#include "fsdp/base.h"

struct text {
    size_t first; /* into the bytes */
    uint32_t nbytes;
    uint32_t hash;
    uint64_t count;
};

/* Zeros are no texts. */
struct texts {
    char *bytes;
    size_t nbytes, max_bytes;
    struct text *at;
    size_t ntexts, max_texts;
    uint32_t *slots; /* open addressing by content: number + 1; 0: free */
    size_t nslots;
};
void texts_free(struct texts *texts);
/* Adds `count` to the count of a text. *number: its number. A failure changes nothing. */
int texts_add(uint32_t *number, struct texts *texts, const char *text, size_t nbytes,
              uint64_t count, struct fsdp_err *err);

#endif
