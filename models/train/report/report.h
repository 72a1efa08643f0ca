/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h: what a person sees of a run: one screen at the start, one progress line, warnings.
 * Tables tell more under -v.
 * Rank 0 alone speaks, but for warnings and errors.
 */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include <stdio.h>

#include "config/config.h"

enum { REPORT_COLUMNS = 80 }; /* of a line that is not on a terminal */

struct report {
    int rank;
    const char *host; /* the caller's */
    bool lead;        /* rank 0 */
    bool verbose;     /* -v */
    bool hide_rows;   /* of tables; the caller sets it for a while */
    bool in_place;    /* the progress line is rewritten */
    bool color_out, color_err;
    bool line_open; /* a progress line stands without its newline */
    int64_t interval, steps;
    double step_seconds; /* smoothed */
    double shown;        /* when the progress line was last written */
};

struct report_step {
    int64_t step;
    double loss, grad_norm, lr, tokens_per_s, seconds; /* of this step */
    double tflops, mfu;                                /* a rank's; mfu 0: not known */
};

/* Takes the log (fsdp_log_set) until report_close: rank 0's lines as they are, the others' with
 * "rank R on HOST: " before them. config may be NULL: before it is read. */
void report_open(struct report *report, int rank, const char *host, const struct config *config,
                 bool verbose);
void report_close(struct report *report);

void report_title(struct report *report, const char *title);
/* An aligned row of a table. */
void report_row(struct report *report, const char *what, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* A row of the screen at the start; what does not fit into a line continues in the next. */
enum { REPORT_FACT_NBYTES = 4096 + 512 };
void report_fact(struct report *report, const char *what, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* A line of its own, by rank 0. */
void report_line(struct report *report, const char *fmt, ...) FSDP_PRINTF(2, 3);
/* An error, by whichever rank calls. Without its rank and host where all ranks found alike. */
void report_error(struct report *report, const char *text, bool all_alike);
/* The progress line; `last` is printed whatever the interval. */
void report_progress(struct report *report, const struct report_step *step, bool last);

/* Its text, in at most so many columns if there is a way; under -v, and not on a terminal, all. */
void report_progress_text(char *out, size_t out_nbytes, const struct report *report,
                          const struct report_step *step, int columns);

/* "1,234,567", "10,750" or "3.7" a second, "3m05s"; into out, which is returned. */
enum { REPORT_NUMBER_NBYTES = FSDP_COUNT_TEXT };
const char *report_count(char out[REPORT_NUMBER_NBYTES], uint64_t count);
const char *report_rate(char out[REPORT_NUMBER_NBYTES], double rate);
const char *report_seconds(char out[REPORT_NUMBER_NBYTES], double seconds);
/* "11.7k" and "1.23M"; "9m59s", "59m", "9h59m", "99h", "12d": in five columns. */
const char *report_rate_short(char out[REPORT_NUMBER_NBYTES], double rate);
const char *report_left(char out[REPORT_NUMBER_NBYTES], double seconds);

#endif
