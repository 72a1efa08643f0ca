/* SPDX-License-Identifier: Apache-2.0 */
/* One trace of two: events keep their fields, but for the process and the origin of their times. */
#include <errno.h>
#include <string.h>

#include "against.h"

enum { PLAN_PID, RUN_PID };

static const char *text(const json_t *object, const char *key)
{
    const char *x = json_string_value(json_object_get(object, key));
    return x ? x : "";
}

static int put_text(FILE *to, const json_t *event, bool *more)
{
    fputs(*more ? ",\n" : "\n", to);
    *more = true;
    return json_dumpf(event, to, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));
}

/* A copy of an event of another process, its time from `origin` on; NULL: no memory. */
static json_t *moved(const json_t *event, int pid, double origin_us, const char *process)
{
    json_t *out = json_deep_copy(event);
    const json_t *ts = json_object_get(event, "ts");
    int bad = out == NULL;

    bad = bad || json_object_set_new(out, "pid", json_integer(pid));
    if (ts)
        bad = bad || json_object_set_new(out, "ts", json_real(json_number_value(ts) - origin_us));
    else if (!strcmp(text(event, "name"), "process_name"))
        bad = bad || json_object_set_new(out, "args", json_pack("{s:s}", "name", process));
    if (!bad)
        return out;
    json_decref(out);
    return NULL;
}

/* The first step of a process, and what names it. */
static int put_process(FILE *to, bool *more, const struct trace_file *f, int proc, int pid,
                       const char *name)
{
    const json_t *event;
    int passes = 0, bad = 0;
    size_t i;

    json_array_foreach(json_object_get(f->json, "traceEvents"), i, event)
    {
        const bool meta = !strcmp(text(event, "ph"), "M");
        if ((int)json_integer_value(json_object_get(event, "pid")) != proc)
            continue;
        passes += !meta && !json_object_get(event, "args");
        if (!meta && passes != 1)
            continue;
        json_t *out = moved(event, pid, trace_file_step(f, proc, 0)->begin * 1e6, name);
        bad |= !out || put_text(to, out, more);
        json_decref(out);
    }
    return bad;
}

int against_write(const struct trace_file *plan, const struct trace_file *run, int rank,
                  const char *path, struct fsdp_err *err)
{
    char name[64];
    bool more = false;
    FILE *to = fopen(path, "we");

    if (!to)
        return fsdp_err_sys(err, errno, "cannot write %s", path);
    rank = rank == AGAINST_SLOWEST ? trace_file_slowest(run) : rank;
    snprintf(name, sizeof name, "run, rank %d", rank);
    fputs("{\"generator\": \"libfsdp\", \"displayTimeUnit\": \"ms\", \"traceEvents\": [", to);
    int bad = put_process(to, &more, plan, 0, PLAN_PID, "plan");
    bad |= put_process(to, &more, run, rank, RUN_PID, name);
    fputs("\n]}\n", to);
    bad |= ferror(to);
    errno = 0;
    bad |= fclose(to) != 0;
    return bad ? fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s", path) : FSDP_OK;
}
