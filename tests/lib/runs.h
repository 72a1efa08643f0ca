/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.h: published training runs, and what the clock says of them. Rows come from a file with the
 * columns of tests/plan/published.tsv; unknown words and missing columns fall back to the nearest
 * known ones.
 */
#ifndef TEST_RUNS_H
#define TEST_RUNS_H

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "plan/foreign.h"

enum { RUNS_MAX = 4096 };

/* ---- rows: runs_read.c ----------------------------------------------------------------------- */

struct runs_row {
    char id[32], source[64], framework[64], gpu[32], stack[32], attn[32], strategy[16];
    char recompute[32], precision[16], mlp[16], model[64];
    double dim, layers, heads, kv_heads, ffn, vocab;
    int gpus, node_size, shard, replicas, tp, cp, pp, vpp, accum;
    double net_gbs; /* 1e9 bytes/s of a node */
    double micro_batch, seq, recompute_frac, gather_nbytes, reduce_nbytes;
    double measured; /* tokens/s of a GPU; 0: not told */
    bool tied, usable;
};
/* Reads columns separated by commas (with quotes) or, where the heading has any, tabs. *rows is of
 * fsdp_alloc. FSDP_EINVAL names the file. */
int runs_read(struct runs_row **rows, int *nrows, const char *file, struct fsdp_err *err);
/* What the row lacks to be planned; NULL: nothing. */
const char *runs_lacks(const struct runs_row *row);
bool runs_is_foreign(const struct runs_row *row);

/* ---- clocks: runs_clock.c -------------------------------------------------------------------- */

/* What is fitted to the rows: first what models/plan/stock.c has, then what is the frameworks'. */
enum runs_constant {
    RUNS_A100_PRODUCTS,
    RUNS_H100_PRODUCTS,
    RUNS_H100_500W_PRODUCTS,
    RUNS_FP8_GAIN, /* of products of 8 bits over those of 16 */
    RUNS_A100_ATTENTION,
    RUNS_H100_ATTENTION,
    RUNS_FLAT_SHARE,
    RUNS_FLAT_FALL,
    RUNS_CONTENTION,
    RUNS_JITTER,
    RUNS_NSTOCK,
    RUNS_EAGER = RUNS_NSTOCK, /* bytes of pointwise kernels, relative to those described */
    RUNS_COMPILE,
    RUNS_TE,
    RUNS_MEGATRON,
    RUNS_NANOTRON,
    RUNS_CPP,
    RUNS_FA1_A100, /* attention: share of the peak */
    RUNS_FA1_H100,
    RUNS_FA2_H100,
    RUNS_SCORE_NBYTES,
    RUNS_STEP_S,
    RUNS_DS_COLLECTIVES, /* DeepSpeed's ZeRO-3: of a layer */
    RUNS_TP_HIDDEN_TE,
    RUNS_TP_HIDDEN_ASYNC,
    RUNS_DATA_HIDDEN,
    RUNS_NCONSTANTS
};
const char *runs_constant_name(enum runs_constant which);
/* Values as they are in stock.c and in the table of frameworks. */
void runs_constants(double value[RUNS_NCONSTANTS]);
/* Is it fitted? Others are measured or assumed. */
bool runs_constant_is_fitted(enum runs_constant which);
/* The range of sensible values. */
void runs_constant_range(double *low, double *high, enum runs_constant which);
/* Does a row's time depend on it? */
bool runs_constant_acts(enum runs_constant which, const struct runs_row *row);
int runs_clock(struct fsdp_clock *out, const struct runs_row *row,
               const double value[RUNS_NCONSTANTS], struct fsdp_err *err);
/* What the row's work looks like, and its parallelism. */
void runs_foreign(struct foreign_run *out, const struct runs_row *row,
                  const double value[RUNS_NCONSTANTS]);

/* ---- plans: runs_plan.c ---------------------------------------------------------------------- */

/* The lists of a row: of its own micro-steps, or of two and three. */
struct runs_plan {
    struct fsdp_module_tree *tree;
    struct fsdp *list[2];
    int nlists;
};
int runs_plan(struct runs_plan *out, const struct runs_row *row, struct fsdp_device *device,
              struct fsdp_err *err);
void runs_plan_free(struct runs_plan *plan);
/* Tokens/s of a GPU. plan: not of a foreign row. */
int runs_predict(double *tokens_per_s, const struct runs_row *row, const struct runs_plan *plan,
                 const double value[RUNS_NCONSTANTS], struct fsdp_err *err);

/* ---- errors of all rows: runs_fit.c ---------------------------------------------------------- */

struct runs {
    struct runs_row *row;
    struct runs_plan *plan; /* [nrows] */
    double *predicted;      /* [nrows]; 0: no prediction */
    const char **lacks;     /* [nrows] why a row with all numbers has none, or NULL */
    int nrows;
    struct fsdp_device *device;
    double value[RUNS_NCONSTANTS];
};
int runs_open(struct runs *runs, const char *file, struct fsdp_err *err);
void runs_close(struct runs *runs);
int runs_predict_all(struct runs *runs, struct fsdp_err *err);

enum runs_which { RUNS_ALL, RUNS_OWN, RUNS_FSDP, RUNS_FOREIGN };
/* Of rows that tell tokens/s and count: in shares. source NULL: all. */
struct runs_errors {
    int nrows;
    double median, mean, bias, within_10, within_20, p90; /* bias: the median with its sign */
};
struct runs_errors runs_errors(const struct runs *runs, const char *source, enum runs_which which);
/* Source k in the order of the file; NULL past the last. */
const char *runs_source(const struct runs *runs, int k);
/* Coordinate descent from runs->value over the logarithms of errors, of which more than 0.6 counts
 * as 0.6; a row counts 1 / sqrt(rows of its source). without: a source that does not count, NULL
 * for none. */
int runs_fit(struct runs *runs, int rounds, const char *without, struct fsdp_err *err);
/* As a table in Markdown. */
void runs_print(const struct runs *runs, FILE *to);

#endif
