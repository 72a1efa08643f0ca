/* SPDX-License-Identifier: Apache-2.0 */
/* How a step's rows are divided among ranks and micro-steps. */
#include <inttypes.h>

#include "config_impl.h"

/* The multiples of `unit` around `value`, for an error to propose: "12 or 16". */
static void around(char *out, size_t out_nbytes, int64_t value, int64_t unit)
{
    int64_t below = value / unit * unit;
    if (below > 0)
        snprintf(out, out_nbytes, "%" PRId64 " or %" PRId64, below, below + unit);
    else
        snprintf(out, out_nbytes, "%" PRId64 " or %" PRId64, unit, 2 * unit);
}

/* The divisors of `value`, for an error to propose: "1, 2, 3, 6". */
static void divisors(char *out, size_t out_nbytes, int64_t value)
{
    size_t len = 0;
    int shown = 0;

    out[0] = 0;
    for (int64_t d = 1; d <= value && shown < 16 && len < out_nbytes; d++) {
        if (value % d)
            continue;
        int added = snprintf(out + len, out_nbytes - len, "%s%" PRId64, shown ? ", " : "", d);
        len += (size_t)added;
        shown++;
    }
}

/* The most rows at once that divide the rank's rows and stay within a moderate number of tokens. */
static int64_t auto_micro_rows(int64_t rank_rows, int64_t seq_len)
{
    enum { MODERATE_NTOKENS = 8192 };
    int64_t best = 1;
    for (int64_t d = 1; d <= rank_rows && d * (seq_len ? seq_len : 1) <= MODERATE_NTOKENS; d++)
        if (rank_rows % d == 0)
            best = d;
    return best;
}

static int divide(struct config_batch *out, const struct config *c, int ranks, struct fsdp_err *err)
{
    int64_t rows = c->train.global_batch_size, micro = c->train.micro_batch_size;
    char would[200];

    if (ranks > rows)
        return config_refuse(c, "train.global_batch_size", err,
                             "%d ranks are more than the %" PRId64
                             " rows of a step; use at most %" PRId64
                             " ranks, or %d rows or a multiple of that",
                             ranks, rows, rows, ranks);
    if (rows % ranks) {
        around(would, sizeof would, rows, ranks * (micro ? micro : 1));
        return config_refuse(c, "train.global_batch_size", err,
                             "%" PRId64 " rows do not divide among %d ranks%s; %s would", rows,
                             ranks, micro > 1 ? " and micro-batches" : "", would);
    }
    int64_t rank_rows = rows / ranks;
    if (!micro)
        micro = auto_micro_rows(rank_rows, c->data.seq_len);
    if (rank_rows % micro) {
        divisors(would, sizeof would, rank_rows);
        return config_refuse(c, "train.micro_batch_size", err,
                             "%" PRId64 " does not divide the %" PRId64 " rows of a rank (%" PRId64
                             " rows on %d ranks); values that would: %s",
                             micro, rank_rows, rows, ranks, would);
    }
    *out = (struct config_batch){ranks, (int)micro, (int)(rank_rows / micro)};
    return FSDP_OK;
}

int config_divide(struct config_batch *out, const struct config *config, int ranks,
                  struct fsdp_err *err)
{
    if (config->train.steps > 0 || divide(out, config, ranks, NULL) == FSDP_OK)
        return config->train.steps > 0 ? divide(out, config, ranks, err) : FSDP_OK;
    *out = (struct config_batch){ranks, 1, 1};
    return FSDP_OK;
}
