/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.h: a covering design over the engine's settings: the fewest rows, greedily, in which every
 * pair of levels of two factors occurs that can occur. The same rows in every run.
 */
#ifndef COVER_H
#define COVER_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { COVER_FACTORS = 7, COVER_LEVELS = 10, COVER_MAX_ROWS = 256 };

struct cover {
    int nlevels[COVER_FACTORS];
    /* May these levels stand in one row? */
    bool (*valid)(const int row[COVER_FACTORS]);
    int nrows, rows[COVER_MAX_ROWS][COVER_FACTORS];
    int npairs; /* that can occur; all are covered */
};

typedef bool cover_pairs[COVER_FACTORS][COVER_LEVELS][COVER_FACTORS][COVER_LEVELS];

/* The next row in counting order; false after the last. */
static inline bool cover_next(const struct cover *c, int row[COVER_FACTORS])
{
    for (int i = COVER_FACTORS - 1; i >= 0; i--) {
        if (++row[i] < c->nlevels[i])
            return true;
        row[i] = 0;
    }
    return false;
}

/* Pairs of the row that are in `open`; with take, they no longer are. */
static inline int cover_gain(cover_pairs open, const int row[COVER_FACTORS], bool take)
{
    int gain = 0;
    for (int i = 0; i < COVER_FACTORS; i++)
        for (int k = i + 1; k < COVER_FACTORS; k++) {
            gain += open[i][row[i]][k][row[k]];
            if (take)
                open[i][row[i]][k][row[k]] = false;
        }
    return gain;
}

static inline void cover_open(struct cover *c, cover_pairs open)
{
    int row[COVER_FACTORS] = {0};
    memset(open, 0, sizeof(cover_pairs));
    do {
        for (int i = 0; c->valid(row) && i < COVER_FACTORS; i++)
            for (int k = i + 1; k < COVER_FACTORS; k++) {
                c->npairs += !open[i][row[i]][k][row[k]];
                open[i][row[i]][k][row[k]] = true;
            }
    } while (cover_next(c, row));
}

static inline void cover_make(struct cover *c)
{
    static cover_pairs open;

    c->nrows = c->npairs = 0;
    cover_open(c, open);
    for (int left = c->npairs; left > 0 && c->nrows < COVER_MAX_ROWS;) {
        int row[COVER_FACTORS] = {0}, *best = c->rows[c->nrows], best_gain = 0;
        do {
            int gain = c->valid(row) ? cover_gain(open, row, false) : 0;
            if (gain > best_gain) {
                best_gain = gain;
                memcpy(best, row, sizeof row);
            }
        } while (cover_next(c, row));
        left -= cover_gain(open, best, true);
        c->nrows++;
    }
}

#endif
