/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text.h"
#include "text/tokenizer/tokenizer.h"

uint64_t data_text_hash(const struct data_text *text, const char *text_key)
{
    const char *const words[] = {text_key ? text_key : "text", text->date ? text->date : ""};
    const int64_t numbers[] = {text->end, text->special, text->train_on, text->vocab_size};
    const uint64_t hashes[] = {text->tokenizer ? tokenizer_hash(text->tokenizer) : 0,
                               text->chat ? text->chat_hash : 0};
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, numbers, sizeof numbers);

    hash = fsdp_hash(hash, hashes, sizeof hashes);
    for (int i = 0; i < 2; i++)
        hash = fsdp_hash(hash, words[i], strlen(words[i]) + 1);
    return hash;
}

int text_check_vocab(int vocab_size, bool asked, const char *instead, struct fsdp_err *err)
{
    if (!vocab_size || vocab_size == 256 || asked)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "tokenizer",
        "text would become tokens byte by byte, and the model has %d tokens, not 256: "
        "%s; or, if it is meant to read bytes, set the tokenizer to 'bytes'",
        vocab_size, instead);
}
