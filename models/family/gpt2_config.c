/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that transformers writes for model_type gpt2. */
#include <string.h>

#include "gpt2.h"
#include "hf.h"

static int read_sizes(struct stack_config *c, const struct hf_config *hf, struct fsdp_err *err)
{
    FSDP_TRY(hf_int(hf, "vocab_size", true, 2, STACK_MAX_VOCAB, &c->vocab, err));
    FSDP_TRY(hf_int(hf, "n_embd", true, 1, STACK_MAX_DIM, &c->dim, err));
    FSDP_TRY(hf_int(hf, "n_layer", true, 1, STACK_MAX_LAYERS, &c->nlayers, err));
    FSDP_TRY(hf_int(hf, "n_head", true, 1, STACK_MAX_DIM, &c->nheads, err));
    FSDP_TRY(hf_int(hf, "n_positions", true, 1, STACK_MAX_SEQ, &c->max_seq_len, err));
    if (c->dim % c->nheads)
        return hf_refuse(hf, FSDP_EINVAL, err, "n_embd", "is %d, not a multiple of n_head (%d)",
                         c->dim, c->nheads);
    if (c->dim > STACK_MAX_DIM / 4)
        return hf_refuse(hf, FSDP_EINVAL, err, "n_embd", "is %d, which is over %d", c->dim,
                         STACK_MAX_DIM / 4);
    c->nkv_heads = c->nheads;
    c->head_dim = c->dim / c->nheads;
    c->ffn = 4 * c->dim;
    return hf_int(hf, "n_inner", false, 1, STACK_MAX_DIM, &c->ffn, err);
}

/* Where a key is absent, transformers takes 0.1; so does this. */
static int read_dropout(struct stack_config *c, const struct hf_config *hf, struct fsdp_err *err)
{
    c->embed_drop = c->attn_drop = c->resid_drop = 0.1;
    FSDP_TRY(hf_float(hf, "embd_pdrop", false, 0, 1, &c->embed_drop, err));
    FSDP_TRY(hf_float(hf, "attn_pdrop", false, 0, 1, &c->attn_drop, err));
    return hf_float(hf, "resid_pdrop", false, 0, 1, &c->resid_drop, err);
}

static int refuse_unsupported(const struct hf_config *hf, struct fsdp_err *err)
{
    static const struct {
        const char *key;
        bool wanted;
    } flags[] = {{"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"add_cross_attention", false}};
    for (int i = 0; i < 3; i++) {
        bool value = flags[i].wanted;
        FSDP_TRY(hf_bool(hf, flags[i].key, &value, err));
        if (value != flags[i].wanted)
            return hf_refuse(hf, FSDP_EUNSUPPORTED, err, flags[i].key,
                             "is %s; only %s is supported", value ? "true" : "false",
                             value ? "false" : "true");
    }
    const char *act = "gelu_new";
    FSDP_TRY(hf_text(hf, "activation_function", false, &act, err));
    if (strcmp(act, "gelu_new") && strcmp(act, "gelu_pytorch_tanh"))
        return hf_refuse(hf, FSDP_EUNSUPPORTED, err, "activation_function",
                         "is '%.64s'; supported are gelu_new and gelu_pytorch_tanh, which are the "
                         "same",
                         act);
    return FSDP_OK;
}

int gpt2_config_read(struct stack_config *out, const char *path, struct fsdp_err *err)
{
    struct stack_config c = {.norm_eps = 1e-5, .tied = true};
    struct hf_config *hf;
    int rc;

    FSDP_TRY(hf_config_open(&hf, path, err));
    FSDP_TRY_GOTO(read_sizes(&c, hf, err), out);
    FSDP_TRY_GOTO(hf_float(hf, "layer_norm_epsilon", false, 0, 1, &c.norm_eps, err), out);
    FSDP_TRY_GOTO(read_dropout(&c, hf, err), out);
    FSDP_TRY_GOTO(stack_config_read(&c, hf, err), out);
    FSDP_TRY_GOTO(refuse_unsupported(hf, err), out);
    *out = c;
out:
    hf_config_close(hf);
    return rc;
}
