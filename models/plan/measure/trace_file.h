/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.h: Chrome traces that libfsdp wrote (libfsdp/core/trace/trace_json.c), as numbers: of
 * a plan, or of a run's steps and ranks. What an operation itself took is separated from what is
 * inside it, and from waiting for slower ranks.
 */
#ifndef PLAN_TRACE_FILE_H
#define PLAN_TRACE_FILE_H

#include <jansson.h>

#include "fsdp/clock.h"

enum { TRACE_FILE_NAME = 128, TRACE_FILE_KIND = 24, TRACE_FILE_MAX_STEPS = 1024 };

/* An operation that takes time: a module in a phase, or what a lane does by itself. */
struct trace_file_op {
    int index;                  /* in the list */
    char kind[TRACE_FILE_KIND]; /* "gather", "update", ...; of a module its phase */
    char name[TRACE_FILE_NAME]; /* "gather model.layers.3" */
    char
        group[TRACE_FILE_NAME]; /* its module's, the same for all layers: "model.layers.*", or "" */
    char lane[TRACE_FILE_KIND];
    bool visit; /* a module */
    int parent; /* of a module, the one around it as an index of ops; -1: none */
    /* Of a collective; nranks 0: it is none. */
    int nranks, stride;
    double nbytes; /* of the whole */
    int nnodes;    /* of a plan's collective */
    double latency_s;
    double work_s[FSDP_WORK_NKINDS]; /* of a plan's module: by kind of work */
};

/* One operation in one step of one process, in seconds. */
struct trace_file_time {
    double begin, end;
    double enters, leaves; /* how long a module's coming and going held the model up */
    double own;            /* without the modules inside it, and without waiting */
    double wait;           /* of a collective: until the slowest of its ranks had come */
};

struct trace_file_step {
    double begin, end;
    long long number; /* -1: a plan's */
};

struct trace_file {
    char *path;
    bool planned;
    int nops, nprocs, nsteps;      /* nsteps: complete on all processes; of a plan 1 */
    struct trace_file_op *ops;     /* [nops] in the list's order */
    struct trace_file_time *times; /* [nprocs][nsteps][nops] */
    struct trace_file_step *steps; /* [nprocs][nsteps] */
    json_t *json;
};

/* Reads the passes of training. FSDP_EINVAL: not a trace that libfsdp wrote, or none of a step;
 * FSDP_ECORRUPT: damaged, with its line; FSDP_EUNSUPPORTED: of a version that said less. Freed by
 * trace_file_close. Local, blocks. */
int trace_file_read(struct trace_file *out, const char *path, struct fsdp_err *err);
void trace_file_close(struct trace_file *file);

static inline const struct trace_file_time *trace_file_time(const struct trace_file *f, int proc,
                                                            int step, int op)
{
    return &f->times[((size_t)proc * (size_t)f->nsteps + (size_t)step) * (size_t)f->nops +
                     (size_t)op];
}
static inline const struct trace_file_step *trace_file_step(const struct trace_file *f, int proc,
                                                            int step)
{
    return &f->steps[(size_t)proc * (size_t)f->nsteps + (size_t)step];
}
/* Seconds of a step of a process with what it does until the next one begins; its list alone where
 * the next one was not recorded. */
double trace_file_step_s(const struct trace_file *f, int proc, int step);
/* Medians over the steps of a process: of an operation's own time and waiting, and of the steps. */
double trace_file_own(const struct trace_file *f, int proc, int op);
double trace_file_wait(const struct trace_file *f, int proc, int op);
double trace_file_steps(const struct trace_file *f, int proc);
/* Sorts. 0 of none. */
double trace_file_median(double *values, int nvalues);
/* The process that the others wait for: with the most time of its own. */
int trace_file_slowest(const struct trace_file *f);
/* FSDP_EMISMATCH where two traces are of different lists: says where. */
int trace_file_same_list(const struct trace_file *a, const struct trace_file *b,
                         struct fsdp_err *err);

#endif
