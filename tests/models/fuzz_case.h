/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_case.h: random small models, data and configurations of training runs, each a function of a
 * seed and the case's number. What decides the result is common to all runs of a case; how it is
 * computed is drawn anew for the run on several ranks.
 */
#ifndef FUZZ_CASE_H
#define FUZZ_CASE_H

#include <stdarg.h>
#include <stdint.h>

#include "llama64.h"

enum { FUZZ_STEPS = 4, FUZZ_MAX_SEQ = 24, FUZZ_MAX_ROWS = 24 };
enum { FUZZ_SETTINGS = 64, FUZZ_SETTING_NBYTES = 160 };

/* What is rounded: nothing, or what has the type of that name. */
enum fuzz_rounding { FUZZ_F32, FUZZ_BF16, FUZZ_F16, FUZZ_F8 };

struct fuzz_settings {
    int nelem;
    char text[FUZZ_SETTINGS][FUZZ_SETTING_NBYTES];
};

struct fuzz_case {
    uint64_t random;
    bool llama, wide; /* wide: llama64.h computes it, too */
    bool labels;      /* documents of JSON lines, of which the prompts do not count */
    struct l64_shape shape;
    struct l64_optim optim;
    char frozen[32], group[32]; /* what names begin with, and hold; "": none */
    double group_scale, group_decay, group_beta1, group_beta2;
    int schedule, warmup, rows, seq; /* schedule: an index of fuzz_schedules */
    double lr, min_lr, dropout;
    enum fuzz_rounding rounding;
    int nranks, nnodes;
    struct fuzz_settings common, many; /* of all runs; of the one on several ranks */
};

static const char *const fuzz_schedules[] = {"constant", "linear", "cosine"};

/* ---- chance ---------------------------------------------------------------------------------- */

/* Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014). */
static inline uint64_t fuzz_next(struct fuzz_case *c)
{
    uint64_t z = c->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* least <= result <= most */
static inline int fuzz_int(struct fuzz_case *c, int least, int most)
{
    return least + (int)(fuzz_next(c) % (uint64_t)(most - least + 1));
}

static inline bool fuzz_chance(struct fuzz_case *c, int percent)
{
    return fuzz_int(c, 0, 99) < percent;
}

/* One of the words, which blanks separate; static. */
static inline const char *fuzz_word(struct fuzz_case *c, const char *words)
{
    static char word[32];
    int nwords = 1;
    for (const char *p = words; *p; p++)
        nwords += *p == ' ';
    for (int skip = fuzz_int(c, 0, nwords - 1); skip; skip--)
        words = strchr(words, ' ') + 1;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(words, " "), words);
    return word;
}

__attribute__((format(printf, 2, 3))) static inline void fuzz_set(struct fuzz_settings *s,
                                                                  const char *fmt, ...)
{
    va_list args;
    if (s->nelem == FUZZ_SETTINGS)
        abort();
    va_start(args, fmt);
    vsnprintf(s->text[s->nelem++], FUZZ_SETTING_NBYTES, fmt, args);
    va_end(args);
}

/* In some cases the key has one of the words as its value in the run on several ranks. */
static inline void fuzz_maybe(struct fuzz_case *c, int percent, const char *key, const char *words)
{
    if (fuzz_chance(c, percent))
        fuzz_set(&c->many, "%s=%s", key, fuzz_word(c, words));
}

/* ---- what decides the result ----------------------------------------------------------------- */

static inline void fuzz_model(struct fuzz_case *c)
{
    struct l64_shape *s = &c->shape;
    const bool rough = c->rounding == FUZZ_BF16 || c->rounding == FUZZ_F16;

    c->llama = fuzz_chance(c, 70);
    s->layers = fuzz_int(c, 1, 3);
    s->V = fuzz_int(c, 17, 90);
    s->tied = fuzz_chance(c, 40);
    s->eps = fuzz_chance(c, 50) ? 1e-5 : 1e-6;
    s->theta = fuzz_chance(c, 50) ? 10000 : 500;
    s->NKV = fuzz_int(c, 1, 3);
    s->NH = s->NKV * (c->llama ? fuzz_int(c, 1, 3) : 1);
    /* LayerNorm makes nearly the same of all vectors of two or three numbers: their gradient is
     * what rounding leaves of a difference, on one rank, too. */
    s->D = 2 * (c->llama ? fuzz_int(c, 1, 5) : rough ? fuzz_int(c, 8, 10) : fuzz_int(c, 3, 6));
    /* In 16 bits a norm over a few numbers is far from that in double precision, on one rank, too.
     */
    s->C = c->llama ? fuzz_int(c, rough ? 16 : 5, 40) : s->NH * s->D;
    s->F = fuzz_int(c, 5, 60);
    c->labels = fuzz_chance(c, 25);
    if (c->labels && s->V < 32)
        s->V = 32;
    c->dropout = fuzz_chance(c, 25) ? 0.05 * fuzz_int(c, 1, 6) : 0;
    fuzz_set(&c->common, "model.seed=%d", fuzz_int(c, 0, 1000));
    fuzz_set(&c->common, "model.dropout=%g", c->dropout);
}

static inline void fuzz_data(struct fuzz_case *c)
{
    c->rows = fuzz_int(c, 1, FUZZ_MAX_ROWS);
    c->seq = fuzz_int(c, 4, FUZZ_MAX_SEQ);
    fuzz_set(&c->common, "train.global_batch_size=%d", c->rows);
    fuzz_set(&c->common, "data.seq_len=%d", c->seq);
    fuzz_set(&c->common, "train.seed=%d", fuzz_int(c, 0, 1000));
    fuzz_set(&c->common, "data.format=%s", c->labels ? "jsonl" : "u16");
    fuzz_set(&c->common, "data.layout=%s", fuzz_word(c, c->labels ? "stream rows" : "stream"));
    if (c->labels && fuzz_chance(c, 50))
        fuzz_set(&c->common, "data.pack=none");
}

static inline void fuzz_schedule(struct fuzz_case *c)
{
    c->schedule = fuzz_int(c, 0, 2);
    c->warmup = fuzz_int(c, 0, 2);
    c->min_lr = fuzz_chance(c, 50) ? 0 : c->lr / 10;
    fuzz_set(&c->common, "optim.lr=%g", c->lr);
    fuzz_set(&c->common, "optim.schedule=%s", fuzz_schedules[c->schedule]);
    fuzz_set(&c->common, "optim.min_lr=%g", c->min_lr);
    fuzz_set(&c->common, "optim.warmup_steps=%d", c->warmup);
}

static inline void fuzz_optim(struct fuzz_case *c)
{
    struct l64_optim *o = &c->optim;

    *o = l64_defaults;
    o->sgd = fuzz_chance(c, 30);
    o->decay_all = fuzz_chance(c, 30);
    o->clip_inf = fuzz_chance(c, 20);
    o->clip = fuzz_chance(c, 25) ? 0 : fuzz_chance(c, 30) ? 0.1 : 1;
    o->weight_decay = 0.05 * fuzz_int(c, 0, 4);
    /* Adam divides a gradient near 0 by itself: with a small eps rounding decides the way of such a
     * weight, on one rank, too. */
    o->eps = 1e-4;
    if (!o->sgd && fuzz_chance(c, 30)) {
        o->beta1 = 0.8;
        o->beta2 = 0.99;
    }
    o->nesterov = o->sgd && fuzz_chance(c, 30);
    o->momentum = o->nesterov ? 0.9 : fuzz_chance(c, 30) ? 0 : 0.8;
    o->dampening = !o->sgd || o->nesterov || fuzz_chance(c, 60) ? 0 : 0.3;
    c->lr = o->sgd ? 0.05 : 3e-3;
    fuzz_set(&c->common, "optim.name=%s", o->sgd ? "sgd" : "adamw");
    fuzz_set(&c->common, "optim.betas=%g,%g", o->beta1, o->beta2);
    fuzz_set(&c->common, "optim.eps=%g", o->eps);
    fuzz_set(&c->common, "optim.momentum=%g", o->momentum);
    fuzz_set(&c->common, "optim.dampening=%g", o->dampening);
    fuzz_set(&c->common, "optim.nesterov=%s", o->nesterov ? "true" : "false");
    fuzz_set(&c->common, "optim.weight_decay=%g", o->weight_decay);
    fuzz_set(&c->common, "optim.decay=%s", o->decay_all ? "all" : "matrices");
    fuzz_set(&c->common, "optim.clip_grad_norm=%g", o->clip);
    fuzz_set(&c->common, "optim.clip_norm_type=%s", o->clip_inf ? "inf" : "2");
    if (fuzz_chance(c, 20))
        fuzz_set(&c->common, "optim.ema_decay=0.5");
}

/* Parameters that are frozen, or have settings of their own. */
static inline void fuzz_exceptions(struct fuzz_case *c)
{
    const char *frozen = c->llama ? "model.embed_tokens. model.layers.0. model.norm."
                                  : "transformer.wte. transformer.h.0. transformer.ln_f.";
    /* A group must name something that is trained: of a single layer nothing would be left. */
    if (fuzz_chance(c, 25) && c->shape.layers > 1) {
        snprintf(c->frozen, sizeof c->frozen, "%s", fuzz_word(c, frozen));
        fuzz_set(&c->common, "fsdp.frozen=[%s*]", c->frozen);
    }
    if (!fuzz_chance(c, 25))
        return;
    snprintf(c->group, sizeof c->group, "%s",
             fuzz_word(c, c->llama ? "mlp attn norm weight" : "mlp attn ln_ weight"));
    c->group_scale = fuzz_chance(c, 50) ? 0.5 : 0;
    c->group_decay = fuzz_chance(c, 50) ? 0.02 : 0;
    c->group_beta1 = 0.7;
    c->group_beta2 = 0.9;
    fuzz_set(&c->common, "optim.groups=['*%s*: lr_scale=%g weight_decay=%g%s']", c->group,
             c->group_scale, c->group_decay, c->optim.sgd ? "" : " betas=0.7,0.9");
}

/* On one rank, too. */
static inline void fuzz_rounding(struct fuzz_case *c)
{
    if (c->rounding == FUZZ_F8)
        fuzz_set(&c->common, "fsdp.gather_dtype=float8_e4m3");
    if (c->rounding == FUZZ_F32 || c->rounding == FUZZ_F8)
        return;
    const char *dtype = c->rounding == FUZZ_BF16 ? "bf16" : "fp16";
    fuzz_set(&c->common, "fsdp.param_dtype=%s", dtype);
    if (fuzz_chance(c, 70))
        fuzz_set(&c->common, "fsdp.reduce_dtype=%s", dtype);
    /* Nothing overflows, so that no step is skipped. */
    fuzz_set(&c->common, "fsdp.loss_scale_init=1024");
    if (c->rounding == FUZZ_BF16 && !c->optim.sgd && fuzz_chance(c, 30))
        fuzz_set(&c->many, "optim.master=split");
}

/* ---- how it is computed ---------------------------------------------------------------------- */

/* One or two patterns of layers and of what is in them; static. */
static inline const char *fuzz_modules(struct fuzz_case *c)
{
    static char text[96];
    const char *layers = c->llama ? "model.layers" : "transformer.h";
    const char *inside = c->llama ? "0 * 0.self_attn *.self_attn 0.mlp *.mlp *.*"
                                  : "0 * 0.attn *.attn 0.mlp *.mlp *.*";
    int len = snprintf(text, sizeof text, "%s.%s", layers, fuzz_word(c, inside));
    if (fuzz_chance(c, 40))
        snprintf(text + len, sizeof text - (size_t)len, ",%s.%s", layers, fuzz_word(c, inside));
    return text;
}

static inline void fuzz_wrap(struct fuzz_case *c)
{
    const char *classes =
        c->llama ? "LlamaDecoderLayer LlamaAttention LlamaMLP" : "GPT2Block GPT2Attention GPT2MLP";
    char class[32];

    fuzz_maybe(c, 40, "fsdp.wrap_policy", "none size");
    fuzz_maybe(c, 40, "fsdp.min_num_params", "1 500 3000");
    if (fuzz_chance(c, 20)) {
        fuzz_set(&c->many, "fsdp.wrap_policy=list");
        fuzz_set(&c->many, "fsdp.wrap_modules=[%s]", fuzz_modules(c));
    }
    if (fuzz_chance(c, 30)) {
        snprintf(class, sizeof class, "%s", fuzz_word(c, classes));
        fuzz_set(&c->many, "fsdp.wrap_classes=[%s,%s]", class, fuzz_word(c, classes));
    }
}

static inline void fuzz_parallel(struct fuzz_case *c)
{
    static const struct {
        int nranks, nnodes;
    } worlds[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2},
                  {5, 1}, {5, 2}, {6, 2}, {6, 3}, {7, 1}, {7, 7}};
    const int world = fuzz_int(c, 0, (int)(sizeof worlds / sizeof *worlds) - 1);

    c->nranks = worlds[world].nranks;
    c->nnodes = worlds[world].nnodes;
    fuzz_set(&c->many, "fsdp.sharding_strategy=%s",
             fuzz_word(c, "FULL_SHARD FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD "
                          "HYBRID_SHARD_ZERO2 ZERO1"));
    fuzz_set(&c->many, "train.micro_batch_size=%s", fuzz_word(c, "auto auto 1 1 2 3 4 5 8"));
    fuzz_maybe(c, 20, "fsdp.shard_size", "1 2 3");
    fuzz_maybe(c, 30, "fsdp.reshard_after_forward", "true false 2 3");
    fuzz_maybe(c, 25, "fsdp.two_level", "true");
    fuzz_maybe(c, 30, "fsdp.reduce_last", "true");
    fuzz_wrap(c);
    fuzz_maybe(c, 30, "fsdp.forward_prefetch", "0 2 3");
    fuzz_maybe(c, 30, "fsdp.backward_prefetch", "0 2 3");
    fuzz_maybe(c, 30, "fsdp.limit_all_gathers", "0 1 5");
    fuzz_maybe(c, 30, "fsdp.grad_buffers", "1 4");
    const bool away = fuzz_chance(c, 25);
    if (away)
        fuzz_set(&c->many, "fsdp.offload=%s", fuzz_word(c, "optimizer params"));
    fuzz_maybe(c, 20, "fsdp.offload_slots", "1 3");
    const bool recomputes = fuzz_chance(c, 40);
    if (recomputes)
        fuzz_set(&c->many, "fsdp.activation_checkpointing=%s", fuzz_word(c, "full selective"));
    if (recomputes && fuzz_chance(c, 50))
        fuzz_set(&c->many, "fsdp.checkpoint_modules=[%s]", fuzz_modules(c));
    if (fuzz_chance(c, 15))
        fuzz_set(&c->many, "fsdp.unit_overrides=['%s.0 reshard_after_forward=%s']",
                 c->llama ? "model.layers" : "transformer.h", fuzz_word(c, "true false"));
    fuzz_maybe(c, 20, "train.threads", "1 2");
    fuzz_maybe(c, 25, "train.late_results", "true");
    if (c->rounding != FUZZ_F8)
        fuzz_maybe(c, 40, "fsdp.update_at", "forward");
    fuzz_maybe(c, 40, "fsdp.offload_activations", "true");
    const bool on_host = away && fuzz_chance(c, 50);
    if (on_host || fuzz_chance(c, 30))
        fuzz_set(&c->many, "fsdp.offload_gradients=true");
    if (on_host)
        fuzz_set(&c->many, "fsdp.offload_update=host");
}

static inline void fuzz_make(struct fuzz_case *c, uint64_t seed, int number)
{
    memset(c, 0, sizeof *c);
    c->random = seed * UINT64_C(1000003) + (uint64_t)number;
    c->rounding = fuzz_chance(c, 75) ? FUZZ_F32 : (enum fuzz_rounding)fuzz_int(c, 1, 3);
    fuzz_model(c);
    fuzz_data(c);
    fuzz_optim(c);
    fuzz_schedule(c);
    fuzz_exceptions(c);
    fuzz_rounding(c);
    fuzz_parallel(c);
    c->wide = c->llama && c->dropout == 0 && c->rounding != FUZZ_F8;
}

/* ---- what the reference takes from it -------------------------------------------------------- */

/* The learning rate of a step, the first of which is 0. */
static inline double fuzz_lr(const struct fuzz_case *c, int step)
{
    const int peak = c->warmup ? c->warmup - 1 : 0, last = FUZZ_STEPS - 1;
    const double part = (double)(step - peak) / (last - peak);
    if (step < c->warmup)
        return c->lr * (step + 1) / c->warmup;
    if (c->schedule == 0)
        return c->lr;
    return c->min_lr +
           (c->lr - c->min_lr) * (c->schedule == 1 ? 1 - part : 0.5 * (1 + cos(M_PI * part)));
}

/* A parameter is frozen, or in the group. */
static inline void fuzz_mark(const struct fuzz_case *c, struct l64_param *p)
{
    p->frozen = *c->frozen && !strncmp(p->name, c->frozen, strlen(c->frozen));
    p->own = *c->group && strstr(p->name, c->group);
    p->lr_scale = c->group_scale;
    p->weight_decay = c->group_decay;
    p->beta1 = c->group_beta1;
    p->beta2 = c->group_beta2;
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline void fuzz_config_json(const struct fuzz_case *c, FILE *to)
{
    const struct l64_shape *s = &c->shape;
    const char *tied = s->tied ? "true" : "false";

    if (c->llama)
        fprintf(to,
                "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                "\"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, "
                "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
                "\"num_key_value_heads\": %d, \"head_dim\": %d, \"max_position_embeddings\": 64, "
                "\"rms_norm_eps\": %g, \"rope_theta\": %g, \"hidden_act\": \"silu\", "
                "\"tie_word_embeddings\": %s, \"initializer_range\": 0.1}\n",
                s->V, s->C, s->F, s->layers, s->NH, s->NKV, s->D, s->eps, s->theta, tied);
    else
        fprintf(to,
                "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", "
                "\"vocab_size\": %d, \"n_embd\": %d, \"n_inner\": %d, \"n_layer\": %d, "
                "\"n_head\": %d, \"n_positions\": 64, \"layer_norm_epsilon\": %g, "
                "\"activation_function\": \"gelu_new\", \"tie_word_embeddings\": %s, "
                "\"initializer_range\": 0.1}\n",
                s->V, s->C, s->F, s->layers, s->NH, s->eps, tied);
}

/* Tokens, or documents as lists of tokens and labels of which some do not count. */
static inline void fuzz_tokens(struct fuzz_case *c, FILE *to, int ntokens)
{
    for (int i = 0; i < ntokens && !c->labels; i++) {
        const uint16_t token = (uint16_t)fuzz_int(c, 0, c->shape.V - 1);
        fwrite(&token, sizeof token, 1, to);
    }
    while (c->labels && ntokens > 0) {
        const int length = fuzz_int(c, 2, c->seq), prompt = fuzz_int(c, 0, length);
        int token[FUZZ_MAX_SEQ];
        for (int i = 0; i < length; i++)
            fprintf(to, "%s%d", i ? ", " : "{\"input_ids\": [",
                    token[i] = fuzz_int(c, 0, c->shape.V - 1));
        for (int i = 0; i < length; i++)
            fprintf(to, "%s%d", i ? ", " : "], \"labels\": [", i < prompt ? L64_IGNORE : token[i]);
        fprintf(to, "]}\n");
        ntokens -= length;
    }
}

#endif
