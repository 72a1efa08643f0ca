/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_table.h: the one table of what is reported of a step. The keys of metrics.jsonl, the tags
 * of TensorBoard, the names of Prometheus, --print-metrics and docs/metrics.md come from it. */
#ifndef METRICS_TABLE_H
#define METRICS_TABLE_H

#include <stdio.h>

#include "metrics.h"

enum metric_type {
    METRIC_INT,
    METRIC_INT64,
    METRIC_DOUBLE,
    METRIC_SECONDS_1970, /* double, to the millisecond */
    METRIC_BOOL,
    METRIC_SOURCES, /* a number for each source of a mixture */
    /* Of the run, not of a step: in Prometheus alone. */
    METRIC_SAVED_STEP,
    METRIC_SAVED_SECONDS,
    METRIC_SAVED_WALL,
    METRIC_RUNNING
};

/* When a step has it. */
enum metric_when {
    METRIC_ALWAYS,
    METRIC_NONZERO,
    METRIC_REWARDS, /* row->has_rewards */
    METRIC_COUNTED, /* row->has_counted */
    METRIC_EVAL,    /* row->has_eval */
    METRIC_EVAL_NONZERO,
    METRIC_SLOWEST, /* row->slowest_s > 0 */
    METRIC_EXPERTS, /* row->has_experts */
    METRIC_OF_RUN
};

struct metric {
    const char *key;  /* in metrics.jsonl; NULL: not there */
    const char *tag;  /* of TensorBoard; NULL: not there */
    const char *prom; /* name in Prometheus */
    const char *unit; /* "": none */
    bool counter;     /* it only grows, but for a resume; else a gauge */
    enum metric_type type;
    enum metric_when when;
    size_t offset; /* in struct metrics_row */
    const char *help;
};

extern const struct metric metrics_table[];
extern const int metrics_ntable;

/* How many values the row has of it: 0, 1, or the number of sources. Pure. */
int metric_nvalues(const struct metric *metric, const struct metrics_row *row);
double metric_value(const struct metric *metric, const struct metrics_row *row, int i);
/* As JSON: 9 significant digits, null where it is not finite. Returns the end of what was
 * written, at most METRIC_NBYTES with the 0 at the end. */
enum { METRIC_NBYTES = 32 };
char *metric_print(char *to, const struct metric *metric, const struct metrics_row *row, int i);
/* All of them, for people (--print-metrics). */
void metrics_print_table(FILE *to);

#endif
