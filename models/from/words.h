/* SPDX-License-Identifier: Apache-2.0 */
/* words.h: conversions that both sources use. */
#ifndef FROM_WORDS_H
#define FROM_WORDS_H

#include "job.h"

/* Our name of "bf16", "torch.float16" and so on; NULL: none. */
const char *from_dtype(const char *value);

from_convert_f from_set_bool, from_set_stage, from_set_folder, from_set_dtype;

#endif
