/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the options of fsdp-generate, and their defaults in the model's folder. */
#ifndef GENERATE_SETTINGS_H
#define GENERATE_SETTINGS_H

#include <jansson.h>

#include "family/model.h"
#include "sampler.h"

enum { GENERATE_MAX_ADAPTERS = 16 };

struct generate_settings {
    const char *model, *prompt, *tokens, *prompts, *output, *device;
    const char *adapters[GENERATE_MAX_ADAPTERS];
    int nadapters;
    bool logits, probabilities, ignore_eos, ignore_config, greedy, sample, verbose;
    bool overwrite, resume;
    int batch;             /* sequences at once */
    int kv_dtype;          /* index into generate_kv_dtypes */
    const char *tokenizer; /* auto, bytes, or a path */
    bool chat;
    const char *system, *date;
    json_t *variables; /* of the chat template; NULL: none */
    uint64_t seed;
    /* Not set where negative, or NAN: generation_config.json's, or else the default. */
    int max_tokens, top_k;
    double temperature, top_p, min_p, repetition_penalty;
};
extern const struct generate_settings generate_settings_default;

/* Defaults. An answer of a chat usually ends with an end token. */
enum { GENERATE_MAX_TOKENS = 200, GENERATE_MAX_ANSWER = 1024, GENERATE_BATCH = 8 };
extern const char *const generate_kv_dtypes[]; /* auto, float32, bfloat16, float16 */

/* The values of generation_config.json; unset values as above. */
struct generate_config {
    int do_sample; /* -1: not said */
    int max_tokens, top_k;
    double temperature, top_p, min_p, repetition_penalty;
    int bos; /* token id, -1: not said */
    int neos, eos[MODEL_MAX_EOS];
};
extern const struct generate_config generate_config_none;

/* Reads a generation_config.json. Keys that would change the text and are not supported are logged
 * as warnings. Errors name file and key. Local, blocks. */
int generate_config_read(struct generate_config *out, const char *path, struct fsdp_err *err);

/* The option that was given, else the file's value, else the default. An option of sampling
 * requests sampling. Pure. */
void generate_choose(struct generate_opts *opts, int *max_tokens,
                     const struct generate_settings *set, const struct generate_config *config);

#endif
