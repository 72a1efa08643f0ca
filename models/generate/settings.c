/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "family/hf.h"
#include "settings.h"

const char *const generate_kv_dtypes[] = {"auto", "float32", "bfloat16", "float16", NULL};

const struct generate_settings generate_settings_default = {
    .device = "auto",
    .tokenizer = "auto",
    .batch = GENERATE_BATCH,
    .max_tokens = -1,
    .top_k = -1,
    .temperature = NAN,
    .top_p = NAN,
    .min_p = NAN,
    .repetition_penalty = NAN,
};

const struct generate_config generate_config_none = {
    .do_sample = -1,
    .max_tokens = -1,
    .top_k = -1,
    .temperature = NAN,
    .top_p = NAN,
    .min_p = NAN,
    .repetition_penalty = NAN,
    .bos = -1,
};

/* ---- generation_config.json ------------------------------------------------------------------ */

/* Keys that change which tokens come out, and the value with which they change nothing. */
static void warn_of_others(const struct hf_config *hf, const char *path)
{
    static const struct {
        const char *key;
        double idle;
    } others[] = {
        {"num_beams", 1},
        {"typical_p", 1},
        {"epsilon_cutoff", 0},
        {"eta_cutoff", 0},
        {"no_repeat_ngram_size", 0},
        {"encoder_repetition_penalty", 1},
        {"min_length", 0},
        {"min_new_tokens", 0},
        {"top_h", -1},
        {"guidance_scale", 1},
        {"penalty_alpha", 0},
        {"forced_bos_token_id", -1},
        {"forced_eos_token_id", -1},
        {"suppress_tokens", -1},
        {"begin_suppress_tokens", -1},
        {"bad_words_ids", -1},
        {"sequence_bias", -1},
        {"exponential_decay_length_penalty", -1},
        {"stop_strings", -1},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        double value = NAN;
        if (!hf_has(hf, others[i].key) ||
            (!hf_float(hf, others[i].key, false, -INFINITY, INFINITY, &value, NULL) &&
             value == others[i].idle))
            continue;
        fsdp_log(FSDP_LOG_WARN, "%s: %s is not supported and has no effect", path, others[i].key);
    }
}

static int read_keys(struct generate_config *c, const struct hf_config *hf, struct fsdp_err *err)
{
    enum { MOST = 1 << 30 };
    bool sample = false;

    FSDP_TRY(hf_bool(hf, "do_sample", &sample, err));
    if (hf_has(hf, "do_sample"))
        c->do_sample = sample;
    FSDP_TRY(hf_float(hf, "temperature", false, 0, 1e6, &c->temperature, err));
    FSDP_TRY(hf_int(hf, "top_k", false, 0, MOST, &c->top_k, err));
    FSDP_TRY(hf_float(hf, "top_p", false, 0, 1, &c->top_p, err));
    FSDP_TRY(hf_float(hf, "min_p", false, 0, 1, &c->min_p, err));
    FSDP_TRY(hf_float(hf, "repetition_penalty", false, 0, 1e6, &c->repetition_penalty, err));
    FSDP_TRY(hf_int(hf, "max_new_tokens", false, 1, MOST, &c->max_tokens, err));
    FSDP_TRY(hf_int(hf, "bos_token_id", false, -1, MOST, &c->bos, err));
    return hf_ints(hf, "eos_token_id", -1, MOST, c->eos, MODEL_MAX_EOS, &c->neos, err);
}

int generate_config_read(struct generate_config *out, const char *path, struct fsdp_err *err)
{
    struct generate_config c = generate_config_none;
    struct hf_config *hf;

    FSDP_TRY(hf_config_open(&hf, path, err));
    const int rc = read_keys(&c, hf, err);
    if (rc == FSDP_OK) {
        warn_of_others(hf, path);
        *out = c;
    }
    hf_config_close(hf);
    return rc;
}

/* ---- what counts ----------------------------------------------------------------------------- */

static double number(double asked, double said, double otherwise)
{
    return !isnan(asked) ? asked : !isnan(said) ? said : otherwise;
}

static int whole(int asked, int said, int otherwise)
{
    return asked >= 0 ? asked : said >= 0 ? said : otherwise;
}

void generate_choose(struct generate_opts *opts, int *max_tokens,
                     const struct generate_settings *set, const struct generate_config *config)
{
    const bool asks = set->sample || set->top_k >= 0 || !isnan(set->temperature) ||
                      !isnan(set->top_p) || !isnan(set->min_p);
    *opts = (struct generate_opts){
        .greedy = set->greedy || (!asks && config->do_sample == 0),
        .temperature = number(set->temperature, config->temperature, 1),
        .top_k = whole(set->top_k, config->top_k, 0),
        .top_p = number(set->top_p, config->top_p, 1),
        .min_p = number(set->min_p, config->min_p, 0),
        .repetition_penalty = number(set->repetition_penalty, config->repetition_penalty, 1),
        .seed = set->seed,
    };
    *max_tokens = whole(set->max_tokens, config->max_tokens,
                        set->chat ? GENERATE_MAX_ANSWER : GENERATE_MAX_TOKENS);
}
