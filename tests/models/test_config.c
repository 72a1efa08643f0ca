/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: what is read, in the keys of transformers 4 and 5. */
#include <stddef.h>

#include "config_file.h"

static void test_values(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model_info info;
    struct model *m;

    write_config("num_key_value_heads", NULL,
                 "\"eos_token_id\": [2, 9], \"torch_dtype\": \"bfloat16\", \"head_dim\": 32,"
                 " \"rope_scaling\": null, \"initializer_range\": 0.5");
    if (!ok(open_config(&m, &err) == FSDP_OK, "a good file is read %s", err.text))
        return;
    const struct traits *c = &m->traits;
    model_decoder_ops.info(m, &info);
    ok(c->vocab == 256 && c->dim == 64 && c->ffn == 176 && c->nlayers == 2 && c->nheads == 4 &&
           c->max_seq_len == 64 && c->norm_eps == 1e-5 && c->init_std == 0.5 && !c->tied,
       "its values");
    ok(c->nkv_heads == 4, "key-value heads default to the heads");
    ok(c->head_dim == 32, "head_dim may differ from hidden_size / heads");
    ok(info.dtype == FSDP_BF16 && info.neos == 2 && info.eos[1] == 9 && info.bos == -1,
       "dtype and tokens");
    const double *inv_freq = m->traits.rope[0].inv_freq;
    ok(inv_freq[0] == 1 && fabs(inv_freq[8] - 0.01) < 1e-12, "theta defaults to 10000");
    ok(model_decoder_ops.vocab_size(m) == 256 && model_decoder_ops.max_seq_len(m) == 64,
       "through ops");
    /* 6 * (2 * (2*64*128 + 2*64*128 + 3*64*176 + 11*128) + 64*256) */
    ok(model_decoder_ops.flops_per_token(m, 10) == 6.0 * (2 * (32768 + 33792 + 1408) + 16384),
       "operations per token");
    model_decoder_ops.destroy(m);
}

/* The same settings in the keys of transformers 4 and 5, against the formula written out. */
static void test_rope(void)
{
    static const char llama3[] = "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4,"
                                 " \"original_max_position_embeddings\": 64}";
    char extra[2][512];
    snprintf(extra[0], sizeof extra[0],
             "\"rope_theta\": 500, \"rope_scaling\": {\"rope_type\": \"llama3\", %s", llama3);
    snprintf(extra[1], sizeof extra[1],
             "\"rope_parameters\": {\"rope_theta\": 500, \"rope_type\": \"llama3\", %s", llama3);
    for (int k = 0; k < 2; k++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct model *m;
        double worst = 0;
        write_config(NULL, NULL, extra[k]);
        if (!ok(open_config(&m, &err) == FSDP_OK, "Llama-3 scaling is read %s", err.text))
            continue;
        for (int i = 0; i < 8; i++) {
            double plain = pow(500, -i / 8.0), length = 2 * M_PI / plain, want = plain;
            if (length > 64)
                want = plain / 8;
            else if (length > 16)
                want = plain * ((64 / length - 1) / 3 + (1 - (64 / length - 1) / 3) / 8);
            worst = fmax(worst, fabs(m->traits.rope[0].inv_freq[i] / want - 1));
        }
        ok(worst < 1e-12, "Llama-3 scaling, keys of transformers %d", 4 + k);
        model_decoder_ops.destroy(m);
    }
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;
    write_config(NULL, NULL, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}");
    ok(open_config(&m, &err) == FSDP_OK && m->traits.rope[0].inv_freq[0] == 0.25,
       "linear scaling %s", err.text);
    if (m)
        model_decoder_ops.destroy(m);
}

/* A model of 32 heads of 16 with these keys besides. */
static int open_family(struct model **m, const char *type, const char *keys, struct fsdp_err *err)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"vocab_size\": 256, \"hidden_size\": 512, "
             "\"intermediate_size\": 176, \"num_hidden_layers\": 2, \"num_attention_heads\": 32%s}",
             type, keys);
    write_text(text);
    return open_config(m, err);
}

/* What an absent key means: the default of transformers' configuration class. */
static void test_defaults(void)
{
    static const struct {
        const char *type, *keys;
        int nkv_heads, head_dim;
    } cases[] = {
        {"llama", "", 32, 16},
        {"mistral", "", 8, 16},
        {"mistral", ", \"num_key_value_heads\": null", 32, 16},
        {"mistral", ", \"num_key_value_heads\": 2, \"head_dim\": null", 2, 16},
        {"ministral", "", 8, 16},
        {"ministral3", "", 8, 128},
        {"ministral3", ", \"head_dim\": null", 8, 16},
        {"qwen2", "", 32, 16},
        {"qwen3", "", 32, 128},
        {"smollm3", "", 4, 16},
        {"olmo2", "", 32, 16},
        {"phi3", "", 32, 16},
        {"gemma", "", 16, 256},
        {"gemma2", "", 4, 256},
        {"gemma3_text", "", 4, 256},
        {"granite", "", 32, 16},
        {"gpt_neox", "", 32, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct model *m = NULL;
        const int rc = open_family(&m, cases[i].type, cases[i].keys, &err);
        ok(rc == FSDP_OK && m->traits.nkv_heads == cases[i].nkv_heads &&
               m->traits.head_dim == cases[i].head_dim,
           "%s%s: %d key-value heads of %d %s", cases[i].type, cases[i].keys, cases[i].nkv_heads,
           cases[i].head_dim, err.text);
        if (m)
            model_decoder_ops.destroy(m);
    }
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;
    write_text("{\"model_type\": \"mistral\", \"vocab_size\": 9, \"hidden_size\": 60, "
               "\"intermediate_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 10}");
    ok(open_config(&m, &err) == FSDP_EINVAL &&
           strstr(err.text, "num_key_value_heads is 8 where the file does not say, which does not "
                            "divide num_attention_heads (10)"),
       "a default that does not fit is named: %s", err.text);
}

/* Rotary positions by default, and where a file has the keys of both dialects. */
static void test_rope_defaults(void)
{
#define EIGHT "1, 1, 1, 1, 1, 1, 1, 1"
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;

    ok(open_family(&m, "phi3",
                   ", \"max_position_embeddings\": 16384, \"rope_scaling\": {\"type\": \"su\", "
                   "\"short_factor\": [" EIGHT "], \"long_factor\": [" EIGHT "]}",
                   &err) == FSDP_OK &&
           m->traits.rope[0].long_over == 4096 &&
           fabs(m->traits.rope[0].scale - sqrt(1 + log(4) / log(4096))) < 1e-12,
       "phi3 was trained on 4096 tokens unless the file says otherwise %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "phi3", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", &err) ==
               FSDP_EUNSUPPORTED &&
           strstr(err.text, "rope_scaling.type is 'linear' (supported: default and longrope)"),
       "phi3 has no other scaling: %s", err.text);
    ok(open_family(&m, "ministral3", "", &err) == FSDP_OK && m->traits.rope[0].growth == 0.1 &&
           m->traits.rope[0].growth_span == 16384 && m->traits.rope[0].scale == 1 &&
           fabs(m->traits.rope[0].inv_freq[63] * 16 / pow(1e6, -126 / 128.0) - 1) < 1e-12 &&
           m->traits.rope[0].inv_freq[0] == 1,
       "ministral3 has yarn by itself %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "ministral3", ", \"rope_parameters\": {\"rope_theta\": 500}", &err) ==
               FSDP_OK &&
           m->traits.rope[0].growth == 0 &&
           fabs(m->traits.rope[0].inv_freq[1] / pow(500, -1 / 64.0) - 1) < 1e-12,
       "and none where the file says so %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "llama",
                   ", \"rope_parameters\": {\"rope_theta\": 500}, \"rope_scaling\": "
                   "{\"rope_type\": \"linear\", \"factor\": 4}",
                   &err) == FSDP_OK &&
           m->traits.rope[0].inv_freq[0] == 0.25 &&
           fabs(m->traits.rope[0].inv_freq[1] * 4 / pow(10000, -1 / 8.0) - 1) < 1e-12,
       "of both sections, rope_scaling counts %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "gemma3_text",
                   ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 500}}, "
                   "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4}",
                   &err) == FSDP_OK &&
           m->traits.rope[0].inv_freq[0] == 0.25 &&
           fabs(m->traits.rope[0].inv_freq[1] * 4 / pow(500, -1 / 128.0) - 1) < 1e-12 &&
           m->traits.rope[1].inv_freq[0] == 1,
       "by layer, it adds to what layers that see all have %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "llama", ", \"rope_scaling\": {\"type\": \"cubic\"}", &err) ==
               FSDP_EUNSUPPORTED &&
           strstr(err.text, "rope_scaling.type is 'cubic' (supported: default, linear"),
       "an error names the key that the file has: %s", err.text);
}

/* Windows that the file names but does not give, and lists that are longer than needed. */
static void test_windows(void)
{
    static const struct {
        const char *type, *keys;
    } none[] = {
        {"gemma2", ", \"sliding_window\": null"},
        {"olmo3", ", \"sliding_window\": null"},
        {"ministral", ", \"sliding_window\": null, \"layer_types\": [\"sliding_attention\", "
                      "\"full_attention\"]"},
        {"qwen2", ", \"layer_types\": [\"sliding_attention\", \"full_attention\"]"},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;

    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        ok(open_family(&m, none[i].type, none[i].keys, &err) == FSDP_EINVAL &&
               strstr(err.text, "sliding_window is not in use, but layer 0 is of type "),
           "%s%s: %s", none[i].type, none[i].keys, err.text);
    ok(open_family(&m, "ministral", ", \"sliding_window\": null", &err) == FSDP_OK &&
           !(m->traits.layers[0] & TRAITS_SLIDING),
       "ministral without a window %s", err.text);
    model_decoder_ops.destroy(m);
    ok(open_family(&m, "smollm3",
                   ", \"no_rope_layers\": [0, 1, 1, 0], \"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, "
                   "9, 10, 11]",
                   &err) == FSDP_OK &&
           m->traits.layers[0] == 0 && m->traits.layers[1] == TRAITS_ROTARY &&
           m->traits.info.neos == 11 && m->traits.info.eos[10] == 11,
       "a longer no_rope_layers, and many end tokens %s", err.text);
    model_decoder_ops.destroy(m);
}

/* What transformers itself wrote, in both dialects, is one model. */
static void test_dialects(void)
{
    static const char *const names[] = {"config.json", "config-transformers5.json"};
    struct model *m[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        ok(model_decoder_ops.create(&m[i], ref_path("llama-tiny", names[i]), &err) == FSDP_OK,
           "%s is read %s", names[i], err.text);
    }
    if (m[0] && m[1])
        ok(!memcmp(&m[0]->traits, &m[1]->traits, offsetof(struct traits, rope)) &&
               !memcmp(m[0]->traits.rope[0].inv_freq, m[1]->traits.rope[0].inv_freq,
                       8 * sizeof(double)),
           "both dialects give the same configuration");
    for (int i = 0; i < 2; i++)
        model_decoder_ops.destroy(m[i]);
}

static void test_gpt2_values(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;

    write_gpt2(NULL, NULL);
    if (!ok(open_config(&m, &err) == FSDP_OK, "a GPT-2 is read %s", err.text))
        return;
    const struct traits *c = &m->traits;
    ok(c->vocab == 211 && c->dim == 48 && c->ffn == 192 && c->nlayers == 2 && c->nheads == 3 &&
           c->nkv_heads == 3 && c->head_dim == 16 && c->max_seq_len == 64 && c->norm_eps == 1e-6 &&
           c->init_std == 0.02 && c->tied && c->resid_drop == 0 && !m->traits.rope[0].inv_freq,
       "its values; tied unless it says otherwise");
    /* 6 * (2 * (48*144 + 48*48 + 2*48*192 + 11*48) + 48*211) */
    ok(model_decoder_ops.flops_per_token(m, 10) == 6.0 * (2 * (6912 + 2304 + 18432 + 528) + 10128),
       "operations per token");
    model_decoder_ops.destroy(m);
    write_gpt2("n_inner", "100");
    ok(open_config(&m, &err) == FSDP_OK && m->traits.ffn == 100, "n_inner is read");
    model_decoder_ops.destroy(m);
    write_gpt2("tie_word_embeddings", "false");
    ok(open_config(&m, &err) == FSDP_OK && !m->traits.tied, "tying is read");
    model_decoder_ops.destroy(m);
    write_gpt2("attn_pdrop", NULL);
    struct model_info info;
    ok(open_config(&m, &err) == FSDP_OK && m->traits.attn_drop == 0.1 && m->traits.embed_drop == 0,
       "dropout that is not named is 0.1, as in transformers");
    model_decoder_ops.info(m, &info);
    ok(info.dropout == 0.1, "the largest one is told");
    model_decoder_ops.set_dropout(m, 0.2);
    ok(m->traits.attn_drop == 0.2 && m->traits.embed_drop == 0.2 && m->traits.resid_drop == 0.2,
       "all are set at once");
    model_decoder_ops.destroy(m);
}

/* The keys of published files, with small sizes. */
#define SIZES                                                                                      \
    "\"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 176, "                       \
    "\"num_hidden_layers\": 4, "                                                                   \
    "\"num_attention_heads\": 4, \"max_position_embeddings\": 4096, \"initializer_range\": 0.02, " \
    "\"use_cache\": true, \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.45.0\", "

static const struct published {
    const char *name, *text;
    int nsliding, nrotary; /* layers */
    bool tied;
} published[] = {
    {"Qwen 2.5",
     "{\"model_type\": \"qwen2\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"rms_norm_eps\": 1e-06, \"rope_theta\": 1000000.0, \"sliding_window\": 512,"
     " \"max_window_layers\": 2, \"use_mrope\": false, \"use_sliding_window\": false,"
     " \"tie_word_embeddings\": false, \"attention_dropout\": 0.0}",
     0, 4, false},
    {"Mistral 7B",
     "{\"model_type\": \"mistral\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"sliding_window\": null}",
     0, 4, false},
    {"Phi 4 mini",
     "{\"model_type\": \"phi3\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"auto_map\": {\"AutoConfig\": \"x\"}, \"embd_pdrop\": 0.0,"
     " \"full_attn_mod\": 1, \"interpolate_factor\": 1, \"lm_head_bias\": false,"
     " \"mlp_bias\": false, \"original_max_position_embeddings\": 2048,"
     " \"partial_rotary_factor\": 0.75, \"resid_pdrop\": 0.0, \"rms_norm_eps\": 1e-05,"
     " \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1, 2, 3, 4, 5, 6],"
     " \"short_factor\": [1, 1, 1, 1, 1, 1]}, \"rope_theta\": 10000.0, \"sliding_window\": 1024,"
     " \"tie_word_embeddings\": true}",
     4, 4, true},
    {"Gemma 2",
     "{\"model_type\": \"gemma2\", " SIZES "\"num_key_value_heads\": 2, \"head_dim\": 16,"
     " \"hidden_act\": \"gelu_pytorch_tanh\", \"hidden_activation\": \"gelu_pytorch_tanh\","
     " \"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0,"
     " \"cache_implementation\": \"hybrid\", \"query_pre_attn_scalar\": 16, \"rms_norm_eps\": "
     "1e-06,"
     " \"rope_theta\": 10000.0, \"sliding_window\": 1024, \"sliding_window_size\": 1024}",
     2, 4, true},
    {"Gemma 3 1B",
     "{\"model_type\": \"gemma3_text\", " SIZES "\"num_key_value_heads\": 1, \"head_dim\": 16,"
     " \"hidden_activation\": \"gelu_pytorch_tanh\", \"attn_logit_softcapping\": null,"
     " \"final_logit_softcapping\": null, \"query_pre_attn_scalar\": 16, \"rms_norm_eps\": 1e-06,"
     " \"rope_local_base_freq\": 10000, \"rope_scaling\": null, \"rope_theta\": 1000000,"
     " \"sliding_window\": 512, \"sliding_window_pattern\": 4}",
     3, 4, true},
    {"Gemma 3 4B",
     "{\"model_type\": \"gemma3\", \"boi_token_index\": 255999, \"eos_token_id\": [1, 106],"
     " \"image_token_index\": 262144, \"initializer_range\": 0.02, \"mm_tokens_per_image\": 256,"
     " \"torch_dtype\": \"bfloat16\", \"text_config\": {\"hidden_size\": 256,"
     " \"intermediate_size\": 1024, \"model_type\": \"gemma3_text\", \"num_hidden_layers\": 4,"
     " \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024},"
     " \"vision_config\": {\"hidden_size\": 1152, \"model_type\": \"siglip_vision_model\"}}",
     4, 4, true},
    {"SmolLM3",
     "{\"model_type\": \"smollm3\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"mlp_bias\": false, \"max_window_layers\": 28,"
     " \"no_rope_layer_interval\": 4, \"no_rope_layers\": [1, 1, 1, 0], \"pretraining_tp\": 2,"
     " \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\","
     " \"full_attention\"], \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 5e6,"
     " \"sliding_window\": null, \"use_sliding_window\": false}",
     0, 3, true},
    {"Pythia",
     "{\"model_type\": \"gpt_neox\", " SIZES "\"hidden_act\": \"gelu\", \"layer_norm_eps\": 1e-05,"
     " \"rotary_emb_base\": 10000, \"rotary_pct\": 0.25, \"use_parallel_residual\": true,"
     " \"tie_word_embeddings\": false}",
     0, 4, false},
    {"Granite 3",
     "{\"model_type\": \"granite\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"attention_multiplier\": 0.0078125, \"mlp_bias\": false,"
     " \"embedding_multiplier\": 12.0, \"logits_scaling\": 16.0, \"residual_multiplier\": 0.22,"
     " \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 10000.0,"
     " \"tie_word_embeddings\": true}",
     0, 4, true},
    {"OLMo 2",
     "{\"model_type\": \"olmo2\", " SIZES "\"num_key_value_heads\": 4, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null,"
     " \"rope_theta\": 500000, \"tie_word_embeddings\": false}",
     0, 4, false},
    {"Mixtral 8x7B",
     "{\"model_type\": \"mixtral\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"num_experts_per_tok\": 2, \"num_local_experts\": 8, \"output_router_logits\": false,"
     " \"rms_norm_eps\": 1e-05, \"rope_theta\": 1e6, \"router_aux_loss_coef\": 0.02,"
     " \"sliding_window\": null, \"tie_word_embeddings\": false}",
     0, 4, false},
    {"Qwen3 30B-A3B",
     "{\"model_type\": \"qwen3_moe\", " SIZES
     "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"decoder_sparse_step\": 1, \"head_dim\": 128,"
     " \"max_window_layers\": 48, \"mlp_only_layers\": [], \"moe_intermediate_size\": 768,"
     " \"norm_topk_prob\": true, \"num_experts\": 128, \"num_experts_per_tok\": 8,"
     " \"output_router_logits\": false, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null,"
     " \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001, \"sliding_window\": null,"
     " \"tie_word_embeddings\": false, \"use_sliding_window\": false}",
     0, 4, false},
    {"OLMoE 1B-7B",
     "{\"model_type\": \"olmoe\", " SIZES "\"num_key_value_heads\": 4, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"clip_qkv\": null, \"norm_topk_prob\": false,"
     " \"num_experts\": 64, \"num_experts_per_tok\": 8, \"output_router_logits\": false,"
     " \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 10000.0,"
     " \"router_aux_loss_coef\": 0.01, \"tie_word_embeddings\": false}",
     0, 4, false},
    {"Granite 3 1B-A400M",
     "{\"model_type\": \"granitemoe\", " SIZES
     "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": false, \"attention_multiplier\": 0.015625, \"embedding_multiplier\": "
     "12.0,"
     " \"logits_scaling\": 6.0, \"num_experts_per_tok\": 8, \"num_local_experts\": 32,"
     " \"output_router_logits\": false, \"residual_multiplier\": 0.22, \"rms_norm_eps\": 1e-06,"
     " \"rope_scaling\": null, \"rope_theta\": 10000, \"router_aux_loss_coef\": 0.0,"
     " \"tie_word_embeddings\": true}",
     0, 4, true},
    {"gpt-oss 20B in bf16",
     "{\"model_type\": \"gpt_oss\", " SIZES "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\","
     " \"attention_bias\": true, \"experts_per_token\": 4, \"head_dim\": 64,"
     " \"initial_context_length\": 4096, \"num_experts_per_tok\": 4, \"num_local_experts\": 32,"
     " \"output_router_logits\": false, \"rms_norm_eps\": 1e-05, \"rope_scaling\":"
     " {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, \"rope_type\": \"yarn\","
     " \"original_max_position_embeddings\": 4096, \"truncate\": false}, \"rope_theta\": 150000,"
     " \"router_aux_loss_coef\": 0.9, \"sliding_window\": 128, \"swiglu_limit\": 7.0,"
     " \"tie_word_embeddings\": false}",
     2, 4, false},
};

/* What a mixture is, and what its token goes through. */
static void test_mixture(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct model *m;

    write_config("model_type", "\"mixtral\"",
                 "\"num_local_experts\": 5, \"router_aux_loss_coef\": 0.5");
    if (!ok(open_config(&m, &err) == FSDP_OK, "a mixture is read %s", err.text))
        return;
    struct model_router router = model_decoder_ops.router(m);
    ok(router.nlayers == 2 && router.nexperts == 5 && router.chosen == 2 &&
           router.aux_loss_coef == 0 && model_router_nelem(&router) == 12,
       "its router; without output_router_logits the load-balance loss is not trained");
    ok(m->traits.normalized_routing && m->traits.expert_ffn == 176 && !m->traits.ffn,
       "its experts, and no MLP");
    const char *const *classes = model_decoder_ops.wrap_classes(m);
    ok(!strcmp(classes[0], "MixtralDecoderLayer") && !classes[1],
       "small experts are no units of their own");
    /* 6 * (2 * (2*64*64 + 2*64*32 + 5*64 + 2 * 3*64*176 + 11*64) + 64*256) */
    ok(model_decoder_ops.flops_per_token(m, 10) == 6.0 * (2 * (12288 + 320 + 67584 + 704) + 16384),
       "operations per token: of the experts that are chosen");
    model_decoder_ops.destroy(m);
    write_config("model_type", "\"mixtral\"",
                 "\"num_local_experts\": 64, \"router_aux_loss_coef\": 0.5,"
                 " \"output_router_logits\": true");
    if (!ok(open_config(&m, &err) == FSDP_OK, "a larger one is read %s", err.text))
        return;
    classes = model_decoder_ops.wrap_classes(m);
    ok(!strcmp(classes[0], "MixtralSparseMoeBlock") && !strcmp(classes[1], "MixtralDecoderLayer") &&
           !classes[2] && model_decoder_ops.router(m).aux_loss_coef == 0.5,
       "large experts are units, and the loss is trained where it is asked for");
    model_decoder_ops.destroy(m);
}

static void test_published(void)
{
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        const struct published *p = &published[i];
        struct fsdp_err err = FSDP_ERR_INIT;
        struct model *m;
        int nsliding = 0, nrotary = 0;

        write_text(p->text);
        if (!ok(open_config(&m, &err) == FSDP_OK, "the keys of %s are read %s", p->name, err.text))
            continue;
        for (int layer = 0; layer < m->traits.nlayers; layer++) {
            nsliding += (m->traits.layers[layer] & TRAITS_SLIDING) != 0;
            nrotary += (m->traits.layers[layer] & TRAITS_ROTARY) != 0;
        }
        ok(nsliding == p->nsliding && nrotary == p->nrotary && m->traits.tied == p->tied,
           "%s: %d layers with a window, %d with rotary positions, %s", p->name, nsliding, nrotary,
           m->traits.tied ? "tied" : "not tied");
        model_decoder_ops.destroy(m);
    }
}

int main(void)
{
    config_file_begin();
    test_values();
    test_rope();
    test_defaults();
    test_rope_defaults();
    test_windows();
    test_dialects();
    test_gpt2_values();
    test_published();
    test_mixture();
    unlink(path);
    return tap_done();
}
