/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: the metrics of a run in memory, those of steps that ran twice too. */
#ifndef CURVES_RUN_H
#define CURVES_RUN_H

#include "fsdp/base.h"

/* Columns that every run has, before those that the caller asks for. */
enum run_column { RUN_STEP, RUN_TOKENS, RUN_TIME, RUN_WALL, RUN_ATTEMPT, RUN_RANKS, RUN_NFIXED };
enum { RUN_MAX_KEYS = 12, RUN_MAX_COLUMNS = RUN_NFIXED + RUN_MAX_KEYS };
/* A longer run is thinned while it is read, so that one without an end has its memory, too. */
enum { RUN_MAX_ROWS = 500000 };

struct run_row {
    bool redone;                   /* a resume began before this step: it was done again */
    double value[RUN_MAX_COLUMNS]; /* NAN: not told */
};

struct run {
    char *path, *label;
    int ncolumns;
    const char *key[RUN_MAX_COLUMNS];
    struct run_row *row;
    size_t nrows, max_rows;
    uint64_t nbad;       /* lines that are no metrics */
    bool ends_in_middle; /* the last line has no end: somebody may be writing it */
};

/* keys: the columns after the fixed ones; the caller's, until curves_run_destroy. */
int curves_run_create(struct run *out, const char *const *keys, int nkeys, struct fsdp_err *err);
void curves_run_destroy(struct run *run);
/* Adds what a file of metrics holds ("-" is standard input; a folder is its metrics.jsonl), and
 * what the file next to it holds of steps that were done again. Thins by the first of the caller's
 * keys above RUN_MAX_ROWS. Sets path. Blocks. */
int curves_run_read(struct run *run, const char *path, struct fsdp_err *err);
/* The place of a row to fill in, all NAN. */
struct run_row *curves_run_add(struct run *run, struct fsdp_err *err);
int curves_run_column(const struct run *run, const char *key); /* -1: none */
/* Halves the rows: of four steps the two with the least and the greatest value of `column` stay. */
void curves_run_thin(struct run *run, int column);
/* Writes the names of a file's keys, separated by ", ", as far as they fit. */
void curves_run_keys_text(char *out, size_t nbytes, const char *path);

#endif
