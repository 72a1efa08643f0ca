/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome's trace event format, the JSON object form, which ui.perfetto.dev and chrome://tracing
 * read: "M" events name processes and tracks, "X" events are intervals in microseconds. Intervals
 * of one track nest or are apart: track 0 holds steps and micro-steps, track 1 + l lane l.
 */
#include <math.h>

#include "trace.h"

enum { STEP_TRACK = 0, LANE_TRACK = 1 };

static void put_string(FILE *to, const char *text)
{
    putc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(to, "\\u%04x", (unsigned)(unsigned char)*text);
        else
            putc(*text, to);
    }
    putc('"', to);
}

void trace_json_begin(struct trace_json *json, FILE *to, double origin)
{
    *json = (struct trace_json){.to = to, .origin = origin};
    /* The mark comes first, so that a reader of the first bytes knows whose file it is. */
    fputs("{" FSDP_TRACE_MARK ", \"displayTimeUnit\": \"ms\", \"traceEvents\": [", to);
}

static void next_event(struct trace_json *json)
{
    fputs(json->more ? ",\n" : "\n", json->to);
    json->more = true;
}

static void put_meta(struct trace_json *json, const char *kind, int pid, int track, const char *key,
                     const char *name, int order)
{
    next_event(json);
    fprintf(json->to,
            "{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"args\": {\"%s\": ", kind,
            pid, track, key);
    if (name)
        put_string(json->to, name);
    else
        fprintf(json->to, "%d", order);
    fputs("}}", json->to);
}

void trace_json_process(struct trace_json *json, int pid, const char *name)
{
    put_meta(json, "process_name", pid, 0, "name", name, 0);
    put_meta(json, "process_sort_index", pid, 0, "sort_index", NULL, pid);
    put_meta(json, "thread_name", pid, STEP_TRACK, "name", "step", 0);
    put_meta(json, "thread_sort_index", pid, STEP_TRACK, "sort_index", NULL, STEP_TRACK);
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        const char *lane_name = sched_lane_name((enum sched_lane)lane);
        put_meta(json, "thread_name", pid, LANE_TRACK + lane, "name", lane_name, 0);
        put_meta(json, "thread_sort_index", pid, LANE_TRACK + lane, "sort_index", NULL,
                 LANE_TRACK + lane);
    }
}

/* Whole nanoseconds, so that what nests or touches in time does so when written. */
static int64_t nanoseconds(const struct trace_json *json, double time)
{
    return llround((time - json->origin) * 1e9);
}

static void put_microseconds(FILE *to, int64_t ns)
{
    const char *sign = ns < 0 ? "-" : "";
    ns = ns < 0 ? -ns : ns;
    fprintf(to, "%s%lld.%03d", sign, (long long)(ns / 1000), (int)(ns % 1000));
}

/* All of an interval but its args. */
static void put_interval(struct trace_json *json, int pid, int track, const char *category,
                         const char *name, double begin, double end)
{
    int64_t from = nanoseconds(json, begin), to = nanoseconds(json, end);

    next_event(json);
    fprintf(json->to, "{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"cat\": \"%s\", \"name\": ", pid,
            track, category);
    put_string(json->to, name);
    fputs(", \"ts\": ", json->to);
    put_microseconds(json->to, from);
    fputs(", \"dur\": ", json->to);
    put_microseconds(json->to, to > from ? to - from : 0);
}

static int leave_of(const struct sched *s, int enter)
{
    const struct sched_op *op = &s->ops[enter];
    for (int i = enter + 1; i < s->nops; i++)
        if (s->ops[i].kind == SCHED_LEAVE && s->ops[i].module == op->module &&
            s->ops[i].phase == op->phase)
            return i;
    return enter;
}

static int micro_end_of(const struct sched *s, int begin)
{
    while (begin + 1 < s->nops && s->ops[begin].kind != SCHED_MICRO_END)
        begin++;
    return begin;
}

/* What an operation is made of, so that a reader can tell waiting from work, and groups of ranks
 * from each other. */
static void put_collective(const struct trace_json *json, const struct fsdp *f,
                           const struct sched_op *op)
{
    struct sched_collective c;

    if (!trace_op_collective(&c, f, op))
        return;
    fprintf(json->to, ", \"ranks\": %d, \"apart\": %d, \"bytes of all\": %llu", c.nranks, c.stride,
            (unsigned long long)c.nbytes);
    if (!json->clock)
        return;
    const struct trace_cost cost = trace_op_cost(f, op, json->clock);
    fprintf(json->to, ", \"nodes\": %d, \"latency us\": ",
            fsdp_group_of(&json->clock->net, c.nranks, c.stride).nnodes);
    put_microseconds(json->to, llround(cost.transfer.latency_s * 1e9));
}

/* Where the model stood still: before a module, and after it. */
static void put_visit(const struct trace_json *json, const struct fsdp *f, const struct sched *s,
                      int i, const struct trace_time *times)
{
    static const char *const kinds[FSDP_WORK_NKINDS] = {"product us", "attention us", "bytes us"};
    const struct trace_time *leave = &times[leave_of(s, i)];
    double work_s[FSDP_WORK_NKINDS] = {0};

    fputs(", \"entering us\": ", json->to);
    put_microseconds(json->to, llround((times[i].end - times[i].begin) * 1e9));
    fputs(", \"leaving us\": ", json->to);
    put_microseconds(json->to, llround((leave->end - leave->begin) * 1e9));
    if (!json->clock)
        return;
    trace_work_seconds(f, &s->ops[i], json->clock, work_s);
    for (int kind = 0; kind < FSDP_WORK_NKINDS; kind++) {
        fprintf(json->to, ", \"%s\": ", kinds[kind]);
        put_microseconds(json->to, llround(work_s[kind] * 1e9));
    }
}

static void put_args(const struct trace_json *json, const struct fsdp *f, const struct sched *s,
                     int i, const struct trace_time *times)
{
    const struct sched_op *op = &s->ops[i];
    FILE *to = json->to;

    fprintf(to, ", \"args\": {\"op\": %d, \"micro\": %d", i, op->micro);
    if (op->slot >= 0)
        fprintf(to, ", \"slot\": %d", op->slot);
    uint64_t nbytes = trace_op_nbytes(f, op);
    if (nbytes)
        fprintf(to, ", \"bytes received\": %llu", (unsigned long long)nbytes);
    put_collective(json, f, op);
    if (op->kind == SCHED_ENTER)
        put_visit(json, f, s, i, times);
    if (op->nwaits) {
        fputs(", \"waits for\": \"", to);
        for (int k = 0; k < op->nwaits; k++) {
            int target = s->waits[op->waits + k];
            fprintf(to, "%s%s%d", k ? ", " : "", target >= i ? "prev:" : "", target);
        }
        putc('"', to);
    }
    fputs("}}", to);
}

static void put_op(struct trace_json *json, const struct fsdp *f, const struct sched *s, int pid,
                   int i, const struct trace_time *times)
{
    const struct sched_op *op = &s->ops[i];
    char name[TRACE_LABEL_NBYTES];
    double begin = times[i].begin, end = times[i].end;
    const char *category = sched_kind_name(op->kind);

    trace_op_label(name, sizeof name, f, op);
    if (op->kind == SCHED_ENTER) {
        category = fsdp_phase_name(op->phase);
        begin = times[i].end;
        end = times[leave_of(s, i)].begin;
    }
    int track = LANE_TRACK + (int)op->lane;
    if (op->kind == SCHED_STEP) {
        track = STEP_TRACK;
    } else if (op->kind == SCHED_MICRO_BEGIN) {
        track = STEP_TRACK;
        category = "micro";
        end = times[micro_end_of(s, i)].end;
    }
    put_interval(json, pid, track, category, name, begin, end);
    put_args(json, f, s, i, times);
}

void trace_json_pass(struct trace_json *json, const struct fsdp *f, enum fsdp_program program,
                     int pid, const char *name, const struct trace_time *times)
{
    const struct sched *s = &f->plan.programs[program].sched;

    if (!s->nops)
        return;
    /* The first operation and the last driven one bracket what the compute lane does. */
    int last = s->nops - 1;
    while (last > 0 && !sched_is_driven(s->ops[last].kind))
        last--;
    put_interval(json, pid, STEP_TRACK, "step", name, times[0].begin, times[last].end);
    fputs("}", json->to);
    for (int i = 0; i < s->nops; i++) {
        enum sched_kind kind = s->ops[i].kind;
        if (kind != SCHED_FREE && kind != SCHED_LEAVE && kind != SCHED_MICRO_END)
            put_op(json, f, s, pid, i, times);
    }
}

void trace_json_end(struct trace_json *json, const struct fsdp_trace_share *shares, int nshares,
                    const char *note)
{
    FILE *to = json->to;

    fputs("\n], \"otherData\": {\"version\": \"libfsdp " FSDP_VERSION_STRING "\", \"times\": ", to);
    put_string(to, note);
    fputs(", \"processes\": [", to);
    for (int i = 0; i < nshares; i++) {
        const struct fsdp_trace_share *s = &shares[i];
        fprintf(to,
                "%s\n{\"steps\": %d, \"seconds\": %.9f, \"compute_seconds\": %.9f, "
                "\"communication_seconds\": %.9f, \"exposed_seconds\": %.9f, \"lane_seconds\": {",
                i ? "," : "", s->nsteps, s->wall_s, s->compute_s, s->comm_s, s->exposed_s);
        for (int lane = 0; lane < SCHED_NLANES; lane++)
            fprintf(to, "%s\"%s\": %.9f", lane ? ", " : "", sched_lane_name((enum sched_lane)lane),
                    s->lane_s[lane]);
        fputs("}}", to);
    }
    fputs("\n]}}\n", to);
}
