/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "story.h"

static double number_of(const struct run_row *row)
{
    return row->value[RUN_ATTEMPT];
}

/* By attempt, then by step. */
static int compare_rows(const void *a, const void *b)
{
    const struct run_row *x = *(const struct run_row *const *)a;
    const struct run_row *y = *(const struct run_row *const *)b;

    if (number_of(x) != number_of(y))
        return number_of(x) < number_of(y) ? -1 : 1;
    if (x->value[RUN_STEP] != y->value[RUN_STEP])
        return x->value[RUN_STEP] < y->value[RUN_STEP] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Files of older versions do not number the attempts. */
static void number_rows(const struct run *run)
{
    double inferred = 1, last = -INFINITY;

    for (size_t i = 0; i < run->nrows; i++) {
        struct run_row *row = &run->row[i];
        if (!row->redone && row->value[RUN_STEP] <= last && !isfinite(number_of(row)))
            inferred++;
        if (!isfinite(number_of(row)))
            row->value[RUN_ATTEMPT] = row->redone ? 1 : inferred;
        last = row->redone ? INFINITY : row->value[RUN_STEP];
    }
}

/* Of a file that says anything. */
static int whole_number(double x)
{
    return x >= 0 && x < 1e9 ? (int)x : 0;
}

static void begin_attempt(struct story *story, const struct run_row **row)
{
    struct story_attempt *attempt = &story->attempt[story->nattempts++];

    *attempt = (struct story_attempt){.number = whole_number(number_of(*row)), .row = row};
}

static void add_row(struct story_attempt *attempt, const struct run_row *row)
{
    const double ranks = row->value[RUN_RANKS];

    attempt->nrows++;
    if (ranks >= 1 && ranks < 1e9)
        attempt->ranks = (int)ranks;
}

/* Rows that the next attempt did again, and those before them. */
static void count_kept(struct story_attempt *attempt, double next_step)
{
    while (attempt->nkept < attempt->nrows && !attempt->row[attempt->nkept]->redone &&
           attempt->row[attempt->nkept]->value[RUN_STEP] < next_step)
        attempt->nkept++;
}

/* The last row of an attempt, which is in order, before a step. */
static const struct run_row *row_of_attempt(const struct story_attempt *attempt, double step)
{
    size_t begin = 0, end = attempt->nrows;

    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        if (attempt->row[middle]->value[RUN_STEP] < step)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin ? attempt->row[begin - 1] : NULL;
}

/* The last step before the next attempt's first, of any attempt up to the one that ended. */
static const struct run_row *row_before(const struct story *story, int ended, double step)
{
    const struct run_row *found = NULL;

    for (int a = 0; a <= ended; a++) {
        const struct run_row *row = row_of_attempt(&story->attempt[a], step);
        if (row && (!found || row->value[RUN_STEP] >= found->value[RUN_STEP]))
            found = row;
    }
    return found;
}

static void tell_restarts(struct story *story)
{
    for (int a = 0; a + 1 < story->nattempts; a++) {
        const struct story_attempt *ended = &story->attempt[a], *next = &story->attempt[a + 1];
        const struct run_row *first = next->row[0];
        struct story_restart *restart = &story->restart[a];
        *restart = (struct story_restart){
            .was_killed = ended->nkept < ended->nrows,
            .last = ended->row[ended->nrows - 1],
            .from = row_before(story, a, first->value[RUN_STEP]),
            .next = first,
            .ranks_before = ended->ranks,
            .ranks_after = next->ranks,
        };
    }
}

static int count_attempts(const struct run_row **rows, size_t nrows)
{
    int n = 0;

    for (size_t i = 0; i < nrows; i++)
        n += !i || number_of(rows[i]) != number_of(rows[i - 1]);
    return n;
}

int story_make(struct story *out, const struct run *run, struct fsdp_err *err)
{
    *out = (struct story){0};
    number_rows(run);
    out->rows = fsdp_alloc_unset(run->nrows, sizeof *out->rows, "rows of metrics", err);
    if (!out->rows)
        return FSDP_ENOMEM;
    bool sorted = true;
    for (size_t i = 0; i < run->nrows; i++) {
        out->rows[i] = &run->row[i];
        sorted = sorted && (!i || compare_rows(&out->rows[i - 1], &out->rows[i]) <= 0);
    }
    if (!sorted)
        qsort(out->rows, run->nrows, sizeof *out->rows, compare_rows);
    const size_t n = (size_t)count_attempts(out->rows, run->nrows);
    out->attempt = fsdp_alloc(n, sizeof *out->attempt, "attempts", err);
    out->restart = fsdp_alloc(n, sizeof *out->restart, "attempts", err);
    if (!out->attempt || !out->restart) {
        story_destroy(out);
        return FSDP_ENOMEM;
    }
    for (size_t i = 0; i < run->nrows; i++) {
        if (!i || number_of(out->rows[i]) != number_of(out->rows[i - 1]))
            begin_attempt(out, &out->rows[i]);
        add_row(&out->attempt[out->nattempts - 1], out->rows[i]);
    }
    for (int a = 0; a < out->nattempts; a++)
        count_kept(&out->attempt[a],
                   a + 1 < out->nattempts ? out->attempt[a + 1].row[0]->value[RUN_STEP] : INFINITY);
    tell_restarts(out);
    return FSDP_OK;
}

void story_destroy(struct story *story)
{
    fsdp_free(story->rows);
    fsdp_free(story->attempt);
    fsdp_free(story->restart);
    *story = (struct story){0};
}
