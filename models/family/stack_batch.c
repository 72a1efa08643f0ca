/* SPDX-License-Identifier: Apache-2.0 */
/* What a pass is given: tokens, labels and where documents begin. */
#include "stack.h"

int stack_check_tokens(const struct model *m, const int32_t *tokens, int nrows, int ncols,
                       struct fsdp_err *err)
{
    for (int b = 0; b < nrows; b++)
        for (int t = 0; t < ncols; t++) {
            int32_t token = tokens[(size_t)b * (size_t)ncols + (size_t)t];
            if (token < 0 || token >= m->traits.vocab)
                return fsdp_err_set(err, FSDP_EINVAL,
                                    "token %d at row %d, position %d: the vocabulary has %d", token,
                                    b, t, m->traits.vocab);
        }
    return FSDP_OK;
}

static int refuse_label(int32_t label, int b, int t, int vocab, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL,
                        "label %d at row %d, position %d: neither in the vocabulary of %d nor %d",
                        label, b, t, vocab, MODEL_IGNORE);
}

static int refuse_start(int32_t start, int b, int t, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL,
                        "row %d, position %d is said to be in a document that begins at %d; "
                        "documents follow each other without gaps from 0 on",
                        b, t, start);
}

/* Counts them, too. */
static int check_documents(int *documents, const struct model *m, const struct model_batch *batch,
                           struct fsdp_err *err)
{
    *documents = 0;
    for (int b = 0; b < batch->B; b++)
        for (int t = 0; t < batch->T; t++) {
            const size_t at = (size_t)b * (size_t)batch->T + (size_t)t;
            const int32_t label = batch->labels ? batch->labels[at] : MODEL_IGNORE;
            const int32_t start = batch->starts ? batch->starts[at] : 0;
            const int32_t before = t && batch->starts ? batch->starts[at - 1] : 0;
            if (label != MODEL_IGNORE && (label < 0 || label >= m->traits.vocab))
                return refuse_label(label, b, t, m->traits.vocab, err);
            if (start != before && start != t)
                return refuse_start(start, b, t, err);
            *documents += start == t;
        }
    return FSDP_OK;
}

int stack_check_batch(int *documents, const struct model *m, const struct model_batch *batch,
                      struct fsdp_err *err)
{
    if (batch->B < 1 || batch->T < 1 || batch->B > m->max_B || batch->T > m->max_T)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "micro-batch of %d x %d tokens, but the model was described for %d x %d", batch->B,
            batch->T, m->max_B, m->max_T);
    FSDP_TRY(stack_check_tokens(m, batch->tokens, batch->B, batch->T + 1, err));
    return check_documents(documents, m, batch, err);
}
