/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h: between the files of fsdp-plan. */
#ifndef TOOLS_PLAN_H
#define TOOLS_PLAN_H

#include "fsdp/sys/cli.h"
#include "plan/answer/answer.h"

enum { PLAN_MAX_WHAT_IFS = 32, PLAN_MAX_OVERRIDES = 128 };

struct plan_texts {
    const char *text[PLAN_MAX_WHAT_IFS];
    int ntexts;
};
/* "8..16384": from and to; both 0: not given. */
struct plan_range {
    int from, to;
};

/* What stays where GPUs become more: words of --scale-batch. */
enum plan_batch { PLAN_BATCH_GPU, PLAN_BATCH_CONSTANT };

/* What the command line says. */
struct plan_settings {
    /* the cluster */
    const char *cluster, *gpu, *net;
    int ngpus, nnodes, node_ngpus;
    struct plan_texts what_if;
    /* the run */
    const char *model;
    int seq_len;
    double tokens, batch_tokens;
    struct foreign_ask foreign; /* tp 0: not given */
    /* what is wanted */
    struct plan_range scale;
    int scale_batch; /* enum plan_batch */
    bool search, keep_numerics, overwrite;
    int goal, most_rows;
    const char *chart, *json, *trace, *against, *calibrate, *output;
    bool measure, grid, verbose;
    int advice; /* auto, always, never */
};

/* A question with what it points to. */
struct plan_asked {
    struct cluster cluster;
    struct question question;
    char *overrides[PLAN_MAX_OVERRIDES];
    char *owned[4]; /* of overrides: those that --model made */
    int nowned;
};

/* From the command line's settings and operands (run.yaml and section.key=value). On failure
 * nothing is left; else plan_close. */
int plan_ask(struct plan_asked *out, const struct plan_settings *set,
             const struct fsdp_cli_line *line, struct fsdp_err *err);
void plan_close(struct plan_asked *asked);

/* Searches, prints what it found and writes the best as a run.yaml. */
int plan_search(const struct plan_asked *asked, const struct plan_settings *set, bool *fits,
                struct fsdp_err *err);

/* "8..16384", of --scale. */
int plan_take_range(void *to, const char *text, struct fsdp_err *err);
/* Before anything is planned: what --scale and --chart do not go with, and where no picture can be
 * written. config: the run.yaml, or NULL. */
int plan_check_scale(const struct plan_settings *set, struct fsdp_err *err);
int plan_check_chart(const struct plan_settings *set, const char *config, struct fsdp_err *err);
/* Prints rows over GPUs, and draws them. fits: the run does somewhere. */
int plan_scale(const struct plan_asked *asked, const struct plan_settings *set, bool *fits,
               struct fsdp_err *err);
/* Draws memory and time of the run under other settings. */
int plan_chart(const struct plan_asked *asked, const struct plan_settings *set,
               struct fsdp_err *err);
/* The plan next to a trace of the run: as a table and, where it is asked for, as one trace. */
int plan_against(const struct plan_asked *asked, const struct plan_settings *set,
                 struct fsdp_err *err);
/* Corrects the cluster by a trace of the run and writes it as a cluster.yaml. */
int plan_calibrate(struct plan_asked *asked, const struct plan_settings *set, struct fsdp_err *err);

/* Measures on the ranks that it is one of, and rank 0 writes a cluster.yaml with its tables next to
 * it. Alone and asked for more ranks it becomes fsdp-launch, which starts them by the arguments
 * that were given (ended by NULL). PLAN_SAID: an error that rank 0 tells. */
enum { PLAN_SAID = 1 };
int plan_measure(const struct plan_settings *set, const struct fsdp_cli_line *line,
                 char *const *given, struct fsdp_err *err);

/* Before work that takes a while: may the file be written? FSDP_EEXIST: it is there. */
int plan_check_output(const char *path, bool overwrite, struct fsdp_err *err);
/* The same of a cluster.yaml that is made of the one that was given. */
int plan_check_cluster(const struct plan_settings *set, const char *path, struct fsdp_err *err);

/* FSDP_EINVAL names an output that is what the plan is made of, a folder, or another output.
 * config: the run.yaml, or NULL. */
int plan_check_files(const struct plan_settings *set, const char *config, struct fsdp_err *err);

#endif
