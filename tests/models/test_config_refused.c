/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: how bad ones are refused. */
#include "config_file.h"

static const struct bad {
    const char *key, *value, *extra;
    int status;
    const char *says;
} bad[] = {
    {"model_type", NULL, NULL, FSDP_EINVAL, "model_type is missing"},
    {"model_type", "7", NULL, FSDP_EINVAL, "model_type must be a string"},
    {"model_type", "\"mamba\"", NULL, FSDP_EUNSUPPORTED, "it needs state-space layers"},
    {"vocab_size", NULL, NULL, FSDP_EINVAL, "vocab_size is missing"},
    {"vocab_size", "null", NULL, FSDP_EINVAL, "vocab_size is missing"},
    {"vocab_size", "1", NULL, FSDP_EINVAL, "vocab_size is 1, allowed are 2 to"},
    {"vocab_size", "256.0", NULL, FSDP_EINVAL, "vocab_size must be an integer"},
    {"hidden_size", "-64", NULL, FSDP_EINVAL, "hidden_size is -64"},
    {"hidden_size", "66", NULL, FSDP_EINVAL, "not a multiple of num_attention_heads (4)"},
    {"hidden_size", "12", NULL, FSDP_EINVAL, "head_dim gives 3 elements of a head that turn"},
    {"hidden_size", "\"64\"", NULL, FSDP_EINVAL, "hidden_size must be an integer"},
    {"hidden_size", "9223372036854775807", NULL, FSDP_EINVAL, "hidden_size is 9223372036854775807"},
    {"intermediate_size", "0", NULL, FSDP_EINVAL, "intermediate_size is 0"},
    {"num_hidden_layers", "0", NULL, FSDP_EINVAL, "num_hidden_layers is 0"},
    {"num_attention_heads", "0", NULL, FSDP_EINVAL, "num_attention_heads is 0"},
    {"num_key_value_heads", "3", NULL, FSDP_EINVAL, "does not divide num_attention_heads (4)"},
    {"num_key_value_heads", "8", NULL, FSDP_EINVAL, "num_key_value_heads is 8, allowed are 1 to 4"},
    {"hidden_act", "\"tanh\"", NULL, FSDP_EUNSUPPORTED, "hidden_act is 'tanh'"},
    {"max_position_embeddings", "0", NULL, FSDP_EINVAL, "max_position_embeddings is 0"},
    {"rms_norm_eps", "-1", NULL, FSDP_EINVAL, "rms_norm_eps is -1"},
    {"rms_norm_eps", "\"tiny\"", NULL, FSDP_EINVAL, "rms_norm_eps must be a number"},
    {NULL, NULL, "\"head_dim\": 15", FSDP_EINVAL, "head_dim gives 15 elements"},
    {NULL, NULL, "\"mlp_bias\": 1", FSDP_EINVAL, "mlp_bias must be true or false"},
    {NULL, NULL, "\"attention_dropout\": 1.5", FSDP_EINVAL, "attention_dropout is 1.5"},
    {NULL, NULL, "\"tie_word_embeddings\": \"no\"", FSDP_EINVAL, "tie_word_embeddings must be"},
    {NULL, NULL, "\"torch_dtype\": \"int8\"", FSDP_EINVAL, "torch_dtype is 'int8'"},
    {NULL, NULL, "\"dtype\": \"fancy\"", FSDP_EINVAL, "dtype is 'fancy'"},
    {NULL, NULL, "\"eos_token_id\": [1, \"x\"]", FSDP_EINVAL, "eos_token_id must be an integer"},
    {NULL, NULL, "\"quantization_config\": {}", FSDP_EUNSUPPORTED, "quantization_config is set"},
    {NULL, NULL, "\"rope_theta\": 0", FSDP_EINVAL, "rope_theta is 0"},
    {NULL, NULL, "\"rope_scaling\": \"linear\"", FSDP_EINVAL, "rope_scaling must be an object"},
    {NULL, NULL, "\"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}", FSDP_EUNSUPPORTED,
     "rope_scaling.type is 'mrope' (supported: default, linear, dynamic, llama3, yarn"},
    {NULL, NULL, "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2]}",
     FSDP_EINVAL, "rope_scaling.short_factor must be a list of 8 values"},
    {NULL, NULL, "\"rope_scaling\": {\"type\": \"linear\"}", FSDP_EINVAL,
     "rope_scaling.factor is missing"},
    {NULL, NULL, "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", FSDP_EINVAL,
     "rope_scaling.factor is 0.5"},
    {NULL, NULL, "\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}", FSDP_EINVAL,
     "rope_parameters.low_freq_factor is missing"},
    {NULL, NULL,
     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
     " \"high_freq_factor\": 1, \"original_max_position_embeddings\": 16}",
     FSDP_EINVAL, "must be above low_freq_factor"},
    {NULL, NULL, "\"partial_rotary_factor\": 0.5", FSDP_EUNSUPPORTED,
     "partial_rotary_factor is not known for model_type llama"},
    {NULL, NULL, "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", FSDP_EUNSUPPORTED,
     "all of a head turns in model_type llama"},
    {NULL, NULL, "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1}", FSDP_EINVAL,
     "yarn needs one above 1"},
    {NULL, NULL, "\"is_causal\": false", FSDP_EUNSUPPORTED, "only causal attention"},
    {NULL, NULL, "\"rope_parameters\": {\"full_attention\": {}}", FSDP_EUNSUPPORTED,
     "has sections by layer"},
    {NULL, NULL, "\"attn_logit_softcapping\": 50.0", FSDP_EUNSUPPORTED,
     "attn_logit_softcapping is not known for model_type llama"},
    {NULL, NULL, "\"layer_scale\": 2", FSDP_EUNSUPPORTED, "layer_scale is not known"},
    {"model_type", "\"deepseek_v3\"", NULL, FSDP_EUNSUPPORTED, "multi-head latent attention"},
    {"model_type", "\"gpt_oss\"", "\"swiglu_limit\": 6", FSDP_EUNSUPPORTED,
     "swiglu_limit is 6; only 7 is supported"},
    {"model_type", "\"gpt_oss\"", "\"swiglu_alpha\": 1.5", FSDP_EUNSUPPORTED,
     "swiglu_alpha is 1.5; only 1.702 is supported"},
    {"model_type", "\"gpt_oss\"", "\"quantization_config\": {\"quant_method\": \"mxfp4\"}",
     FSDP_EUNSUPPORTED, "Mxfp4Config(dequantize=True)"},
    {"model_type", "\"mixtral\"", "\"num_local_experts\": 0", FSDP_EINVAL,
     "num_local_experts is 0, allowed are 1 to 1024"},
    {"model_type", "\"mixtral\"", "\"num_local_experts\": 3, \"num_experts_per_tok\": 4",
     FSDP_EINVAL, "num_experts_per_tok is 4, allowed are 1 to 3"},
    {"model_type", "\"mixtral\"", "\"router_jitter_noise\": 0.1", FSDP_EUNSUPPORTED,
     "noise in routing is not supported"},
    {"model_type", "\"mixtral\"", "\"router_temperature\": 2", FSDP_EUNSUPPORTED,
     "router_temperature is not known for model_type mixtral"},
    {"model_type", "\"qwen3_moe\"", NULL, FSDP_EINVAL, "moe_intermediate_size is missing"},
    {"model_type", "\"qwen3_moe\"", "\"moe_intermediate_size\": 8, \"decoder_sparse_step\": 2",
     FSDP_EUNSUPPORTED, "experts in every layer"},
    {"model_type", "\"qwen3_moe\"", "\"moe_intermediate_size\": 8, \"mlp_only_layers\": [1]",
     FSDP_EUNSUPPORTED, "experts in every layer"},
    {"model_type", "\"olmoe\"", "\"clip_qkv\": 8.0", FSDP_EUNSUPPORTED, "clip_qkv is not known"},
    {"model_type", "\"fancy\"", NULL, FSDP_EUNSUPPORTED,
     "(known: gemma, gemma2, gemma3, gemma3_text, gpt2"},
    {"model_type", "\"gemma3\"", NULL, FSDP_EINVAL, "text_config is missing, not an object"},
    {"model_type", "\"gemma3\"", "\"text_config\": {\"head_dim\": 0}", FSDP_EINVAL,
     "text_config: head_dim is 0, allowed are 1 to 4096"},
    {"model_type", "\"gemma3\"", "\"text_config\": {\"attn_logit_softcapping\": 5}",
     FSDP_EUNSUPPORTED, "text_config: attn_logit_softcapping is not known"},
    {"model_type", "\"gemma3\"", "\"text_config\": {}, \"quantization_config\": {\"bits\": 4}",
     FSDP_EUNSUPPORTED, "quantization_config is set"},
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct bad *b = &bad[i];
        struct fsdp_err err = FSDP_ERR_INIT;
        struct model *model;
        write_config(b->key, b->value, b->extra);
        int rc = open_config(&model, &err);
        ok(rc == b->status && strstr(err.text, b->says) && strstr(err.text, path), "refused: %s",
           err.text);
    }
}

static void test_bad_files(void)
{
    static const struct {
        const char *text, *says;
    } files[] = {{"", "not valid JSON"},
                 {"[1]", "not a JSON object"},
                 {"{\"model_type\": \"llama\",\n \"vocab_size\": }", ":2: not valid JSON"},
                 {"{\"model_type\": \"llama\", \"model_type\": \"x\"}", "not valid JSON"}};
    struct model *model;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        write_text(files[i].text);
        ok(open_config(&model, &err) == FSDP_EINVAL && strstr(err.text, files[i].says),
           "refused: %s", err.text);
    }
    struct fsdp_err err = FSDP_ERR_INIT;
    unlink(path);
    ok(open_config(&model, &err) == FSDP_ENOTFOUND && strstr(err.text, path), "refused: %s",
       err.text);
}

static void test_gpt2_bad(void)
{
    static const struct {
        const char *key, *value;
        int status;
        const char *says;
    } cases[] = {
        {"vocab_size", NULL, FSDP_EINVAL, "vocab_size is missing"},
        {"n_positions", NULL, FSDP_EINVAL, "n_positions is missing"},
        {"n_head", "5", FSDP_EINVAL, "n_embd is 48, not a multiple of n_head (5)"},
        {"n_head", "0", FSDP_EINVAL, "n_head is 0"},
        {"n_inner", "0", FSDP_EINVAL, "n_inner is 0"},
        {"attn_pdrop", "2", FSDP_EINVAL, "attn_pdrop is 2"},
        {"activation_function", "\"tanh\"", FSDP_EUNSUPPORTED, "'tanh'; supported are silu"},
        {"scale_attn_weights", "false", FSDP_EUNSUPPORTED, "only true is supported"},
        {"scale_attn_by_inverse_layer_idx", "true", FSDP_EUNSUPPORTED, "only false"},
        {"add_cross_attention", "true", FSDP_EUNSUPPORTED, "only false"},
        {"quantization_config", "{}", FSDP_EUNSUPPORTED, "quantized"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct model *m;
        write_gpt2(cases[i].key, cases[i].value);
        int rc = open_config(&m, &err);
        ok(rc == cases[i].status && strstr(err.text, cases[i].says) && strstr(err.text, path),
           "refused: %s", err.text);
    }
}

/* Every allocation that fails is reported and nothing is leaked or half made. */
static void test_out_of_memory(void)
{
    write_config(NULL, NULL, NULL);
    uint64_t before = fsdp_alloc_count();
    struct model *m;
    ok(open_config(&m, NULL) == FSDP_OK, "a good file is read");
    uint64_t count = fsdp_alloc_count() - before;
    model_decoder_ops.destroy(m);
    for (uint64_t nth = 1; nth <= count; nth++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        fsdp_alloc_fail_at(nth);
        ok(open_config(&m, &err) == FSDP_ENOMEM && !m, "allocation %d fails: %s", (int)nth,
           err.text);
    }
    fsdp_alloc_fail_at(0);
}

int main(void)
{
    config_file_begin();
    test_bad();
    test_gpt2_bad();
    test_out_of_memory();
    test_bad_files();
    unlink(path);
    return tap_done();
}
