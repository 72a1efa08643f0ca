/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scale.h: a run on more and more GPUs, by strategy; and one run under other settings next to each
 * other. Tables, JSON and charts of both.
 */
#ifndef PLAN_SCALE_H
#define PLAN_SCALE_H

#include <stdio.h>

#include "chart/chart.h"
#include "plan/answer/answer.h"

/* ---- over GPUs ------------------------------------------------------------------------------- */

/* What stays as it is where the GPUs become more. */
enum scale_batch {
    SCALE_PER_GPU,  /* the tokens of a GPU and step: weak scaling, the global batch grows */
    SCALE_CONSTANT, /* the global batch: strong scaling, a GPU has less and less work */
};

struct scale_opts {
    int from, to; /* GPUs, both ends included */
    enum scale_batch batch;
    /* SCALE_PER_GPU: a GPU keeps the rows that it has with question.ngpus GPUs; else a micro-batch
     */
    bool from_question;
    /* Called after each plan; false ends it, with what there is. NULL: none. */
    bool (*progress)(void *ctx, int nplanned, int nall);
    void *ctx;
};

enum { SCALE_MAX_POINTS = 24, SCALE_MAX_LINES = 4, SCALE_MAX_NOTES = 16, SCALE_NOTE = 200 };

struct scale_point {
    bool is_there; /* false: it cannot be; a note says why */
    struct answer answer;
};

struct scale_line {
    char name[64];
    char settings[128]; /* what it changes of the run; "": the run's own */
    bool is_own;
    struct scale_point point[SCALE_MAX_POINTS];
};

struct scale {
    enum scale_batch batch;
    int64_t gpu_rows; /* SCALE_PER_GPU: of a GPU and step */
    int64_t rows;     /* SCALE_CONSTANT: of a step */
    int64_t seq_len;
    int ngpus[SCALE_MAX_POINTS], npoints;
    struct scale_line line[SCALE_MAX_LINES]; /* the run's own is the first */
    int nlines;
    char note[SCALE_MAX_NOTES][SCALE_NOTE];
    int nnotes;
    int nleft_out, nsmaller, nrefused[SCALE_MAX_LINES]; /* points that notes speak of */
};

/* Powers of two times the GPUs of a node (below a node, powers of two) between the ends, and the
 * ends. FSDP_EINVAL: the range is none, or an end is no number of whole nodes. Local. */
int scale_points(int ngpus[SCALE_MAX_POINTS], int *npoints, const struct scale_opts *opts,
                 int node_ngpus, struct fsdp_err *err);
/* FSDP_EINVAL for a run that cannot be anywhere. `out` is large: allocate it. Local. */
int scale_make(struct scale *out, const struct question *question, const struct scale_opts *opts,
               struct fsdp_err *err);
/* Does the run's own fit anywhere? */
bool scale_fits(const struct scale *scale);
/* The line that is fastest at a point, of those that fit, -1: none fits. *is_equal: another one is
 * within what a plan can tell apart. */
int scale_best(const struct scale *scale, int point, bool *is_equal);

/* A table of 80 columns. */
void scale_print(const struct scale *scale, const struct question *question, FILE *to);
int scale_json(const struct scale *scale, const struct question *question, FILE *to,
               struct fsdp_err *err);

/* ---- under other settings -------------------------------------------------------------------- */

enum { SETTINGS_MAX = 16 };

/* A run's own settings, and activation checkpointing, strategies, offloading and products that it
 * does not have, each alone. */
struct settings {
    char name[SETTINGS_MAX][64];
    struct answer answer[SETTINGS_MAX];
    int nsettings;
};

/* FSDP_EINVAL for a run that cannot be. What cannot be with it is left out. Local. */
int settings_make(struct settings *out, const struct question *question, struct fsdp_err *err);

/* ---- charts ---------------------------------------------------------------------------------- */

/* A chart with what it points to. */
struct scale_chart;
int scale_chart_create(struct scale_chart **out, const struct scale *scale,
                       const struct question *question, struct fsdp_err *err);
int settings_chart_create(struct scale_chart **out, const struct settings *settings,
                          const struct question *question, struct fsdp_err *err);
const struct chart *scale_chart_get(const struct scale_chart *chart);
void scale_chart_destroy(struct scale_chart *chart);

#endif
