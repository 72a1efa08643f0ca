/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "metrics_table.h"

#define ROW(key, tag, prom, unit, counter, type, when, field, help)                                \
    {                                                                                              \
        key, tag, "fsdp_" prom, unit, counter, METRIC_##type, METRIC_##when,                       \
            offsetof(struct metrics_row, field), help                                              \
    }
#define OF_RUN(prom, unit, type, help)                                                             \
    {                                                                                              \
        NULL, NULL, "fsdp_" prom, unit, false, METRIC_##type, METRIC_OF_RUN, 0, help               \
    }
enum { GAUGE = false, COUNTER = true };

/* clang-format off */
const struct metric metrics_table[] = {
    ROW("step", NULL, "step", "steps", GAUGE, INT64, ALWAYS, step,
        "Optimizer steps done, this one included"),
    ROW("loss", "train/loss", "loss", "nats", GAUGE, DOUBLE, ALWAYS, loss,
        "Mean loss of the step's tokens that count, over all ranks, before the update; with "
        "train.label_smoothing and train.z_loss"),
    ROW("grad_norm", "train/grad_norm", "grad_norm", "", GAUGE, DOUBLE, ALWAYS, grad_norm,
        "Norm of all gradients, before clipping"),
    ROW("perplexity", "train/perplexity", "perplexity", "", GAUGE, DOUBLE, NONZERO, perplexity,
        "exp(loss), where loss is the cross-entropy alone"),
    ROW("reward_chosen", "rewards/chosen", "reward_chosen", "", GAUGE, DOUBLE, REWARDS,
        reward_chosen, "DPO: mean of beta times what the model's log-probability of the chosen answer is "
        "above the reference's"),
    ROW("reward_rejected", "rewards/rejected", "reward_rejected", "", GAUGE, DOUBLE, REWARDS,
        reward_rejected, "The same of the rejected answer"),
    ROW("reward_margin", "rewards/margins", "reward_margin", "", GAUGE, DOUBLE, REWARDS,
        reward_margin, "reward_chosen less reward_rejected"),
    ROW("reward_accuracy", "rewards/accuracies", "reward_accuracy_ratio", "0 to 1", GAUGE, DOUBLE,
        REWARDS, reward_accuracy, "Pairs whose chosen answer has the higher reward"),
    ROW("noise_scale", "train/noise_scale", "noise_scale", "rows", GAUGE, DOUBLE, NONZERO,
        noise_scale, "Gradient noise scale, as a mean over its latest estimates (log.noise_scale)"),
    ROW("lr", "train/lr", "learning_rate", "", GAUGE, DOUBLE, ALWAYS, lr,
        "Learning rate of the step"),
    ROW("tokens", "data/tokens", "tokens_total", "tokens", COUNTER, INT64, ALWAYS, tokens,
        "Tokens seen since the run's first step"),
    ROW("examples", "data/examples", "examples_total", "rows", COUNTER, INT64, NONZERO, examples,
        "Rows of data.seq_len tokens seen since the run's first step"),
    ROW("counted_tokens", "data/counted_tokens", "counted_tokens", "tokens", GAUGE, INT64, COUNTED,
        counted, "Tokens of this step whose prediction counts, where labels leave some out"),
    ROW("tokens_per_s", "speed/tokens_per_s", "tokens_per_second", "tokens/s", GAUGE, DOUBLE,
        ALWAYS, tokens_per_s, "Tokens of the step over its seconds, all ranks together"),
    ROW("tflops", "speed/tflops", "tflops", "TFLOP/s", GAUGE, DOUBLE, ALWAYS, tflops,
        "A rank's model FLOPs over the step's seconds: products of matrices and attention, forward "
        "and backward, without recomputation"),
    ROW("mfu", "speed/mfu", "mfu_ratio", "0 to 1", GAUGE, DOUBLE, NONZERO, mfu,
        "tflops over the peak of the device: of a known GPU, or train.peak_tflops"),
    ROW("step_s", "time/step_s", "step_seconds", "s", GAUGE, DOUBLE, NONZERO, step_s,
        "Duration of the step, without saving and evaluating"),
    ROW("data_s", "time/data_s", "data_seconds", "s", GAUGE, DOUBLE, NONZERO, data_s,
        "Part of step_s in which rank 0 waited for its rows"),
    ROW("exposed_comm_s", "time/exposed_comm_s", "exposed_comm_seconds", "s", GAUGE,
        DOUBLE, NONZERO, exposed_comm_s,
        "Part of step_s in which rank 0 computed nothing because it communicated or waited for "
        "another rank in a collective; on a GPU of a step that ended up to two steps before"),
    ROW("save_s", "time/save_s", "save_seconds", "s", GAUGE, DOUBLE, NONZERO, save_s,
        "Time since the step before in which a save held the training"),
    ROW("eval_s", "time/eval_s", "evaluation_seconds", "s", GAUGE, DOUBLE, NONZERO, eval_s,
        "Time since the step before that an evaluation took"),
    ROW("idle_s", "time/idle_s", "idle_seconds", "s", GAUGE, DOUBLE, NONZERO, idle_s,
        "Time since the step before that is none of step_s, save_s and eval_s: the start of the run, "
        "writing a trace"),
    ROW("time", "time/training_s", "training_seconds_total", "s", COUNTER, DOUBLE, ALWAYS, time,
        "Sum of step_s since the run's first step, over all of its starts"),
    ROW("wall", NULL, "step_timestamp_seconds", "Unix time", GAUGE, SECONDS_1970, NONZERO,
        wall, "When the step ended"),
    ROW("attempt", NULL, "attempt", "", GAUGE, INT, NONZERO, attempt,
        "Number of this start of the run: 1, and one more for each resume"),
    ROW("ranks", "train/ranks", "ranks", "ranks", GAUGE, INT, NONZERO, ranks,
        "Ranks that train"),
    ROW("memory_bytes", "memory/bytes", "memory_bytes", "bytes", GAUGE, DOUBLE, NONZERO,
        memory_bytes,
        "Memory taken of rank 0's device: of its GPU, or on CPUs what its process has resident"),
    ROW("slowest_rank", "speed/slowest_rank", "slowest_rank", "rank", GAUGE, INT, SLOWEST,
        slowest_rank,
        "Rank that was longest outside of collectives in the latest 2 s; the others wait for it"),
    ROW("slowest_s", "speed/slowest_s", "slowest_rank_seconds", "s", GAUGE, DOUBLE, SLOWEST,
        slowest_s, "What it took of a step, as a mean over these 2 s"),
    ROW("loss_scale", "train/loss_scale", "loss_scale", "", GAUGE, DOUBLE, NONZERO, loss_scale,
        "Scale of the loss in the next step, where it is scaled (float16)"),
    ROW("skipped", "train/skipped", "step_skipped", "true", GAUGE, BOOL, NONZERO, skipped,
        "The gradients overflowed: nothing was updated"),
    ROW("saving", "time/saving", "saving", "true", GAUGE, BOOL, NONZERO, saving,
        "A checkpoint was being written in the background"),
    ROW("save_held_s", "time/save_held_s", "save_held_seconds", "s", GAUGE, DOUBLE, NONZERO, held,
        "Part of save_s in which a save that continues in the background held the training"),
    ROW("flush_s", "time/flush_s", "flush_seconds", "s", GAUGE, DOUBLE, NONZERO, flushed,
        "Duration of a copy from staging to the store that has ended at this step"),
    ROW("router_loss", "experts/router_loss", "router_loss", "", GAUGE, DOUBLE, EXPERTS,
        router_loss,
        "Load-balance loss of all layers of a mixture of experts, without router_aux_loss_coef: "
        "num_experts_per_tok where the load is even"),
    ROW("router_z_loss", "experts/z_loss", "router_z_loss", "", GAUGE, DOUBLE, EXPERTS,
        router_z_loss,
        "Mean square of log sum exp of the router's logits, of all tokens and layers, without "
        "train.router_z_loss"),
    ROW("expert_load_max", "experts/load_max", "expert_load_max_ratio", "", GAUGE, DOUBLE, EXPERTS,
        expert_load_max,
        "How often the expert of a layer that is chosen most was chosen in the step, over the mean: "
        "the greatest of all layers"),
    ROW("expert_load_min", "experts/load_min", "expert_load_min_ratio", "", GAUGE, DOUBLE, EXPERTS,
        expert_load_min, "The same of the expert that is chosen least: the least of all layers"),
    ROW("rows_by_source", "data/rows_by_source", "rows_by_source_total", "rows", COUNTER, SOURCES,
        NONZERO, source_rows, "Rows taken so far of each of data.sources, in their order"),
    ROW("eval_loss", "eval/loss", "eval_loss", "nats", GAUGE, DOUBLE, EVAL, eval_loss,
        "Mean cross-entropy of the held-out tokens, after the update"),
    ROW("eval_nats_per_byte", "eval/nats_per_byte", "eval_nats_per_byte", "nats", GAUGE, DOUBLE,
        EVAL_NONZERO, eval_nats_per_byte,
        "The same per byte of their text, where the tokenizer is known"),
    ROW("eval_bits_per_byte", "eval/bits_per_byte", "eval_bpb", "bits", GAUGE, DOUBLE,
        EVAL_NONZERO, eval_bits_per_byte, "eval_nats_per_byte in bits"),
    ROW("eval_perplexity", "eval/perplexity", "eval_perplexity", "", GAUGE, DOUBLE,
        EVAL_NONZERO, eval_perplexity, "exp(eval_loss), where that is a cross-entropy"),
    OF_RUN("saved_step", "steps", SAVED_STEP, "Step of the newest checkpoint of this start"),
    OF_RUN("saved_seconds", "s", SAVED_SECONDS, "How long it took, from its begin until it was there"),
    OF_RUN("saved_timestamp_seconds", "Unix time", SAVED_WALL, "When it was there"),
    OF_RUN("running", "", RUNNING, "1 while the run trains; 0 after it has ended"),
};
/* clang-format on */
const int metrics_ntable = sizeof metrics_table / sizeof metrics_table[0];

static double field_of(const struct metric *m, const struct metrics_row *row, int i)
{
    const char *at = (const char *)row + m->offset;

    switch (m->type) {
    case METRIC_INT:
        return *(const int *)(const void *)at;
    case METRIC_INT64:
        return (double)*(const int64_t *)(const void *)at;
    case METRIC_DOUBLE:
    case METRIC_SECONDS_1970:
        return *(const double *)(const void *)at;
    case METRIC_BOOL:
        return *(const bool *)(const void *)at;
    case METRIC_SOURCES:
        return i < row->nsources ? (double)row->source_rows[i] : 0;
    default:
        return 0;
    }
}

int metric_nvalues(const struct metric *m, const struct metrics_row *row)
{
    if (m->type == METRIC_SOURCES)
        return row->nsources < METRICS_MAX_SOURCES ? row->nsources : METRICS_MAX_SOURCES;
    switch (m->when) {
    case METRIC_ALWAYS:
        return 1;
    case METRIC_NONZERO:
        return field_of(m, row, 0) > 0;
    case METRIC_REWARDS:
        return row->has_rewards;
    case METRIC_COUNTED:
        return row->has_counted;
    case METRIC_EVAL:
        return row->has_eval;
    case METRIC_EVAL_NONZERO:
        return row->has_eval && field_of(m, row, 0) > 0;
    case METRIC_EXPERTS:
        return row->has_experts;
    case METRIC_SLOWEST:
        return row->slowest_s > 0;
    default:
        return 0;
    }
}

double metric_value(const struct metric *m, const struct metrics_row *row, int i)
{
    return field_of(m, row, i);
}

char *metric_print(char *to, const struct metric *m, const struct metrics_row *row, int i)
{
    const double value = field_of(m, row, i);

    switch (m->type) {
    case METRIC_INT64:
        return to + sprintf(to, "%" PRId64,
                            *(const int64_t *)(const void *)((const char *)row + m->offset));
    case METRIC_SOURCES:
        return to + sprintf(to, "%" PRIu64, row->source_rows[i]);
    case METRIC_BOOL:
        return stpcpy(to, value != 0 ? "true" : "false");
    case METRIC_SECONDS_1970:
        return to + snprintf(to, METRIC_NBYTES, "%.3f", value);
    default:
        return isfinite(value) ? to + sprintf(to, "%.9g", value) : stpcpy(to, "null");
    }
}

/* "  text" in lines of 80 columns. */
static void print_wrapped(FILE *to, const char *text)
{
    enum { INDENT = 6, COLUMNS = 80 };
    int column = 0;

    while (*text) {
        const int len = (int)strcspn(text, " ");
        if (column && column + 1 + len > COLUMNS) {
            fputc('\n', to);
            column = 0;
        }
        column += fprintf(to, "%*s%.*s", column ? 1 : INDENT, "", len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', to);
}

#define LINE "%-18s %-9s %-19s %s\n"

void metrics_print_table(FILE *to)
{
    fprintf(to, LINE, "metrics.jsonl", "unit", "TensorBoard", "Prometheus (_total: a counter)");
    for (int i = 0; i < metrics_ntable; i++) {
        const struct metric *m = &metrics_table[i];
        fprintf(to, "\n" LINE, m->key ? m->key : "-", m->unit[0] ? m->unit : "-",
                m->tag ? m->tag : "-", m->prom);
        print_wrapped(to, m->help);
    }
}
