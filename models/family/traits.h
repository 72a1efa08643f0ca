/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traits.h: what distinguishes one decoder from another. A family's row (families.c) has those that
 * all of its models share, and config.json gives the others. layer.h computes a layer from them.
 * Private to models/.
 */
#ifndef TRAITS_H
#define TRAITS_H

#include "model.h"
#include "nn/nn.h"

enum { TRAITS_MAX_DIM = 1 << 20, TRAITS_MAX_VOCAB = 1 << 24, TRAITS_MAX_LAYERS = 4096 };
enum { TRAITS_MAX_SEQ = 1 << 24, TRAITS_MAX_EXPERTS = NN_MAX_EXPERTS };

enum traits_norm { TRAITS_RMS, TRAITS_LAYER };
/* Norms of queries and keys: none, of each head, of all heads together. */
enum traits_qk_norm { TRAITS_QK_NONE, TRAITS_QK_HEAD, TRAITS_QK_WHOLE };

/* Rotary positions: one kind, or one for layers that see all and one for layers with a window. */
enum traits_rope_kind { TRAITS_ROPE_FULL, TRAITS_ROPE_SLIDING, TRAITS_NROPES };
struct traits_rope {
    int dim;               /* elements of a head that turn; 0: none of this kind */
    double *inv_freq;      /* (dim / 2) */
    double *long_inv_freq; /* (dim / 2) for rows over long_over tokens; NULL: the same */
    int long_over;
    double scale; /* of cosines and sines */
    /* Queries are multiplied by 1 + growth log(1 + floor(position / growth_span)). 0: are not */
    double growth;
    int growth_span;
};

/* What a layer is, in traits.layers. */
enum { TRAITS_SLIDING = 1, TRAITS_ROTARY = 2 };

struct traits {
    int dim, ffn, nlayers, nheads, nkv_heads, head_dim, vocab, max_seq_len;
    double norm_eps, init_std;
    double embed_drop, attn_drop, resid_drop; /* probabilities of dropout */
    struct model_info info;

    enum traits_norm norm;
    double norm_offset; /* a norm multiplies by this plus its weight */
    bool pre_norm;      /* norms of what attention and MLP read */
    bool post_norm;     /* and of what they give */
    bool parallel;      /* attention and MLP read the same, the layer's input */
    enum traits_qk_norm qk_norm;
    bool qkv_bias, o_bias, mlp_bias, sinks;
    enum nn_act act;
    bool gated;      /* the MLP has a gate next to `up` */
    bool tied;       /* the head's weight is the embedding's */
    bool small_last; /* matrices that end on the stream begin smaller, as GPT-2's */

    int window;        /* tokens that a layer with TRAITS_SLIDING sees */
    int window_every;  /* without layer_types each nth layer sees all; 0: every layer */
    double attn_scale; /* of scores; 0: 1 / sqrt(head_dim) */
    double attn_softcap, logit_softcap; /* 0: none */
    double embed_scale, residual_scale, logit_scale;
    bool rounds_embed_scale; /* to the type of activations */
    /* A mixture of experts instead of the MLP, or next to one of ffn elements that all rows pass
     * through. 0 experts: none. */
    int experts, experts_per_token, expert_ffn;
    bool normalized_routing;     /* weights of a row's experts sum to 1 */
    double router_aux_loss_coef; /* of the load-balance loss; 0: it is not added */
    struct traits_rope rope[TRAITS_NROPES];
    uint8_t *layers; /* [nlayers] */
};

void traits_free(struct traits *t);

/* The names that a family gives its modules and weights, as Hugging Face stores them: a layer's
 * after the layer's own, each without its .weight or .bias. NULL: there is none. */
enum traits_fusion {
    TRAITS_APART,       /* q, k, v */
    TRAITS_FUSED_ROWS,  /* qkv (q's rows, k's, v's) */
    TRAITS_FUSED_HEADS, /* qkv: of each head the rows of q, k and v */
    TRAITS_TRANSPOSED   /* all matrices are (in, out); the columns of qkv are q's, k's and v's */
};
struct traits_names {
    const char *embed, *positions, *layers, *norm, *head;
    const char *head_module;     /* the head in transformers; NULL: as in files */
    const char *attention, *mlp; /* a layer's modules */
    const char *norm1, *post1, *norm2, *post2;
    const char *q, *k, *v, *qkv, *o, *q_norm, *k_norm, *sinks;
    const char *gate, *up, *gate_up, *down; /* gate_up: the gate's rows, then up's */
    /* Experts: the router; of each expert, whose number stands for %d; or of all in one tensor
     * (experts, rows, columns), and then the whole name. */
    const char *router, *expert_gate, *expert_up, *expert_down, *experts_gate_up, *experts_down;
    /* Their biases (experts, columns). With them the router has one, matrices are (experts, in,
     * out), and the columns of gate and up alternate. */
    const char *experts_gate_up_bias, *experts_down_bias;
    /* What transformers calls the experts' two parameters, each of all experts in one tensor
     * (experts, rows, columns), however files store them: adapters have these names. */
    const char *parameter_gate_up, *parameter_down;
    const char *router_parameter; /* and the router's, which is no linear module there */
    enum traits_fusion fusion;
};

#endif
