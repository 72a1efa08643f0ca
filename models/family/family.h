/* SPDX-License-Identifier: Apache-2.0 */
/* family.h: a model family as a row of a table, and how config.json becomes traits. Private to
 * models/. */
#ifndef FAMILY_H
#define FAMILY_H

#include "hf.h"
#include "traits.h"

/* The names of config.json's keys. NULL: the family has none, and the trait is its row's. */
struct family_keys {
    const char *dim, *ffn, *nlayers, *nheads, *nkv_heads, *head_dim, *max_seq_len;
    const char *norm_eps, *act, *embed_drop, *attn_drop, *resid_drop;
    const char *expert_ffn; /* of a mixture of experts; ffn is then of the MLP besides, or NULL */
};

/* Reads some keys into traits. */
typedef int family_reader(struct traits *t, const struct hf_config *hf, struct fsdp_err *err);
enum { FAMILY_MAX_READERS = 6 };

struct family {
    const char *type; /* config.json's model_type */
    struct {
        const char *root, *embed, *head, *layer, *attention, *mlp;
    } class_name;
    const struct traits_names *names;
    const struct family_keys *keys;
    struct traits traits; /* those that no key gives, and defaults of the others */
    family_reader *read[FAMILY_MAX_READERS]; /* the family's other keys, in this order */
    /* Rotary base where config.json has none: of all layers, of those with a window. */
    double rope_theta, sliding_rope_theta;
    const char *sliding_rope_key; /* its key, before transformers 5 */
    double rotary_fraction;       /* of a head, where config.json does not say; 0: 1 */
    const char *rope_parameters;  /* JSON, where config.json has neither these nor rope_scaling */
    const char *section;          /* of config.json that has the keys; NULL: they are its own */
    const char *defaults;         /* JSON: values of keys that a section may leave out */
    const char *carries;          /* weights with this prefix are the model's; NULL: all are */
    bool partial_rotary;          /* config.json may say how much of a head turns */
    bool rope_by_layer;           /* layers with a window have another base */
    bool no_rope;                 /* learned positions, or none */
    bool drops_stream; /* has dropout after the embedding and each branch, not in attention alone */
};

/* The row of config.json's model_type. FSDP_EUNSUPPORTED says what is missing, or lists the known
 * ones. */
int family_of(const struct family **out, const struct hf_config *hf, struct fsdp_err *err);

/* Where the family's keys are in a section of config.json: enters it. */
int family_enter(const struct family *family, struct hf_config *hf, struct fsdp_err *err);

/* Fills t, whose memory the caller frees with traits_free, also after an error. Errors name file
 * and key. */
int family_read(struct traits *t, const struct family *family, const struct hf_config *hf,
                struct fsdp_err *err);

/* ---- between families.c, config.c, config_rope.c --------------------------------------------- */

int family_read_rope(struct traits *t, const struct family *family, const struct hf_config *hf,
                     struct fsdp_err *err);
/* Refuses keys that nobody read and whose names speak of arithmetic. */
int family_refuse_unknown(const struct family *family, const struct hf_config *hf,
                          struct fsdp_err *err);

/* Readers. */
family_reader family_attention_bias, family_mlp_bias; /* attention_bias, mlp_bias */
family_reader family_window;                          /* sliding_window, in every layer */
family_reader family_layer_types;    /* sliding_window, in the layers that layer_types names */
family_reader family_window_pattern; /* the same, or by sliding_window_pattern */
family_reader family_qwen_window, family_smollm3_layers, family_parallel_residual,
    family_multipliers, family_softcaps, family_logit_softcap, family_gemma_scales,
    family_gemma_act, family_gpt2_flags, family_gpt_oss_act, family_experts,
    family_normalized_routing, family_qwen3_moe_layers;

#endif
