/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h: when the operations of a list ran, or would run. trace.c records them on the lanes,
 * cost.c prices them, timeline.c lets them run, trace_share.c and times.c add them up,
 * trace_json.c writes them.
 */
#ifndef CORE_TRACE_H
#define CORE_TRACE_H

#include "core/engine.h"

/* In seconds. An automatic operation ran from begin to end. A driven one is where work of the model
 * stops (begin: what was enqueued before it is done) and continues (end: its waits are over, and
 * where lanes run in the caller the operations that it released, too). */
struct trace_time {
    double begin, end;
};

/* ---- recording: trace.c ---------------------------------------------------------------------- */

struct trace {
    int nops, capacity, nsteps;
    int64_t *step;            /* [capacity] number of each recorded step */
    struct trace_time *times; /* [capacity][nops] */
    struct trace_time *now;   /* [nops] of the step that runs, NULL: not recorded */
    bool armed;
    int64_t next; /* number of the step to come */
};

enum trace_which { TRACE_BEGIN, TRACE_END };

int trace_stamp_now(struct fsdp *f, int i, enum trace_which which, struct fsdp_err *err);
/* Operation i of the current list begins or has ended on its lane. Enqueues. */
static inline int trace_stamp(struct fsdp *f, int i, enum trace_which which, struct fsdp_err *err)
{
    return f->tracing.trace && f->tracing.trace->now ? trace_stamp_now(f, i, which, err) : FSDP_OK;
}
/* A pass through a program's list begins. */
void trace_pass(struct engine_tracing *tracing, enum fsdp_program program);
void trace_close(struct engine_tracing *tracing);

/* How far a rank's clock is ahead of rank 0's, from times at which both left the same barriers.
 * Pure. */
double trace_clock_offset(const double *mine, const double *root, int nticks);

/* ---- adding up: trace_share.c, pure ---------------------------------------------------------- */

/* Length of what is in an interval of a and in none of b. Sorts both; intervals may overlap. */
double trace_uncovered(struct trace_time *a, int na, struct trace_time *b, int nb);
/* Over nsteps passes of one list. scratch: [2 * nsteps * nops]. */
void trace_share(struct fsdp_trace_share *out, const struct sched *sched,
                 const struct trace_time *times, int nsteps, struct trace_time *scratch);

/* ---- what an operation is: cost.c, pure ------------------------------------------------ */

/* Module name of the unit or module, "(root)" for the root, with ", frozen" for a frozen flat, ""
 * for operations of neither; into out, which is returned. */
const char *trace_op_name(char *out, size_t out_nbytes, const struct fsdp *f,
                          const struct sched_op *op);
enum { TRACE_LABEL_NBYTES = 240 };
/* With what is done: "gather layers.1", "forward layers.1", "micro-step 0", "optimizer". */
const char *trace_op_label(char *out, size_t out_nbytes, const struct fsdp *f,
                           const struct sched_op *op);
/* Bytes that each rank receives, with ring algorithms. */
uint64_t trace_op_nbytes(const struct fsdp *f, const struct sched_op *op);
/* Which collective it is, of several ranks; false: none. */
bool trace_op_collective(struct sched_collective *out, const struct fsdp *f,
                         const struct sched_op *op);
/* What it takes under a clock: on a lane so many seconds, or a transfer. */
struct trace_cost {
    double seconds;
    bool transfers, comm;
    struct fsdp_transfer transfer;
};
struct trace_cost trace_op_cost(const struct fsdp *f, const struct sched_op *op,
                                const struct fsdp_clock *clock);
/* Seconds of a module's work in one phase, added by kind. */
double trace_work_seconds(const struct fsdp *f, const struct sched_op *op,
                          const struct fsdp_clock *clock, double work_s[FSDP_WORK_NKINDS]);

/* ---- the list under a clock: timeline.c, pure ------------------------------------------------ */

struct trace_totals {
    double list_s;   /* from the end of one pass to that of the next */
    double slowed_s; /* how long communication held up what computes */
    double hidden_s; /* what updates and a model that run at once take less than one by one */
};
/* Steady state: times[nops] of one pass that follows another, from 0. */
int trace_timeline(struct trace_time *times, struct trace_totals *totals, const struct fsdp *f,
                   enum fsdp_program program, const struct fsdp_clock *clock, struct fsdp_err *err);
/* The same with its sums. *times is the caller's, of fsdp_alloc, NULL after an error. */
int trace_times(struct trace_time **times, struct fsdp_trace_share *share,
                struct fsdp_schedule_times *sums, const struct fsdp *f, enum fsdp_program program,
                const struct fsdp_clock *clock, struct fsdp_err *err);

/* ---- Chrome trace events: trace_json.c ------------------------------------------------------- */

struct trace_json {
    FILE *to;
    bool more;                      /* an event was written */
    double origin;                  /* time that is written as 0 */
    const struct fsdp_clock *clock; /* of modelled times, NULL: they are measured */
};
void trace_json_begin(struct trace_json *json, FILE *to, double origin);
/* A process and its tracks. */
void trace_json_process(struct trace_json *json, int pid, const char *name);
/* One pass through a list. */
void trace_json_pass(struct trace_json *json, const struct fsdp *f, enum fsdp_program program,
                     int pid, const char *name, const struct trace_time *times);
/* The sums, one per process. */
void trace_json_end(struct trace_json *json, const struct fsdp_trace_share *shares, int nshares,
                    const char *note);

#endif
