/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "plan/gpus.h"
#include "loop.h"
#include "measure.h"

_Static_assert((int)METRICS_MAX_SOURCES >= (int)CONFIG_MAX_SOURCES, "each source has its count");

static int set_rates(struct train_rates *rates, const struct train_parts *p, struct fsdp_err *err)
{
    struct fsdp_device_look look;
    enum fsdp_dtype dtype;
    char word[32];

    config_word(word, sizeof word, p->config, "fsdp.param_dtype");
    FSDP_TRY(fsdp_dtype_parse(&dtype, word, err));
    FSDP_TRY(fsdp_device_look(p->device, &look, err));
    rates->token_flops = p->ops->flops_per_token(p->model, (int)p->config->data.seq_len);
    rates->peak_tflops = p->config->train.peak_tflops;
    if (!(rates->peak_tflops > 0))
        rates->peak_tflops = gpu_tflops(gpu_find(look.model), dtype);
    return FSDP_OK;
}

int train_loop_open(struct train_loop *l, struct fsdp_err *err)
{
    const struct train_parts *p = l->parts;
    const int64_t late = p->config->train.late_results;

    /* On the CPU a lane runs its work at once: there is nothing to overlap. */
    l->late = late >= 0 ? late : !fsdp_device_is_host(p->device);
    FSDP_TRY(set_rates(&l->rates, p, err));
    FSDP_TRY(train_words_open(&l->words, p->device, err));
    FSDP_TRY(train_norms_open(&l->norms, p, err));
    FSDP_TRY(train_noise_open(&l->noise, p, err));
    FSDP_TRY(train_experts_open(&l->experts, p, err));
    return train_rows_open(&l->rows, p, l->oob->rank, err);
}

void train_loop_close(struct train_loop *l)
{
    train_rows_close(&l->rows);
    train_experts_close(&l->experts);
    train_dpo_close(&l->dpo);
    train_noise_close(&l->noise);
    train_norms_close(&l->norms);
    train_words_close(&l->words);
}

/* ---- what is due ----------------------------------------------------------------------------- */

static bool eval_due(const struct train_loop *l, int64_t step)
{
    int64_t interval = l->parts->config->train.eval_interval;
    return l->parts->eval &&
           (step == l->parts->config->train.steps || (interval && step % interval == 0));
}

static double exposed_comm(const struct train_loop *l)
{
    return train_exposed_comm(l->parts->fsdp);
}

static int evaluate(struct train_loop *l, struct metrics_row *row, struct fsdp_err *err)
{
    const double began = fsdp_time_now(), comm = exposed_comm(l);
    struct train_held_out held_out;
    char per_byte[64] = "";

    sinks_phase(l->sinks.rows, SINK_EVALUATES);
    FSDP_TRY(train_evaluate(l->parts, &l->rows, &l->words, &l->dpo, &held_out, err));
    sinks_phase(l->sinks.rows, SINK_STEPS);
    held_out.loss = isnan(held_out.loss) ? NAN : held_out.loss; /* without its sign */
    row->has_eval = true;
    row->eval_loss = held_out.loss;
    row->eval_perplexity = l->dpo.parts ? 0 : exp(held_out.loss);
    row->eval_nats_per_byte = held_out.nats_per_byte;
    row->eval_bits_per_byte = held_out.nats_per_byte / M_LN2;
    if (!isfinite(held_out.loss) && l->oob->rank == 0)
        fsdp_log(FSDP_LOG_WARN, "step %" PRId64 ": the held-out loss is %g%s", row->step,
                 held_out.loss,
                 l->parts->config->checkpoint.keep_best || l->parts->config->train.early_stop
                     ? ": it is not the best one, and counts for train.early_stop"
                     : "");
    const bool best = train_best_take(&l->state.best, l->parts->config, row->step, held_out.loss);
    l->best_due = best && l->parts->config->checkpoint.keep_best && l->hooks.save;
    l->settled = train_best_ends(&l->state.best, l->parts->config);
    l->clock.evaluated += fsdp_time_now() - began;
    l->clock.exposed_comm += exposed_comm(l) - comm;
    if (held_out.nats_per_byte > 0)
        snprintf(per_byte, sizeof per_byte, "; per byte %.4f nats, %.4f bits",
                 row->eval_nats_per_byte, row->eval_bits_per_byte);
    if (!held_out.counts && l->oob->rank == 0)
        fsdp_log(FSDP_LOG_WARN, "no token of the held-out rows counts; their loss is 0");
    report_line(l->sinks.report, "step %" PRId64 ": held-out loss %.4f%s", row->step,
                row->eval_loss, per_byte);
    return FSDP_OK;
}

static bool save_due(const struct train_loop *l, int64_t step)
{
    int64_t interval = l->parts->config->checkpoint.interval;
    return l->hooks.save &&
           (step == l->parts->config->train.steps || (interval && step % interval == 0));
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
        report_line(l->sinks.report,
                    "step %" PRId64 ": gradients overflowed and the step was skipped; the loss "
                    "scale is %g now",
                    row->step, row->loss_scale);
        return FSDP_OK;
    }
    if (l->parts->config->train.on_nonfinite == CONFIG_NONFINITE_STOP) {
        fsdp_err_set(err, FSDP_EINVAL,
                     "step %" PRId64 ": the %s is %g, and train.on_nonfinite is stop; "
                     "resume with a lower optim.lr, more optim.warmup_steps, or other data",
                     row->step, what, value);
        return l->oob->rank ? fsdp_err_of_rank(err, FSDP_EINVAL, 0) : FSDP_EINVAL;
    }
    if (l->oob->rank == 0)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 ": the %s is %g; training continues, but the weights "
                 "are probably lost (train.on_nonfinite: stop ends the run)",
                 row->step, what, value);
    return FSDP_OK;
}

static void write_metrics(struct train_loop *l, struct metrics_row *row)
{
    const struct data_mixture *data = l->parts->data;
    uint64_t counts[METRICS_MAX_SOURCES];

    if (l->sinks.rows && data && data_mixture_nsources(data) > 1) {
        data_mixture_counts(data, (uint64_t)l->pending.rows, counts);
        row->nsources = data_mixture_nsources(data);
        row->source_rows = counts;
    }
    sinks_row(l->sinks.rows, row);
    row->source_rows = NULL;
    row->nsources = 0;
}

/* Is the loss the cross-entropy, and nothing besides? */
static bool is_plain(const struct train_loop *l)
{
    const struct config *c = l->parts->config;
    return !(c->train.label_smoothing > 0) && !(c->train.z_loss > 0) && !l->rows.weights;
}

/* Means of the step's pairs. */
static void take_rewards(const struct train_loop *l, const double *control, struct metrics_row *row)
{
    row->has_rewards = l->dpo.parts;
    if (!row->has_rewards)
        return;
    row->reward_chosen = control[TRAIN_CONTROL_CHOSEN] / l->pending.weight;
    row->reward_rejected = control[TRAIN_CONTROL_REJECTED] / l->pending.weight;
    row->reward_margin = row->reward_chosen - row->reward_rejected;
    row->reward_accuracy = control[TRAIN_CONTROL_CORRECT] / l->pending.weight;
}

/* Reads the result of the latest step, and evaluates where that is due; one line of metrics. */
static int finish_pending(struct train_loop *l, struct fsdp_err *err)
{
    struct metrics_row *row = &l->pending.row;
    struct fsdp_step_result result;

    if (!l->pending.waits)
        return FSDP_OK;
    l->pending.waits = false;
    FSDP_TRY(fsdp_step_result(l->parts->fsdp, &result, err));
    row->loss = l->pending.weight > 0 ? result.control[TRAIN_CONTROL_LOSS] / l->pending.weight : 0;
    if (is_plain(l))
        row->perplexity = exp(row->loss);
    take_rewards(l, result.control, row);
    if (train_norms_due(&l->norms, row->step))
        FSDP_TRY(train_norms_take(&l->norms, row, err));
    FSDP_TRY(train_experts_take(&l->experts, row->step - 1, row, err));
    row->grad_norm = result.grad_norm;
    row->loss_scale = result.loss_scale;
    row->skipped = result.skipped;
    if (train_noise_due(&l->noise, row->step))
        FSDP_TRY(train_noise_take(&l->noise, row, err));
    row->tokens_per_s = train_rows_ntokens(&l->rows) / l->pending.seconds;
    l->stopped |= result.control[TRAIN_CONTROL_STOP] > 0;
    l->save_asked |= result.control[TRAIN_CONTROL_SAVE] > 0;
    /* Every rank's part of a background save has ended: published or failed, all hear of it now. */
    if (result.control[TRAIN_CONTROL_SAVED] > l->parts->batch.ranks - 0.5)
        FSDP_TRY(l->hooks.save->finish(l->hooks.save_ctx, false, err));
    row->tflops = row->tokens_per_s * l->rates.token_flops / l->parts->batch.ranks * 1e-12;
    row->mfu = l->rates.peak_tflops > 0 ? row->tflops / l->rates.peak_tflops : 0;
    struct report_step shown = {.step = row->step,
                                .loss = row->loss,
                                .grad_norm = row->grad_norm,
                                .lr = row->lr,
                                .tokens_per_s = row->tokens_per_s,
                                .seconds = l->pending.seconds,
                                .tflops = row->tflops,
                                .mfu = row->mfu};
    report_progress(l->sinks.report, &shown,
                    row->step == l->parts->config->train.steps || l->stopped);
    FSDP_TRY(check_finite(l, row, err));
    if (eval_due(l, row->step))
        FSDP_TRY(evaluate(l, row, err));
    row->flushed = l->hooks.save ? l->hooks.save->flushed(l->hooks.save_ctx) : 0;
    write_metrics(l, row);
    return FSDP_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Where the sums of a step are: of the loss, and of the experts' load. */
struct step_sums {
    double *loss, *router;
};

static int micro_step(struct train_loop *l, int micro, double weight, struct step_sums sums,
                      struct fsdp_err *err)
{
    const struct train_parts *p = l->parts;
    struct model_batch batch = train_rows_micro(&l->rows, &l->state, micro, weight);

    batch.router_sums = sums.router;
    FSDP_TRY(fsdp_micro_begin(p->fsdp, FSDP_TRAIN, micro, err));
    FSDP_TRY(p->ops->run(p->model, p->fsdp, &batch, true, sums.loss, err));
    return fsdp_micro_end(p->fsdp, err);
}

/* A step ends here. Says where the time since the step before has gone. */
static void take_time(struct train_loop *l, struct metrics_row *row)
{
    struct train_clock *c = &l->clock;
    const double now = fsdp_time_now(), comm = exposed_comm(l);
    const double seconds = now - c->mark - c->saved - c->evaluated - c->idle;

    row->step_s = seconds > 1e-9 ? seconds : 1e-9;
    row->save_s = c->saved;
    row->eval_s = c->evaluated;
    /* Of the run's start, too. */
    row->idle_s = c->idle + (l->began > 0 ? c->mark - l->began : 0);
    row->held = c->held;
    row->exposed_comm_s = comm - c->exposed_comm;
    row->wall = now + c->epoch;
    l->began = 0;
    *c = (struct train_clock){.mark = now, .epoch = c->epoch, .exposed_comm = comm};
}

/* What only who writes rows needs to know. */
static void look_around(struct train_loop *l, struct metrics_row *row)
{
    if (!l->sinks.rows)
        return;
    row->memory_bytes = train_memory_used(l->parts->device);
    row->slowest_rank = train_watch_slowest(l->sinks.watch, &row->slowest_s);
}

/* What this rank asks for, and whether its part of a background save has ended, goes to all. */
static int ask_ranks(struct train_loop *l, double *control, struct fsdp_err *err)
{
    unsigned asks = l->hooks.asks ? l->hooks.asks(l->hooks.asks_ctx, l->pending.seconds) : 0;
    double stop = (asks & TRAIN_ASK_STOP) != 0, save = (asks & TRAIN_ASK_SAVE) != 0;
    double saved = l->hooks.save && l->hooks.save->is_done(l->hooks.save_ctx);

    FSDP_TRY(train_words_copy(&l->words, control + TRAIN_CONTROL_STOP, &stop, err));
    FSDP_TRY(train_words_copy(&l->words, control + TRAIN_CONTROL_SAVE, &save, err));
    return train_words_copy(&l->words, control + TRAIN_CONTROL_SAVED, &saved, err);
}

/* Where the micro-steps' sums of losses go: with pairs, nowhere. */
static double *loss_sum_of(const struct train_loop *l, double *control)
{
    return l->dpo.parts ? l->dpo.losses + 2 * l->parts->batch.micro_rows
                        : control + TRAIN_CONTROL_LOSS;
}

/* The losses of a step's pairs, and what they weigh in its gradient. */
static int weigh_pairs(struct train_loop *l, double *control, double *weight, struct fsdp_err *err)
{
    struct train_dpo_sums sums;

    if (!l->dpo.parts)
        return FSDP_OK;
    FSDP_TRY(finish_pending(l, err));
    FSDP_TRY(train_dpo_weigh(&l->dpo, &l->rows, &l->state, &sums, err));
    *weight = (double)l->parts->batch.rows;
    FSDP_TRY(train_words_copy(&l->words, control + TRAIN_CONTROL_LOSS, &sums.loss, err));
    FSDP_TRY(train_words_copy(&l->words, control + TRAIN_CONTROL_CHOSEN, &sums.chosen, err));
    FSDP_TRY(train_words_copy(&l->words, control + TRAIN_CONTROL_REJECTED, &sums.rejected, err));
    return train_words_copy(&l->words, control + TRAIN_CONTROL_CORRECT, &sums.correct, err);
}

static int one_step(struct train_loop *l, struct fsdp_err *err)
{
    struct train_state *s = &l->state;
    double *control = l->words.control[s->step % 2], weight;
    bool saving = l->hooks.save && l->hooks.save->is_writing(l->hooks.save_ctx);
    struct metrics_row row = {0};

    train_trace_next(l->sinks.trace, s->step);
    row.data_s = fsdp_time_now();
    FSDP_TRY(train_rows_step(&l->rows, s, l->oob, &weight, err));
    row.data_s = fsdp_time_now() - row.data_s;
    FSDP_TRY(train_words_zero(&l->words, control, FSDP_CONTROL_NELEM, err));
    FSDP_TRY(weigh_pairs(l, control, &weight, err));
    if (train_noise_due(&l->noise, s->step + 1)) {
        FSDP_TRY(finish_pending(l, err)); /* hooks are set between steps */
        FSDP_TRY(train_noise_begin(&l->noise, err));
    }
    struct fsdp_step_args args = {
        .step = s->step, .lr = fsdp_schedule_lr(&s->schedule, s->step), .control = control};
    FSDP_TRY(fsdp_step_begin(l->parts->fsdp, &args, err));
    struct step_sums sums = {.loss = loss_sum_of(l, control)};
    FSDP_TRY(train_experts_begin(&l->experts, s->step, &sums.router, err));
    for (int micro = 0; micro < l->parts->batch.accumulation; micro++)
        FSDP_TRY(micro_step(l, micro, weight, sums, err));
    if (l->late)
        FSDP_TRY(finish_pending(l, err));
    FSDP_TRY(ask_ranks(l, control, err));
    if (train_norms_due(&l->norms, s->step + 1))
        FSDP_TRY(train_norms_begin(&l->norms, err));
    FSDP_TRY(fsdp_step(l->parts->fsdp, &args, NULL, err));

    take_time(l, &row);
    look_around(l, &row);
    train_watch_step(l->sinks.watch, s->step + 1, row.step_s);
    s->step++;
    s->rows += train_rows_nrows(&l->rows);
    s->tokens += (int64_t)train_rows_ntokens(&l->rows);
    s->seconds += row.step_s;
    row.step = s->step;
    row.lr = args.lr;
    row.tokens = s->tokens;
    row.examples = s->rows;
    row.time = s->seconds;
    row.has_counted = l->rows.has_labels;
    row.counted = (int64_t)l->rows.ncounted;
    row.saving = saving;
    l->pending = (struct train_pending){
        .waits = true, .row = row, .rows = s->rows, .seconds = row.step_s, .weight = weight};
    /* A late stop is seen one step after it was asked for, on every rank alike. */
    if (!l->late || eval_due(l, s->step) || save_due(l, s->step) ||
        train_norms_due(&l->norms, s->step) || train_noise_due(&l->noise, s->step))
        return finish_pending(l, err);
    return FSDP_OK;
}

static int save_now(struct train_loop *l, struct fsdp_err *err)
{
    const bool last = train_loop_ended(l);
    bool saved = true;
    double began = fsdp_time_now();

    if (!l->hooks.save || l->saved_step == l->state.step)
        return FSDP_OK;
    FSDP_TRY(fsdp_sync(l->parts->fsdp, err));
    FSDP_TRY(fsdp_scaler_get(l->parts->fsdp, &l->state.scaler, err));
    FSDP_TRY(fsdp_clip_factor_get(l->parts->fsdp, &l->state.clip_factor, err));
    fsdp_averaging_get(l->parts->fsdp, &l->state.averaging);
    train_watch_phase(l->sinks.watch, "saving a checkpoint");
    sinks_phase(l->sinks.rows, SINK_SAVES);
    FSDP_TRY(l->hooks.save->save(l->hooks.save_ctx, &l->state, last, &saved, err));
    train_watch_phase(l->sinks.watch, NULL);
    sinks_phase(l->sinks.rows, SINK_STEPS);
    if (saved)
        l->saved_step = l->state.step;
    l->save_asked = l->best_due = false;
    double seconds = fsdp_time_now() - began;
    l->clock.held = l->hooks.save->is_writing(l->hooks.save_ctx) ? seconds : 0;
    l->clock.saved += seconds;
    return FSDP_OK;
}

/* Writes the trace when its last step is over, or the run is. */
static int trace_now(struct train_loop *l, bool at_end, struct fsdp_err *err)
{
    double began = fsdp_time_now();

    if (!train_trace_due(l->sinks.trace, l->state.step, at_end))
        return FSDP_OK;
    FSDP_TRY(train_trace_write(l->sinks.trace, err));
    l->clock.idle += fsdp_time_now() - began;
    return FSDP_OK;
}

bool train_loop_ended(const struct train_loop *l)
{
    return l->stopped || l->settled || l->state.step >= l->parts->config->train.steps;
}

int train_loop_run(struct train_loop *l, struct fsdp_err *err)
{
    l->clock = (struct train_clock){.mark = fsdp_time_now(), .exposed_comm = exposed_comm(l)};
    l->clock.epoch = train_wall_now() - l->clock.mark;
    train_watch_phase(l->sinks.watch, NULL);
    l->settled = train_best_ends(&l->state.best, l->parts->config);
    while (!train_loop_ended(l)) {
        FSDP_TRY(one_step(l, err));
        FSDP_TRY(trace_now(l, false, err));
        if (save_due(l, l->state.step) || l->save_asked || l->best_due)
            FSDP_TRY(save_now(l, err));
    }
    FSDP_TRY(finish_pending(l, err));
    FSDP_TRY(trace_now(l, true, err));
    FSDP_TRY(save_now(l, err));
    train_watch_phase(l->sinks.watch, "ending");
    if (!l->hooks.save)
        return FSDP_OK;
    sinks_phase(l->sinks.rows, SINK_SAVES);
    return l->hooks.save->finish(l->hooks.save_ctx, true, err);
}
