/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dpo.h"

/* Pairs that tell a reference, however long the run is. */
enum { PROBE_NROWS = 8 };

static size_t pass_sequences(const struct train_dpo *d)
{
    return 2 * (size_t)d->parts->batch.micro_rows;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

/* d->logps of the sequences in B places. All ranks take part. */
static int score(struct train_dpo *d, const struct train_rows *rows, size_t place, int B,
                 struct fsdp_err *err)
{
    const struct train_parts *p = d->parts;
    const size_t count = 2 * (size_t)B;
    struct model_batch batch = train_rows_batch(rows, place, B);

    FSDP_TRY(fsdp_sync(p->fsdp, err));
    FSDP_TRY(fsdp_zero(d->lane, d->losses, (pass_sequences(d) + 1) * sizeof *d->losses, err));
    FSDP_TRY(fsdp_lane_sync(d->lane, err));
    batch.row_losses = d->losses;
    FSDP_TRY(fsdp_micro_begin(p->fsdp, FSDP_EVAL, 0, err));
    FSDP_TRY(p->ops->run(p->model, p->fsdp, &batch, false, d->losses + pass_sequences(d), err));
    FSDP_TRY(fsdp_micro_end(p->fsdp, err));
    FSDP_TRY(fsdp_sync(p->fsdp, err));
    FSDP_TRY(fsdp_copy(d->lane, d->logps, d->losses, count * sizeof *d->logps, err));
    FSDP_TRY(fsdp_lane_sync(d->lane, err));
    for (size_t i = 0; i < count; i++)
        d->logps[i] = -d->logps[i];
    return FSDP_OK;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Rows [first, first + ranks * micro_rows) of the data, each rank its part; a rank without rows
 * left computes one that is not kept. */
static int refer(struct train_dpo *d, struct train_rows *rows, struct data_mixture *data,
                 double *reference, uint64_t first, uint64_t nrows, struct fsdp_oob *oob,
                 struct fsdp_err *err)
{
    const uint64_t room = (uint64_t)d->parts->batch.micro_rows;
    const size_t nbytes = pass_sequences(d) * sizeof *d->logps;
    const uint64_t mine = first + (uint64_t)oob->rank * room;
    const uint64_t left = mine < nrows ? nrows - mine : 0;
    const int B = left < room ? (left ? (int)left : 1) : (int)room;
    struct train_count ignored = {0};

    FSDP_TRY(train_rows_read(rows, data, left ? mine : 0, B, 0, &ignored, err));
    FSDP_TRY(score(d, rows, 0, B, err));
    FSDP_TRY(oob->allgather(oob, d->logps, nbytes, d->host, err));
    for (uint64_t i = 0; i < room * (uint64_t)oob->size && first + i < nrows; i++)
        memcpy(reference + 2 * data_mixture_row_id(data, first + i), d->host + 2 * i,
               2 * sizeof *reference);
    return FSDP_OK;
}

/* Rows 0 to nrows - 1 of the data, which are of one pass. */
static int refer_all(struct train_dpo *d, struct data_mixture *data, double **reference,
                     uint64_t nrows, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const uint64_t stride = (uint64_t)oob->size * (uint64_t)d->parts->batch.micro_rows;
    struct train_rows rows = {0};

    *reference =
        fsdp_alloc(2 * (size_t)data_mixture_nrows(data), sizeof **reference, "reference", err);
    int rc = *reference ? train_rows_open(&rows, d->parts, oob->rank, err) : FSDP_ENOMEM;
    rc = fsdp_oob_agree(oob, rc, err);
    for (uint64_t first = 0; rc == FSDP_OK && first < nrows; first += stride)
        rc = refer(d, &rows, data, *reference, first, nrows, oob, err);
    train_rows_close(&rows);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_local(struct train_dpo *d, int nranks, struct fsdp_err *err)
{
    const size_t count = pass_sequences(d);

    FSDP_TRY(fsdp_lane_create(&d->lane, d->parts->device, "pairs", err));
    d->losses = fsdp_device_alloc(d->parts->device, (count + 1) * sizeof *d->losses, "pairs", err);
    d->logps = fsdp_alloc(count, sizeof *d->logps, "pairs", err);
    d->host = fsdp_alloc(count * (size_t)nranks, sizeof *d->host, "pairs", err);
    return d->losses && d->logps && d->host ? FSDP_OK : FSDP_ENOMEM;
}

int train_dpo_open(struct train_dpo *d, const struct train_parts *parts, uint64_t end,
                   struct fsdp_oob *oob, struct fsdp_err *err)
{
    const struct config *c = parts->config;

    if (c->train.objective != CONFIG_DPO || !parts->data)
        return FSDP_OK;
    d->parts = parts;
    FSDP_TRY(fsdp_oob_agree(oob, open_local(d, oob->size, err), err));
    const uint64_t nrows = data_mixture_nrows(parts->data);
    const uint64_t nprobes = nrows < PROBE_NROWS ? nrows : PROBE_NROWS;
    const uint64_t wanted = end > nprobes ? end : nprobes;
    FSDP_TRY(refer_all(d, parts->data, &d->reference, wanted < nrows ? wanted : nrows, oob, err));
    for (uint64_t row = 0; row < nprobes; row++)
        d->probe += d->reference[2 * data_mixture_row_id(parts->data, row)];
    return parts->eval ? refer_all(d, parts->eval, &d->eval_reference,
                                   data_mixture_nrows(parts->eval), oob, err)
                       : FSDP_OK;
}

void train_dpo_close(struct train_dpo *d)
{
    if (d->parts)
        fsdp_device_free(d->parts->device, d->losses);
    fsdp_lane_destroy(d->lane);
    fsdp_free(d->eval_reference);
    fsdp_free(d->reference);
    fsdp_free(d->host);
    fsdp_free(d->logps);
    *d = (struct train_dpo){0};
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* log sigmoid(x), also where exp(-x) is too large. */
static double log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* Adds a pair's part to *sums. Returns the weight of the chosen answer's losses; the rejected one's
 * is the negative of it. */
static double add_pair(const struct train_dpo *d, const double logps[2], const double reference[2],
                       struct train_dpo_sums *sums)
{
    const double beta = d->parts->config->train.dpo_beta;
    const double eps = d->parts->config->train.dpo_label_smoothing;
    const double chosen = beta * (logps[0] - reference[0]);
    const double rejected = beta * (logps[1] - reference[1]), x = chosen - rejected;

    sums->loss -= (1 - eps) * log_sigmoid(x) + eps * log_sigmoid(-x);
    sums->chosen += chosen;
    sums->rejected += rejected;
    sums->correct += x > 0;
    sums->npairs++;
    return beta * ((1 - eps) * exp(log_sigmoid(-x)) - eps * exp(log_sigmoid(x)));
}

static void set_weights(float *weights, size_t T, double weight)
{
    for (size_t t = 0; t < T; t++) {
        weights[t] = (float)weight;
        weights[T + t] = -(float)weight;
    }
}

int train_dpo_weigh(struct train_dpo *d, struct train_rows *rows, const struct train_state *state,
                    struct train_dpo_sums *sums, struct fsdp_err *err)
{
    const struct train_parts *p = d->parts;
    const size_t T = (size_t)p->config->data.seq_len;

    *sums = (struct train_dpo_sums){0};
    for (int micro = 0; micro < p->batch.accumulation; micro++) {
        const size_t place = train_rows_place(rows, state, micro);
        const int nrows = config_batch_nrows(&p->batch, rows->rank, micro);
        const int64_t first = state->rows + config_batch_first(&p->batch, rows->rank, micro);
        FSDP_TRY(score(d, rows, place, p->batch.micro_rows, err));
        for (int row = 0; row < p->batch.micro_rows; row++) {
            const uint64_t id = data_mixture_row_id(p->data, (uint64_t)(first + row));
            const double weight =
                row < nrows ? add_pair(d, d->logps + 2 * row, d->reference + 2 * id, sums) : 0;
            set_weights(rows->weights + (place + (size_t)row) * 2 * T, T, weight);
        }
    }
    return FSDP_OK;
}

int train_dpo_evaluate(struct train_dpo *d, const struct train_rows *rows, uint64_t first, int B,
                       struct train_dpo_sums *sums, struct fsdp_err *err)
{
    FSDP_TRY(score(d, rows, 0, B, err));
    for (int row = 0; row < B; row++) {
        const uint64_t id = data_mixture_row_id(d->parts->eval, first + (uint64_t)row);
        add_pair(d, d->logps + 2 * row, d->eval_reference + 2 * id, sums);
    }
    return FSDP_OK;
}
