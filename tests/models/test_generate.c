/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the next token, and text as tokens. */
#include <math.h>
#include <string.h>

#include "family/generate.h"
#include "tap.h"

enum { V = 5, DRAWS = 20000 };

/* Probabilities .4 .3 .2 .1 0 in another order. */
static const double p[V] = {0.2, 0.4, 0, 0.1, 0.3};

static void logits_of(float *logits)
{
    for (int i = 0; i < V; i++)
        logits[i] = p[i] > 0 ? (float)log(p[i]) + 3 : -1e4f;
}

/* Relative frequencies of DRAWS tokens. */
static int draw(const struct generate_opts *opts, double *frequency)
{
    struct generate_sampler *s;
    struct fsdp_err err = FSDP_ERR_INIT;
    float logits[V];
    memset(frequency, 0, V * sizeof *frequency);
    logits_of(logits);
    FSDP_TRY(generate_sampler_create(&s, opts, V, &err));
    for (int i = 0; i < DRAWS; i++) {
        int32_t token = -1;
        if (generate_sample(&token, s, logits, &err) || token < 0 || token >= V)
            return FSDP_EINTERNAL;
        frequency[token] += 1.0 / DRAWS;
    }
    generate_sampler_destroy(s);
    return FSDP_OK;
}

static void check(const char *what, struct generate_opts opts, double a, double b, double c,
                  double d, double e)
{
    const double want[V] = {a, b, c, d, e};
    double got[V], worst = 0;
    int rc = draw(&opts, got);
    for (int i = 0; i < V; i++) {
        worst = fmax(worst, fabs(got[i] - want[i]));
        if (want[i] == 0 && got[i] > 0)
            worst = 1;
    }
    /* Four standard deviations of a frequency near one half are 0.014; the seed is fixed. */
    ok(rc == FSDP_OK && worst < 0.015, "%s: %.3f %.3f %.3f %.3f %.3f", what, got[0], got[1], got[2],
       got[3], got[4]);
}

static void test_distribution(void)
{
    struct generate_opts o = GENERATE_OPTS_INIT;
    o.seed = 1;
    check("as the model says", o, .2, .4, 0, .1, .3);
    o.top_k = 2;
    check("top-k 2", o, 0, .4 / .7, 0, 0, .3 / .7);
    o.top_k = 0;
    o.top_p = 0.65;
    check("top-p 0.65", o, 0, .4 / .7, 0, 0, .3 / .7);
    o.top_p = 0.75;
    check("top-p 0.75", o, .2 / .9, .4 / .9, 0, 0, .3 / .9);
    o.top_p = 1e-9;
    check("top-p of almost nothing keeps one", o, 0, 1, 0, 0, 0);
    o.top_p = 1;
    o.temperature = 0.5; /* squares probabilities */
    check("temperature 0.5", o, .04 / .3, .16 / .3, 0, .01 / .3, .09 / .3);
    o.temperature = 1e-6;
    check("a very low temperature", o, 0, 1, 0, 0, 0);
    o.greedy = true;
    check("greedy", o, 0, 1, 0, 0, 0);
}

static void test_seed(void)
{
    struct generate_opts o = GENERATE_OPTS_INIT;
    int32_t token[3][50];
    float logits[V];
    logits_of(logits);
    for (int k = 0; k < 3; k++) {
        struct generate_sampler *s;
        o.seed = k == 2 ? 8 : 7;
        if (generate_sampler_create(&s, &o, V, NULL))
            continue;
        for (int i = 0; i < 50; i++)
            generate_sample(&token[k][i], s, logits, NULL);
        generate_sampler_destroy(s);
    }
    ok(!memcmp(token[0], token[1], sizeof token[0]), "the same seed gives the same tokens");
    ok(memcmp(token[0], token[2], sizeof token[0]), "another seed gives others");
}

static void test_refusals(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct generate_sampler *s;
    float logits[V] = {0};
    int32_t token;
    struct generate_opts bad[4] = {GENERATE_OPTS_INIT, GENERATE_OPTS_INIT, GENERATE_OPTS_INIT,
                                   GENERATE_OPTS_INIT};
    bad[0].temperature = 0;
    bad[1].top_p = 1.5;
    bad[2].top_k = -1;
    bad[3].top_p = NAN;
    for (int i = 0; i < 4; i++)
        ok(generate_sampler_create(&s, &bad[i], V, &err) == FSDP_EINVAL, "refused: %s", err.text);
    struct generate_opts good = GENERATE_OPTS_INIT;
    ok(generate_sampler_create(&s, &good, V, &err) == FSDP_OK, "a sampler");
    logits[3] = NAN;
    ok(generate_sample(&token, s, logits, &err) == FSDP_ECORRUPT && strstr(err.text, "token 3"),
       "refused: %s", err.text);
    generate_sampler_destroy(s);
    generate_sampler_destroy(NULL);
}

static void test_prompts(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t *tokens = NULL;
    int n = -1;
    ok(!generate_bytes(&tokens, &n, "A\xff", 256, &err) && n == 2 && tokens[0] == 65 &&
           tokens[1] == 255,
       "bytes are tokens");
    fsdp_free(tokens);
    ok(!generate_bytes(&tokens, &n, "", 256, &err) && n == 0, "an empty prompt");
    fsdp_free(tokens);
    ok(generate_bytes(&tokens, &n, "aZ", 91, &err) == FSDP_EINVAL &&
           strstr(err.text, "byte 0 of the prompt is 97"),
       "refused: %s", err.text);
    ok(!generate_list(&tokens, &n, "1, 20,3", 21, &err) && n == 3 && tokens[1] == 20,
       "a list of tokens");
    fsdp_free(tokens);
    static const char *const bad[] = {"",  "1,,2", "1,2,", "1;2",
                                      "x", "21",   "-1",   "99999999999999999999"};
    for (int i = 0; i < 8; i++)
        ok(generate_list(&tokens, &n, bad[i], 21, &err) == FSDP_EINVAL, "refused '%s': %s", bad[i],
           err.text);
}

int main(void)
{
    test_distribution();
    test_seed();
    test_refusals();
    test_prompts();
    return tap_done();
}
