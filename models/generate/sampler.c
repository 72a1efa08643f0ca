/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler.h"

struct generate_sampler {
    struct generate_opts opts;
    uint64_t state;
    int vocab;
    struct generate_candidate *candidates; /* [vocab] */
    double *most;                          /* [top_k] heap of the largest, the smallest first */
    bool *seen;                            /* [vocab]; NULL without a penalty */
};

/* ---- creation -------------------------------------------------------------------------------- */

int generate_opts_check(const struct generate_opts *opts, struct fsdp_err *err)
{
    if (!opts->greedy && !(opts->temperature > 0 && isfinite(opts->temperature)))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "temperature is %g, but must be above 0 (greedy takes the most likely token)",
            opts->temperature);
    if (!(opts->top_p > 0 && opts->top_p <= 1))
        return fsdp_err_set(err, FSDP_EINVAL, "top-p is %g, allowed are values above 0 up to 1",
                            opts->top_p);
    if (opts->top_k < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "top-k is %d, but must not be negative", opts->top_k);
    if (!(opts->min_p >= 0 && opts->min_p <= 1))
        return fsdp_err_set(err, FSDP_EINVAL, "min-p is %g, allowed are 0 to 1", opts->min_p);
    if (!(opts->repetition_penalty > 0 && isfinite(opts->repetition_penalty)))
        return fsdp_err_set(err, FSDP_EINVAL, "repetition penalty is %g, but must be above 0",
                            opts->repetition_penalty);
    return FSDP_OK;
}

int generate_sampler_create(struct generate_sampler **out, const struct generate_opts *opts,
                            int vocab, struct fsdp_err *err)
{
    FSDP_TRY(generate_opts_check(opts, err));
    struct generate_sampler *s = fsdp_alloc(1, sizeof *s, "sampler", err);
    if (!s)
        return FSDP_ENOMEM;
    s->opts = *opts;
    s->opts.top_k = opts->top_k < vocab ? opts->top_k : 0;
    s->state = opts->seed;
    s->vocab = vocab;
    const size_t most = (size_t)s->opts.top_k, all = (size_t)vocab;
    s->candidates = fsdp_alloc(all, sizeof *s->candidates, "sampler candidates", err);
    s->most = s->candidates ? fsdp_alloc(most, sizeof *s->most, "sampler candidates", err) : NULL;
    if (s->most && opts->repetition_penalty != 1)
        s->seen = fsdp_alloc(all, sizeof *s->seen, "tokens of the text", err);
    if (!s->most || (opts->repetition_penalty != 1 && !s->seen)) {
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
        fsdp_free(sampler->most);
        fsdp_free(sampler->seen);
        fsdp_free(sampler);
    }
}

void generate_sampler_begin(struct generate_sampler *s, uint64_t seed, const int32_t *prompt,
                            int nprompt)
{
    s->state = seed;
    if (!s->seen)
        return;
    memset(s->seen, 0, (size_t)s->vocab * sizeof *s->seen);
    for (int i = 0; i < nprompt; i++)
        s->seen[prompt[i]] = true;
}

/* Uniform in [0, 1): SplitMix64 (Steele et al., OOPSLA 2014). */
static double uniform_unit(struct generate_sampler *s)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* In fp32, as transformers computes it, so that the same values are equal. */
static float penalized(const struct generate_sampler *s, int token, float logit)
{
    const float penalty = (float)s->opts.repetition_penalty;
    if (!s->seen || !s->seen[token])
        return logit;
    return logit < 0 ? logit * penalty : logit / penalty;
}

static int find_best(int *best, const struct generate_sampler *s, const float *logits,
                     struct fsdp_err *err)
{
    float most = -INFINITY;

    for (int i = 0; i < s->vocab; i++) {
        if (!isfinite(logits[i]))
            return fsdp_err_set(err, FSDP_ECORRUPT, "the logit of token %d is not finite", i);
        const float logit = penalized(s, i, logits[i]);
        if (logit > most || i == 0) {
            most = logit;
            *best = i;
        }
    }
    return FSDP_OK;
}

/* All tokens, the probability of each relative to the best one's. */
static void fill(struct generate_sampler *s, const float *logits, int best)
{
    const float temperature = (float)s->opts.temperature;
    const double most = (double)(penalized(s, best, logits[best]) / temperature);

    for (int i = 0; i < s->vocab; i++) {
        const double logit = (double)(penalized(s, i, logits[i]) / temperature);
        const double p = logit == most ? 1 : exp(logit - most);
        s->candidates[i] = (struct generate_candidate){p, i};
    }
}

/* ---- filters: each leaves the first of the candidates and returns how many ------------------- */

static void swap(struct generate_candidate *a, struct generate_candidate *b)
{
    const struct generate_candidate kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves those from `first` on that are at least as likely as `least` to the front. */
static int part(struct generate_candidate *all, int first, int n, double least)
{
    for (int i = first; i < n; i++)
        if (all[i].p >= least)
            swap(&all[first++], &all[i]);
    return first;
}

static void sift_down(double *heap, int n)
{
    for (int at = 0, child = 1; child < n; at = child, child = 2 * at + 1) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[at] <= heap[child])
            return;
        const double kept = heap[at];
        heap[at] = heap[child];
        heap[child] = kept;
    }
}

static void sift_up(double *heap, int at)
{
    for (int above; at > 0 && heap[at] < heap[above = (at - 1) / 2]; at = above) {
        const double kept = heap[at];
        heap[at] = heap[above];
        heap[above] = kept;
    }
}

/* The k-th largest probability, by a heap of the k largest so far. */
static double kth_largest(struct generate_sampler *s, int n, int k)
{
    int nheap = 0;

    for (int i = 0; i < n; i++) {
        const double p = s->candidates[i].p;
        if (nheap < k) {
            s->most[nheap] = p;
            sift_up(s->most, nheap++);
        } else if (p > s->most[0]) {
            s->most[0] = p;
            sift_down(s->most, k);
        }
    }
    return s->most[0];
}

/* More likely first, ties by token. */
static int by_probability(const void *a, const void *b)
{
    const struct generate_candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->token - y->token;
}

/* Sorts no more than it needs: the most likely first, then the next most likely, each group a part
 * of the rest. */
static int filter_top_p(struct generate_sampler *s, int n)
{
    enum { SHRINK = 16 };
    double total = 0, kept = 0, least = 1.0 / SHRINK;
    int sorted = 0, nkept = 0;

    for (int i = 0; i < n; i++)
        total += s->candidates[i].p;
    while (nkept < n && (!nkept || kept < s->opts.top_p * total)) {
        while (nkept == sorted) {
            sorted = part(s->candidates, nkept, n, least);
            least = least > 1e-300 ? least / SHRINK : 0;
            qsort(s->candidates + nkept, (size_t)(sorted - nkept), sizeof *s->candidates,
                  by_probability);
        }
        kept += s->candidates[nkept++].p;
    }
    return nkept;
}

static int filter(struct generate_sampler *s)
{
    int n = s->vocab;

    if (s->opts.top_k)
        n = part(s->candidates, 0, n, kth_largest(s, n, s->opts.top_k));
    if (s->opts.top_p < 1)
        n = filter_top_p(s, n);
    return s->opts.min_p > 0 ? part(s->candidates, 0, n, s->opts.min_p) : n;
}

/* ---- the choice ------------------------------------------------------------------------------ */

int generate_distribution(const struct generate_candidate **out, int *ncandidates,
                          struct generate_sampler *s, const float *logits, struct fsdp_err *err)
{
    double total = 0;
    int best = 0, n = 1;

    FSDP_TRY(find_best(&best, s, logits, err));
    if (s->opts.greedy) {
        s->candidates[0] = (struct generate_candidate){1, best};
    } else {
        fill(s, logits, best);
        n = filter(s);
    }
    for (int i = 0; i < n; i++)
        total += s->candidates[i].p;
    for (int i = 0; i < n; i++)
        s->candidates[i].p /= total;
    *out = s->candidates;
    *ncandidates = n;
    return FSDP_OK;
}

int generate_sample(int32_t *token, struct generate_sampler *s, const float *logits,
                    struct fsdp_err *err)
{
    const struct generate_candidate *candidates;
    int n;

    FSDP_TRY(generate_distribution(&candidates, &n, s, logits, err));
    double left = s->opts.greedy ? 0 : uniform_unit(s);
    *token = candidates[0].token;
    for (int i = 0; i < n; i++) {
        if (candidates[i].p > 0)
            *token = candidates[i].token;
        if ((left -= candidates[i].p) < 0)
            break;
    }
    if (s->seen)
        s->seen[*token] = true;
    return FSDP_OK;
}
