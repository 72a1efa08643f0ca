/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_state.h: the state of a run that is not tensors, as one JSON object in the checkpoint.
 * Random numbers come from counters: a seed and a position are their whole state.
 */
#ifndef TRAIN_STATE_H
#define TRAIN_STATE_H

#include <jansson.h>

#include "fsdp/fsdp.h"

struct train_data_id {
    char layout[16];
    int64_t seq_len, seed;
    uint64_t nrows, hash; /* data_nrows, data_hash */
};

/* The lowest held-out loss so far. step 0: nothing was evaluated. */
struct train_best {
    int64_t step;
    double loss;
    int64_t stale; /* evaluations since one was better for train.early_stop */
};

struct train_state {
    int64_t step; /* optimizer steps done */
    int64_t rows; /* rows of data used: the position, and of the data's counter */
    int64_t tokens;
    double seconds; /* of training */
    int64_t model_seed, global_batch_size;
    struct train_data_id data;
    struct fsdp_schedule schedule;
    struct fsdp_optim_opts optim;    /* told in the state; its groups are not */
    struct fsdp_scaler_state scaler; /* scale 0: the loss is not scaled */
    struct train_best best;
    double reference;   /* train_dpo's log-probability of some pairs, which tells it; 0: none */
    double clip_factor; /* optim.clip_late: of the next step; 0: none */
    struct fsdp_averaging averaging; /* weight_sum 0: the optimizer averages nothing */
    json_t *base; /* written alone: of the model that adapters belong to, borrowed; NULL: none */
};

/* As JSON text, freed with fsdp_free. config: the settings as YAML, kept for people. since: object
 * {parameter: updates of the run before its first}, borrowed; NULL: all since the first step. */
int train_state_write(char **out, const struct train_state *state, const char *config,
                      const json_t *since, struct fsdp_err *err);
/* json: of the checkpoint at `path`, which errors name. */
int train_state_read(struct train_state *out, const char *json, const char *path,
                     struct fsdp_err *err);
/* Is this the state of another program (PyTorch), which has no position that this one knows? */
bool train_state_is_foreign(const char *json);
/* What such a checkpoint means for the run `now`: that `step` optimizer steps were made, each with
 * the rows that this run takes for one. step < 0, not told, is refused, unless the data starts anew
 * and the run's optimizer does not count: then it was one. */
int train_state_adopt(struct train_state *out, const struct train_state *now, int64_t step,
                      bool restart_data, const char *path, struct fsdp_err *err);
/* Takes the position of a saved state into *state. Other data, or another order of it, is refused
 * (FSDP_EMISMATCH), unless the data starts anew; another schedule or batch size is a warning. */
int train_state_resume(struct train_state *state, const struct train_state *saved,
                       bool restart_data, const char *path, struct fsdp_err *err);

#endif
