/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of training of mixtures of experts on the CUDA device and its operators, emulated on the
 * CPU, against the same steps on the CPU: whole, and with adapters of the experts; with both losses
 * of the router. Experts with few rows are multiplied in one launch, others one after the other; in
 * 8 bits by values and by codes.
 * run: long
 * run: timeout=600
 */
#include <cublasLt.h>

#include "cuda_train.h"

enum { STEPS = 4, V = 61 };

static const char *const maps[] = {"q_proj", "v_proj"};
static const char *const parameters[] = {"gate_up_proj", "down_proj"};
static const struct model_lora of_experts = {
    .r = 3, .scale = 2, .targets = maps, .ntargets = 2, .parameters = parameters, .nparameters = 2};

static const char *const all[] = {"all-linear", "experts"};
static const struct model_f8 f8 = {
    .dtype = FSDP_F8_E4M3, .grad_dtype = FSDP_F8_E5M2, .targets = all, .ntargets = 2};

static void count_eights(int counts[TRAIN_COUNTS])
{
    counts[0] = simt_lt_eights();
}

/* Of products of codes: those of attention, in all; and matrices of an expert that have some, of
 * which each makes three or more for each expert with rows, in each of two layers. */
struct eights {
    int attention, matrices;
};

/* Values near the middle between two codes are rounded either way, for which losses have this room.
 */
static void test_in_8_bits(struct ref_setup setup, const int32_t *tokens, const char *name,
                           int nsteps, struct eights eights)
{
    char what[96];

    train_f8 = &f8;
    train_count = count_eights;
    for (int i = 0; i < 2; i++) {
        train_adapters = i ? &of_experts : NULL;
        snprintf(what, sizeof what, "%s in 8 bits%s", name, i ? ", adapters of experts" : "");
        train_compare(what, setup, tokens, nsteps, 1e-3, 1e-2);
        const int ways = i ? 2 : 3; /* what adapters adapt has no gradients of weights */
        const int rest = train_counts[0] - eights.attention * ways / 3;
        ok(eights.matrices ? rest >= 2 * ways * eights.matrices : !rest,
           "of which %d products are of codes", train_counts[0]);
    }
    train_f8 = NULL;
    train_count = NULL;
}

/* B: rows of a micro-step. */
static void test_mixture(const char *name, const char *config, int B, int T, int nsteps,
                         struct eights eights)
{
    static int32_t tokens[STEPS * TRAIN_ROWS * (TRAIN_MAX_T + 1)];
    struct ref_setup setup = {
        .config = "mixture.json", .B = B, .T = T, .router_z_loss = 0.01, .opts = FSDP_OPTS_INIT};
    FILE *file = fopen(setup.config, "w");
    char what[96];

    fputs(config, file);
    fclose(file);
    train_fill(tokens, nsteps * TRAIN_ROWS * (T + 1), V);
    setup.opts.accumulation = TRAIN_ROWS / B;
    for (int i = 0; i < 2; i++) {
        train_adapters = i ? &of_experts : NULL;
        snprintf(what, sizeof what, "%s, %d rows of %d tokens%s", name, B, T,
                 i ? ", adapters of experts" : "");
        train_compare(what, setup, tokens, nsteps, 1e-5, 1e-4);
    }
    if (eights.attention)
        test_in_8_bits(setup, tokens, name, nsteps, eights);
    remove(setup.config);
}

#define CONFIG(type, width, counts)                                                                \
    "{\"model_type\": \"" type "\", \"vocab_size\": 61, \"hidden_size\": 16,"                      \
    " \"intermediate_size\": " width ", \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"     \
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 256,"                               \
    " \"router_aux_loss_coef\": 0.05, " counts "}"

int main(void)
{
    test_mixture("mixtral of 5 experts",
                 CONFIG("mixtral", "24", "\"num_local_experts\": 5, \"num_experts_per_tok\": 2"), 2,
                 16, STEPS, (struct eights){0, 0});
    test_mixture("granitemoe of 4 experts",
                 CONFIG("granitemoe", "24",
                        "\"num_local_experts\": 4, \"num_experts_per_tok\": 2,"
                        " \"tie_word_embeddings\": false"),
                 2, 16, STEPS, (struct eights){2 * 3 * 2 * 2 * STEPS, 0});
    /* Over 512 rows for each expert. */
    test_mixture("mixtral of 2 experts",
                 CONFIG("mixtral", "32", "\"num_local_experts\": 2, \"num_experts_per_tok\": 2"), 4,
                 130, 1, (struct eights){2 * 3 * 2, 3});
    test_mixture("gpt_oss of 2 experts",
                 CONFIG("gpt_oss", "32",
                        "\"num_local_experts\": 2, \"num_experts_per_tok\": 2,"
                        " \"head_dim\": 4, \"sliding_window\": 8"),
                 4, 130, 1, (struct eights){2 * 3 * 2, 2});
    return tap_done();
}
