/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: the rows of a step in host memory, from which the device copies by itself. */
#ifndef TRAIN_ROWS_H
#define TRAIN_ROWS_H

#include "train/setup/setup.h"

/* Room for two steps: the device may still read the last step's rows while this one's are filled.
 * A row's place: (parity of the step * accumulation + micro) * micro_rows + row. */
/* The tokens of rows that count, their weights together, and the bytes of text that they are; 0
 * where the tokenizer is not known. */
struct train_count {
    uint64_t ntokens, nbytes;
    double weight;
};

struct train_rows {
    const struct train_parts *parts; /* the caller's */
    int rank;
    bool has_labels; /* the data has, or the evaluation's */
    /* (places, seq_len + 1); labels: (places, seq_len), where data has them or the batch has
     * padding; starts: the same, where data has labels. */
    int32_t *tokens, *labels, *starts;
    float *weights;             /* (places, seq_len) where data has them, else NULL */
    struct train_count *counts; /* [ranks] where data has labels */
    uint64_t ncounted;          /* tokens of the latest step that count, on all ranks */
    int nempty;                 /* steps in a row of which no token counts */
};

/* Local. A failed open is closed, too. */
int train_rows_open(struct train_rows *rows, const struct train_parts *parts, int rank,
                    struct fsdp_err *err);
void train_rows_close(struct train_rows *rows);
/* Rows of an optimizer step, and their tokens. */
int64_t train_rows_nrows(const struct train_rows *rows);
double train_rows_ntokens(const struct train_rows *rows);
/* Reads B rows, from row `first` of the data on, to places from `place` on. Adds to *count. */
int train_rows_read(struct train_rows *rows, struct data_mixture *data, uint64_t first, int B,
                    size_t place, struct train_count *count, struct fsdp_err *err);
/* B rows as a batch. Local. */
struct model_batch train_rows_batch(const struct train_rows *rows, size_t place, int B);

/* Reads this rank's rows of the step that follows `state`. *weight = that of the tokens that count,
 * on all ranks; without weights, their number. It divides the loss, and so is agreed on before the
 * first micro-step. Collective where data has labels. */
int train_rows_step(struct train_rows *rows, const struct train_state *state, struct fsdp_oob *oob,
                    double *weight, struct fsdp_err *err);
/* Where the rows of a micro-step of that step are. Local. */
size_t train_rows_place(const struct train_rows *rows, const struct train_state *state, int micro);
/* That step's rows of a micro-step, for a step of that weight. Local. */
struct model_batch train_rows_micro(const struct train_rows *rows, const struct train_state *state,
                                    int micro, double weight);

#endif
