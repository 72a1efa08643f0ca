/* SPDX-License-Identifier: Apache-2.0 */
/* Rows over GPUs as tables of 80 columns. */
#include <math.h>
#include <string.h>

#include "plan/answer/text.h"
#include "scale.h"

typedef char text[ANSWER_TEXT_NBYTES];

/* ---- the head -------------------------------------------------------------------------------- */

static const struct answer *first_answer(const struct scale *s)
{
    for (int i = 0; i < s->npoints; i++)
        if (s->line[0].point[i].is_there)
            return &s->line[0].point[i].answer;
    return NULL;
}

static void print_head(const struct scale *s, const struct question *q, FILE *to)
{
    const struct answer *a = first_answer(s);
    text params, from, ends, tokens, seq;

    if (!a)
        return;
    fprintf(to, "%s of %s parameters on %s to %s %s in nodes of %d", a->family,
            answer_count(params, a->nparams), answer_whole(from, s->ngpus[0]),
            answer_whole(ends, s->ngpus[s->npoints - 1]), q->cluster->clock.device.name,
            q->cluster->clock.net.node_nranks);
    fprintf(to, "%s%s\n", *q->cluster->net ? ", " : "", q->cluster->net);
    if (s->batch == SCALE_PER_GPU)
        fprintf(
            to, "weak scaling: a GPU keeps %s tokens a step (%lld row%s of %s); the batch grows\n",
            answer_whole(tokens, (double)s->gpu_rows * (double)s->seq_len), (long long)s->gpu_rows,
            s->gpu_rows == 1 ? "" : "s", answer_whole(seq, (double)s->seq_len));
    else
        fprintf(to, "strong scaling: a step keeps %s tokens (%lld rows of %s); a GPU gets fewer\n",
                answer_count(tokens, (double)s->rows * (double)s->seq_len), (long long)s->rows,
                answer_whole(seq, (double)s->seq_len));
    if (a->tokens > 0)
        fprintf(to, "time and GPU-hours are until %s tokens, failures included\n",
                answer_count(tokens, a->tokens));
    putc('\n', to);
}

/* ---- the run's own --------------------------------------------------------------------------- */

static void print_row(const struct answer *a, bool *any_far, bool *any_large, FILE *to)
{
    text gpus, rate, step, time, hours, nbytes;
    const double memory = a->device_nbytes + a->reserved_nbytes;

    fprintf(to, "%8s%10s%7.1f%% %8s%7.0f%% ", answer_whole(gpus, a->nranks),
            answer_whole(rate, a->tokens_s_gpu), 100 * a->mfu, answer_seconds(step, a->step_s),
            100 * a->times.exposed_s / a->step_s);
    snprintf(nbytes, sizeof nbytes, "%.*f", memory < 99.95 * (1 << 30) ? 1 : 0, memory / (1 << 30));
    fprintf(to, "%7s%c", nbytes, a->fits ? ' ' : '!');
    fprintf(to, "%4.0f%%%s", 100 * a->band.share,
            a->band.extrapolated ? "*"
            : a->tokens > 0      ? " "
                                 : "");
    if (a->tokens > 0)
        fprintf(to, " %9s%12s",
                isfinite(a->bill.seconds) ? answer_long(time, a->bill.seconds) : "never",
                isfinite(a->bill.seconds) ? answer_whole(hours, a->bill.gpu_hours) : "-");
    putc('\n', to);
    *any_far = *any_far || a->band.extrapolated;
    *any_large = *any_large || !a->fits;
}

/* Which memory is short, of the first point whose plan does not fit. */
static void tell_short(const struct scale *s, FILE *to)
{
    const struct answer *a = NULL;

    for (int i = 0; i < s->npoints && (!a || a->fits); i++)
        if (s->line[0].point[i].is_there)
            a = &s->line[0].point[i].answer;
    const double gib = 1 << 30, all = a->device_nbytes + a->reserved_nbytes;
    const bool device = a->limit_nbytes > 0 && all > a->limit_nbytes;
    const bool plan = a->plan_limit_nbytes > 0 && a->device_nbytes > a->plan_limit_nbytes;
    const bool host = a->node_host_limit > 0 && a->node_host_nbytes > a->node_host_limit;

    if (device)
        fprintf(to, "  ! does not fit: a GPU has %.1f GiB\n", a->limit_nbytes / gib);
    else if (plan)
        fprintf(to, "  ! does not fit: fsdp.memory_limit is %.1f GiB, without the context\n",
                a->plan_limit_nbytes / gib);
    else if (host)
        fprintf(to, "  ! does not fit: on %d GPUs a node's host holds %.0f GiB, and has %.0f\n",
                a->nranks, a->node_host_nbytes / gib, a->node_host_limit / gib);
    else
        fprintf(to, "  ! does not fit: on %d GPUs a node's files take %.0f GiB, and it has %.0f\n",
                a->nranks, a->node_file_nbytes / gib, a->node_file_limit / gib);
}

static void print_own(const struct scale *s, FILE *to)
{
    const struct scale_line *own = &s->line[0];
    const struct answer *first = first_answer(s);
    bool any_far = false, any_large = false;

    fprintf(to, "%s%s\n", own->name,
            strcmp(own->name, "the run's own") != 0 ? ", the run's own" : "");
    fprintf(to, "%8s%10s%8s %8s%8s %8s%5s%s\n", "GPUs", "tok/s/GPU", "MFU", "step", "exposed",
            "GiB", "+-", first && first->tokens > 0 ? "       time   GPU-hours" : "");
    for (int i = 0; i < s->npoints; i++)
        if (own->point[i].is_there)
            print_row(&own->point[i].answer, &any_far, &any_large, to);
    if (any_far)
        fprintf(to, "  * extrapolated: no published run reaches there\n");
    if (any_large)
        tell_short(s, to);
    putc('\n', to);
}

/* ---- strategies next to each other ----------------------------------------------------------- */

static const char *short_name(const struct scale_line *line)
{
    const char *comma = strstr(line->name, "two levels");
    return comma                                      ? "two levels"
           : !strncmp(line->name, "HYBRID_SHARD", 12) ? "HYBRID_SHARD"
           : !strcmp(line->name, "the run's own")     ? "own"
                                                      : line->name;
}

static bool is_shared(const struct scale *s, int line, int best, int point)
{
    const struct scale_point *p = &s->line[line].point[point];

    return p->is_there && p->answer.fits &&
           answer_is_equal(p->answer.tokens_s_gpu, s->line[best].point[point].answer.tokens_s_gpu);
}

static void print_cell(const struct scale *s, int line, int best, bool is_equal, int i, FILE *to)
{
    const struct scale_point *p = &s->line[line].point[i];
    text rate;

    if (!p->is_there)
        fprintf(to, "%13s ", "-");
    else
        fprintf(to, "%13s%c", answer_whole(rate, p->answer.tokens_s_gpu),
                !p->answer.fits                                        ? '!'
                : is_equal && best >= 0 && is_shared(s, line, best, i) ? '='
                                                                       : ' ');
}

static bool is_planned(const struct scale *s, int point)
{
    for (int l = 0; l < s->nlines; l++)
        if (s->line[l].point[point].is_there)
            return true;
    return false;
}

static void print_strategies(const struct scale *s, FILE *to)
{
    text gpus;

    if (s->nlines < 2)
        return;
    fprintf(to, "tokens/s of a GPU by strategy, all else as in the run\n%8s", "GPUs");
    for (int l = 0; l < s->nlines; l++)
        fprintf(to, "%13s ", short_name(&s->line[l]));
    fprintf(to, " fastest\n");
    for (int i = 0; i < s->npoints; i++) {
        bool is_equal;
        const int best = scale_best(s, i, &is_equal);
        if (!is_planned(s, i))
            continue;
        fprintf(to, "%8s", answer_whole(gpus, s->ngpus[i]));
        for (int l = 0; l < s->nlines; l++)
            print_cell(s, l, best, is_equal, i, to);
        fprintf(to, " %s\n", best < 0 ? "none fits" : is_equal ? "=" : short_name(&s->line[best]));
    }
    fprintf(to, "  = within %d %% of the fastest, which a plan cannot tell apart\n\n",
            ANSWER_EQUAL_PERCENT);
}

/* Lines of 80 columns, cut at spaces. */
static void print_note(const char *note, FILE *to)
{
    enum { WIDTH = 76 };

    fputs("  - ", to);
    for (const char *at = note; *at;) {
        size_t len = strlen(at);
        if (len > WIDTH)
            for (len = WIDTH; len > 1 && at[len] != ' ';)
                len--;
        fprintf(to, "%.*s\n", (int)len, at);
        at += len;
        while (*at == ' ')
            at++;
        if (*at)
            fputs("    ", to);
    }
}

void scale_print(const struct scale *s, const struct question *q, FILE *to)
{
    print_head(s, q, to);
    print_own(s, to);
    print_strategies(s, to);
    for (int i = 0; i < s->nnotes; i++)
        print_note(s->note[i], to);
    if (s->nnotes)
        putc('\n', to);
}
