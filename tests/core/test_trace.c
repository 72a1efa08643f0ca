/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule as text and as a trace, and the recording of a real run. A trace is read back with a
 * JSON parser of others, and checked as a viewer would use it: intervals of a track nest or are
 * apart, and every operation of the list is there.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../libfsdp/core/trace/trace.h"
#include "ranks.h"
#include "tap.h"
#include "toy_clock.h"

enum { NBLOCKS = 2, STEPS = 3 };

static char *file_name;

/* ---- a model --------------------------------------------------------------------------------- */

struct toy {
    struct fsdp_module_tree *tree;
    int root, block[NBLOCKS];
};

static void toy_make(struct toy *t)
{
    static const char *const names[NBLOCKS] = {"block.0", "block.\"1\""};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    uint64_t shape[2] = {64, 32};

    if (fsdp_module_tree_create(&t->tree, NULL) ||
        fsdp_module_add(t->tree, -1, "", "Toy", &t->root, NULL))
        abort();
    fsdp_module_add_param(
        t->tree, t->root,
        &(struct fsdp_param_desc){.name = "scale", .ndim = 2, .shape = shape, .init = init}, NULL,
        NULL);
    for (int i = 0; i < NBLOCKS; i++) {
        char name[32];
        fsdp_module_add(t->tree, t->root, names[i], "Block", &t->block[i], NULL);
        snprintf(name, sizeof name, "w%d", i);
        fsdp_module_add_param(
            t->tree, t->block[i],
            &(struct fsdp_param_desc){.name = name, .ndim = 2, .shape = shape, .init = init}, NULL,
            NULL);
    }
    fsdp_module_add_param(
        t->tree, t->block[0],
        &(struct fsdp_param_desc){
            .name = "frozen", .ndim = 2, .shape = shape, .init = init, .flags = FSDP_PARAM_FROZEN},
        NULL, NULL);
}

static struct fsdp_opts toy_opts(int accumulation)
{
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    opts.wrap_classes = classes;
    opts.accumulation = accumulation;
    return opts;
}

static struct fsdp *toy_plan(struct toy *toy, struct fsdp_device *device, int accumulation,
                             int replicas)
{
    struct fsdp_opts opts = toy_opts(accumulation);
    struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = replicas};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;

    toy_make(toy);
    if (fsdp_plan(&f, toy->tree, &opts, device, shape, &err))
        diag("%s", err.text);
    return f;
}

/* ---- as text --------------------------------------------------------------------------------- */

static const char expected[] =
    "training step: FULL_SHARD, 2 x 2 (replicate x shard), 3 units, 40 operations, 17 waits\n"
    "gathered in F32, reduced in F32\n"
    "\n"
    "index  lane          operation     module           phase      micro  slot          "
    " bytes  waits for\n"
    "    0  -             micro_begin                                   0\n"
    "    1  gather        gather        (root)                          0     0          "
    " 4,096  prev:37\n"
    "    2  gather        gather        block.0                         0     1          "
    " 4,096  prev:38\n"
    "    3  gather        gather        block.0, frozen                 0     2           4,096\n"
    "    4  compute       enter         (root)           forward        0                        "
    "1\n"
    "    5  gather        gather        block.\"1\"                       0     3        "
    "   4,096  prev:39\n"
    "    6  compute       enter         block.0          forward        0                        "
    "3\n"
    "    7  compute       leave         block.0          forward        0\n"
    "    8  -             free          block.0                         0     1\n"
    "    9  -             free          block.0, frozen                 0     2\n"
    "   10  compute       enter         block.\"1\"        forward        0                        "
    "5\n"
    "   11  compute       leave         block.\"1\"        forward        0\n"
    "   12  compute       leave         (root)           forward        0\n"
    "   13  compute       enter         (root)           backward       0\n"
    "   14  gather        gather        block.0                         0     1           4,096  "
    "7\n"
    "   15  gather        gather        block.0, frozen                 0     2           4,096\n"
    "   16  compute       enter         block.\"1\"        backward       0\n"
    "   17  compute       leave         block.\"1\"        backward       0\n"
    "   18  -             free          block.\"1\"                       0     3\n"
    "   19  reduce        reduce        block.\"1\"                       0     1           4,096  "
    "17\n"
    "   20  replicate     all_reduce    block.\"1\"                       0                 4,096  "
    "19\n"
    "   21  compute       enter         block.0          backward       0                        "
    "15\n"
    "   22  compute       leave         block.0          backward       0\n"
    "   23  -             free          block.0                         0     1\n"
    "   24  -             free          block.0, frozen                 0     2\n"
    "   25  reduce        reduce        block.0                         0     2           4,096  "
    "22\n"
    "   26  replicate     all_reduce    block.0                         0                 4,096  "
    "25\n"
    "   27  compute       leave         (root)           backward       0\n"
    "   28  -             free          (root)                          0     0\n"
    "   29  reduce        reduce        (root)                          0     0           4,096  "
    "27\n"
    "   30  replicate     all_reduce    (root)                          0                 4,096  "
    "29\n"
    "   31  -             micro_end                                     0\n"
    "   32  -             step\n"
    "   33  compute       norm          block.\"1\"                                                "
    "20\n"
    "   34  compute       norm          block.0                                                  "
    "26\n"
    "   35  compute       norm          (root)                                                   "
    "30\n"
    "   36  compute       norm_sum                                                          144\n"
    "   37  compute       update        (root)\n"
    "   38  compute       update        block.0\n"
    "   39  compute       update        block.\"1\"\n"
    "\n"
    "modelled: 0.542 ms; computes 0.492 ms, communicates 0.122 ms, of which 42% exposed\n"
    "\n"
    "evaluation pass: FULL_SHARD, 2 x 2 (replicate x shard), 3 units, 16 operations, 4 waits\n"
    "gathered in F32, reduced in F32\n"
    "\n"
    "index  lane          operation     module           phase      micro  slot          "
    " bytes  waits for\n"
    "    0  -             micro_begin                                   0\n"
    "    1  gather        gather        (root)                          0     0          "
    " 4,096  prev:13\n"
    "    2  gather        gather        block.0                         0     1           4,096\n"
    "    3  gather        gather        block.0, frozen                 0     2           4,096\n"
    "    4  compute       enter         (root)           forward        0                        "
    "1\n"
    "    5  gather        gather        block.\"1\"                       0     3           4,096\n"
    "    6  compute       enter         block.0          forward        0                        "
    "3\n"
    "    7  compute       leave         block.0          forward        0\n"
    "    8  -             free          block.0                         0     1\n"
    "    9  -             free          block.0, frozen                 0     2\n"
    "   10  compute       enter         block.\"1\"        forward        0                        "
    "5\n"
    "   11  compute       leave         block.\"1\"        forward        0\n"
    "   12  -             free          block.\"1\"                       0     3\n"
    "   13  compute       leave         (root)           forward        0\n"
    "   14  -             free          (root)                          0     0\n"
    "   15  -             micro_end                                     0\n"
    "\n"
    "modelled: 0.174 ms; computes 0.164 ms, communicates 0.041 ms, of which 25% exposed\n"
    "\n"
    "operations of one lane run in this order; lanes wait for each other only where it is said\n"
    "(prev:N is operation N of the pass before). bytes: what a rank receives, with "
    "ring algorithms.\n"
    "modelled times: toy; products at 100% of 100 TFLOP/s, memory at 1000 GB/s; nodes of 4, 25 "
    "GB/s "
    "inside a node, 25 GB/s a network card.\n";

static char *print(struct fsdp *f, bool json, const struct fsdp_clock *clock)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text = NULL;
    size_t nbytes = 0;
    FILE *to = open_memstream(&text, &nbytes);
    int rc =
        json ? fsdp_schedule_trace(f, clock, to, &err) : fsdp_schedule_print(f, clock, to, &err);

    fclose(to);
    ok(rc == FSDP_OK, "the schedule as %s %s", json ? "trace" : "text", err.text);
    return text;
}

/* The first line in which they differ, for whoever has to read it. */
static void show_difference(const char *got, const char *want)
{
    while (*got && *want) {
        size_t a = strcspn(got, "\n"), b = strcspn(want, "\n");
        if (a != b || memcmp(got, want, a))
            break;
        got += a + (got[a] != 0);
        want += b + (want[b] != 0);
    }
    diag("got:  %.*s", (int)strcspn(got, "\n"), got);
    diag("want: %.*s", (int)strcspn(want, "\n"), want);
}

static void test_print(struct fsdp_device *device)
{
    struct fsdp_clock clock = toy_clock(1e6);
    struct fsdp_err err = FSDP_ERR_INIT;
    struct toy toy;
    struct fsdp *f = toy_plan(&toy, device, 1, 2);

    if (!ok(f != NULL, "planned without ranks"))
        return;
    char *text = print(f, false, &clock);
    bool same = !strcmp(text, expected);
    ok(same, "the text is what is expected");
    if (!same)
        show_difference(text, expected);
    free(text);
    clock.net.node_nbytes_per_s = 0;
    ok(fsdp_schedule_print(f, &clock, stderr, &err) == FSDP_EINVAL, "a rate of 0: %s", err.text);
    ok(fsdp_schedule_trace(f, &clock, stderr, &err) == FSDP_EINVAL, "the same as a trace: %s",
       err.text);
    fsdp_destroy(f);
    struct fsdp_opts opts = toy_opts(1);
    struct fsdp_mesh_shape none = {.shard_size = 0, .replicate_size = 1};
    ok(fsdp_plan(&f, toy.tree, &opts, device, none, &err) == FSDP_EINVAL, "no ranks: %s", err.text);
    struct fsdp_mesh_shape one = {.shard_size = 1, .replicate_size = 1};
    opts.accumulation = 0;
    ok(fsdp_plan(&f, toy.tree, &opts, device, one, &err) == FSDP_EINVAL, "bad options: %s",
       err.text);
    fsdp_module_tree_destroy(toy.tree);
}

/* ---- reading traces -------------------------------------------------------------------------- */

enum { MAX_EVENTS = 1024, MAX_DEPTH = 16 };

static int64_t field_ns(const json_t *event, const char *key)
{
    return llround(json_number_value(json_object_get(event, key)) * 1e3);
}

static const char *field(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static bool is_interval(const json_t *event, int pid, int tid)
{
    return !strcmp(field(event, "ph"), "X") &&
           json_integer_value(json_object_get(event, "pid")) == pid &&
           json_integer_value(json_object_get(event, "tid")) == tid;
}

/* Intervals of a track in file order: each begins no earlier than the one before, and is within it
 * or after it. Where flat, always after it. Returns how many, or -1. */
static int check_track(const json_t *events, int pid, int tid, bool flat)
{
    int64_t ends[MAX_DEPTH] = {0}, last_begin = INT64_MIN;
    int depth = 0, count = 0;
    size_t k;
    json_t *event;

    json_array_foreach(events, k, event)
    {
        if (!is_interval(event, pid, tid))
            continue;
        int64_t begin = field_ns(event, "ts"), end = begin + field_ns(event, "dur");
        while (depth && ends[depth - 1] <= begin)
            depth--;
        if (begin < last_begin || begin < 0 || end < begin || depth == MAX_DEPTH ||
            (depth && (flat || end > ends[depth - 1]))) {
            diag("pid %d tid %d: '%s' at %lld..%lld", pid, tid, field(event, "name"),
                 (long long)begin, (long long)end);
            return -1;
        }
        ends[depth++] = end;
        last_begin = begin;
        count++;
    }
    return count;
}

/* Names of a lane's intervals in file order are those of the list's operations, npasses times. */
static bool check_names(const json_t *events, int pid, const struct fsdp *f,
                        enum fsdp_program program, enum sched_lane lane, int npasses)
{
    const struct sched *s = &f->plan.programs[program].sched;
    const char *got[MAX_EVENTS];
    int ngot = 0, at = 0;
    size_t k;
    json_t *event;

    json_array_foreach(events, k, event) if (is_interval(event, pid, 1 + (int)lane) &&
                                             ngot < MAX_EVENTS) got[ngot++] = field(event, "name");
    for (int pass = 0; pass < npasses; pass++)
        for (int i = 0; i < s->nops; i++) {
            const struct sched_op *op = &s->ops[i];
            char module[100], name[140];
            if (op->lane != lane || op->kind == SCHED_FREE || op->kind == SCHED_LEAVE ||
                (sched_is_driven(op->kind) && op->kind != SCHED_ENTER))
                continue;
            trace_op_name(module, sizeof module, f, op);
            snprintf(name, sizeof name, "%s%s%s",
                     op->kind == SCHED_ENTER ? fsdp_phase_name(op->phase)
                                             : sched_kind_name(op->kind),
                     *module ? " " : "", module);
            if (at >= ngot || strcmp(got[at++], name)) {
                diag("operation %d: expected '%s', have '%s'", i, name,
                     at > ngot ? "" : got[at - 1]);
                return false;
            }
        }
    return at == ngot;
}

/* What an operation waits for has ended before it begins. */
static int64_t end_of_op(const json_t *events, int pid, int op, int64_t before)
{
    int64_t best = INT64_MIN;
    size_t k;
    json_t *event;
    json_array_foreach(events, k, event)
    {
        json_t *args = json_object_get(event, "args"),
               *number = args ? json_object_get(args, "op") : NULL;
        if (!number || json_integer_value(number) != op ||
            json_integer_value(json_object_get(event, "pid")) != pid)
            continue;
        int64_t end = field_ns(event, "ts") + field_ns(event, "dur");
        if (end <= before && end > best)
            best = end;
    }
    return best;
}

/* Automatic operations alone: they are intervals of their own, with both ends. */
static bool check_waits(const json_t *events, int pid, const struct fsdp *f)
{
    const struct sched *s = &f->plan.programs[FSDP_TRAIN].sched;
    int checked = 0;
    size_t k;
    json_t *event;
    json_array_foreach(events, k, event)
    {
        json_t *args = json_object_get(event, "args");
        if (!args || json_integer_value(json_object_get(event, "pid")) != pid)
            continue;
        int i = (int)json_integer_value(json_object_get(args, "op"));
        for (int w = 0; w < s->ops[i].nwaits; w++) {
            int target = s->waits[s->ops[i].waits + w];
            if (target >= i || sched_is_driven(s->ops[target].kind))
                continue;
            checked++;
            if (end_of_op(events, pid, target, field_ns(event, "ts")) == INT64_MIN) {
                diag("operation %d began before %d had ended", i, target);
                return false;
            }
        }
    }
    return checked > 0;
}

static json_t *check_trace(json_t *trace, int npids, const char *what)
{
    json_t *events = json_object_get(trace, "traceEvents");
    bool good = json_is_array(events);
    for (int pid = 0; good && pid < npids; pid++) {
        good &= check_track(events, pid, 0, false) >= 2 && check_track(events, pid, 1, false) > 0;
        for (int lane = 1; lane < SCHED_NLANES; lane++)
            good &= check_track(events, pid, 1 + lane, true) >= 0;
    }
    ok(good, "%s: intervals of a track follow each other, or nest", what);
    return events;
}

static void test_schedule_trace(struct fsdp_device *device)
{
    struct fsdp_clock clock = toy_clock(1e6);
    struct toy toy;
    struct fsdp *f = toy_plan(&toy, device, 2, 2);
    json_error_t why;

    char *text = print(f, true, &clock);
    json_t *trace = json_loads(text, 0, &why);
    ok(trace != NULL, "planned trace is JSON %s", trace ? "" : why.text);
    json_t *events = check_trace(trace, 2, "planned trace");
    for (int p = 0; p < 2; p++)
        for (int lane = 0; lane < SCHED_NLANES; lane++)
            ok(check_names(events, p, f, (enum fsdp_program)p, (enum sched_lane)lane, 1),
               "program %d, lane %s: every operation, in order", p,
               sched_lane_name((enum sched_lane)lane));
    ok(check_waits(events, 0, f), "modelled times keep the order between lanes");
    json_decref(trace);
    free(text);
    fsdp_destroy(f);
    fsdp_module_tree_destroy(toy.tree);
}

/* ---- recording ------------------------------------------------------------------------------- */

struct run {
    bool threaded;
    int accumulation;
};

static int work(void *arg, struct fsdp_err *err)
{
    volatile double x = *(double *)arg;
    (void)err;
    for (int i = 0; i < 20000; i++)
        x = x * 0.5 + 1;
    return FSDP_OK;
}

/* grad = 0 for the parameters of a module, after some work. */
static int compute(struct toy *toy, const struct fsdp_view *v, const char *name, bool backward,
                   struct fsdp_err *err)
{
    double x = 1;
    FSDP_TRY(fsdp_lane_call(v->lane, work, &x, sizeof x, err));
    for (int p = 0; backward && p < fsdp_param_count(toy->tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(toy->tree, p);
        if (!strcmp(tensor.name, name))
            FSDP_TRY(
                fsdp_zero(v->lane, v->grad[p], fsdp_tensor_nelem(&tensor) * sizeof(float), err));
    }
    return FSDP_OK;
}

static int pass(struct toy *toy, struct fsdp *f, bool backward, struct fsdp_err *err)
{
    enum fsdp_phase phase = backward ? FSDP_BACKWARD : FSDP_FORWARD;
    struct fsdp_view v;

    FSDP_TRY(fsdp_module_enter(f, toy->root, phase, &v, err));
    FSDP_TRY(compute(toy, &v, "scale", backward, err));
    for (int i = 0; i < NBLOCKS; i++) {
        int block = backward ? NBLOCKS - 1 - i : i;
        FSDP_TRY(fsdp_module_enter(f, toy->block[block], phase, &v, err));
        FSDP_TRY(compute(toy, &v, block ? "w1" : "w0", backward, err));
        FSDP_TRY(fsdp_module_leave(f, toy->block[block], phase, err));
    }
    return fsdp_module_leave(f, toy->root, phase, err);
}

static int step(struct toy *toy, struct fsdp *f, int accumulation, int number, struct fsdp_err *err)
{
    struct fsdp_step_args args = {.step = number, .lr = 0.01};
    for (int m = 0; m < accumulation; m++) {
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, m, err));
        FSDP_TRY(pass(toy, f, false, err));
        FSDP_TRY(pass(toy, f, true, err));
        FSDP_TRY(fsdp_micro_end(f, err));
    }
    return fsdp_step(f, &args, NULL, err);
}

static int evaluation(struct toy *toy, struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
    FSDP_TRY(pass(toy, f, false, err));
    return fsdp_micro_end(f, err);
}

static double exposed(const struct fsdp *f)
{
    struct fsdp_position at;
    fsdp_progress(f, &at);
    return at.comm_seconds;
}

/* Seconds of the compute lane's operations that the trace has recorded: its waits are in them. */
static double compute_spans(const struct fsdp *f)
{
    const struct sched *s = &f->plan.programs[FSDP_TRAIN].sched;
    const struct trace *t = f->tracing.trace;
    double sum = 0;

    for (int k = 0; k < t->nsteps; k++)
        for (int i = 0; i < s->nops; i++)
            if (s->ops[i].kind != SCHED_FREE && s->ops[i].lane == SCHED_COMPUTE)
                sum += t->times[k * s->nops + i].end - t->times[k * s->nops + i].begin;
    return sum;
}

/* The steps that were traced. A pass after them takes what is left. */
static int check_exposed(struct toy *toy, struct fsdp *f, double before, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(evaluation(toy, f, err));
    const double seconds = exposed(f) - before;
    if (!(seconds > 0) || seconds > compute_spans(f))
        return fsdp_err_set(err, FSDP_EINTERNAL, "%g s exposed, %g s in all", seconds,
                            compute_spans(f));
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(evaluation(toy, f, err));
    if (exposed(f) - before != seconds)
        return fsdp_err_set(err, FSDP_EINTERNAL, "an evaluation is measured");
    return FSDP_OK;
}

/* Traces STEPS of STEPS + 3 steps, one of which is abandoned, with evaluations between. */
static int train(struct toy *toy, struct fsdp *f, int accumulation, FILE *to, struct fsdp_err *err)
{
    struct fsdp_trace_share shares[2];
    uint64_t nallocs = 0;
    double before = 0;

    FSDP_TRY(step(toy, f, accumulation, 0, err));
    FSDP_TRY(evaluation(toy, f, err));
    FSDP_TRY(fsdp_trace_open(f, STEPS, err));
    fsdp_trace_next(f, 9);
    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
    fsdp_step_reset(f);
    if (f->tracing.exposed) {
        FSDP_TRY(fsdp_sync(f, err));
        FSDP_TRY(evaluation(toy, f, err));
        before = exposed(f);
    }
    for (int k = 0; k < STEPS + 1; k++) {
        if (k == STEPS && f->tracing.exposed)
            FSDP_TRY(check_exposed(toy, f, before, err));
        fsdp_trace_next(f, 10 + k); /* for the last there is no room */
        nallocs = fsdp_alloc_count();
        FSDP_TRY(evaluation(toy, f, err));
        FSDP_TRY(step(toy, f, accumulation, k, err));
        nallocs -= fsdp_alloc_count();
        if (nallocs)
            return fsdp_err_set(err, FSDP_EINTERNAL, "the step loop allocates");
    }
    FSDP_TRY(fsdp_trace_finish(f, to, shares, err));
    for (int r = 0; r < 2; r++)
        if (shares[r].nsteps != STEPS || !(shares[r].comm_s > 0) || !(shares[r].compute_s > 0) ||
            shares[r].exposed_s > shares[r].comm_s || shares[r].comm_s > shares[r].wall_s)
            return fsdp_err_set(err, FSDP_EINTERNAL, "rank %d has no sensible sums", r);
    /* Without tracing the loop continues. */
    return step(toy, f, accumulation, STEPS, err);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = toy_opts(run->accumulation);
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct toy toy;
    FILE *to = NULL;
    int rc;

    toy_make(&toy);
    if ((rc = fsdp_device_open(&device, "cpu", run->threaded ? FSDP_DEVICE_THREADED : 0, &err)) ||
        (rc = fsdp_mesh_shape_for(&shape, opts.sharding_strategy, 0, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, toy.tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)) || (run->threaded && (rc = fsdp_exposed_open(f, &err))))
        goto out;
    if (oob->rank == 0 && !(to = fopen(file_name, "w")))
        rc = 1;
    rc = rc ? rc : train(&toy, f, run->accumulation, to, &err);
out:
    if (rc)
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    if (to)
        fclose(to);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return rc != 0;
}

static bool check_steps(const json_t *events, int pid)
{
    int next = 10;
    size_t k;
    json_t *event;
    json_array_foreach(events, k, event)
    {
        char name[32];
        if (!is_interval(event, pid, 0) || strcmp(field(event, "cat"), "step"))
            continue;
        snprintf(name, sizeof name, "step %d", next);
        if (json_object_get(event, "args") || strcmp(field(event, "name"), name))
            continue; /* the optimizer's */
        next++;
    }
    return next == 10 + STEPS;
}

static void test_record(struct fsdp_device *device, const struct run *run)
{
    struct toy toy;
    struct fsdp *plan = toy_plan(&toy, device, run->accumulation, 1);
    const char *what = run->threaded ? "threaded lanes" : "lanes in the caller";
    json_error_t why;

    if (!ok(ranks_run(2, 1, 60, rank_main, (void *)(uintptr_t)run, NULL) == 0, "%s: two ranks run",
            what))
        return;
    json_t *trace = json_load_file(file_name, 0, &why);
    ok(trace != NULL, "%s: the trace is JSON %s", what, trace ? "" : why.text);
    json_t *events = check_trace(trace, 2, what);
    for (int r = 0; r < 2; r++) {
        for (int lane = 0; lane < SCHED_NLANES; lane++)
            ok(check_names(events, r, plan, FSDP_TRAIN, (enum sched_lane)lane, STEPS),
               "%s: rank %d, lane %s: every operation of every step, in order", what, r,
               sched_lane_name((enum sched_lane)lane));
        ok(check_steps(events, r), "%s: rank %d: the steps that were asked for, and no other", what,
           r);
        ok(check_waits(events, r, plan), "%s: rank %d: waits were kept", what, r);
    }
    json_t *sums = json_object_get(json_object_get(trace, "otherData"), "processes");
    for (size_t r = 0; r < 2; r++) {
        json_t *sum = json_array_get(sums, r);
        double comm = json_number_value(json_object_get(sum, "communication_seconds"));
        double exposed = json_number_value(json_object_get(sum, "exposed_seconds"));
        ok(json_integer_value(json_object_get(sum, "steps")) == STEPS && comm > 0 &&
               exposed <= comm && (run->threaded || exposed == comm),
           "%s: rank %zu: %s", what, r,
           run->threaded ? "no more is exposed than there is" : "one thread hides nothing");
    }
    json_decref(trace);
    fsdp_destroy(plan);
    fsdp_module_tree_destroy(toy.tree);
}

static void test_misuse(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_trace_share share;
    struct toy toy;
    struct fsdp *f = toy_plan(&toy, device, 1, 2);

    fsdp_trace_next(f, 1); /* nothing is traced: no effect */
    ok(fsdp_trace_finish(f, NULL, &share, &err) == FSDP_EINVAL, "finish without open: %s",
       err.text);
    ok(fsdp_trace_open(f, 0, &err) == FSDP_EINVAL, "no steps: %s", err.text);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        fsdp_alloc_fail_at(nth);
        ok(fsdp_trace_open(f, 1, &err) == FSDP_ENOMEM, "out of memory %d: %s", (int)nth, err.text);
    }
    fsdp_alloc_fail_at(0);
    ok(fsdp_trace_open(f, 1, &err) == FSDP_OK, "open");
    ok(fsdp_trace_open(f, 1, &err) == FSDP_EINVAL, "open twice: %s", err.text);
    for (uint64_t nth = 1; nth <= 9; nth++) {
        fsdp_alloc_fail_at(nth);
        ok(fsdp_exposed_open(f, &err) == FSDP_ENOMEM, "out of memory %d: %s", (int)nth, err.text);
    }
    fsdp_alloc_fail_at(0);
    ok(fsdp_exposed_open(f, &err) == FSDP_OK && fsdp_exposed_open(f, &err) == FSDP_EINVAL,
       "exposed communication is opened once: %s", err.text);
    ok(!strcmp(fsdp_trace_lane(0), "compute") && !fsdp_trace_lane(-1) &&
           !fsdp_trace_lane(SCHED_NLANES),
       "names of lanes");
    fsdp_destroy(f); /* with an open trace */
    fsdp_module_tree_destroy(toy.tree);
}

int main(void)
{
    static const struct run runs[] = {{false, 2}, {true, 1}, {true, 2}};
    const char *tmp = getenv("TEST_TMP");
    struct fsdp_device *device;
    char path[1000];

    snprintf(path, sizeof path, "%s/trace-%d.json", tmp ? tmp : "/tmp", (int)getpid());
    file_name = path;
    if (fsdp_device_open(&device, "cpu", 0, NULL))
        return 1;
    test_print(device);
    test_schedule_trace(device);
    test_misuse(device);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        test_record(device, &runs[i]);
    unlink(path);
    fsdp_device_close(device);
    return tap_done();
}
