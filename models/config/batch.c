/* SPDX-License-Identifier: Apache-2.0 */
/* How a step's rows are divided among ranks and micro-steps. */
#include <inttypes.h>
#include <stdio.h>

#include "config.h"

/* Tokens that an automatic micro-batch has at most. */
enum { AUTO_NTOKENS = 8192 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t auto_limit(int64_t seq_len)
{
    return seq_len && seq_len < AUTO_NTOKENS ? AUTO_NTOKENS / seq_len : seq_len ? 1 : AUTO_NTOKENS;
}

/* The largest divisor of the rank's rows within the limit. */
static int64_t auto_even(int64_t rank_rows, int64_t limit)
{
    int64_t best = 1;
    for (int64_t d = 1; d <= rank_rows && d <= limit; d++)
        if (rank_rows % d == 0)
            best = d;
    return best;
}

static struct config_batch divide(int64_t rows, int64_t micro, int64_t seq_len, int ranks)
{
    const int64_t most = ceil_div(rows, ranks), limit = auto_limit(seq_len);

    if (!micro && rows % ranks == 0)
        micro = auto_even(most, limit);
    else if (!micro) /* as few micro-steps as the limit allows, then as little padding */
        micro = ceil_div(most, ceil_div(most, limit));
    micro = micro < most ? micro : most;
    return (struct config_batch){ranks, (int)micro, (int)ceil_div(most, micro), rows};
}

void config_divide(struct config_batch *out, const struct config *config, int ranks)
{
    *out = divide(config->train.global_batch_size, config->train.micro_batch_size,
                  config->data.seq_len, ranks);
}

double config_batch_waste(const struct config_batch *batch)
{
    return 1 - (double)batch->rows / (double)config_batch_places(batch);
}

/* A multiple of full micro-batches on all ranks wastes nothing, so one is at most that far away. */
struct config_batch config_batch_better(const struct config_batch *batch,
                                        const struct config *config)
{
    const int64_t full = (int64_t)batch->ranks * batch->micro_rows;

    for (int64_t distance = 1; distance <= full; distance++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const int64_t near = batch->rows + sign * distance;
            if (near < batch->ranks)
                continue;
            const struct config_batch other =
                divide(near, config->train.micro_batch_size, config->data.seq_len, batch->ranks);
            if (config_batch_places(&other) == near)
                return other;
        }
    return *batch;
}

const char *config_batch_advice(char *out, size_t out_nbytes, const struct config_batch *batch,
                                const struct config *config)
{
    const struct config_batch better = config_batch_better(batch, config);

    snprintf(out, out_nbytes,
             "%" PRId64 " row%s on %d rank%s waste%s %.1f %% of the computation on padding; "
             "train.global_batch_size=%" PRId64 " wastes nothing",
             batch->rows, batch->rows == 1 ? "" : "s", batch->ranks, batch->ranks == 1 ? "" : "s",
             batch->rows == 1 ? "s" : "", 100 * config_batch_waste(batch), better.rows);
    return out;
}
