/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluate.h"

/* One pass of every rank. A rank without rows left computes one that is not counted, because all
 * ranks take part in every gather. */
static int eval_pass(const struct train_parts *p, struct train_rows *rows, uint64_t first,
                     double *sums, struct train_count *count, struct train_dpo *dpo,
                     struct train_dpo_sums *pairs, struct fsdp_err *err)
{
    struct train_dpo_sums other = {0};
    uint64_t nrows = data_mixture_nrows(p->eval), room = (uint64_t)p->batch.micro_rows;
    uint64_t mine = first + (uint64_t)rows->rank * room;
    uint64_t left = mine < nrows ? nrows - mine : 0;
    int B = (int)(left < room ? left : room);
    double *sum = sums + TRAIN_EVAL_LOSS;
    struct train_count ignored = {0};

    if (!B) {
        B = 1;
        mine = 0;
        sum = sums + TRAIN_EVAL_IGNORED;
        count = &ignored;
    }
    /* The pass before may still be reading. */
    FSDP_TRY(fsdp_sync(p->fsdp, err));
    FSDP_TRY(train_rows_read(rows, p->eval, mine, B, 0, count, err));
    if (dpo->parts)
        return train_dpo_evaluate(dpo, rows, mine, B, left ? pairs : &other, err);
    const struct model_batch batch = train_rows_batch(rows, 0, B);
    FSDP_TRY(fsdp_micro_begin(p->fsdp, FSDP_EVAL, 0, err));
    FSDP_TRY(p->ops->run(p->model, p->fsdp, &batch, false, sum, err));
    return fsdp_micro_end(p->fsdp, err);
}

/* A number of this rank becomes an element of the sums. */
static int put_sum(struct train_words *words, enum train_eval_sum at, uint64_t number,
                   struct fsdp_err *err)
{
    const double value = (double)number;
    return train_words_copy(words, words->eval_sums + at, &value, err);
}

int train_evaluate(const struct train_parts *p, struct train_rows *rows, struct train_words *words,
                   struct train_dpo *dpo, struct train_held_out *out, struct fsdp_err *err)
{
    const uint64_t nrows = data_mixture_nrows(p->eval);
    const uint64_t stride = (uint64_t)p->batch.ranks * (uint64_t)p->batch.micro_rows;
    double *sums = words->eval_sums, all[TRAIN_EVAL_NBYTES + 1] = {0};
    struct train_count mine = {0};
    struct train_dpo_sums pairs = {0};

    FSDP_TRY(train_words_zero(words, sums, TRAIN_EVAL_NSUMS, err));
    FSDP_TRY(fsdp_eval_begin(p->fsdp, err));
    for (uint64_t first = 0; first < nrows; first += stride)
        FSDP_TRY(eval_pass(p, rows, first, sums, &mine, dpo, &pairs, err));
    FSDP_TRY(fsdp_eval_end(p->fsdp, err));
    if (dpo->parts) {
        mine = (struct train_count){.ntokens = pairs.npairs};
        FSDP_TRY(train_words_copy(words, sums + TRAIN_EVAL_LOSS, &pairs.loss, err));
    }
    FSDP_TRY(put_sum(words, TRAIN_EVAL_NTOKENS, mine.ntokens, err));
    FSDP_TRY(put_sum(words, TRAIN_EVAL_NBYTES, mine.nbytes, err));
    FSDP_TRY(fsdp_control_sum(p->fsdp, sums, TRAIN_EVAL_NBYTES + 1, err));
    for (int i = 0; i <= TRAIN_EVAL_NBYTES; i++)
        FSDP_TRY(train_words_copy(words, &all[i], sums + i, err));
    const double loss = all[TRAIN_EVAL_LOSS], nbytes = all[TRAIN_EVAL_NBYTES];
    out->loss = all[TRAIN_EVAL_NTOKENS] > 0 ? loss / all[TRAIN_EVAL_NTOKENS] : 0;
    out->counts = all[TRAIN_EVAL_NTOKENS] > 0;
    out->nats_per_byte = nbytes > 0 ? loss / nbytes : 0;
    return FSDP_OK;
}
