/* SPDX-License-Identifier: Apache-2.0 */
/* Rows over GPUs as JSON; keys as in an answer (plan/answer/json.c). */
#include <jansson.h>
#include <math.h>

#include "scale.h"

static json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* A time, or with `per_time` what is one over a time. */
static json_t *with_band(const struct answer *a, double value, bool per_time)
{
    const double low = 1 - a->band.share, high = 1 + a->band.share;

    return json_pack("{s:o, s:o, s:o, s:s}", "value", json_number(value), "low",
                     json_number(per_time ? value / high : value * low), "high",
                     json_number(per_time ? value / low : value * high), "basis", a->band.basis);
}

static json_t *point_json(const struct answer *a)
{
    json_t *row = json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "gpus",
        a->nranks, "nodes", a->nnodes, "shard_size", a->shard_nranks, "micro_batch_rows",
        a->micro_rows, "accumulation", a->accumulation, "tokens_per_step",
        json_number(a->step_tokens), "step_s", with_band(a, a->step_s, false),
        "tokens_per_s_per_gpu", with_band(a, a->tokens_s_gpu, true), "mfu",
        a->mfu > 0 ? with_band(a, a->mfu, true) : json_null(), "exposed_s",
        json_number(a->times.exposed_s), "memory_bytes",
        json_number(a->device_nbytes + a->reserved_nbytes), "planned_bytes",
        json_number(a->device_nbytes), "device_bytes", json_number(a->limit_nbytes),
        "memory_limit_bytes", json_number(a->plan_limit_nbytes), "fits", a->fits, "extrapolated",
        a->band.extrapolated);

    if (row && a->tokens > 0) {
        json_object_set_new(row, "seconds", json_number(a->bill.seconds));
        json_object_set_new(row, "gpu_hours", json_number(a->bill.gpu_hours));
    }
    return row;
}

static json_t *line_json(const struct scale *s, const struct scale_line *line)
{
    json_t *rows = json_array();

    for (int i = 0; i < s->npoints; i++)
        if (line->point[i].is_there)
            json_array_append_new(rows, point_json(&line->point[i].answer));
    return json_pack("{s:s, s:b, s:s, s:o}", "strategy", line->name, "own", line->is_own,
                     "settings", line->settings, "rows", rows);
}

int scale_json(const struct scale *s, const struct question *q, FILE *to, struct fsdp_err *err)
{
    json_t *lines = json_array(), *notes = json_array();
    const bool constant = s->batch == SCALE_CONSTANT;
    int rc = FSDP_OK;

    for (int l = 0; l < s->nlines; l++)
        json_array_append_new(lines, line_json(s, &s->line[l]));
    for (int i = 0; i < s->nnotes; i++)
        json_array_append_new(notes, json_string(s->note[i]));
    json_t *all = json_pack(
        "{s:i, s:{s:s, s:s, s:i}, s:{s:s, s:o, s:o, s:I}, s:o, s:o}", "version", 1, "cluster",
        "gpu", q->cluster->clock.device.name, "net", q->cluster->net, "node_gpus",
        q->cluster->clock.net.node_nranks, "batch", "held", constant ? "constant" : "gpu",
        "rows_per_step", constant ? json_integer((json_int_t)s->rows) : json_null(), "rows_per_gpu",
        constant ? json_null() : json_integer((json_int_t)s->gpu_rows), "seq_len",
        (json_int_t)s->seq_len, "scale", lines, "notes", notes);
    if (!all || json_dumpf(all, to, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ||
        fputc('\n', to) < 0)
        rc = fsdp_err_set(err, all ? FSDP_EIO : FSDP_ENOMEM, "the rows as JSON");
    json_decref(all);
    return rc;
}
