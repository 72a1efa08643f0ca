/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "rows.h"

enum { STEPS_AHEAD = 4 };

_Static_assert((int)DATA_IGNORE == (int)MODEL_IGNORE, "data and models mean the same");

static size_t seq_len(const struct train_rows *r)
{
    return (size_t)r->parts->config->data.seq_len;
}

/* Sequences of a row. */
static size_t sequences(const struct train_rows *r)
{
    return (size_t)train_parts_row_sequences(r->parts);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int32_t *alloc_rows(struct train_rows *r, size_t nelem, const char *name,
                           struct fsdp_err *err)
{
    return fsdp_host_alloc(r->parts->device, nelem * sizeof(int32_t), name, err);
}

/* Padding needs labels, too. */
static int open_labels(struct train_rows *r, size_t nlabels, struct fsdp_err *err)
{
    const struct config_batch *batch = &r->parts->batch;

    if (!r->has_labels && config_batch_places(batch) == batch->rows)
        return FSDP_OK;
    if (!(r->labels = alloc_rows(r, nlabels, "labels", err)))
        return FSDP_ENOMEM;
    if (!r->has_labels)
        return FSDP_OK;
    const bool weighted = r->parts->data && data_mixture_has_weights(r->parts->data);
    if ((weighted || sequences(r) > 1) &&
        !(r->weights = fsdp_host_alloc(r->parts->device, nlabels * sizeof *r->weights,
                                       "weights of documents", err)))
        return FSDP_ENOMEM;
    if (!(r->starts = alloc_rows(r, nlabels, "documents", err)) ||
        !(r->counts = fsdp_alloc((size_t)batch->ranks, sizeof *r->counts, "counts", err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

int train_rows_open(struct train_rows *r, const struct train_parts *parts, int rank,
                    struct fsdp_err *err)
{
    const struct config_batch *batch = &parts->batch;
    const size_t nplaces = 2 * (size_t)batch->accumulation * (size_t)batch->micro_rows *
                           (size_t)train_parts_row_sequences(parts);

    r->parts = parts;
    r->rank = rank;
    r->has_labels = (parts->data && data_mixture_has_labels(parts->data)) ||
                    (parts->eval && data_mixture_has_labels(parts->eval));
    if (!(r->tokens = alloc_rows(r, nplaces * (seq_len(r) + 1), "rows of tokens", err)))
        return FSDP_ENOMEM;
    return open_labels(r, nplaces * seq_len(r), err);
}

void train_rows_close(struct train_rows *r)
{
    fsdp_free(r->counts);
    if (r->parts) {
        fsdp_host_free(r->parts->device, r->weights);
        fsdp_host_free(r->parts->device, r->starts);
        fsdp_host_free(r->parts->device, r->labels);
        fsdp_host_free(r->parts->device, r->tokens);
    }
    *r = (struct train_rows){0};
}

/* ---- any rows -------------------------------------------------------------------------------- */

int64_t train_rows_nrows(const struct train_rows *r)
{
    return r->parts->config->train.global_batch_size;
}

double train_rows_ntokens(const struct train_rows *r)
{
    return (double)train_rows_nrows(r) * (double)(seq_len(r) * sequences(r));
}

static void count_row(struct train_count *count, const struct train_rows *r,
                      const struct data_row *row)
{
    const int *nbytes = r->parts->text.token_nbytes;
    const int32_t *targets = row->labels ? row->labels : row->tokens + 1;

    for (size_t t = 0; t < seq_len(r) * sequences(r); t++) {
        if (targets[t] == DATA_IGNORE)
            continue;
        count->ntokens++;
        count->weight += row->weights ? (double)row->weights[t] : 1;
        count->nbytes += nbytes ? (uint64_t)nbytes[targets[t]] : 0;
    }
}

int train_rows_read(struct train_rows *r, struct data_mixture *data, uint64_t first, int B,
                    size_t place, struct train_count *count, struct fsdp_err *err)
{
    const size_t T = seq_len(r);

    for (size_t row = 0; row < (size_t)B; row++) {
        const size_t first_sequence = (place + row) * sequences(r), at = first_sequence * T;
        const struct data_row out = {.tokens = r->tokens + first_sequence * (T + 1),
                                     .labels = r->has_labels ? r->labels + at : NULL,
                                     .starts = r->has_labels ? r->starts + at : NULL,
                                     .weights = r->weights ? r->weights + at : NULL};
        FSDP_TRY(data_mixture_row(data, first + row, &out, err));
        count_row(count, r, &out);
    }
    return FSDP_OK;
}

struct model_batch train_rows_batch(const struct train_rows *r, size_t place, int B)
{
    const size_t T = seq_len(r), at = place * sequences(r);
    return (struct model_batch){.tokens = r->tokens + at * (T + 1),
                                .labels = r->has_labels ? r->labels + at * T : NULL,
                                .starts = r->has_labels ? r->starts + at * T : NULL,
                                .B = B * (int)sequences(r),
                                .T = (int)T};
}

/* ---- a step's rows --------------------------------------------------------------------------- */

size_t train_rows_place(const struct train_rows *r, const struct train_state *state, int micro)
{
    const struct config_batch *batch = &r->parts->batch;
    return (size_t)(state->step % 2 * batch->accumulation + micro) * (size_t)batch->micro_rows;
}

/* Rows of the steps that follow begin to come, where they are far. */
static void read_ahead(const struct train_rows *r, const struct train_state *state)
{
    const struct config_batch *batch = &r->parts->batch;

    for (int step = 1; step <= STEPS_AHEAD; step++)
        for (int micro = 0; micro < batch->accumulation; micro++)
            data_mixture_ahead(r->parts->data,
                               (uint64_t)(state->rows + step * train_rows_nrows(r) +
                                          config_batch_first(batch, r->rank, micro)),
                               (uint64_t)config_batch_nrows(batch, r->rank, micro));
}

static uint64_t first_row(const struct train_rows *r, const struct train_state *state, int micro)
{
    return (uint64_t)(state->rows + config_batch_first(&r->parts->batch, r->rank, micro));
}

/* The places from `place` on have nrows rows, and padding up to B rows: the rows' labels are what
 * they were, and those of the padding count for nothing. */
static void pad_rows(struct train_rows *r, int nrows, int B, size_t place)
{
    const size_t T = seq_len(r), per = sequences(r);

    for (size_t row = place * per; row < (place + (size_t)B) * per; row++) {
        int32_t *tokens = r->tokens + row * (T + 1), *labels = r->labels + row * T;
        if (row < (place + (size_t)nrows) * per) {
            if (!r->has_labels)
                memcpy(labels, tokens + 1, T * sizeof *labels);
            continue;
        }
        memset(tokens, 0, (T + 1) * sizeof *tokens);
        for (size_t t = 0; t < T; t++)
            labels[t] = DATA_IGNORE;
        if (r->starts)
            memset(r->starts + row * T, 0, T * sizeof *r->starts);
    }
}

/* Of a step whose tokens count, or none does. A run that learns nothing must not look like one that
 * trains. */
static int tell_empty(struct train_rows *r, int64_t step, bool counts, struct fsdp_err *err)
{
    enum { MOST_EMPTY = 50 };

    r->nempty = counts ? 0 : r->nempty + 1;
    if (r->nempty == MOST_EMPTY)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "no token of the rows of %d steps in a row counts in the loss, so the "
                            "run learns nothing: a chat needs a message with the role "
                            "\"assistant\" that is not empty, a prompt a completion, and labels "
                            "one that is not -100",
                            MOST_EMPTY);
    if (!counts && r->rank == 0)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 ": no token of its rows counts; its gradients are zero", step);
    return FSDP_OK;
}

int train_rows_step(struct train_rows *r, const struct train_state *state, struct fsdp_oob *oob,
                    double *weight, struct fsdp_err *err)
{
    const struct config_batch *batch = &r->parts->batch;
    struct train_count mine = {0};

    for (int micro = 0; micro < batch->accumulation; micro++) {
        const int nrows = config_batch_nrows(batch, r->rank, micro);
        const size_t place = train_rows_place(r, state, micro);
        FSDP_TRY(train_rows_read(r, r->parts->data, first_row(r, state, micro), nrows, place, &mine,
                                 err));
        if (nrows < batch->micro_rows)
            pad_rows(r, nrows, batch->micro_rows, place);
    }
    read_ahead(r, state);
    *weight = train_rows_ntokens(r);
    r->ncounted = (uint64_t)*weight;
    if (!r->has_labels)
        return FSDP_OK;
    FSDP_TRY(oob->allgather(oob, &mine, sizeof mine, r->counts, err));
    *weight = 0;
    r->ncounted = 0;
    for (int rank = 0; rank < batch->ranks; rank++) {
        *weight += r->counts[rank].weight;
        r->ncounted += r->counts[rank].ntokens;
    }
    return tell_empty(r, state->step + 1, *weight > 0, err);
}

/* What part of the step's rows this micro-step has, on all ranks together. */
static double share_of(const struct config_batch *batch, int micro)
{
    int64_t nrows = 0;

    for (int rank = 0; rank < batch->ranks; rank++)
        nrows += config_batch_nrows(batch, rank, micro);
    return (double)nrows / (double)batch->rows;
}

struct model_batch train_rows_micro(const struct train_rows *r, const struct train_state *state,
                                    int micro, double weight)
{
    const size_t place = train_rows_place(r, state, micro);
    const size_t at = place * sequences(r) * seq_len(r);
    struct model_batch batch = train_rows_batch(r, place, r->parts->batch.micro_rows);

    batch.padding =
        batch.B - config_batch_nrows(&r->parts->batch, r->rank, micro) * (int)sequences(r);
    batch.router_weight = share_of(&r->parts->batch, micro);
    batch.router_position =
        1 / ((double)r->parts->batch.rows * (double)(sequences(r) * seq_len(r)));
    batch.router_z_loss = r->parts->config->train.router_z_loss;
    if (batch.padding)
        batch.labels = r->labels + at;
    batch.weights = r->weights ? r->weights + at : NULL;
    batch.loss_scale = weight > 0 ? 1 / weight : 0;
    batch.label_smoothing = r->parts->config->train.label_smoothing;
    batch.z_loss = r->parts->config->train.z_loss;
    batch.dropout = true;
    batch.seed = (uint64_t)r->parts->config->train.seed;
    batch.first_row = first_row(r, state, micro);
    return batch;
}
