/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the next token, and text as tokens. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/chat.h"
#include "generate/sampler.h"
#include "generate/settings.h"
#include "generate/words.h"
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
    o.min_p = 0.6;
    check("min-p 0.6", o, 0, .4 / .7, 0, 0, .3 / .7);
    o.min_p = 1;
    check("min-p 1", o, 0, 1, 0, 0, 0);
    o.min_p = 0;
    o.top_k = 3; /* .2 .4 .3: top-p is of what top-k left, where .4 / .9 and .3 / .9 reach .75 */
    o.top_p = 0.75;
    check("top-k 3, then top-p 0.75", o, 0, .4 / .7, 0, 0, .3 / .7);
    o.top_k = 0;
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
    enum { NBAD = 8 };
    struct generate_opts bad[NBAD];
    for (int i = 0; i < NBAD; i++)
        bad[i] = (struct generate_opts)GENERATE_OPTS_INIT;
    bad[0].temperature = 0;
    bad[1].top_p = 1.5;
    bad[2].top_k = -1;
    bad[3].top_p = NAN;
    bad[4].min_p = -0.1;
    bad[5].min_p = 1.1;
    bad[6].repetition_penalty = 0;
    bad[7].repetition_penalty = INFINITY;
    for (int i = 0; i < NBAD; i++)
        ok(generate_sampler_create(&s, &bad[i], V, &err) == FSDP_EINVAL, "refused: %s", err.text);
    struct generate_opts good = GENERATE_OPTS_INIT;
    ok(generate_sampler_create(&s, &good, V, &err) == FSDP_OK, "a sampler");
    logits[3] = NAN;
    ok(generate_sample(&token, s, logits, &err) == FSDP_ECORRUPT && strstr(err.text, "token 3"),
       "refused: %s", err.text);
    generate_sampler_destroy(s);
    generate_sampler_destroy(NULL);
}

/* Against the plain way: sort everything, and apply the filters to that. */
static int by_logit(const void *a, const void *b)
{
    const struct generate_candidate *x = a, *y = b;
    return x->p != y->p ? (x->p > y->p ? -1 : 1) : x->token - y->token;
}

enum { LARGE = 5000 };

static int plain(struct generate_candidate *c, const float *logits, const struct generate_opts *o)
{
    double total = 0, sum = 0, kept = 0;
    int n = LARGE, k = 0;
    for (int i = 0; i < LARGE; i++)
        c[i] = (struct generate_candidate){(double)(logits[i] / (float)o->temperature), i};
    qsort(c, LARGE, sizeof *c, by_logit);
    while (o->top_k && n > o->top_k && c[n - 1].p < c[o->top_k - 1].p)
        n--;
    const double best = c[0].p;
    for (int i = 0; i < n; i++)
        total += c[i].p = exp(c[i].p - best);
    while (k < n && (k == 0 || o->top_p == 1 || sum < o->top_p * total))
        sum += c[k++].p;
    while (k > 1 && c[k - 1].p < o->min_p)
        k--;
    for (int i = 0; i < k; i++)
        kept += c[i].p;
    for (int i = 0; i < k; i++)
        c[i].p /= kept;
    return k;
}

static bool same_distribution(const float *logits, const struct generate_opts *o)
{
    static struct generate_candidate want[LARGE], got[LARGE];
    const struct generate_candidate *candidates;
    struct generate_sampler *s;
    int n = 0;
    const int nwant = plain(want, logits, o);
    if (generate_sampler_create(&s, o, LARGE, NULL))
        return false;
    bool same = !generate_distribution(&candidates, &n, s, logits, NULL) && n == nwant;
    memcpy(got, candidates, (size_t)n * sizeof *got);
    qsort(got, (size_t)n, sizeof *got, by_logit);
    for (int i = 0; i < n && same; i++)
        same = got[i].token == want[i].token && fabs(got[i].p - want[i].p) < 1e-12;
    generate_sampler_destroy(s);
    return same;
}

/* Logits of four shapes: wide, flat, with many ties, with one token that has nearly all. */
static void test_large(void)
{
    static const int ks[] = {0, 1, 2, 7, 50, 4999, 5000};
    static const double ps[] = {1, 0.999, 0.9, 0.5, 0.01}, mins[] = {0, 0.02, 0.5};
    static float logits[LARGE];
    uint64_t state = 7;
    for (int shape = 0; shape < 4; shape++) {
        int wrong = 0;
        for (int i = 0; i < LARGE; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            const double u = (double)(state >> 11) * 0x1p-53;
            logits[i] = (float)(shape == 0   ? 30 * u
                                : shape == 1 ? u / 100
                                : shape == 2 ? floor(5 * u)
                                             : (i == 77 ? 40 : u));
        }
        for (int c = 0; c < 7 * 5 * 3; c++) {
            struct generate_opts o = GENERATE_OPTS_INIT;
            o.top_k = ks[c / 15];
            o.top_p = ps[c / 3 % 5];
            o.min_p = mins[c % 3];
            o.temperature = c % 2 ? 0.7 : 1;
            wrong += !same_distribution(logits, &o);
        }
        ok(wrong == 0, "logits of shape %d: %d of 105 distributions differ from the plain way",
           shape, wrong);
    }
}

static void test_penalty(void)
{
    const float logits[V] = {2, -2, 1, -1, 0.5f};
    const struct generate_candidate *c;
    struct generate_opts o = GENERATE_OPTS_INIT;
    struct generate_sampler *s = NULL;
    int n = 0;
    double got[V], want[V], total = 0;
    static const double penalized[V] = {2 / 1.5, -2 * 1.5, 1, -1, 0.5};
    o.repetition_penalty = 1.5;
    int rc = generate_sampler_create(&s, &o, V, NULL);
    generate_sampler_begin(s, 0, (const int32_t[]){0, 1, 0}, 3);
    rc = rc ? rc : generate_distribution(&c, &n, s, logits, NULL);
    for (int i = 0; i < V; i++)
        total += want[i] = exp(penalized[i]);
    for (int i = 0; i < n; i++)
        got[c[i].token] = c[i].p;
    bool same = rc == FSDP_OK && n == V;
    for (int i = 0; i < V && same; i++)
        same = fabs(got[i] - want[i] / total) < 1e-7;
    ok(same, "the penalty divides positive logits of seen tokens once, and multiplies negative");
    generate_sampler_begin(s, 0, NULL, 0);
    rc = rc ? rc : generate_distribution(&c, &n, s, logits, NULL);
    ok(rc == FSDP_OK &&
           fabs(c[0].p - exp(2) / (exp(2) + exp(-2) + exp(1) + exp(-1) + exp(.5))) < 1e-7,
       "a new sequence has seen none");
    generate_sampler_destroy(s);

    int32_t first = -1, second = -1;
    o.greedy = true;
    o.repetition_penalty = 4;
    rc = generate_sampler_create(&s, &o, V, NULL);
    rc = rc ? rc : generate_sample(&first, s, logits, NULL);
    rc = rc ? rc : generate_sample(&second, s, logits, NULL);
    ok(rc == FSDP_OK && first == 0 && second == 2, "greedy: %d, then %d", first, second);
    generate_sampler_destroy(s);
}

static int read_config(struct generate_config *c, const char *text, struct fsdp_err *err)
{
    FILE *file = fopen("generation_config.json", "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
    return generate_config_read(c, "generation_config.json", err);
}

static void test_config(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct generate_config c;
    struct generate_settings set = generate_settings_default;
    struct generate_opts o;
    int most;
    generate_choose(&o, &most, &set, &generate_config_none);
    ok(!o.greedy && o.temperature == 1 && o.top_k == 0 && o.top_p == 1 && o.min_p == 0 &&
           o.repetition_penalty == 1 && most == 200,
       "without a file: the model's own distribution");
    ok(!read_config(&c,
                    "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.9, "
                    "\"min_p\": 0.05, \"repetition_penalty\": 1.1, \"max_new_tokens\": 7, "
                    "\"bos_token_id\": 1, \"eos_token_id\": [2, 5], \"pad_token_id\": 0}",
                    &err) &&
           c.neos == 2 && c.eos[1] == 5 && c.bos == 1,
       "a file: %s", err.text);
    generate_choose(&o, &most, &set, &c);
    ok(!o.greedy && o.temperature == 0.6 && o.top_k == 20 && o.top_p == 0.9 && o.min_p == 0.05 &&
           o.repetition_penalty == 1.1 && most == 7,
       "what it says counts");
    set.temperature = 2;
    set.top_k = 0;
    set.max_tokens = 9;
    generate_choose(&o, &most, &set, &c);
    ok(o.temperature == 2 && o.top_k == 0 && o.top_p == 0.9 && most == 9, "options come first");
    ok(!read_config(&c, "{\"do_sample\": false}", &err), "a greedy file");
    generate_choose(&o, &most, &set, &c);
    ok(!o.greedy, "an option of sampling is a wish to sample");
    set = generate_settings_default;
    generate_choose(&o, &most, &set, &c);
    ok(o.greedy, "without one it is greedy");
    static const char *const bad[] = {"{\"top_p\": 2}", "{\"temperature\": \"x\"}",
                                      "{\"eos_token_id\": \"x\"}", "[]", "{"};
    for (int i = 0; i < 5; i++)
        ok(read_config(&c, bad[i], &err) == FSDP_EINVAL &&
               strstr(err.text, "generation_config.json"),
           "refused: %s", err.text);
}

/* The tokens of a text, or NULL and err. */
static int32_t *encode(const struct generate_words_ops *ops, int vocab, const char *text, int *n,
                       struct fsdp_err *err)
{
    const struct generate_words words = {.ops = ops, .vocab = vocab};
    int32_t *tokens = NULL;
    *n = -1;
    return ops->encode(&tokens, n, &words, text, strlen(text), true, err) ? NULL : tokens;
}

static void test_prompts(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int n;
    int32_t *tokens = encode(&generate_words_bytes, 256, "A\xff", &n, &err);
    ok(tokens && n == 2 && tokens[0] == 65 && tokens[1] == 255, "bytes are tokens");
    fsdp_free(tokens);
    tokens = encode(&generate_words_bytes, 256, "", &n, &err);
    ok(tokens && n == 0, "an empty prompt");
    fsdp_free(tokens);
    ok(!encode(&generate_words_bytes, 91, "aZ", &n, &err) &&
           strstr(err.text, "byte 0 of the prompt is 97"),
       "refused: %s", err.text);
    tokens = encode(&generate_words_ids, 21, "1, 20,3", &n, &err);
    ok(tokens && n == 3 && tokens[1] == 20, "a list of tokens");
    fsdp_free(tokens);
    static const char *const bad[] = {"",  "1,,2", "1,2,", "1;2",
                                      "x", "21",   "-1",   "99999999999999999999"};
    for (int i = 0; i < 8; i++)
        ok(!encode(&generate_words_ids, 21, bad[i], &n, &err), "refused '%s': %s", bad[i],
           err.text);
}

static bool is_utf8(const char *text, size_t nbytes)
{
    uint32_t code;
    int n = 1;
    for (const char *end = text + nbytes; n && text < end; text += n)
        n = fsdp_utf8_decode(&code, text, end);
    return n;
}

/* A text of whole characters comes in pieces of whole characters. */
static void check_words(const struct generate_words *words, const int32_t *tokens, int ntokens,
                        const char *want)
{
    const struct generate_words_ops *ops = words->ops;
    char all[64] = "";
    const char *text;
    size_t nbytes, len = 0;
    void *stream = NULL;
    const bool may_break = !is_utf8(want, strlen(want));
    bool is_whole = true;
    int rc = ops->stream_create(&stream, words, NULL, 0, NULL);
    for (int i = 0; i <= ntokens && !rc; i++) {
        rc = ops->stream_put(&text, &nbytes, stream, i < ntokens ? tokens[i] : -1, NULL);
        memcpy(all + len, text, nbytes);
        len += nbytes;
        is_whole = is_whole && (may_break || is_utf8(text, nbytes));
    }
    ops->stream_destroy(stream);
    ok(!rc && !strcmp(all, want) && is_whole, "%s print '%s'", ops->name, all);
}

static void check_output(const struct generate_words_ops *ops, const int32_t *tokens, int ntokens,
                         const char *want)
{
    const struct generate_words words = {.ops = ops, .vocab = 1000};
    check_words(&words, tokens, ntokens, want);
}

/* Tokens that are bytes of characters, and one that a model has and its tokenizer has not. */
static void test_tokenizer_output(void)
{
    static const char spelled[] =
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],"
        " \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false, \"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null,"
        " \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
        "true,"
        " \"use_regex\": true}, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": "
        "null,"
        " \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false,"
        " \"byte_fallback\": false, \"ignore_merges\": false, \"merges\": [], \"vocab\":"
        " {\"\\u00c3\": 0, \"\\u00a9\": 1, \"\\u00e6\": 2, \"\\u0139\": 3, \"\\u00a5\": 4, \"!\": "
        "5}}}";
    static const int32_t tokens[] = {0, 1, 2, 3, 4, 9, 2, 5, 0};
    struct generate_words words = {.vocab = 10};
    struct fsdp_err err = FSDP_ERR_INIT;
    FILE *file = fopen("tokenizer.json", "w");

    if (file) {
        fputs(spelled, file);
        fclose(file);
    }
    if (generate_words_tokenizer(&words, "tokenizer.json", &err))
        ok(false, "%s", err.text);
    else
        check_words(&words, tokens, 9, "\xc3\xa9\xe6\x97\xa5\xef\xbf\xbd!\xef\xbf\xbd");
    generate_words_close(&words);
}

static void test_output(void)
{
    check_output(&generate_words_bytes, (const int32_t[]){72, 105, 300, 33}, 4, "Hi<300>!");
    check_output(&generate_words_ids, (const int32_t[]){72, 105, 300}, 3, "72,105,300");
    check_output(&generate_words_ids, NULL, 0, "");
    static const int32_t whole[] = {0xc3, 0xa9, 0xe6, 0x97, 0xa5, 0xf0, 0x9f, 0x98, 0x80, 33};
    check_output(&generate_words_bytes, whole, 10, "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80!");
    static const int32_t broken[] = {0xff, 0xe6, 0x97, 0xe6, 0x97, 0xa5, 0xc3,
                                     300,  0xc3, 65,   0x80, 0xf0, 0x9f};
    check_output(&generate_words_bytes, broken, 13,
                 "\xff\xe6\x97\xe6\x97\xa5\xc3<300>\xc3\x41\x80\xf0\x9f");
}

/* ---- variables of a template ----------------------------------------------------------------- */

static void test_variables(void)
{
    static const char *const good[] = {"a=1", "b=false", "c=\"1\"", "d=low", "e={\"x\": [null]}",
                                       "f=",  "a=2.5"};
    static const char *const bad[] = {"a",         "=1",   "1a=1",       "a b=1",
                                      "f=True",    "f=[1", "messages=1", "add_generation_prompt=1",
                                      "f=\xff\xfe"};
    struct fsdp_err err = FSDP_ERR_INIT;
    json_t *variables = NULL, *want = json_loads("{\"a\": 2.5, \"b\": false, \"c\": \"1\", \"d\": "
                                                 "\"low\", \"e\": {\"x\": [null]}, \"f\": \"\"}",
                                                 0, NULL);
    int rc = FSDP_OK;
    for (int i = 0; i < 7 && !rc; i++)
        rc = generate_chat_variable(&variables, good[i], &err);
    ok(!rc && json_equal(variables, want), "values are JSON or text");
    for (int i = 0; i < 9; i++)
        ok(generate_chat_variable(&variables, bad[i], &err) == FSDP_EINVAL &&
               json_equal(variables, want),
           "refused: %s", err.text);
    json_decref(variables);
    json_decref(want);
}

int main(void)
{
    test_distribution();
    test_seed();
    test_refusals();
    test_prompts();
    test_output();
    test_tokenizer_output();
    test_variables();
    test_large();
    test_penalty();
    test_config();
    return tap_done();
}
