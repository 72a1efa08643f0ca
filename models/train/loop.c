/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "peak.h"
#include "loop.h"

_Static_assert((int)DATA_IGNORE == (int)MODEL_IGNORE, "data and models mean the same");

/* Where things stand in eval_sums. */
enum { EVAL_LOSS, EVAL_NTOKENS, EVAL_IGNORED, EVAL_NSUMS };

/* The data's format is the evaluation data's too. */
static bool has_labels(const struct train_loop *l)
{
    return l->data && data_has_labels(l->data);
}

/* The device copies from it by itself. */
static int32_t *host_rows(struct train_loop *l, size_t nelem, const char *name,
                          struct fsdp_err *err)
{
    return fsdp_host_alloc(l->device, nelem * sizeof(int32_t), name, err);
}

/* Padding needs labels, too. */
static int open_labels(struct train_loop *l, size_t nlabels, struct fsdp_err *err)
{
    if (!has_labels(l) && config_batch_places(&l->batch) == l->batch.rows)
        return FSDP_OK;
    if (!(l->labels = host_rows(l, nlabels, "labels", err)))
        return FSDP_ENOMEM;
    if (!has_labels(l))
        return FSDP_OK;
    if (!(l->starts = host_rows(l, nlabels, "documents", err)) ||
        !(l->counts = fsdp_alloc((size_t)l->batch.ranks, sizeof *l->counts, "counts", err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

/* What rates are measured by. */
static int set_flops(struct train_loop *l, struct fsdp_err *err)
{
    enum fsdp_dtype dtype;
    char word[32];

    config_word(word, sizeof word, l->config, "fsdp.param_dtype");
    FSDP_TRY(fsdp_dtype_parse(&dtype, word, err));
    l->token_flops = l->ops->flops_per_token(l->model, (int)l->config->data.seq_len);
    l->peak_tflops = l->config->train.peak_tflops;
    if (!(l->peak_tflops > 0))
        l->peak_tflops = peak_tflops(fsdp_device_name(l->device), dtype);
    return FSDP_OK;
}

int train_loop_open(struct train_loop *l, struct fsdp_err *err)
{
    size_t row_ntokens = (size_t)l->config->data.seq_len + 1;
    size_t step_nrows = (size_t)l->batch.accumulation * (size_t)l->batch.micro_rows;
    int64_t late = l->config->train.late_results;

    /* On the CPU a lane runs its work at once: there is nothing to overlap. */
    l->late = late >= 0 ? late : !fsdp_device_is_host(l->device);
    FSDP_TRY(set_flops(l, err));
    FSDP_TRY(fsdp_lane_create(&l->lane, l->device, "control", err));
    for (int i = 0; i < 2; i++) {
        l->control[i] =
            fsdp_device_alloc(l->device, FSDP_CONTROL_NELEM * sizeof(double), "control word", err);
        if (!l->control[i])
            return FSDP_ENOMEM;
    }
    l->eval_sums =
        fsdp_device_alloc(l->device, EVAL_NSUMS * sizeof(double), "evaluation loss", err);
    if (!l->eval_sums)
        return FSDP_ENOMEM;
    /* Two steps' rows: the device may still read the last step's while this one's are filled. */
    l->tokens = host_rows(l, 2 * step_nrows * row_ntokens, "rows of tokens", err);
    if (!l->tokens)
        return FSDP_ENOMEM;
    return open_labels(l, 2 * step_nrows * (row_ntokens - 1), err);
}

void train_loop_close(struct train_loop *l)
{
    fsdp_free(l->counts);
    if (l->device) {
        fsdp_host_free(l->device, l->starts);
        fsdp_host_free(l->device, l->labels);
        fsdp_host_free(l->device, l->tokens);
        fsdp_device_free(l->device, l->eval_sums);
        fsdp_device_free(l->device, l->control[1]);
        fsdp_device_free(l->device, l->control[0]);
    }
    fsdp_lane_destroy(l->lane);
    l->tokens = l->labels = l->starts = NULL;
    l->counts = NULL;
    l->eval_sums = l->control[0] = l->control[1] = NULL;
    l->lane = NULL;
}

/* ---- between host and device ----------------------------------------------------------------- */

static int zero_device(struct train_loop *l, double *to, int nelem, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_zero(l->lane, to, (size_t)nelem * sizeof *to, err));
    return fsdp_lane_sync(l->lane, err);
}

static int copy_word(struct train_loop *l, double *to, const double *from, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_copy(l->lane, to, from, sizeof *to, err));
    return fsdp_lane_sync(l->lane, err);
}

static int64_t step_nrows(const struct train_loop *l)
{
    return l->config->train.global_batch_size;
}

static double step_ntokens(const struct train_loop *l)
{
    return (double)step_nrows(l) * (double)l->config->data.seq_len;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Reads B rows, from row `first` of the data on, to place `slot` of the loop's memory. Adds how
 * many of their tokens count. */
static int read_rows(struct train_loop *l, struct data *data, uint64_t first, int B, size_t slot,
                     uint64_t *ntokens, struct fsdp_err *err)
{
    const size_t T = (size_t)l->config->data.seq_len;

    for (size_t row = 0; row < (size_t)B; row++) {
        const size_t at = (slot + row) * T;
        const struct data_row out = {.tokens = l->tokens + (slot + row) * (T + 1),
                                     .labels = has_labels(l) ? l->labels + at : NULL,
                                     .starts = has_labels(l) ? l->starts + at : NULL};
        FSDP_TRY(data_row(data, first + row, &out, err));
        if (!out.labels)
            *ntokens += T;
        for (size_t t = 0; out.labels && t < T; t++)
            *ntokens += out.labels[t] != DATA_IGNORE;
    }
    return FSDP_OK;
}

/* The places from `slot` on have nrows rows, and padding up to B rows: the rows' labels are what
 * they were, and those of the padding count for nothing. */
static void pad_rows(struct train_loop *l, int nrows, int B, size_t slot)
{
    const size_t T = (size_t)l->config->data.seq_len;

    for (size_t row = slot; row < slot + (size_t)B; row++) {
        int32_t *tokens = l->tokens + row * (T + 1), *labels = l->labels + row * T;
        if (row < slot + (size_t)nrows) {
            if (!has_labels(l))
                memcpy(labels, tokens + 1, T * sizeof *labels);
            continue;
        }
        memset(tokens, 0, (T + 1) * sizeof *tokens);
        for (size_t t = 0; t < T; t++)
            labels[t] = DATA_IGNORE;
        if (l->starts)
            memset(l->starts + row * T, 0, T * sizeof *l->starts);
    }
}

/* The rows at a place as a batch. */
static struct model_batch batch_at(const struct train_loop *l, size_t slot, int B)
{
    const size_t T = (size_t)l->config->data.seq_len;
    return (struct model_batch){.tokens = l->tokens + slot * (T + 1),
                                .labels = has_labels(l) ? l->labels + slot * T : NULL,
                                .starts = has_labels(l) ? l->starts + slot * T : NULL,
                                .B = B,
                                .T = (int)T};
}

struct model_batch train_loop_batch(const struct train_loop *l, int micro)
{
    struct model_batch batch =
        batch_at(l, (size_t)(micro * l->batch.micro_rows), l->batch.micro_rows);

    batch.loss_scale = 1 / step_ntokens(l);
    batch.dropout = true;
    return batch;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* One pass of every rank. A rank without rows left computes one that is not counted, because all
 * ranks take part in every gather. */
static int eval_pass(struct train_loop *l, uint64_t first, uint64_t *ntokens, struct fsdp_err *err)
{
    uint64_t nrows = data_nrows(l->eval), room = (uint64_t)l->batch.micro_rows;
    uint64_t mine = first + (uint64_t)l->rank * room;
    uint64_t left = mine < nrows ? nrows - mine : 0;
    int B = (int)(left < room ? left : room);
    double *sum = l->eval_sums + EVAL_LOSS;
    uint64_t ignored = 0;

    if (!B) {
        B = 1;
        mine = 0;
        sum = l->eval_sums + EVAL_IGNORED;
        ntokens = &ignored;
    }
    /* The pass before may still be reading. */
    FSDP_TRY(fsdp_sync(l->fsdp, err));
    FSDP_TRY(read_rows(l, l->eval, mine, B, 0, ntokens, err));
    const struct model_batch batch = batch_at(l, 0, B);
    FSDP_TRY(fsdp_micro_begin(l->fsdp, FSDP_EVAL, 0, err));
    FSDP_TRY(l->ops->run(l->model, l->fsdp, &batch, false, sum, err));
    return fsdp_micro_end(l->fsdp, err);
}

static int evaluate(struct train_loop *l, double *loss, struct fsdp_err *err)
{
    uint64_t nrows = data_nrows(l->eval);
    uint64_t stride = (uint64_t)l->batch.ranks * (uint64_t)l->batch.micro_rows;
    uint64_t ntokens = 0;
    double sum = 0, count;

    FSDP_TRY(zero_device(l, l->eval_sums, EVAL_NSUMS, err));
    for (uint64_t first = 0; first < nrows; first += stride)
        FSDP_TRY(eval_pass(l, first, &ntokens, err));
    count = (double)ntokens;
    FSDP_TRY(copy_word(l, l->eval_sums + EVAL_NTOKENS, &count, err));
    FSDP_TRY(fsdp_control_sum(l->fsdp, l->eval_sums, EVAL_NTOKENS + 1, err));
    FSDP_TRY(copy_word(l, &sum, l->eval_sums + EVAL_LOSS, err));
    FSDP_TRY(copy_word(l, &count, l->eval_sums + EVAL_NTOKENS, err));
    *loss = count > 0 ? sum / count : 0;
    return FSDP_OK;
}

static bool eval_due(const struct train_loop *l, int64_t step)
{
    int64_t interval = l->config->train.eval_interval;
    return l->eval && (step == l->config->train.steps || (interval && step % interval == 0));
}

static bool save_due(const struct train_loop *l, int64_t step)
{
    int64_t interval = l->config->checkpoint.interval;
    return l->save && (step == l->config->train.steps || (interval && step % interval == 0));
}

/* ---- a step's result ------------------------------------------------------------------------- */

/* All ranks have the same numbers, so all decide alike; rank 0 says it. */
static int check_finite(struct train_loop *l, const struct metrics_row *row, struct fsdp_err *err)
{
    const char *what = !isfinite(row->loss) ? "loss" : "gradient norm";
    double value = !isfinite(row->loss) ? row->loss : row->grad_norm;
    value = isnan(value) ? NAN : value; /* without its sign */

    if (isfinite(value))
        return FSDP_OK;
    /* An overflow that a smaller scale fixes. */
    if (row->skipped && isfinite(row->loss) && row->loss_scale >= 1) {
        report_line(l->report,
                    "step %" PRId64 ": gradients overflowed and the step was skipped; the loss "
                    "scale is %g now",
                    row->step, row->loss_scale);
        return FSDP_OK;
    }
    if (l->config->train.on_nonfinite == CONFIG_NONFINITE_STOP) {
        fsdp_err_set(err, FSDP_EINVAL,
                     "step %" PRId64 ": the %s is %g, and train.on_nonfinite is stop; "
                     "resume with a lower optim.lr, more optim.warmup_steps, or other data",
                     row->step, what, value);
        return l->rank ? fsdp_err_of_rank(err, FSDP_EINVAL, 0) : FSDP_EINVAL;
    }
    if (l->rank == 0)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 ": the %s is %g; training continues, but the weights "
                 "are probably lost (train.on_nonfinite: stop ends the run)",
                 row->step, what, value);
    return FSDP_OK;
}

static void write_metrics(struct train_loop *l, const struct metrics_row *row)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    /* A full disk for the metrics is no reason to lose the training. */
    if (l->metrics && metrics_write(l->metrics, row, &err) != FSDP_OK) {
        fsdp_log(FSDP_LOG_WARN, "%s; no more metrics are written", err.text);
        metrics_close(l->metrics);
        l->metrics = NULL;
    }
}

/* Reads the result of the latest step, and evaluates where that is due; one line of metrics. */
static int finish_pending(struct train_loop *l, struct fsdp_err *err)
{
    struct metrics_row *row = &l->pending;
    struct fsdp_step_result result;

    if (!l->have_pending)
        return FSDP_OK;
    l->have_pending = false;
    FSDP_TRY(fsdp_step_result(l->fsdp, &result, err));
    row->loss =
        l->pending_ntokens > 0 ? result.control[TRAIN_CONTROL_LOSS] / l->pending_ntokens : 0;
    row->grad_norm = result.grad_norm;
    row->loss_scale = result.loss_scale;
    row->skipped = result.skipped;
    row->tokens_per_s = step_ntokens(l) / l->pending_seconds;
    l->stopped |= result.control[TRAIN_CONTROL_STOP] > 0;
    l->save_asked |= result.control[TRAIN_CONTROL_SAVE] > 0;
    /* Every rank's part of a background save has ended: published or failed, all hear of it now. */
    if (result.control[TRAIN_CONTROL_SAVED] > l->batch.ranks - 0.5)
        FSDP_TRY(l->save->finish(l->save_ctx, false, err));
    row->tflops = row->tokens_per_s * l->token_flops / l->batch.ranks * 1e-12;
    row->mfu = l->peak_tflops > 0 ? row->tflops / l->peak_tflops : 0;
    struct report_step shown = {.step = row->step,
                                .loss = row->loss,
                                .grad_norm = row->grad_norm,
                                .lr = row->lr,
                                .tokens_per_s = row->tokens_per_s,
                                .seconds = l->pending_seconds,
                                .tflops = row->tflops,
                                .mfu = row->mfu};
    report_progress(l->report, &shown, row->step == l->config->train.steps || l->stopped);
    FSDP_TRY(check_finite(l, row, err));
    if (eval_due(l, row->step)) {
        double began = fsdp_time_now();
        FSDP_TRY(evaluate(l, &row->eval_loss, err));
        row->has_eval = true;
        l->paused += fsdp_time_now() - began;
        report_line(l->report, "step %" PRId64 ": held-out loss %.4f", row->step, row->eval_loss);
    }
    row->flushed = l->save ? l->save->flushed(l->save_ctx) : 0;
    write_metrics(l, row);
    return FSDP_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static size_t slot_of(const struct train_loop *l, int micro)
{
    return (size_t)(l->state.step % 2 * l->batch.accumulation + micro) *
           (size_t)l->batch.micro_rows;
}

static uint64_t first_row(const struct train_loop *l, int micro)
{
    return (uint64_t)(l->state.rows + config_batch_first(&l->batch, l->rank, micro));
}

/* Reads this rank's rows of the step; how many tokens count on all ranks divides the loss, and so
 * is agreed on before the first micro-step. */
static int read_step(struct train_loop *l, double *ntokens, struct fsdp_err *err)
{
    uint64_t mine = 0, all = 0;

    for (int micro = 0; micro < l->batch.accumulation; micro++) {
        const int nrows = config_batch_nrows(&l->batch, l->rank, micro);
        const size_t slot = slot_of(l, micro);
        FSDP_TRY(read_rows(l, l->data, first_row(l, micro), nrows, slot, &mine, err));
        if (nrows < l->batch.micro_rows)
            pad_rows(l, nrows, l->batch.micro_rows, slot);
    }
    *ntokens = step_ntokens(l);
    if (!has_labels(l))
        return FSDP_OK;
    FSDP_TRY(l->oob->allgather(l->oob, &mine, sizeof mine, l->counts, err));
    for (int rank = 0; rank < l->batch.ranks; rank++)
        all += l->counts[rank];
    *ntokens = (double)all;
    if (!all && l->rank == 0)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 ": no token of its rows counts; its gradients are zero",
                 l->state.step + 1);
    return FSDP_OK;
}

static int micro_step(struct train_loop *l, int micro, double ntokens, double *loss_sum,
                      struct fsdp_err *err)
{
    const size_t slot = slot_of(l, micro);
    struct model_batch batch = batch_at(l, slot, l->batch.micro_rows);

    if (config_batch_nrows(&l->batch, l->rank, micro) < batch.B)
        batch.labels = l->labels + slot * (size_t)batch.T;
    batch.loss_scale = ntokens > 0 ? 1 / ntokens : 0;
    batch.dropout = true;
    batch.seed = (uint64_t)l->config->train.seed;
    batch.first_row = first_row(l, micro);
    FSDP_TRY(fsdp_micro_begin(l->fsdp, FSDP_TRAIN, micro, err));
    FSDP_TRY(l->ops->run(l->model, l->fsdp, &batch, true, loss_sum, err));
    return fsdp_micro_end(l->fsdp, err);
}

/* Seconds since the step before ended, without evaluation and saving. */
static double step_seconds(struct train_loop *l)
{
    double now = fsdp_time_now(), seconds = now - l->mark - l->paused;
    l->mark = now;
    l->paused = 0;
    return seconds > 1e-9 ? seconds : 1e-9;
}

/* What this rank asks for, and whether its part of a background save has ended, goes to all. */
static int ask_ranks(struct train_loop *l, double *control, struct fsdp_err *err)
{
    unsigned asks = l->asks ? l->asks(l->asks_ctx, l->pending_seconds) : 0;
    double stop = (asks & TRAIN_ASK_STOP) != 0, save = (asks & TRAIN_ASK_SAVE) != 0;
    double saved = l->save && l->save->is_done(l->save_ctx);

    FSDP_TRY(copy_word(l, control + TRAIN_CONTROL_STOP, &stop, err));
    FSDP_TRY(copy_word(l, control + TRAIN_CONTROL_SAVE, &save, err));
    return copy_word(l, control + TRAIN_CONTROL_SAVED, &saved, err);
}

static int one_step(struct train_loop *l, struct fsdp_err *err)
{
    struct train_state *s = &l->state;
    double *control = l->control[s->step % 2], ntokens;
    bool saving = l->save && l->save->is_writing(l->save_ctx);

    train_trace_next(l->trace, s->step);
    FSDP_TRY(read_step(l, &ntokens, err));
    FSDP_TRY(zero_device(l, control, FSDP_CONTROL_NELEM, err));
    for (int micro = 0; micro < l->batch.accumulation; micro++)
        FSDP_TRY(micro_step(l, micro, ntokens, control + TRAIN_CONTROL_LOSS, err));
    if (l->late)
        FSDP_TRY(finish_pending(l, err));
    FSDP_TRY(ask_ranks(l, control, err));
    struct fsdp_step_args args = {
        .step = s->step, .lr = fsdp_schedule_lr(&s->schedule, s->step), .control = control};
    FSDP_TRY(fsdp_step(l->fsdp, &args, NULL, err));

    l->pending_seconds = step_seconds(l);
    train_watch_step(l->watch, s->step + 1, l->pending_seconds);
    l->pending_ntokens = ntokens;
    s->step++;
    s->rows += step_nrows(l);
    s->tokens += (int64_t)step_ntokens(l);
    s->seconds += l->pending_seconds;
    l->have_pending = true;
    l->pending = (struct metrics_row){.step = s->step,
                                      .lr = args.lr,
                                      .tokens = s->tokens,
                                      .time = s->seconds,
                                      .has_counted = has_labels(l),
                                      .counted = (int64_t)ntokens,
                                      .saving = saving,
                                      .held = l->held};
    l->held = 0;
    /* A late stop is seen one step after it was asked for, on every rank alike. */
    if (!l->late || eval_due(l, s->step) || save_due(l, s->step))
        return finish_pending(l, err);
    return FSDP_OK;
}

static int save_now(struct train_loop *l, struct fsdp_err *err)
{
    bool last = l->stopped || l->state.step >= l->config->train.steps, saved = true;
    double began = fsdp_time_now();

    if (!l->save || l->saved_step == l->state.step)
        return FSDP_OK;
    FSDP_TRY(fsdp_sync(l->fsdp, err));
    FSDP_TRY(fsdp_scaler_get(l->fsdp, &l->state.scaler, err));
    train_watch_phase(l->watch, "saving a checkpoint");
    FSDP_TRY(l->save->save(l->save_ctx, &l->state, last, &saved, err));
    train_watch_phase(l->watch, NULL);
    if (saved)
        l->saved_step = l->state.step;
    l->save_asked = false;
    double seconds = fsdp_time_now() - began;
    l->held = l->save->is_writing(l->save_ctx) ? seconds : 0;
    l->paused += seconds;
    return FSDP_OK;
}

/* Writes the trace when its last step is over, or the run is. */
static int trace_now(struct train_loop *l, bool at_end, struct fsdp_err *err)
{
    double began = fsdp_time_now();

    if (!train_trace_due(l->trace, l->state.step, at_end))
        return FSDP_OK;
    FSDP_TRY(train_trace_write(l->trace, err));
    l->paused += fsdp_time_now() - began;
    return FSDP_OK;
}

int train_loop_run(struct train_loop *l, struct fsdp_err *err)
{
    l->mark = fsdp_time_now();
    l->paused = 0;
    train_watch_phase(l->watch, NULL);
    while (l->state.step < l->config->train.steps && !l->stopped) {
        FSDP_TRY(one_step(l, err));
        FSDP_TRY(trace_now(l, false, err));
        if (save_due(l, l->state.step) || l->save_asked)
            FSDP_TRY(save_now(l, err));
    }
    FSDP_TRY(finish_pending(l, err));
    FSDP_TRY(trace_now(l, true, err));
    FSDP_TRY(save_now(l, err));
    train_watch_phase(l->watch, "ending");
    return l->save ? l->save->finish(l->save_ctx, true, err) : FSDP_OK;
}
