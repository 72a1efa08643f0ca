/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink.h: whoever wants to hear of a run while it runs: the file of JSON lines, and others that a
 * row of the table in sink.c names. The loop gives each step's row to every open sink, the saver
 * each checkpoint. All calls come from rank 0, from the thread that trains: a sink must be quick.
 * A sink that fails is warned of once and closed; the training continues.
 */
#ifndef SINK_H
#define SINK_H

#include "config/config.h"
#include "fsdp/fsdp.h"
#include "metrics.h"

/* The run as a sink sees it. All of it is the caller's, until the sinks are closed. */
struct sink_run {
    const struct config *config;
    const char *settings; /* the configuration as YAML; NULL: not known */
    const char *resumed;  /* the checkpoint that it began from, "" for none */
    const char *host;     /* rank 0's */
    int64_t step;         /* where it begins */
    int attempt;          /* 1 for the first start, one more for each resume */
    int ranks, nodes;
    double wall; /* when it began, Unix time; 0: now */
    /* NULL in tests. */
    struct fsdp *fsdp;
    const struct fsdp_mesh *mesh;
    struct fsdp_device *device;
};

/* A checkpoint that was published, or staged on its way there. */
struct sink_saved {
    int64_t step;
    const char *path;
    uint64_t nbytes;
    double seconds; /* since it was begun */
    double wall;    /* when it was there; 0: now */
    bool staged;
};

/* What a run does besides steps. */
enum sink_phase { SINK_STEPS, SINK_EVALUATES, SINK_SAVES };

/* What the watchdog suspects. */
struct sink_hang {
    int rank; /* -1: not known */
    const char *host, *where;
};

enum sink_end { SINK_DONE, SINK_STOPPED, SINK_FAILED };

struct sink_ops {
    const char *key;  /* of the setting that opens it: "log.metrics" */
    bool takes_steps; /* it holds steps alone, and stays closed where train.steps is 0 */
    /* Where it writes; "": this run has none. */
    const char *(*where)(const struct config *config);
    int (*open)(void **ctx, const char *where, const struct sink_run *run, struct fsdp_err *err);
    int (*row)(void *ctx, const struct metrics_row *row, struct fsdp_err *err);
    /* NULL: it does not care. */
    int (*saved)(void *ctx, const struct sink_saved *saved, struct fsdp_err *err);
    /* NULL: it does not care. The hang alone comes from another thread, the watchdog's. */
    void (*phase)(void *ctx, enum sink_phase phase);
    void (*hang)(void *ctx, const struct sink_hang *hang);
    /* why: the error of SINK_FAILED, else NULL. */
    void (*close)(void *ctx, enum sink_end end, const char *why);
};

/* The file of JSON lines (metrics.c). */
extern const struct sink_ops metrics_sink;
extern const struct sink_ops tensorboard_sink; /* tensorboard.c */
extern const struct sink_ops prometheus_sink;  /* prometheus.c */
extern const struct sink_ops html_sink;        /* html.c */
/* What fsdp-top shows (status_sink.c). It has no setting of its own. */
extern const struct sink_ops status_sink;

struct sinks;

/* Opens every sink that the configuration names. run->attempt is at least what the checkpoint
 * says; the metrics of earlier starts may know of more, which the sinks are told. Local, blocks. */
int sinks_open(struct sinks **out, const struct sink_run *run, struct fsdp_err *err);
/* In what follows sinks may be NULL: nothing is done. */

/* The number of this start. */
int sinks_attempt(const struct sinks *sinks);
/* Sets the row's attempt and ranks. */
void sinks_row(struct sinks *sinks, struct metrics_row *row);
void sinks_saved(struct sinks *sinks, const struct sink_saved *saved);
void sinks_phase(struct sinks *sinks, enum sink_phase phase);
void sinks_hang(struct sinks *sinks, const struct sink_hang *hang);
void sinks_close(struct sinks *sinks, enum sink_end end, const char *why);

#endif
