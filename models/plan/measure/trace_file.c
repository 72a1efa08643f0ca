/* SPDX-License-Identifier: Apache-2.0 */
/* Reading. Events of a process stand pass after pass, each behind an interval "step". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trace_file.h"

static const char recorded[] = "recorded on the lanes"; /* otherData.times of a run */

struct reader {
    struct trace_file *file;
    size_t max_ops;
    int nlisted; /* of the first pass's operations */
    int *passes; /* [nprocs] that began */
    int *next;   /* [nprocs] operation of the pass that comes next */
    int max_passes;
    const char *version;
};

static int damaged_file(const struct reader *r, const char *what, long long which,
                        struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_ECORRUPT, "%s: %s (event %lld)", r->file->path, what, which);
}

static double number_of(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    return json_is_number(x) ? json_number_value(x) : 0;
}

static const char *text(const json_t *object, const char *key)
{
    const char *x = json_string_value(json_object_get(object, key));
    return x ? x : "";
}

static int load_file(struct trace_file *f, struct fsdp_err *err)
{
    json_error_t why;
    FILE *from = fopen(f->path, "re");

    if (!from)
        return fsdp_err_sys(err, errno, "cannot read %s", f->path);
    f->json = json_loadf(from, 0, &why);
    fclose(from);
    if (!f->json)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: line %d: %s", f->path, why.line, why.text);
    if (!json_is_object(f->json) || strcmp(text(f->json, "generator"), "libfsdp") != 0)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%s is not a trace of libfsdp; fsdp-launch --trace=FILE writes one of a "
            "run, fsdp-plan --trace FILE one of a plan",
            f->path);
    const json_t *other = json_object_get(f->json, "otherData");
    if (!json_is_array(json_object_get(f->json, "traceEvents")) ||
        !json_is_array(json_object_get(other, "processes")))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s is a trace that was put together of others; name one of a run or "
                            "of a plan",
                            f->path);
    f->planned = strcmp(text(other, "times"), recorded) != 0;
    return FSDP_OK;
}

/* A run's processes are its ranks; a plan's first is the training step. */
static int count_events(struct reader *r, struct fsdp_err *err)
{
    struct trace_file *f = r->file;
    const json_t *other = json_object_get(f->json, "otherData"), *event;
    size_t i;

    r->version = text(other, "version");
    f->nprocs = f->planned ? 1 : (int)json_array_size(json_object_get(other, "processes"));
    if (f->nprocs < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "%s has no process", f->path);
    r->passes = fsdp_alloc((size_t)f->nprocs, sizeof *r->passes, "passes of a trace", err);
    r->next = fsdp_alloc((size_t)f->nprocs, sizeof *r->next, "passes of a trace", err);
    if (!r->passes || !r->next)
        return FSDP_ENOMEM;
    json_array_foreach(json_object_get(f->json, "traceEvents"), i, event)
    {
        const int pid = (int)number_of(event, "pid");
        if (pid >= 0 && pid < f->nprocs && !strcmp(text(event, "ph"), "X") &&
            !json_object_get(event, "args") && !strcmp(text(event, "cat"), "step"))
            r->passes[pid]++;
    }
    f->nsteps = r->passes[0];
    for (int p = 0; p < f->nprocs; p++) {
        f->nsteps = r->passes[p] < f->nsteps ? r->passes[p] : f->nsteps;
        r->max_passes = r->passes[p] > r->max_passes ? r->passes[p] : r->max_passes;
        r->passes[p] = 0;
    }
    if (f->nsteps < 1 || r->max_passes > TRACE_FILE_MAX_STEPS)
        return fsdp_err_set(err, FSDP_EINVAL,
                            f->nsteps < 1 ? "%s has no step of every rank"
                                          : "%s has more steps than are read",
                            f->path);
    return FSDP_OK;
}

/* ---- the list: the first pass of the first process ------------------------------------------- */

static bool is_phase(const char *kind)
{
    return !strcmp(kind, "forward") || !strcmp(kind, "backward") || !strcmp(kind, "recompute");
}

/* Numbers become *, so that all layers are one group; the kind goes. */
static void group_of(char out[TRACE_FILE_NAME], const char *name, const char *kind)
{
    const size_t len = strlen(kind);
    size_t n = 0;

    if (!strncmp(name, kind, len))
        name += len;
    name += *name == ' ';
    while (*name && n + 1 < TRACE_FILE_NAME) {
        const bool digit = *name >= '0' && *name <= '9';
        if (!digit)
            out[n++] = *name;
        else if (n == 0 || out[n - 1] == '.')
            out[n++] = '*';
        else if (out[n - 1] != '*')
            out[n++] = *name;
        name++;
    }
    out[n] = 0;
}

static const char *lane_name(const struct reader *r, int tid)
{
    const json_t *event;
    size_t i;

    json_array_foreach(json_object_get(r->file->json, "traceEvents"), i,
                       event) if (!strcmp(text(event, "name"), "thread_name") &&
                                  number_of(event, "pid") == 0 &&
                                  number_of(event, "tid") ==
                                      tid) return text(json_object_get(event, "args"), "name");
    return "";
}

/* What stands on the track of steps is no operation of its own: marks, which other operations are
 * inside of. */
static bool is_listed(const json_t *event)
{
    return number_of(event, "tid") > 0;
}

static int list_op(struct reader *r, const json_t *event, long long which, struct fsdp_err *err)
{
    static const char *const kinds[FSDP_WORK_NKINDS] = {"product us", "attention us", "bytes us"};
    struct trace_file *f = r->file;
    const json_t *args = json_object_get(event, "args");
    struct trace_file_op *op;

    op = fsdp_alloc_grow(f->ops, (size_t)f->nops, &r->max_ops, sizeof *op, "list of a trace", err);
    if (!op)
        return FSDP_ENOMEM;
    f->ops = op;
    op += f->nops;
    *op = (struct trace_file_op){.index = (int)number_of(args, "op"),
                                 .parent = -1,
                                 .nranks = (int)number_of(args, "ranks"),
                                 .stride = (int)number_of(args, "apart"),
                                 .nbytes = number_of(args, "bytes of all"),
                                 .nnodes = (int)number_of(args, "nodes"),
                                 .latency_s = number_of(args, "latency us") * 1e-6};
    if (f->nops && op->index <= op[-1].index)
        return damaged_file(r, "operations are not in order", which, err);
    snprintf(op->kind, sizeof op->kind, "%s", text(event, "cat"));
    snprintf(op->name, sizeof op->name, "%s", text(event, "name"));
    snprintf(op->lane, sizeof op->lane, "%s", lane_name(r, (int)number_of(event, "tid")));
    group_of(op->group, op->name, op->kind);
    op->visit = is_phase(op->kind);
    if (op->visit && !json_object_get(args, "entering us"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s was written by %s, which does not say how long modules waited: "
                            "trace the run again with this version",
                            f->path, r->version);
    for (int kind = 0; kind < FSDP_WORK_NKINDS; kind++)
        op->work_s[kind] = number_of(args, kinds[kind]) * 1e-6;
    f->nops++;
    return FSDP_OK;
}

static bool is_op(const struct trace_file *f, const json_t *event)
{
    const double pid = number_of(event, "pid");
    return !strcmp(text(event, "ph"), "X") && pid >= 0 && pid < f->nprocs;
}

static int read_list(struct reader *r, struct fsdp_err *err)
{
    struct trace_file *f = r->file;
    const json_t *event;
    bool inside = false;
    size_t i;

    json_array_foreach(json_object_get(f->json, "traceEvents"), i, event)
    {
        if (!is_op(f, event) || number_of(event, "pid") != 0)
            continue;
        if (!json_object_get(event, "args")) {
            if (inside)
                break;
            inside = true;
        } else if (inside && is_listed(event)) {
            FSDP_TRY(list_op(r, event, (long long)i, err));
        }
    }
    if (!f->nops)
        return fsdp_err_set(err, FSDP_EINVAL, "%s has a step without operations", f->path);
    return FSDP_OK;
}

/* ---- all passes ------------------------------------------------------------------------------ */

static int take_step(struct reader *r, const json_t *event, int pid, long long which,
                     struct fsdp_err *err)
{
    struct trace_file *f = r->file;
    const int pass = r->passes[pid]++;

    if (pass && r->next[pid] < f->nops && pass <= f->nsteps)
        return damaged_file(r, "a step ends before its last operation", which, err);
    r->next[pid] = 0;
    if (pass >= f->nsteps)
        return FSDP_OK;
    struct trace_file_step *step = &f->steps[(size_t)pid * (size_t)f->nsteps + (size_t)pass];
    step->begin = number_of(event, "ts") * 1e-6;
    step->end = step->begin + number_of(event, "dur") * 1e-6;
    step->number = -1;
    sscanf(text(event, "name"), "step %lld", &step->number);
    return FSDP_OK;
}

static int take_op(struct reader *r, const json_t *event, int pid, long long which,
                   struct fsdp_err *err)
{
    struct trace_file *f = r->file;
    const json_t *args = json_object_get(event, "args");
    const int pass = r->passes[pid] - 1, op = r->next[pid];

    if (pass < 0)
        return damaged_file(r, "an operation of no step", which, err);
    if (pass >= f->nsteps)
        return FSDP_OK;
    if (op >= f->nops || f->ops[op].index != (int)number_of(args, "op") ||
        strcmp(f->ops[op].name, text(event, "name")) != 0)
        return damaged_file(r, "an operation that the first step does not have there", which, err);
    r->next[pid]++;
    struct trace_file_time *t =
        &f->times[((size_t)pid * (size_t)f->nsteps + (size_t)pass) * (size_t)f->nops + (size_t)op];
    t->begin = number_of(event, "ts") * 1e-6;
    t->end = t->begin + number_of(event, "dur") * 1e-6;
    t->enters = number_of(args, "entering us") * 1e-6;
    t->leaves = number_of(args, "leaving us") * 1e-6;
    t->own = t->end - t->begin;
    return FSDP_OK;
}

static int read_passes(struct reader *r, struct fsdp_err *err)
{
    struct trace_file *f = r->file;
    const size_t npasses = (size_t)f->nprocs * (size_t)f->nsteps;
    const json_t *event;
    size_t i;

    f->times = fsdp_alloc(npasses * (size_t)f->nops, sizeof *f->times, "times of a trace", err);
    f->steps = fsdp_alloc(npasses, sizeof *f->steps, "times of a trace", err);
    if (!f->times || !f->steps)
        return FSDP_ENOMEM;
    json_array_foreach(json_object_get(f->json, "traceEvents"), i, event)
    {
        const int pid = (int)number_of(event, "pid");
        if (!is_op(f, event))
            continue;
        if (!json_object_get(event, "args"))
            FSDP_TRY(take_step(r, event, pid, (long long)i, err));
        else if (is_listed(event))
            FSDP_TRY(take_op(r, event, pid, (long long)i, err));
    }
    for (int p = 0; p < f->nprocs; p++)
        if (r->passes[p] == f->nsteps && r->next[p] < f->nops)
            return damaged_file(r, "the last step is not complete", (long long)i, err);
    return FSDP_OK;
}

/* ---- what is inside what --------------------------------------------------------------------- */

static const char *module_of(const struct trace_file_op *op)
{
    const char *space = strchr(op->name, ' ');
    return space ? space + 1 : "";
}

static bool is_around(const struct trace_file_op *outer, const struct trace_file_op *inner)
{
    const char *name = module_of(outer);
    const size_t len = strlen(name);

    if (!strcmp(name, "(root)"))
        return strcmp(module_of(inner), name) != 0;
    return !strncmp(module_of(inner), name, len) && module_of(inner)[len] == '.';
}

static void find_parents(struct trace_file *f)
{
    enum { DEEP = 64 };
    int around[DEEP], depth = 0;

    for (int i = 0; i < f->nops; i++) {
        if (!f->ops[i].visit)
            continue;
        const struct trace_file_time *t = trace_file_time(f, 0, 0, i);
        while (depth && !(is_around(&f->ops[around[depth - 1]], &f->ops[i]) &&
                          trace_file_time(f, 0, 0, around[depth - 1])->end >= t->end - 5e-9))
            depth--;
        f->ops[i].parent = depth ? around[depth - 1] : -1;
        if (depth < DEEP)
            around[depth++] = i;
    }
}

/* A module's own time is without the modules inside, and without what held them up. */
static void take_children(struct trace_file *f, struct trace_file_time *times)
{
    for (int i = 0; i < f->nops; i++) {
        const struct trace_file_time *t = &times[i];
        if (f->ops[i].visit && f->ops[i].parent >= 0)
            times[f->ops[i].parent].own -= t->enters + (t->end - t->begin) + t->leaves;
    }
    for (int i = 0; i < f->nops; i++)
        times[i].own = times[i].own > 0 ? times[i].own : 0;
}

/* A collective moves bytes once the last of its ranks has come. */
static void take_waits(struct trace_file *f, int step, int i)
{
    const struct trace_file_op *op = &f->ops[i];

    for (int p = 0; p < f->nprocs; p++) {
        struct trace_file_time *t = (struct trace_file_time *)trace_file_time(f, p, step, i);
        const int first = p - p / op->stride % op->nranks * op->stride;
        double last = t->begin;
        for (int k = 0; k < op->nranks && first + k * op->stride < f->nprocs; k++) {
            const double begin = trace_file_time(f, first + k * op->stride, step, i)->begin;
            last = begin > last ? begin : last;
        }
        t->wait = (last < t->end ? last : t->end) - t->begin;
        t->own -= t->wait;
    }
}

static void separate(struct trace_file *f)
{
    find_parents(f);
    for (int p = 0; p < f->nprocs; p++)
        for (int s = 0; s < f->nsteps; s++)
            take_children(f, (struct trace_file_time *)trace_file_time(f, p, s, 0));
    for (int i = 0; i < f->nops && !f->planned; i++)
        for (int s = 0; s < f->nsteps && f->ops[i].nranks > 1 && f->ops[i].stride > 0; s++)
            take_waits(f, s, i);
}

int trace_file_read(struct trace_file *out, const char *path, struct fsdp_err *err)
{
    struct reader r = {.file = out};

    *out = (struct trace_file){.path = fsdp_strdup(path, err)};
    int rc = out->path ? load_file(out, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = count_events(&r, err);
    if (rc == FSDP_OK)
        rc = read_list(&r, err);
    if (rc == FSDP_OK)
        rc = read_passes(&r, err);
    if (rc == FSDP_OK)
        separate(out);
    fsdp_free(r.passes);
    fsdp_free(r.next);
    if (rc)
        trace_file_close(out);
    return rc;
}

void trace_file_close(struct trace_file *f)
{
    fsdp_free(f->path);
    fsdp_free(f->ops);
    fsdp_free(f->times);
    fsdp_free(f->steps);
    json_decref(f->json);
    *f = (struct trace_file){.nops = 0};
}
