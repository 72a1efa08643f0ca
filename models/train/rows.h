/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: the rows of a step in host memory, from which the device copies by itself. */
#ifndef TRAIN_ROWS_H
#define TRAIN_ROWS_H

#include "train/setup/setup.h"

/* Room for two steps: the device may still read the last step's rows while this one's are filled.
 * A row's place: (parity of the step * accumulation + micro) * micro_rows + row. */
struct train_rows {
    const struct train_parts *parts; /* the caller's */
    int rank;
    bool has_labels; /* the data has, or the evaluation's */
    /* (places, seq_len + 1); labels: (places, seq_len), where data has them or the batch has
     * padding; starts: the same, where data has labels. */
    int32_t *tokens, *labels, *starts;
    uint64_t *counts; /* [ranks] where data has labels */
};

/* Local. A failed open is closed, too. */
int train_rows_open(struct train_rows *rows, const struct train_parts *parts, int rank,
                    struct fsdp_err *err);
void train_rows_close(struct train_rows *rows);
/* Rows of an optimizer step, and their tokens. */
int64_t train_rows_nrows(const struct train_rows *rows);
double train_rows_ntokens(const struct train_rows *rows);
/* The tokens of rows that count, and the bytes of text that they are; 0 where the tokenizer is not
 * known. */
struct train_count {
    uint64_t ntokens, nbytes;
};
/* Reads B rows, from row `first` of the data on, to places from `place` on. Adds to *count. */
int train_rows_read(struct train_rows *rows, struct data_mixture *data, uint64_t first, int B,
                    size_t place, struct train_count *count, struct fsdp_err *err);
/* B rows as a batch. Local. */
struct model_batch train_rows_batch(const struct train_rows *rows, size_t place, int B);

/* Reads this rank's rows of the step that follows `state`. *ntokens = tokens that count, on all
 * ranks: they divide the loss, and so are agreed on before the first micro-step. Collective where
 * data has labels. */
int train_rows_step(struct train_rows *rows, const struct train_state *state, struct fsdp_oob *oob,
                    double *ntokens, struct fsdp_err *err);
/* That step's rows of a micro-step, for a step of ntokens. Local. */
struct model_batch train_rows_micro(const struct train_rows *rows, const struct train_state *state,
                                    int micro, double ntokens);

#endif
