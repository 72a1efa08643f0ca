/* SPDX-License-Identifier: Apache-2.0 */
/*
 * against.h: a plan next to what really ran: two traces of one list, operation by operation.
 */
#ifndef PLAN_AGAINST_H
#define PLAN_AGAINST_H

#include "trace_file.h"

enum { AGAINST_SLOWEST = -1 }; /* of a run's ranks: the one that the others wait for */

/* Operations of one kind on one group of modules, over a step: medians over the steps. */
struct against_row {
    char kind[TRACE_FILE_KIND];  /* "forward", "gather", ... */
    char group[TRACE_FILE_NAME]; /* "model.layers.*.mlp"; "" for those of no module */
    char lane[TRACE_FILE_KIND];
    int n;                    /* in a step */
    double planned_s, real_s; /* own time; of collectives without waiting for slower ranks */
    double wait_s;            /* real: for slower ranks */
};

struct against {
    int nsteps, nranks, rank; /* of the run; rank: whose times these are */
    int nrows;
    struct against_row *rows; /* [nrows], the greatest difference first */
    int nlanes;
    struct against_row lanes[16]; /* sums: kind is the lane's name */
    double planned_step_s, real_step_s;
    double real_list_s; /* of it between the list's first operation and its last */
    double wait_s;      /* of it in collectives, for slower ranks */
    double idle_s;      /* of it in no operation, where the lanes take turns (CPU) */
};

/* planned_step_s: of the whole step as the clock says; 0: the plan's list alone. FSDP_EINVAL for a
 * rank that the run had not, or a plan and a run given the wrong way round; FSDP_EMISMATCH where
 * the lists differ. Freed by against_free. */
int against_make(struct against *out, const struct trace_file *plan, const struct trace_file *run,
                 double planned_step_s, int rank, struct fsdp_err *err);
void against_free(struct against *against);
/* The table, with totals last; at most max_rows of its rows, 0: all. */
void against_print(const struct against *against, int max_rows, FILE *to);
/* A Chrome trace of one step: one process for the plan, one for the rank of the run. Local,
 * blocks. */
int against_write(const struct trace_file *plan, const struct trace_file *run, int rank,
                  const char *path, struct fsdp_err *err);

#endif
