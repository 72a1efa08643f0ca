/* SPDX-License-Identifier: Apache-2.0 */
/* hf_names.h: which file is what in a Hugging Face folder. Pure. */
#ifndef CKPT_HF_NAMES_H
#define CKPT_HF_NAMES_H

#include "fsdp/base.h"

#define CKPT_CARD_NAME "README.md" /* of a model */
/* What accelerate and transformers' Trainer call the weights of FSDP: whole ones in a file, others.
 */
#define CKPT_ACCELERATE_FULL "pytorch_model_fsdp.bin"
#define CKPT_ACCELERATE_FRONT "pytorch_model_fsdp_"
#define CKPT_HF_INDEX_NAME "model.safetensors.index.json"

/* Plain or compressed. */
bool ckpt_hf_is_weights(const char *name);
/* Is an output of this path, hidden or not, one file of safetensors? */
bool ckpt_hf_names_file(const char *path);
/* Configuration and tokenizer: files that go along with weights. */
bool ckpt_hf_is_extra(const char *name);
/* One of these by its well-known name: for a folder that holds other files, too. */
bool ckpt_hf_is_companion(const char *name);
bool ckpt_hf_is_index(const char *name);

/* Are these whole weights of a model, which go before what a training program keeps next to them?
 */
bool ckpt_hf_is_whole(const char *name);
/* Is it such a thing: the shards of accelerate or of DeepSpeed? */
bool ckpt_hf_is_sharded(const char *name);
/* "bfloat16": the name that config.json has for a type; NULL: none. */
const char *ckpt_hf_dtype_name(enum fsdp_dtype dtype);

#endif
