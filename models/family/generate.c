/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

struct candidate {
    double p;
    int32_t token;
};

struct generate_sampler {
    struct generate_opts opts;
    uint64_t state;
    int vocab;
    struct candidate *candidates; /* [vocab] */
};

int generate_sampler_create(struct generate_sampler **out, const struct generate_opts *opts,
                            int vocab, struct fsdp_err *err)
{
    if (!opts->greedy && !(opts->temperature > 0 && isfinite(opts->temperature)))
        return fsdp_err_set(err, FSDP_EINVAL, "temperature is %g, but must be above 0",
                            opts->temperature);
    if (!(opts->top_p > 0 && opts->top_p <= 1))
        return fsdp_err_set(err, FSDP_EINVAL, "top-p is %g, allowed are values above 0 up to 1",
                            opts->top_p);
    if (opts->top_k < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "top-k is %d, but must not be negative", opts->top_k);
    struct generate_sampler *s = fsdp_alloc(1, sizeof *s, "sampler", err);
    if (!s)
        return FSDP_ENOMEM;
    s->opts = *opts;
    s->state = opts->seed;
    s->vocab = vocab;
    s->candidates = fsdp_alloc((size_t)vocab, sizeof *s->candidates, "sampler candidates", err);
    if (!s->candidates) {
        generate_sampler_destroy(s);
        return FSDP_ENOMEM;
    }
    *out = s;
    return FSDP_OK;
}

void generate_sampler_destroy(struct generate_sampler *sampler)
{
    if (sampler) {
        fsdp_free(sampler->candidates);
        fsdp_free(sampler);
    }
}

/* Uniform in [0, 1): SplitMix64 (Steele et al., OOPSLA 2014). */
static double uniform_unit(struct generate_sampler *s)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* More likely first, ties by token. */
static int by_probability(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->token - y->token;
}

/* How many of the sorted candidates stay, and the sum of their probabilities. */
static int cut_candidates(const struct generate_sampler *s, double total, double *kept)
{
    int most = s->opts.top_k && s->opts.top_k < s->vocab ? s->opts.top_k : s->vocab, n = 0;
    *kept = 0;
    while (n < most && (n == 0 || *kept < s->opts.top_p * total))
        *kept += s->candidates[n++].p;
    return n;
}

int generate_sample(int32_t *token, struct generate_sampler *s, const float *logits,
                    struct fsdp_err *err)
{
    int best = 0, n = s->vocab;
    double total = 0, left;

    for (int i = 0; i < s->vocab; i++) {
        if (!isfinite(logits[i]))
            return fsdp_err_set(err, FSDP_ECORRUPT, "the logit of token %d is not finite", i);
        best = logits[i] > logits[best] ? i : best;
    }
    *token = best;
    if (s->opts.greedy)
        return FSDP_OK;
    for (int i = 0; i < s->vocab; i++) {
        double p = exp(((double)logits[i] - (double)logits[best]) / s->opts.temperature);
        s->candidates[i] = (struct candidate){p, i};
        total += p;
    }
    left = total;
    if (s->opts.top_k || s->opts.top_p < 1) {
        qsort(s->candidates, (size_t)s->vocab, sizeof *s->candidates, by_probability);
        n = cut_candidates(s, total, &left);
    }
    left *= uniform_unit(s);
    for (int i = 0; i < n; i++) {
        if (s->candidates[i].p > 0)
            *token = s->candidates[i].token;
        if ((left -= s->candidates[i].p) < 0)
            break;
    }
    return FSDP_OK;
}

int generate_bytes(int32_t **out, int *ntokens, const char *text, int vocab, struct fsdp_err *err)
{
    size_t nbytes = strlen(text);
    if (nbytes > INT_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "prompt of %zu bytes is too long", nbytes);
    int32_t *tokens = fsdp_alloc(nbytes, sizeof *tokens, "prompt", err);
    if (!tokens)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < nbytes; i++) {
        tokens[i] = (unsigned char)text[i];
        if (tokens[i] >= vocab) {
            int byte = tokens[i];
            fsdp_free(tokens);
            return fsdp_err_set(err, FSDP_EINVAL,
                                "byte %d of the prompt is %d, but the vocabulary has %d tokens",
                                (int)i, byte, vocab);
        }
    }
    *out = tokens;
    *ntokens = (int)nbytes;
    return FSDP_OK;
}

/* One number of a list, up to its comma or the end; NULL and err where it is none. */
static const char *list_item(const char *at, int32_t *token, int vocab, struct fsdp_err *err)
{
    char *end;
    errno = 0;
    long value = strtol(at, &end, 10);
    if (end == at || errno || (*end && *end != ',')) {
        fsdp_err_set(err, FSDP_EINVAL, "'%.40s' does not begin with a token id", at);
        return NULL;
    }
    if (value < 0 || value >= vocab) {
        fsdp_err_set(err, FSDP_EINVAL, "token %ld: the vocabulary has %d", value, vocab);
        return NULL;
    }
    *token = (int32_t)value;
    return end;
}

int generate_list(int32_t **out, int *ntokens, const char *text, int vocab, struct fsdp_err *err)
{
    size_t count = 1;
    for (const char *c = text; *c; c++)
        count += *c == ',';
    int32_t *tokens = fsdp_alloc(count, sizeof *tokens, "prompt", err);
    if (!tokens)
        return FSDP_ENOMEM;
    const char *at = text;
    for (size_t i = 0; i < count; i++) {
        at = list_item(at, &tokens[i], vocab, err);
        if (!at) {
            fsdp_free(tokens);
            return FSDP_EINVAL;
        }
        at += *at == ',';
    }
    *out = tokens;
    *ntokens = (int)count;
    return FSDP_OK;
}
