/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluate.h"

/* One pass of every rank. A rank without rows left computes one that is not counted, because all
 * ranks take part in every gather. */
static int eval_pass(const struct train_parts *p, struct train_rows *rows, uint64_t first,
                     double *sums, uint64_t *ntokens, struct fsdp_err *err)
{
    uint64_t nrows = data_mixture_nrows(p->eval), room = (uint64_t)p->batch.micro_rows;
    uint64_t mine = first + (uint64_t)rows->rank * room;
    uint64_t left = mine < nrows ? nrows - mine : 0;
    int B = (int)(left < room ? left : room);
    double *sum = sums + TRAIN_EVAL_LOSS;
    uint64_t ignored = 0;

    if (!B) {
        B = 1;
        mine = 0;
        sum = sums + TRAIN_EVAL_IGNORED;
        ntokens = &ignored;
    }
    /* The pass before may still be reading. */
    FSDP_TRY(fsdp_sync(p->fsdp, err));
    FSDP_TRY(train_rows_read(rows, p->eval, mine, B, 0, ntokens, err));
    const struct model_batch batch = train_rows_batch(rows, 0, B);
    FSDP_TRY(fsdp_micro_begin(p->fsdp, FSDP_EVAL, 0, err));
    FSDP_TRY(p->ops->run(p->model, p->fsdp, &batch, false, sum, err));
    return fsdp_micro_end(p->fsdp, err);
}

int train_evaluate(const struct train_parts *p, struct train_rows *rows, struct train_words *words,
                   double *loss, struct fsdp_err *err)
{
    const uint64_t nrows = data_mixture_nrows(p->eval);
    const uint64_t stride = (uint64_t)p->batch.ranks * (uint64_t)p->batch.micro_rows;
    double *sums = words->eval_sums, sum = 0, count;
    uint64_t ntokens = 0;

    FSDP_TRY(train_words_zero(words, sums, TRAIN_EVAL_NSUMS, err));
    for (uint64_t first = 0; first < nrows; first += stride)
        FSDP_TRY(eval_pass(p, rows, first, sums, &ntokens, err));
    count = (double)ntokens;
    FSDP_TRY(train_words_copy(words, sums + TRAIN_EVAL_NTOKENS, &count, err));
    FSDP_TRY(fsdp_control_sum(p->fsdp, sums, TRAIN_EVAL_NTOKENS + 1, err));
    FSDP_TRY(train_words_copy(words, &sum, sums + TRAIN_EVAL_LOSS, err));
    FSDP_TRY(train_words_copy(words, &count, sums + TRAIN_EVAL_NTOKENS, err));
    *loss = count > 0 ? sum / count : 0;
    return FSDP_OK;
}
