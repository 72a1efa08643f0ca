/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that transformers 4.x and 5.x write for model_type llama. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hf.h"
#include "llama.h"

static int read_sizes(struct stack_config *c, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(hf_int(hf, "vocab_size", true, 2, STACK_MAX_VOCAB, &c->vocab, err));
    FSDP_TRY(hf_int(hf, "hidden_size", true, 1, STACK_MAX_DIM, &c->dim, err));
    FSDP_TRY(hf_int(hf, "intermediate_size", true, 1, STACK_MAX_DIM, &c->ffn, err));
    FSDP_TRY(hf_int(hf, "num_hidden_layers", true, 1, STACK_MAX_LAYERS, &c->nlayers, err));
    FSDP_TRY(hf_int(hf, "num_attention_heads", true, 1, STACK_MAX_DIM, &c->nheads, err));
    c->nkv_heads = c->nheads;
    FSDP_TRY(hf_int(hf, "num_key_value_heads", false, 1, c->nheads, &c->nkv_heads, err));
    if (c->nheads % c->nkv_heads)
        return hf_refuse(hf, FSDP_EINVAL, err, "num_key_value_heads",
                         "is %d, which does not divide num_attention_heads (%d)", c->nkv_heads,
                         c->nheads);
    if (!hf_has(hf, "head_dim") && c->dim % c->nheads)
        return hf_refuse(hf, FSDP_EINVAL, err, "hidden_size",
                         "is %d, not a multiple of num_attention_heads (%d)", c->dim, c->nheads);
    c->head_dim = c->dim / c->nheads;
    FSDP_TRY(hf_int(hf, "head_dim", false, 2, 4096, &c->head_dim, err));
    if (c->head_dim % 2)
        return hf_refuse(hf, FSDP_EINVAL, err, "head_dim", "is %d, but must be even", c->head_dim);
    if ((int64_t)c->nheads * c->head_dim > STACK_MAX_DIM)
        return hf_refuse(hf, FSDP_EINVAL, err, "num_attention_heads", "times head_dim is over %d",
                         STACK_MAX_DIM);
    c->max_seq_len = 2048;
    return hf_int(hf, "max_position_embeddings", false, 1, STACK_MAX_SEQ, &c->max_seq_len, err);
}

static int refuse_unsupported(const struct hf_config *hf, struct fsdp_err *err)
{
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias"};
    for (int i = 0; i < 2; i++) {
        bool value = false;
        FSDP_TRY(hf_bool(hf, must_be_false[i], &value, err));
        if (value)
            return hf_refuse(hf, FSDP_EUNSUPPORTED, err, must_be_false[i],
                             "is true; only models without biases are supported");
    }
    const char *act = "silu";
    FSDP_TRY(hf_text(hf, "hidden_act", false, &act, err));
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "hidden_act",
                         "is '%.64s'; only silu is supported", act);
    return FSDP_OK;
}

/* Where the rotary settings are: transformers 5 keeps all in rope_parameters, 4 has rope_theta and
 * an optional rope_scaling. */
static const char *rope_section(const struct hf_config *hf)
{
    return hf_has(hf, "rope_parameters") ? "rope_parameters" : "rope_scaling";
}

static int rope_key(const struct hf_config *hf, const char *name, double least, double most,
                    double *out, struct fsdp_err *err)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", rope_section(hf), name);
    return hf_float(hf, key, true, least, most, out, err);
}

/* Llama 3's scaling: long wavelengths are stretched by factor, short ones stay, those between are
 * interpolated. */
static int scale_llama3(double *inv_freq, int half, const struct hf_config *hf,
                        struct fsdp_err *err)
{
    double factor, low, high, trained;
    FSDP_TRY(rope_key(hf, "factor", 1, 1e6, &factor, err));
    FSDP_TRY(rope_key(hf, "low_freq_factor", 1e-3, 1e6, &low, err));
    FSDP_TRY(rope_key(hf, "high_freq_factor", 1e-3, 1e6, &high, err));
    FSDP_TRY(rope_key(hf, "original_max_position_embeddings", 1, STACK_MAX_SEQ, &trained, err));
    if (high <= low)
        return hf_refuse(hf, FSDP_EINVAL, err, rope_section(hf),
                         "has high_freq_factor %g, which must be above low_freq_factor %g", high,
                         low);
    for (int i = 0; i < half; i++) {
        double turns = trained * inv_freq[i] / (2 * M_PI); /* within the trained length */
        double keep = (turns - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        inv_freq[i] *= keep + (1 - keep) / factor;
    }
    return FSDP_OK;
}

static int read_rope(double *inv_freq, int head_dim, const struct hf_config *hf,
                     struct fsdp_err *err)
{
    const char *section = rope_section(hf), *type = "default";
    double theta = 10000, partial = 1, factor;
    bool present;
    char key[96];

    FSDP_TRY(hf_float(hf, "rope_theta", false, 1, 1e12, &theta, err));
    FSDP_TRY(hf_float(hf, "rope_parameters.rope_theta", false, 1, 1e12, &theta, err));
    FSDP_TRY(hf_float(hf, "partial_rotary_factor", false, 0, 1, &partial, err));
    FSDP_TRY(hf_float(hf, "rope_parameters.partial_rotary_factor", false, 0, 1, &partial, err));
    if (partial != 1)
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "partial_rotary_factor",
                         "is %g; only 1 is supported", partial);
    for (int i = 0; i < head_dim / 2; i++)
        inv_freq[i] = pow(theta, -2.0 * i / head_dim);
    FSDP_TRY(hf_object(hf, section, &present, err));
    if (!present)
        return FSDP_OK;
    snprintf(key, sizeof key, "%s.type", section);
    FSDP_TRY(hf_text(hf, key, false, &type, err));
    snprintf(key, sizeof key, "%s.rope_type", section);
    FSDP_TRY(hf_text(hf, key, false, &type, err));
    if (!strcmp(type, "default"))
        return FSDP_OK;
    if (!strcmp(type, "llama3"))
        return scale_llama3(inv_freq, head_dim / 2, hf, err);
    if (strcmp(type, "linear"))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, key,
                         "is '%.64s' (supported: default, linear, llama3)", type);
    FSDP_TRY(rope_key(hf, "factor", 1, 1e6, &factor, err));
    for (int i = 0; i < head_dim / 2; i++)
        inv_freq[i] /= factor;
    return FSDP_OK;
}

int llama_config_read(struct stack_config *out, double **inv_freq, const char *path,
                      struct fsdp_err *err)
{
    struct stack_config c = {0};
    struct hf_config *hf;
    double *freq = NULL;
    int rc;

    FSDP_TRY(hf_config_open(&hf, path, err));
    FSDP_TRY_GOTO(read_sizes(&c, hf, err), out);
    c.norm_eps = 1e-6;
    FSDP_TRY_GOTO(hf_float(hf, "rms_norm_eps", false, 0, 1, &c.norm_eps, err), out);
    FSDP_TRY_GOTO(hf_float(hf, "attention_dropout", false, 0, 1, &c.attn_drop, err), out);
    FSDP_TRY_GOTO(stack_config_read(&c, hf, err), out);
    FSDP_TRY_GOTO(refuse_unsupported(hf, err), out);
    freq = fsdp_alloc((size_t)c.head_dim / 2, sizeof *freq, "rotary frequencies", err);
    rc = FSDP_ENOMEM;
    if (!freq)
        goto out;
    FSDP_TRY_GOTO(read_rope(freq, c.head_dim, hf, err), out);
    *out = c;
    *inv_freq = freq;
    freq = NULL;
out:
    fsdp_free(freq);
    hf_config_close(hf);
    return rc;
}
