/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

int text_check_vocab(int vocab_size, enum data_tokenizer tokenizer, const char *instead,
                     struct fsdp_err *err)
{
    if (!vocab_size || vocab_size == 256 || tokenizer == DATA_TOKENIZER_BYTES)
        return FSDP_OK;
    return fsdp_err_blame(
        err,
        fsdp_err_set(err, FSDP_EUNSUPPORTED,
                     "text would become tokens byte by byte, and the model has %d tokens, not 256: "
                     "%s; or, if it is meant to read bytes, set the tokenizer to 'bytes'",
                     vocab_size, instead),
        "tokenizer");
}
