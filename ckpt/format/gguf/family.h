/* SPDX-License-Identifier: Apache-2.0 */
/*
 * family.h: a model family as GGUF has it. Its row (families.c) says which architecture of
 * llama.cpp it is, what its tensors are called, and which functions write its keys; each of these
 * also refuses what the architecture cannot carry. Private to the folder.
 */
#ifndef CKPT_GGUF_FAMILY_H
#define CKPT_GGUF_FAMILY_H

#include "config.h"
#include "keys.h"

/* What config.json says, as far as all families have it. */
struct gguf_model {
    const struct gguf_config *config;
    const struct gguf_family *family;
    struct gguf_keys *keys;
    uint64_t nlayers, dim, nheads, nkv_heads, head_dim, max_seq_len;
    uint64_t nexperts; /* 0: it has none */
    bool tied;         /* the head's weight is the embedding's */
    bool has_original; /* the length before positions were scaled is written */
    struct gguf_constant {
        const char *name; /* of a tensor */
        float *values;    /* [nvalues], owned */
        size_t nvalues;
    } constants[2];
    int nconstants;
};

/* How a tensor gets to its place, besides its name. */
enum {
    GGUF_BIAS = 1,         /* it may have a bias, which goes the same way */
    GGUF_OPTIONAL = 2,     /* it may be absent */
    GGUF_QUERY = 4,        /* rows of query heads in pairs, for a rotary embedding of neighbours */
    GGUF_KEY = 8,          /* of key heads */
    GGUF_NORM = 16,        /* the family's norm_offset is added */
    GGUF_TRANSPOSED = 32,  /* stored as (in, out) */
    GGUF_EXPERTS = 64,     /* `from` has %d for the expert; all become one tensor */
    GGUF_HEADS = 128,      /* of each head the rows of q, k and v: all of q come first */
    GGUF_FIRST_HALF = 256, /* of (experts, rows, columns) or (rows, columns): of the rows */
    GGUF_LAST_HALF = 512,
    GGUF_EVEN =
        1024, /* of (experts, in, out) or (experts, out): even elements of out, transposed */
    GGUF_ODD = 2048,
    GGUF_ALL = 4096,  /* of the same: all of out */
    GGUF_BARE = 8192, /* `from` is the whole name, without .weight */
};
struct gguf_name {
    const char *from, *to; /* without .weight and .bias; a layer's after the layer's own */
    unsigned how;
};

enum { GGUF_MAX_LISTS = 7 };
struct gguf_family {
    const char *type;                /* model_type of config.json */
    const char *arch;                /* of llama.cpp */
    const char *layers;              /* "model.layers" */
    const struct gguf_name *outside; /* of layers; ends with an empty row */
    const struct gguf_name *inside[GGUF_MAX_LISTS];
    float norm_offset;
    const char *act; /* the one activation that llama.cpp has for it */
    const char *act_key;
    uint64_t window;   /* where config.json has no sliding_window */
    double rope_theta; /* where it has none */
    double original;   /* where it has no original_max_position_embeddings; 0: that of positions */
    bool no_rope, partial_rope;
    bool long_rope;   /* llama.cpp reads longrope's factors for it */
    bool any_factors; /* and one set of factors of frequencies, whatever they come from */
    bool copies_tied; /* llama.cpp wants output.weight, also where the head is tied */
    bool only_tied;   /* it has no output.weight */
    int (*keys[8])(struct gguf_model *model, struct fsdp_err *err); /* ends with NULL */
};
/* FSDP_EUNSUPPORTED names those that there are. */
int gguf_family_of(const struct gguf_family **out, const struct gguf_config *config,
                   struct fsdp_err *err);

/* keys_*.c: functions of rows */
int gguf_keys_llama(struct gguf_model *model, struct fsdp_err *err); /* most decoders */
int gguf_keys_vocab(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_gpt2(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_gpt_neox(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_head_dim(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_even_heads(struct gguf_model *model, struct fsdp_err *err); /* without that key */
int gguf_keys_window(struct gguf_model *model, struct fsdp_err *err); /* one that is not carried */
int gguf_keys_layer_types(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_gemma(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_softcaps(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_smollm3(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_ministral(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_ministral3(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_phi3(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_granite(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_experts(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_shared_expert(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_routing(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_gpt_oss(struct gguf_model *model, struct fsdp_err *err);
int gguf_keys_olmoe(struct gguf_model *model, struct fsdp_err *err);
/* keys_rope.c: called by the above */
int gguf_keys_rope(struct gguf_model *model, struct fsdp_err *err);
/* The factor on query scores of later positions, which config.json has with the rotary ones. */
int gguf_keys_temperature(struct gguf_model *model, struct fsdp_err *err);

/* tokenizer.c: its keys, of nvocab tokens: the rows of the embedding */
int gguf_keys_tokenizer(struct gguf_keys *keys, const struct ckpt *ckpt,
                        const struct gguf_config *config, uint64_t nvocab, struct fsdp_err *err);

#endif
