/* SPDX-License-Identifier: Apache-2.0 */
/* show.h: runs as lines of text. */
#ifndef TOP_SHOW_H
#define TOP_SHOW_H

#include <stdio.h>

#include "find.h"

struct top_style {
    int columns;
    bool color, utf8;
    double now;
};

/* Colors begin with top_ink and end with top_plain; nothing is printed without colors. */
enum top_ink { TOP_BOLD, TOP_DIM, TOP_REVERSE, TOP_GREEN, TOP_CYAN, TOP_YELLOW, TOP_RED };
void top_ink(FILE *to, const struct top_style *style, enum top_ink ink);
void top_plain(FILE *to, const struct top_style *style);
/* Text in exactly so many columns, or at most (is_padded false); control characters are replaced.
 * What is too long loses its end, or its beginning (keep_end). */
void top_put(FILE *to, const struct top_style *style, const char *text, int columns, bool is_padded,
             bool keep_end);

/* The heading, then a line for each run from `first` on, and a second for what is wrong with it, as
 * long as max_lines (0: no limit) suffice. selected: an index, -1: none. Returns the index of the
 * first that is not shown. */
int top_show_table(FILE *to, const struct top_style *style, const struct top_jobs *jobs, int first,
                   int selected, int max_lines);
/* Lines that a run takes there. */
int top_show_nlines(const struct top_job *job);
/* "3 jobs: 1 running, 2 done" */
void top_show_summary(char *out, size_t out_nbytes, const struct top_jobs *jobs);
/* Everything that is known of one, its metrics as curves. */
void top_show_detail(FILE *to, const struct top_style *style, const struct top_job *job);
/* An array of objects. */
int top_show_json(FILE *to, const struct top_jobs *jobs, struct fsdp_err *err);

#endif
