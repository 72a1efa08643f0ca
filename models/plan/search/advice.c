/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"

bool advice_helps(const struct advised *item)
{
    return item->fits && item->gain > ANSWER_EQUAL_PERCENT / 100.0;
}

static double token_seconds(const struct answer *a)
{
    return a->step_s / a->step_tokens;
}

static void take_answer(struct advised *to, const struct change *change, const struct answer *now,
                        const struct answer *then)
{
    *to = (struct advised){
        .change = *change,
        .gain = 1 - token_seconds(then) / token_seconds(now),
        .nbytes = then->device_nbytes - now->device_nbytes,
        .step_s = then->step_s,
        .device_nbytes = then->device_nbytes,
        .gpu_hours_gain =
            1 - token_seconds(then) * then->nranks / (token_seconds(now) * now->nranks),
        .exposed_share = then->times.exposed_s / then->step_s,
        .fits = then->fits,
    };
}

struct search {
    struct advice *out;
    const struct answer *now;
    struct question question;
    const struct advice_opts *opts;
    double begin;
};

static bool goes_on(struct search *s)
{
    const bool late = s->opts->seconds > 0 && fsdp_time_now() - s->begin > s->opts->seconds;

    if (late || s->out->nitems == ADVICE_MAX ||
        (s->opts->progress && !s->opts->progress(s->opts->ctx, s->out)))
        s->out->complete = false;
    return s->out->complete;
}

/* A change that leaves time and memory as they are is none. */
static void try_change(struct search *s, const struct change *change, bool pair)
{
    struct advised *item = &s->out->item[s->out->nitems];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct answer then;

    s->out->nplanned++;
    if (change_answer(&then, &s->question, change, &err)) {
        s->out->nrefused++;
        return;
    }
    take_answer(item, change, s->now, &then);
    change_pin_update(&item->change, &then, false);
    item->pair = pair;
    if (fabs(item->gain) > 1e-9 || fabs(item->nbytes) > 0)
        s->out->nitems++;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

enum { NBEST = 5 };

/* Indices of the NBEST singles with the largest key that may be paired. Returns their number. */
static int best(int out[NBEST], const struct advice *a, int nsingles,
                double (*key)(const struct advised *item))
{
    int n = 0;

    for (int i = 0; i < nsingles; i++) {
        const double value = key(&a->item[i]);
        int at = n;
        if (!(value > 0) || a->item[i].change.group == CHANGE_BUY)
            continue;
        while (at > 0 && key(&a->item[out[at - 1]]) < value)
            at--;
        if (at == NBEST)
            continue;
        n = n < NBEST ? n + 1 : NBEST;
        memmove(&out[at + 1], &out[at], (size_t)(n - at - 1) * sizeof *out);
        out[at] = i;
    }
    return n;
}

static double gain_of(const struct advised *item)
{
    return item->gain - ANSWER_EQUAL_PERCENT / 100.0;
}

static double saved_of(const struct advised *item)
{
    return -item->nbytes;
}

static void try_pair(struct search *s, int i, int k)
{
    struct change both;

    if (i != k && change_join(&both, &s->out->item[i].change, &s->out->item[k].change) &&
        goes_on(s))
        try_change(s, &both, true);
}

static void try_pairs(struct search *s)
{
    const int nsingles = s->out->nitems;
    int fast[NBEST], small[NBEST];
    const int nfast = best(fast, s->out, nsingles, gain_of);
    const int nsmall = best(small, s->out, nsingles, saved_of);

    for (int i = 0; i < nfast; i++) {
        for (int k = i + 1; k < nfast; k++)
            try_pair(s, fast[i], fast[k]);
        for (int k = 0; k < nsmall; k++)
            try_pair(s, fast[i], small[k]);
    }
    for (int i = 0; !s->now->fits && i < nsmall; i++)
        for (int k = i + 1; k < nsmall; k++)
            try_pair(s, small[i], small[k]);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* What fits, then what is faster. */
static int by_gain(const void *x, const void *y)
{
    const struct advised *a = x, *b = y;

    if (a->fits != b->fits)
        return b->fits - a->fits;
    return (b->gain > a->gain) - (b->gain < a->gain);
}

/* A pair that gives no more than one of its parts is left out. */
static bool is_vain(const struct advice *a, const struct advised *pair)
{
    for (int i = 0; i < a->nitems; i++) {
        const struct advised *one = &a->item[i];
        struct change joined;
        if (one->pair || one->fits < pair->fits)
            continue;
        /* A part cannot be joined with the pair: they set the same key. */
        const bool part = !change_join(&joined, &pair->change, &one->change) &&
                          one->change.nsettings <= pair->change.nsettings;
        if (part && pair->gain < one->gain + ANSWER_EQUAL_PERCENT / 100.0)
            return true;
    }
    return false;
}

void advice_make(struct advice *out, const struct answer *now, const struct question *q,
                 const struct advice_opts *opts)
{
    enum { MAX_CHANGES = 96 };
    struct search s = {out, now, *q, opts, fsdp_time_now()};
    struct change changes[MAX_CHANGES];
    const int n = change_list(changes, MAX_CHANGES, now, q);

    s.question.quick = true;
    out->nitems = out->nplanned = out->nrefused = 0;
    out->complete = true;
    for (int i = 0; i < n && goes_on(&s); i++)
        try_change(&s, &changes[i], false);
    if (out->complete)
        try_pairs(&s);
    int kept = 0;
    for (int i = 0; i < out->nitems; i++)
        if (!out->item[i].pair || !is_vain(out, &out->item[i]))
            out->item[kept++] = out->item[i];
    out->nitems = kept;
    qsort(out->item, (size_t)out->nitems, sizeof *out->item, by_gain);
}

/* ---- telling --------------------------------------------------------------------------------- */

static void print_item(const struct advised *item, FILE *to)
{
    char nbytes[FSDP_NBYTES_TEXT], settings[CHANGE_MAX_SETTINGS * (CHANGE_TEXT + 1)];

    fprintf(to, "  %+7.1f %%  %c%-10s  %s\n", -100 * item->gain, item->nbytes < 0 ? '-' : '+',
            fsdp_nbytes_text(nbytes, (uint64_t)fabs(item->nbytes)),
            change_text(settings, sizeof settings, &item->change));
}

/* One that was listed sets the same key first, and gives as much. */
static bool is_listed(const struct advice *a, int i)
{
    const struct advised *item = &a->item[i];
    const char *setting = item->change.setting[0];
    const size_t key = strcspn(setting, "=");

    for (int k = 0; k < i; k++) {
        const struct advised *other = &a->item[k];
        if (other->change.group == item->change.group && other->fits == item->fits &&
            other->pair == item->pair && !strncmp(other->change.setting[0], setting, key + 1) &&
            other->gain - item->gain < ANSWER_EQUAL_PERCENT / 100.0)
            return true;
    }
    return false;
}

static void print_group(const struct advice *a, enum change_group group, int most, FILE *to)
{
    int n = 0;

    for (int i = 0; i < a->nitems && n < most; i++) {
        const struct advised *item = &a->item[i];
        if (item->change.group != group || !advice_helps(item) || is_listed(a, i))
            continue;
        if (!n++)
            fprintf(to, " %s\n", change_group_name(group));
        print_item(item, to);
    }
}

/* Those of a group that make a run fit, below a title; at most `nnumerics` settings change numbers.
 * Returns how many. */
static int print_fitting(const struct advice *a, enum change_group group, int nnumerics,
                         const char *title, int most, FILE *to)
{
    int n = 0;

    for (int i = 0; i < a->nitems && n < most; i++) {
        const struct advised *item = &a->item[i];
        if (!item->fits || item->change.group != group || item->change.nnumerics > nnumerics)
            continue;
        if (!n++)
            fprintf(to, " makes it fit, %s\n", title);
        print_item(item, to);
    }
    return n;
}

/* Of a run that is too large: what makes it fit, the fastest first. Numbers are changed only where
 * nothing else is enough. */
static void print_fits(const struct advice *a, int most, FILE *to)
{
    int n = print_fitting(a, CHANGE_SAME, 0, "and its time against what it would take now",
                          2 * most, to);
    const int nnumerics = n ? 0 : CHANGE_MAX_SETTINGS;

    if (!n)
        n = print_fitting(a, CHANGE_NUMERICS, nnumerics,
                          "but changes numerics; nothing that keeps them is enough", 2 * most, to);
    n += print_fitting(a, CHANGE_BATCH, nnumerics, "with another batch", most, to);
    n += print_fitting(a, CHANGE_BUY, nnumerics, "on another cluster", most, to);
    if (!n)
        fprintf(to, " nothing alone and no pair makes it fit: give it more GPUs, or search with "
                    "--search\n");
}

static int count_equal(const struct advice *a)
{
    int n = 0;
    for (int i = 0; i < a->nitems; i++)
        n += fabs(a->item[i].gain) <= ANSWER_EQUAL_PERCENT / 100.0;
    return n;
}

static const struct advised *find_item(const struct advice *a, const char *setting)
{
    for (int i = 0; i < a->nitems; i++)
        if (!a->item[i].pair && !strcmp(a->item[i].change.setting[0], setting))
            return &a->item[i];
    return NULL;
}

/* Which of replicas, sharded gradients and sharded parameters: the fastest that fits. */
static void print_strategies(const struct advice *a, const struct answer *now, FILE *to)
{
    static const char *const names[] = {"NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"};

    fprintf(to, " how much to shard:");
    for (int i = 0; i < 3; i++) {
        char setting[CHANGE_TEXT], nbytes[FSDP_NBYTES_TEXT];
        snprintf(setting, sizeof setting, "fsdp.sharding_strategy=%s", names[i]);
        const struct advised *item = find_item(a, setting);
        const bool own = !strcmp(now->strategy, names[i]);
        if (own)
            fprintf(to, "%s %s %s%s", i ? ";" : "", names[i],
                    fsdp_nbytes_text(nbytes, (uint64_t)now->device_nbytes),
                    now->fits ? "" : ", too much");
        else if (item)
            fprintf(to, "%s %s %s%s (%+.0f %% of the time)", i ? ";" : "", names[i],
                    fsdp_nbytes_text(nbytes, (uint64_t)item->device_nbytes),
                    item->fits ? "" : ", too much", -100 * item->gain);
    }
    putc('\n', to);
}

static void print_exposed(const struct answer *now, FILE *to)
{
    enum { MUCH_PERCENT = 30 };
    const double percent = 100 * now->times.exposed_s / now->step_s;

    if (percent > MUCH_PERCENT)
        fprintf(to,
                " %.0f %% of the step is exposed communication: more rows a micro-batch, shard "
                "groups of a node\n or two levels can hide it\n",
                percent);
}

void advice_print(const struct advice *a, const struct answer *now, int most, FILE *to)
{
    const int nequal = count_equal(a);

    fprintf(to,
            "what to change: time for a token, memory of a GPU, and what to add to the command\n");
    if (now->nranks > 1)
        print_strategies(a, now, to);
    print_exposed(now, to);
    if (!now->fits) {
        print_fits(a, most, to);
    } else {
        for (int group = 0; group < CHANGE_NGROUPS; group++)
            print_group(a, (enum change_group)group, most, to);
    }
    fprintf(to,
            " %d plans in all%s; %d change the time by no more than %d %%, which counts as equal\n",
            a->nplanned, a->complete ? "" : ", not all that there are: time was up", nequal,
            ANSWER_EQUAL_PERCENT);
}
