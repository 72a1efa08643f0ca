/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign.h: the time of a step with tensor, context and pipeline parallelism, which libfsdp does
 * not do, by formula. Pure. There is no list of operations behind these numbers: they say what
 * another framework could reach, and are marked foreign wherever they are shown.
 *
 * t_f and t_b are a layer's forward and backward of one micro-batch on one rank, by the device's
 * clock (decoder.h), with what follows added; L layers, p stages, v chunks a stage, m micro-steps.
 *
 *   tensor    Each layer gathers and scatters its input twice forward, and as often backward (with
 *             norms that every rank computes: once more; with recomputation: again), in all
 *             (4 forward, 4 + 4 recomputed [+ 1] backward) transfers of T d 2 bytes (t - 1) / t
 * over the node's link, of which a share is hidden (Korthikanti et al., arXiv 2205.05198,
 *             section 4.2).
 *   context   K and V of all ranks are gathered for each layer, forward and, with their gradients,
 *             twice backward; half of forward's is hidden (Dubey et al., arXiv 2407.21783, 3.3.2).
 *   pipeline  (m + (p - 1) / v) micro-steps of L / p layers, the head's time with each of the m
 *             (Narayanan et al., arXiv 2104.04473, section 2.2); each micro-step sends its
 *             activations v times in each direction, of which a share is hidden.
 *   data      DDP: all-reduce; ZERO1: reduce-scatter and all-gather, once a step. Each hides behind
 *             a share of one micro-step's backward, or forward (ibid. 5.1.1).
 *             ZERO2 and ZERO3 without a pipeline: layer by layer, as FSDP does it, two gathered
 *             ahead of what computes.
 *   waiting   Hidden communication slows what computes as the network's clock says, and a step is
 *             that of the slowest rank.
 */
#ifndef PLAN_FOREIGN_H
#define PLAN_FOREIGN_H

#include "plan/decoder.h"

enum foreign_data { FOREIGN_DDP, FOREIGN_ZERO1, FOREIGN_ZERO2, FOREIGN_ZERO3 };

struct foreign_run {
    struct decoder model;
    struct decoder_batch batch; /* with tp and cp */
    int pp, vpp, accumulation;
    enum foreign_data data;
    int shard, replicas;                            /* ranks that share state, and groups of them */
    double gather_nbytes, reduce_nbytes;            /* of an element on its way */
    double tensor_hidden, pipe_hidden, data_hidden; /* shares */
};

/* Seconds of a step; all but the first two are parts of the first. */
struct foreign_times {
    double step_s;
    double tokens_per_s;                /* of one GPU */
    double compute_s;                   /* of the modules */
    double tensor_s, context_s, pipe_s; /* exposed */
    double bubble_s;                    /* a stage waits for others */
    double data_s;                      /* of data parallelism, exposed */
    double slowed_s;                    /* by hidden communication */
};
void foreign_step(struct foreign_times *out, const struct foreign_run *run,
                  const struct fsdp_clock *clock);

#endif
