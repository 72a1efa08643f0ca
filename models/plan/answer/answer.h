/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h: what a run would take on a cluster: its own list of operations and its own plan of
 * memory, under the cluster's clock. Nothing is started and no GPU is needed.
 */
#ifndef PLAN_ANSWER_H
#define PLAN_ANSWER_H

#include <stdio.h>

#include "fsdp/fsdp.h"
#include "plan/cluster/cluster.h"
#include "plan/foreign.h"
#include "plan/goodput.h"

/* Parallelism of another framework that the same run is priced with; tp 0: with none. */
struct foreign_ask {
    int tp, pp, cp, vpp; /* ranks of tensor, pipeline and context parallelism; chunks of a stage */
};

/* What is asked. Pointers are the caller's. */
struct question {
    const char *config; /* run.yaml; NULL: the overrides alone */
    int noverrides;
    char *const *overrides; /* [noverrides] section.key=value */
    const struct cluster *cluster;
    int ngpus;                  /* ranks */
    const char *const *what_if; /* [nwhat_ifs] key=value that the cluster was changed by */
    int nwhat_ifs;
    double tokens; /* to train on; 0: the steps that the run has, if it has a number of them; below
                    * 0: not known */
    double now;    /* Unix time at which it would begin; 0: no date is told */
    /* Of more than 128 equal micro-steps, and for searches of more than 3, only those are planned,
     * and the others take as long. hash is 0 then. */
    bool quick;
    struct foreign_ask foreign;
};

/* How far the error of a time reaches, and why. */
struct answer_band {
    double share;      /* 0.2: the time is within 20 % of it, as often as `basis` says */
    const char *basis; /* static */
    bool extrapolated; /* no published run reaches there */
};

struct answer_memory {
    char what[64];
    double nbytes; /* of a rank */
    bool host;     /* of the host, or with `file` on its disks */
    bool file;
};

#define ANSWER_STORAGE 10e9 /* bytes/s of all nodes, where the cluster does not say */
/* The run as another framework could do it, by formula (plan/foreign.h). */
struct answer_foreign {
    bool priced;
    struct foreign_ask ask;
    int data_nranks, accumulation;
    struct foreign_times times;
    double tokens_s_gpu;
    struct answer_band band;
};

enum { ANSWER_MAX_ROWS = 40 };
struct answer {
    /* ---- the run ---- */
    char family[32], strategy[32], gathered[32], reduced[32];
    int nranks, nnodes, node_nranks;
    int shard_nranks, replicate_nranks;
    bool two_level;
    int micro_rows, accumulation;
    int64_t row_tokens, rows; /* of a row: of pairs those of both; rows of a step */
    double padding;           /* share of the computation that is padding, 0 to 1 */
    int64_t better_rows;      /* where it is above 0: the nearest number of rows without any */
    bool offloads, reshards;  /* fsdp.offload, fsdp.reshard_after_forward are not the default */
    bool offloads_acts, offloads_grads; /* fsdp.offload_activations, fsdp.offload_gradients */
    bool clips, reduces_last;           /* optim.clip_grad_norm above 0; fsdp.reduce_last */
    bool updates_at_reduce, updates_at_forward; /* fsdp.update_at reduce; forward */
    bool updates_on_host;                       /* fsdp.offload_update host, or what auto came to */
    bool names_update;                          /* it is not auto */
    bool narrow_grads, names_disks; /* fsdp.grad_dtype bfloat16; fsdp.offload_dir is given */
    double nparams, ntrained;
    uint64_t hash; /* fsdp_plan_hash: the same as the run's */
    int nunits;
    /* ---- time ---- */
    struct fsdp_schedule_times times;
    double step_s;
    double step_tokens;
    double tokens_s; /* of all ranks */
    double tokens_s_gpu;
    double tflops_gpu, mfu; /* model FLOP; mfu 0: no peak is known */
    struct answer_band band;
    /* ---- memory, of a rank ---- */
    struct answer_memory memory[ANSWER_MAX_ROWS];
    int nmemory;
    double device_nbytes, reserved_nbytes, limit_nbytes; /* limit 0: not known */
    double plan_limit_nbytes; /* fsdp.memory_limit, of device_nbytes alone; 0: none */
    double node_file_nbytes, node_file_limit; /* on the disks of a node */
    double node_host_nbytes, node_host_limit; /* of a node; limits 0: not known */
    double state_nbytes; /* of a checkpoint of all ranks: masters and optimizer state in fp32 */
    bool fits;
    /* ---- until the end ---- */
    double tokens; /* 0: not known, and nothing of what follows */
    double save_held_s, save_s, restart_s;
    bool saves;              /* the run has an interval of its own */
    bool storage_is_assumed; /* its rate is ANSWER_STORAGE */
    struct goodput goodput;
    struct goodput_bill bill;
    struct answer_foreign foreign;
};

/* FSDP_EINVAL for a run that cannot be: the text names the setting or number to change. Local. */
int answer_make(struct answer *out, const struct question *question, struct fsdp_err *err);
/* The plan of the same as a Chrome trace. Local, blocks. */
int answer_trace(const struct question *question, FILE *to, struct fsdp_err *err);

/* Are two times the same within what a plan can tell apart? */
enum { ANSWER_EQUAL_PERCENT = 3 };
bool answer_is_equal(double a, double b);

/* As a table of 80 columns, and as a JSON object with units, band and basis. verbose: each number's
 * origin, too. */
void answer_print(const struct answer *answer, const struct question *question, bool verbose,
                  FILE *to);
int answer_json(const struct answer *answer, const struct question *question, FILE *to,
                struct fsdp_err *err);

#endif
