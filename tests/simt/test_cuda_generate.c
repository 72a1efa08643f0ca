/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generation on the CUDA device and its operators, emulated on the CPU, next to the CPU: the same
 * text for the same seed, and nearly the same logits.
 * run: timeout=300
 */
#include "../models/ref_files.h"

#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "generate/sampler.h"
#include "family/stack.h"
#include "tap.h"

extern const struct nn_ops nn_cuda_ops;

enum { MAX_PARAMS = 64, MAX_TOKENS = 60, LONG = 300 };

static struct fsdp_err err = FSDP_ERR_INIT;

/* A model whose weights are on a device. */
struct placed {
    const struct model_ops *ops;
    struct model *model;
    struct fsdp_module_tree *tree;
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    float *param[MAX_PARAMS];
};

static int create(struct placed *p, const char *config, bool cuda)
{
    *p = (struct placed){0};
    FSDP_TRY(model_find(&p->ops, config, &err));
    FSDP_TRY(p->ops->create(&p->model, config, &err));
    if (cuda)
        p->model->nn = &nn_cuda_ops;
    FSDP_TRY(fsdp_module_tree_create(&p->tree, &err));
    FSDP_TRY(p->ops->describe(p->model, p->tree, 1, 1, &err));
    FSDP_TRY(fsdp_device_open_ops(&p->device, cuda ? &fsdp_device_cuda_ops : &fsdp_device_cpu_ops,
                                  0, 0, &err));
    return fsdp_lane_create(&p->lane, p->device, "compute", &err);
}

static int place(struct placed *p, int i, const float *values, size_t nelem)
{
    p->param[i] = fsdp_device_alloc(p->device, nelem * sizeof *values, "weights", &err);
    if (!p->param[i])
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_copy(p->lane, p->param[i], values, nelem * sizeof *values, &err));
    return fsdp_lane_sync(p->lane, &err);
}

/* The weights of a reference folder, or where that is NULL made-up ones. */
static int place_all(struct placed *p, const char *folder)
{
    struct ref_tensors weights = {0};
    int rc = FSDP_OK;

    if (folder)
        weights = ref_tensors_open(ref_path(folder, "model.safetensors"));
    for (int i = 0; i < fsdp_param_count(p->tree) && !rc; i++) {
        const struct fsdp_tensor tensor = fsdp_param_tensor(p->tree, i);
        const size_t nelem = fsdp_tensor_nelem(&tensor);
        float *made = malloc(nelem * sizeof *made);
        for (size_t k = 0; k < nelem; k++)
            made[k] =
                (float)((unsigned)(k + 31 * (size_t)i) * 2654435761u >> 8 & 1023) / 1024 - .5f;
        rc = place(p, i, folder ? ref_tensor(&weights, tensor.name, nelem) : made, nelem);
        free(made);
    }
    if (folder)
        ref_tensors_close(&weights);
    return rc;
}

static void destroy(struct placed *p)
{
    for (int i = 0; i < MAX_PARAMS; i++)
        fsdp_device_free(p->device, p->param[i]);
    fsdp_lane_destroy(p->lane);
    fsdp_device_close(p->device);
    fsdp_module_tree_destroy(p->tree);
    p->ops->destroy(p->model);
}

static int decoder(struct model_decoder **out, const struct placed *p, int max_tokens)
{
    const struct model_decoder_opts opts = {.max_tokens = max_tokens};
    return p->ops->decoder_create(out, p->model, (const float *const *)p->param, p->lane, &opts,
                                  &err);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* Continues three tokens up to MAX_TOKENS. */
static int sample(const struct placed *p, uint64_t seed, int32_t *tokens)
{
    const int vocab = p->ops->vocab_size(p->model);
    struct generate_opts opts = GENERATE_OPTS_INIT;
    struct generate_sampler *sampler = NULL;
    struct model_decoder *d = NULL;
    float *logits = malloc((size_t)vocab * sizeof *logits);

    opts.seed = seed;
    opts.temperature = 0.8;
    opts.top_k = 40;
    int rc = generate_sampler_create(&sampler, &opts, vocab, &err);
    rc = rc ? rc : decoder(&d, p, MAX_TOKENS);
    for (int i = 0; i < 3; i++)
        tokens[i] = 5 + i;
    for (int n = 3, done = 0; n < MAX_TOKENS && !rc; done = n++) {
        rc = p->ops->decode(d, 0, tokens + done, n - done, false, logits, &err);
        rc = rc ? rc : generate_sample(&tokens[n], sampler, logits, &err);
    }
    if (d)
        p->ops->decoder_destroy(d);
    generate_sampler_destroy(sampler);
    free(logits);
    return rc;
}

static void test_text(const char *folder)
{
    struct placed cpu, cuda;
    int32_t tokens[2][MAX_TOKENS], other[MAX_TOKENS];

    int rc = create(&cpu, ref_path(folder, "config.json"), false);
    rc = rc ? rc : create(&cuda, ref_path(folder, "config.json"), true);
    rc = rc ? rc : place_all(&cpu, folder);
    rc = rc ? rc : place_all(&cuda, folder);
    if (!ok(rc == FSDP_OK, "%s on both devices%s%s", folder, rc ? ": " : "", rc ? err.text : ""))
        return;
    rc = sample(&cpu, 7, tokens[0]);
    rc = rc ? rc : sample(&cuda, 7, tokens[1]);
    ok(rc == FSDP_OK && !memcmp(tokens[0], tokens[1], sizeof tokens[0]),
       "%s: the same text for the same seed%s%s", folder, rc ? ": " : "", rc ? err.text : "");
    ok(sample(&cuda, 8, other) == FSDP_OK && memcmp(tokens[0], other, sizeof other) != 0,
       "%s: another for another", folder);
    destroy(&cpu);
    destroy(&cuda);
}

/* ---- logits --------------------------------------------------------------------------------- */

static int logits_of(const struct placed *p, const int32_t *tokens, float *logits)
{
    struct model_decoder *d = NULL;
    int rc = decoder(&d, p, LONG);

    rc = rc ? rc : p->ops->decode(d, 0, tokens, LONG, true, logits, &err);
    if (d)
        p->ops->decoder_destroy(d);
    return rc;
}

/* More tokens than go at once, and more rows of logits. */
static void test_logits(const char *config)
{
    enum { V = 31 };
    static float logits[2][LONG * V];
    int32_t tokens[LONG];
    struct placed cpu, cuda;
    double worst = 0;
    FILE *file = fopen("long-config.json", "w");

    fputs(config, file);
    fclose(file);
    for (int i = 0; i < LONG; i++)
        tokens[i] = (i * i + 3) % V;
    int rc = create(&cpu, "long-config.json", false);
    rc = rc ? rc : create(&cuda, "long-config.json", true);
    rc = rc ? rc : place_all(&cpu, NULL);
    rc = rc ? rc : place_all(&cuda, NULL);
    rc = rc ? rc : logits_of(&cpu, tokens, logits[0]);
    rc = rc ? rc : logits_of(&cuda, tokens, logits[1]);
    for (int i = 0; i < LONG * V && !rc; i++) {
        double d = fabs((double)logits[0][i] - (double)logits[1][i]);
        worst = d <= worst ? worst : isfinite(d) ? d : 1e30;
    }
    ok(rc == FSDP_OK && worst < 1e-4, "%s: logits of %d tokens, within %.1e%s%s",
       cpu.ops->family(cpu.model), LONG, worst, rc ? ": " : "", rc ? err.text : "");
    destroy(&cpu);
    destroy(&cuda);
    remove("long-config.json");
}

int main(void)
{
    test_text("llama-tiny");
    test_text("gpt2-tiny");
    test_logits("{\"model_type\": \"llama\", \"vocab_size\": 31, \"hidden_size\": 16,"
                " \"intermediate_size\": 24, \"num_hidden_layers\": 1, \"num_attention_heads\": 4,"
                " \"num_key_value_heads\": 1, \"max_position_embeddings\": 700}");
    test_logits("{\"model_type\": \"mixtral\", \"vocab_size\": 31, \"hidden_size\": 16,"
                " \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
                " \"num_key_value_heads\": 1, \"max_position_embeddings\": 700,"
                " \"num_local_experts\": 5, \"num_experts_per_tok\": 2}");
    test_logits("{\"model_type\": \"gpt2\", \"vocab_size\": 31, \"n_embd\": 16,"
                " \"n_layer\": 1, \"n_head\": 4, \"n_positions\": 700, \"n_inner\": 24}");
    return tap_done();
}
