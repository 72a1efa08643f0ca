/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's GPT models in Hugging Face's names, of Llama, Mistral and Qwen. Megatron keeps a
 * layer's tensor of all layers as one with a dimension more (or as decoder.layers.N.…). Its
 * linear_qkv has for each group of queries the rows of its query heads, of one key and of one value
 * head; its linear_fc1 all rows of the gate, then all of the other half. The vocabulary may be
 * padded.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"

#define LAYERS "decoder.layers."

enum rows { ALL, QKV, GATE_UP, VOCAB };

struct rule {
    const char *megatron, *hf;
    enum rows rows;
};

static const struct rule of_model[] = {
    {"embedding.word_embeddings.weight", "model.embed_tokens.weight", VOCAB},
    {"decoder.final_layernorm.weight", "model.norm.weight", ALL},
    {"output_layer.weight", "lm_head.weight", VOCAB},
};

/* hf of QKV and GATE_UP: what follows the names of the parts. */
static const struct rule of_layer[] = {
    {"self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", ALL},
    {"input_layernorm.weight", "input_layernorm.weight", ALL},
    {"self_attention.linear_qkv.weight", "weight", QKV},
    {"self_attention.linear_qkv.bias", "bias", QKV},
    {"self_attention.q_layernorm.weight", "self_attn.q_norm.weight", ALL},
    {"self_attention.k_layernorm.weight", "self_attn.k_norm.weight", ALL},
    {"self_attention.linear_proj.weight", "self_attn.o_proj.weight", ALL},
    {"self_attention.linear_proj.bias", "self_attn.o_proj.bias", ALL},
    {"mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", ALL},
    {"pre_mlp_layernorm.weight", "post_attention_layernorm.weight", ALL},
    {"mlp.linear_fc1.weight", "weight", GATE_UP},
    {"mlp.linear_fc1.bias", "bias", GATE_UP},
    {"mlp.linear_fc2.weight", "mlp.down_proj.weight", ALL},
    {"mlp.linear_fc2.bias", "mlp.down_proj.bias", ALL},
};

/* One layer's tensor, or one of no layer. */
struct source {
    const struct ckpt_job_tensor *tensor; /* as it was selected */
    int stored;
    bool in_slab;
    uint64_t slab;
    uint64_t nrows;
};

static const struct rule *find_rule(const struct rule *rules, size_t nrules, const char *name)
{
    for (size_t i = 0; i < nrules; i++)
        if (!strcmp(rules[i].megatron, name))
            return &rules[i];
    return NULL;
}

/* A new output tensor of nrows rows; the caller adds its parts. */
static int add_output(struct ckpt_job *job, const struct source *from, const char *name,
                      uint64_t nrows, struct fsdp_err *err)
{
    struct fsdp_tensor tensor = from->tensor->tensor;
    const int dropped = from->in_slab;

    for (int d = 0; d + dropped < tensor.ndim; d++)
        tensor.shape[d] = tensor.shape[d + dropped];
    tensor.ndim -= dropped;
    tensor.shape[0] = nrows;
    if (!(tensor.name = ckpt_job_keep_name(job, name, err)))
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_job_add_tensor(job, &tensor, from->tensor->kind, err));
    job->tensors[job->ntensors - 1].role = from->tensor->role;
    job->tensors[job->ntensors - 1].own = job->tensors[job->ntensors - 1].tensor.name;
    return FSDP_OK;
}

/* The next nrows rows of the newest output are those of the source from src_row. */
static int add_rows(struct ckpt_job *job, const struct source *from, uint64_t row, uint64_t src_row,
                    uint64_t nrows, struct fsdp_err *err)
{
    const struct ckpt_job_part part = {.tensor = from->stored,
                                       .row = row,
                                       .nrows = nrows,
                                       .src_row = src_row,
                                       .in_slab = from->in_slab,
                                       .slab = from->slab};
    return ckpt_job_add_part(job, &part, err);
}

static int add_qkv(struct ckpt_job *job, const struct source *from, const char *prefix,
                   const char *suffix, struct fsdp_err *err)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    struct ckpt_job_heads heads;
    char name[CKPT_MAX_NAME_NBYTES];

    FSDP_TRY(ckpt_job_heads(&heads, job, from->tensor->tensor.name, err));
    const uint64_t all = heads.query + 2 * heads.key, width = from->nrows / all;
    if (heads.query % heads.key || from->nrows % all)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s' has %llu rows, which are not %llu heads of queries and "
                            "%llu each of keys and values: wrong --heads?",
                            from->tensor->tensor.name, (unsigned long long)from->nrows,
                            (unsigned long long)heads.query, (unsigned long long)heads.key);
    const uint64_t shares[] = {heads.query / heads.key * width, width, width};
    const uint64_t group = shares[0] + 2 * width;
    for (uint64_t i = 0, begin = 0; i < 3; begin += shares[i++]) {
        snprintf(name, sizeof name, "%sself_attn.%s.%s", prefix, names[i], suffix);
        FSDP_TRY(add_output(job, from, name, heads.key * shares[i], err));
        for (uint64_t g = 0; g < heads.key; g++)
            FSDP_TRY(add_rows(job, from, g * shares[i], g * group + begin, shares[i], err));
    }
    return FSDP_OK;
}

static int add_gate_up(struct ckpt_job *job, const struct source *from, const char *prefix,
                       const char *suffix, struct fsdp_err *err)
{
    static const char *const names[] = {"gate_proj", "up_proj"};
    char name[CKPT_MAX_NAME_NBYTES];

    if (from->nrows % 2)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s' has %llu rows, which are not those of two halves",
                            from->tensor->tensor.name, (unsigned long long)from->nrows);
    for (uint64_t i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%smlp.%s.%s", prefix, names[i], suffix);
        FSDP_TRY(add_output(job, from, name, from->nrows / 2, err));
        FSDP_TRY(add_rows(job, from, 0, i * (from->nrows / 2), from->nrows / 2, err));
    }
    return FSDP_OK;
}

static int add_source(struct ckpt_job *job, const struct source *from, const struct rule *rule,
                      const char *prefix, struct fsdp_err *err)
{
    const uint64_t vocab = rule->rows == VOCAB ? ckpt_job_vocab(job) : 0;
    char name[CKPT_MAX_NAME_NBYTES];

    if (rule->rows == QKV)
        return add_qkv(job, from, prefix, rule->hf, err);
    if (rule->rows == GATE_UP)
        return add_gate_up(job, from, prefix, rule->hf, err);
    if (vocab > from->nrows)
        return fsdp_err_set(
            err, FSDP_EINVAL, "tensor '%s' has %llu rows, and config.json a vocabulary of %llu",
            from->tensor->tensor.name, (unsigned long long)from->nrows, (unsigned long long)vocab);
    const uint64_t nrows = vocab ? vocab : from->nrows;
    snprintf(name, sizeof name, "%s%s", prefix, rule->hf);
    FSDP_TRY(add_output(job, from, name, nrows, err));
    return add_rows(job, from, 0, 0, nrows, err);
}

static int refuse_unknown(const char *name, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "megatron-to-hf: tensor '%s' has no counterpart in Llama, Mistral or Qwen: "
                        "leave it out (--exclude), or rename it (--map)",
                        name);
}

/* All layers of a stacked tensor, or the one that the name has. `rest`: behind "decoder.layers.".
 */
static int add_layers(struct ckpt_job *job, struct source *from, const char *rest,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &from->tensor->tensor;
    const size_t ndigits = strspn(rest, "0123456789");
    const bool stacked = !(ndigits && ndigits < 10 && rest[ndigits] == '.');
    const uint64_t first = stacked ? 0 : strtoull(rest, NULL, 10);
    const struct rule *rule = find_rule(of_layer, sizeof of_layer / sizeof of_layer[0],
                                        stacked ? rest : rest + ndigits + 1);
    char prefix[64];

    if (!rule)
        return refuse_unknown(t->name, err);
    if (t->ndim < 1 + stacked)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s' has %d dimensions, too few", t->name,
                            t->ndim);
    from->in_slab = stacked;
    from->nrows = t->shape[stacked];
    for (uint64_t i = 0; i < (stacked ? t->shape[0] : 1); i++) {
        from->slab = i;
        snprintf(prefix, sizeof prefix, "model.layers.%llu.", (unsigned long long)(first + i));
        FSDP_TRY(add_source(job, from, rule, prefix, err));
    }
    return FSDP_OK;
}

/* Without what wrappers and containers put before it. */
static const char *bare_name(const char *name)
{
    static const char *const outer[] = {"model.", "module."};

    for (size_t i = 0; i < sizeof outer / sizeof outer[0]; i++)
        if (!strncmp(name, outer[i], strlen(outer[i])))
            name += strlen(outer[i]);
    return name;
}

static int add_old(struct ckpt_job *job, const struct ckpt_job_tensor *t,
                   const struct ckpt_job_part *part, struct fsdp_err *err)
{
    struct source from = {.tensor = t, .stored = part->tensor, .nrows = 1};
    const char *name = bare_name(t->tensor.name);

    if (!strncmp(name, "optimizer.", 10))
        return FSDP_OK;
    if (t->nparts != 1 || part->row || part->src_row || part->order != CKPT_ROWS_SAME)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "megatron-to-hf: tensor '%s' was joined or split: give this map first",
                            t->tensor.name);
    if (!strncmp(name, LAYERS, strlen(LAYERS)))
        return add_layers(job, &from, name + strlen(LAYERS), err);
    const struct rule *rule = find_rule(of_model, sizeof of_model / sizeof of_model[0], name);
    if (!rule || !t->tensor.ndim)
        return refuse_unknown(t->tensor.name, err);
    from.nrows = t->tensor.shape[0];
    return add_source(job, &from, rule, "", err);
}

int ckpt_job_map_megatron(struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_job_tensor *tensors = job->tensors;
    struct ckpt_job_part *parts = job->parts;
    const int ntensors = job->ntensors;
    int rc = FSDP_OK;

    job->tensors = NULL;
    job->parts = NULL;
    job->ntensors = job->nparts = 0;
    job->max_tensors = job->max_parts = 0;
    for (int i = 0; rc == FSDP_OK && i < ntensors; i++)
        rc = add_old(job, &tensors[i], &parts[tensors[i].first_part], err);
    fsdp_free(tensors);
    fsdp_free(parts);
    if (rc == FSDP_OK && !job->ntensors)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "megatron-to-hf: there is no tensor of a model");
    return rc;
}
