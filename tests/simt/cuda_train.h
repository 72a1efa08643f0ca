/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_train.h: the same steps of training on the CUDA device and its operators, emulated on the
 * CPU, and on the CPU. */
#ifndef CUDA_TRAIN_H
#define CUDA_TRAIN_H

#include "../models/ref_run.h"

#include "fsdp/sys/cuda.h"
#include "family/stack.h"

extern const struct nn_ops nn_cuda_ops;

enum { TRAIN_STEPS = 4, TRAIN_ROWS = 4, TRAIN_MAX_T = 256 };

enum { TRAIN_COUNTS = 4 };
struct train_outcome {
    double loss[TRAIN_STEPS], norm[TRAIN_STEPS];
    int counts[TRAIN_COUNTS];
};

struct train_run {
    struct ref_setup setup;
    const int32_t *tokens;
    struct train_outcome *out;
    int nsteps;
};

/* NULL: the model is trained whole. */
static const struct model_lora *train_adapters;

/* NULL: no product is in 8 bits. */
static const struct model_f8 *train_f8;

/* Of a run on the CUDA device, what a test counts there; NULL: nothing. */
static void (*train_count)(int counts[TRAIN_COUNTS]);
static int train_counts[TRAIN_COUNTS];

static inline void train_on_cpu(struct model *m)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (train_adapters && stack_set_lora(m, train_adapters, &err))
        fprintf(stderr, "%s\n", err.text);
    if (train_f8 && stack_set_f8(m, train_f8, &err))
        fprintf(stderr, "%s\n", err.text);
}

static inline void train_on_cuda(struct model *m)
{
    m->nn = &nn_cuda_ops;
    train_on_cpu(m);
}

static inline int train_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct train_run *run = arg;
    struct ref_rank r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ref_rank_open(&r, &run->setup, oob, nodes, &err);

    for (int s = 0; s < run->nsteps && !rc; s++) {
        const struct fsdp_step_args args = {.step = s, .lr = 1e-3};
        rc = ref_rank_step(&r, &run->setup, run->tokens + s * TRAIN_ROWS * (run->setup.T + 1),
                           TRAIN_ROWS, args, &run->out->loss[s], &run->out->norm[s], &err);
    }
    if (rc)
        fprintf(stderr, "%s: %s\n", fsdp_status_name(rc), err.text);
    if (train_count)
        train_count(run->out->counts);
    ref_rank_close(&r);
    return rc != 0;
}

static inline bool train(struct ref_setup setup, const int32_t *tokens, int nsteps,
                         struct train_outcome *out)
{
    struct train_run run = {setup, tokens, out, nsteps};
    return ranks_run(1, 1, 200, train_rank, &run, NULL) == 0;
}

/* The greatest differences, of losses and of norms in terms of the norm. */
static inline void train_compare(const char *what, struct ref_setup setup, const int32_t *tokens,
                                 int nsteps, double loss_bound, double norm_bound)
{
    struct train_outcome *both = ref_shared(2 * sizeof *both);
    double loss = 0, norm = 0;
    bool ran;

    setup.use_ops = train_on_cpu;
    ran = train(setup, tokens, nsteps, &both[0]);
    setup.device_ops = &fsdp_device_cuda_ops;
    setup.use_ops = train_on_cuda;
    ran = ran && train(setup, tokens, nsteps, &both[1]);
    for (int s = 0; s < nsteps; s++) {
        loss = fmax(loss, fabs(both[1].loss[s] - both[0].loss[s]));
        norm = fmax(norm, fabs(both[1].norm[s] / both[0].norm[s] - 1));
    }
    ok(ran && loss <= loss_bound && norm <= norm_bound && both[1].loss[0] > 1,
       "%s: loss %.4f, off by %.1e; norms by %.1e", what, both[1].loss[nsteps - 1], loss, norm);
    memcpy(train_counts, both[1].counts, sizeof train_counts);
    munmap(both, 2 * sizeof *both);
}

/* tokens[n], all different in a random order as far as the vocabulary goes. */
static inline void train_fill(int32_t *tokens, int n, int vocab)
{
    for (int i = 0; i < n; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % vocab;
}

#endif
