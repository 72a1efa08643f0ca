/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2.h: the configuration of a GPT-2. Private to models/. */
#ifndef GPT2_H
#define GPT2_H

#include "stack.h"

/* Reads and checks config.json. */
int gpt2_config_read(struct stack_config *out, const char *path, struct fsdp_err *err);

#endif
