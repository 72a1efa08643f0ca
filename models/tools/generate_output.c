/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "generate_output.h"

static int check_output(struct fsdp_err *err)
{
    if (fflush(stdout) || ferror(stdout))
        return fsdp_err_sys(err, errno, "standard output");
    return FSDP_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

int generate_print_logits(struct generate_session *s, const struct generate_sequence *seq,
                          struct fsdp_err *err)
{
    enum { PIECE = 32 };
    const size_t vocab = (size_t)s->vocab;
    float *logits = fsdp_alloc(PIECE * vocab, sizeof *logits, "logits", err);
    int rc = logits ? FSDP_OK : FSDP_ENOMEM;

    for (int done = 0; rc == FSDP_OK && done < seq->nprompt; done += PIECE) {
        int n = seq->nprompt - done < PIECE ? seq->nprompt - done : PIECE;
        rc = s->ops->decode(s->decoder, 0, seq->prompt + done, n, true, logits, err);
        for (size_t i = 0; rc == FSDP_OK && i < (size_t)n * vocab; i++)
            printf("%.9g%c", (double)logits[i], (i + 1) % vocab ? ' ' : '\n');
        if (rc == FSDP_OK)
            rc = check_output(err);
    }
    fsdp_free(logits);
    return rc;
}

static int by_probability(const void *a, const void *b)
{
    const struct generate_candidate *x = a, *y = b;
    if (x->p != y->p)
        return x->p > y->p ? -1 : 1;
    return x->token - y->token;
}

static int print_candidates(const struct generate_candidate *candidates, int ncandidates,
                            struct fsdp_err *err)
{
    const size_t n = (size_t)ncandidates;
    struct generate_candidate *sorted = fsdp_alloc(n, sizeof *sorted, "candidates", err);

    if (!sorted)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < n; i++)
        sorted[i] = candidates[i];
    qsort(sorted, n, sizeof *sorted, by_probability);
    for (size_t i = 0; i < n; i++)
        printf("%d %.9g\n", sorted[i].token, sorted[i].p);
    fsdp_free(sorted);
    return check_output(err);
}

int generate_print_probabilities(struct generate_session *s, const struct generate_sequence *seq,
                                 const struct generate_opts *opts, struct fsdp_err *err)
{
    const struct generate_candidate *candidates;
    struct generate_sampler *sampler = NULL;
    int rc, ncandidates;
    float *logits = fsdp_alloc((size_t)s->vocab, sizeof *logits, "logits", err);

    if (!logits)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(generate_sampler_create(&sampler, opts, s->vocab, err), out);
    generate_sampler_begin(sampler, seq->seed, seq->prompt, seq->nprompt);
    FSDP_TRY_GOTO(s->ops->decode(s->decoder, 0, seq->prompt, seq->nprompt, false, logits, err),
                  out);
    FSDP_TRY_GOTO(generate_distribution(&candidates, &ncandidates, sampler, logits, err), out);
    rc = print_candidates(candidates, ncandidates, err);
out:
    generate_sampler_destroy(sampler);
    fsdp_free(logits);
    return rc;
}

/* ---- tokens as they come --------------------------------------------------------------------- */

static int only_prompt(void *ctx, struct generate_sequence *seq, bool *there, struct fsdp_err *err)
{
    struct generate_printer *p = ctx;
    (void)err;

    *there = !p->begun;
    p->begun = true;
    *seq = *p->seq;
    return FSDP_OK;
}

static int print_token(void *ctx, const struct generate_sequence *seq, int32_t token,
                       struct fsdp_err *err)
{
    struct generate_printer *p = ctx;
    const char *text;
    size_t nbytes;
    (void)seq;

    FSDP_TRY(p->words->ops->stream_put(&text, &nbytes, p->stream, token, err));
    fwrite(text, 1, nbytes, stdout);
    return check_output(err);
}

/* The rest, and a line feed. */
static int end_text(void *ctx, const struct generate_sequence *seq, enum generate_finish finish,
                    struct fsdp_err *err)
{
    struct generate_printer *p = ctx;

    p->finish = finish;
    FSDP_TRY(print_token(ctx, seq, -1, err));
    putchar('\n');
    return check_output(err);
}

int generate_printer_open(struct generate_printer *p, const struct generate_words *words,
                          const struct generate_sequence *seq, struct fsdp_err *err)
{
    p->words = words;
    p->seq = seq;
    return words->ops->stream_create(&p->stream, words, seq->prompt, seq->nprompt, err);
}

struct generate_source generate_printer_source(struct generate_printer *p)
{
    return (struct generate_source){
        .ctx = p, .next = only_prompt, .put = print_token, .done = end_text};
}

void generate_printer_close(struct generate_printer *p)
{
    if (p->stream)
        p->words->ops->stream_destroy(p->stream);
    p->stream = NULL;
}

static const char *rate(char out[FSDP_COUNT_TEXT], int64_t ntokens, double seconds)
{
    return fsdp_rate_text(out, seconds > 0 ? (double)ntokens / seconds : 0);
}

void generate_print_speed(const struct generate_loop *loop)
{
    char prompt[FSDP_COUNT_TEXT], generated[FSDP_COUNT_TEXT];

    fprintf(stderr,
            "fsdp-generate: prompt: %lld tokens, %s tokens/s; generated: %lld tokens, %s "
            "tokens/s\n",
            (long long)loop->nprompt, rate(prompt, loop->nprompt, loop->prompt_seconds),
            (long long)loop->ngenerated, rate(generated, loop->ntimed, loop->seconds));
}
