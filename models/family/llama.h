/* SPDX-License-Identifier: Apache-2.0 */
/* llama.h: the configuration of a Llama. Private to models/. */
#ifndef LLAMA_H
#define LLAMA_H

#include "stack.h"

/* Reads and checks config.json. *inv_freq: head_dim / 2 rotary frequencies, freed by the caller. */
int llama_config_read(struct stack_config *out, double **inv_freq, const char *path,
                      struct fsdp_err *err);

#endif
