/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: may a model read text? One rule for training data and prompts. */
#ifndef TEXT_H
#define TEXT_H

#include "data.h"

/* Text becomes tokens byte by byte, which suits a model of 256 tokens alone. For any other model
 * the user has to ask for it with DATA_TOKENIZER_BYTES; otherwise FSDP_EUNSUPPORTED, the fault of
 * setting `tokenizer`. vocab_size 0: any. `instead` completes the advice, such as "give token ids".
 * Pure. */
int text_check_vocab(int vocab_size, enum data_tokenizer tokenizer, const char *instead,
                     struct fsdp_err *err);

#endif
