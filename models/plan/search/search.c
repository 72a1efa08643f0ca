/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"

/* ---- the space ------------------------------------------------------------------------------- */

struct strategy {
    char settings[3][CHANGE_TEXT];
    int nsettings;
    int shard_nranks; /* among which states are divided */
};

static const char *const checkpointing[] = {"none", "selective", "full"};
enum { NCHECKPOINTING = 3, FULL = 2, MAX_STRATEGIES = 64, MAX_ROWS = 16, NTYPES = 8 };

struct space {
    const struct question *q;
    const struct search_opts *opts;
    struct answer base; /* of the run with that many GPUs, for its dimensions */
    int ngpus;
    struct strategy strategy[MAX_STRATEGIES];
    int nstrategies;
    int rows[MAX_ROWS]; /* of a micro-batch */
    int nrows;
    int64_t step_rows;
    int ntypes;
    struct bounds bounds[MAX_ROWS][NCHECKPOINTING][NTYPES];
    struct search_result *out;
};

static void add_strategy(struct space *s, const char *name, int shard, bool two_level, bool sized)
{
    struct strategy *to = &s->strategy[s->nstrategies];

    if (s->nstrategies == MAX_STRATEGIES)
        return;
    s->nstrategies++;
    *to = (struct strategy){.nsettings = 3, .shard_nranks = shard};
    snprintf(to->settings[0], CHANGE_TEXT, "fsdp.sharding_strategy=%s", name);
    if (sized)
        snprintf(to->settings[1], CHANGE_TEXT, "fsdp.shard_size=%d", shard);
    else
        snprintf(to->settings[1], CHANGE_TEXT, "fsdp.shard_size=auto");
    snprintf(to->settings[2], CHANGE_TEXT, "fsdp.two_level=%s", two_level ? "true" : "false");
}

static void list_strategies(struct space *s)
{
    const int node = s->base.node_nranks, n = s->ngpus;

    s->nstrategies = 0;
    add_strategy(s, "NO_SHARD", 1, false, false);
    if (n == 1) { /* which alone offloads parameters */
        add_strategy(s, "FULL_SHARD", n, false, false);
        return;
    }
    for (int levels = 0; levels < (n > node ? 2 : 1); levels++) {
        add_strategy(s, "FULL_SHARD", n, levels, false);
        add_strategy(s, "SHARD_GRAD_OP", n, levels, false);
    }
    for (int size = node; size < n; size *= 2) {
        if (n % size)
            continue;
        for (int levels = 0; levels < (size > node ? 2 : 1); levels++) {
            add_strategy(s, "HYBRID_SHARD", size, levels, true);
            add_strategy(s, "HYBRID_SHARD_ZERO2", size, levels, true);
        }
    }
}

/* All that divide a rank's rows of a step, the larger ones where there are many. */
static void list_rows(struct space *s)
{
    enum { MOST_ROWS = 64 };
    const int64_t own = s->step_rows / s->ngpus;

    s->nrows = 0;
    for (int rows = MOST_ROWS; rows >= 1 && s->nrows < MAX_ROWS; rows--)
        if (s->step_rows % s->ngpus == 0 && own % rows == 0)
            s->rows[s->nrows++] = rows;
    if (!s->nrows || s->rows[s->nrows - 1] != 1)
        s->rows[s->nrows < MAX_ROWS ? s->nrows++ : MAX_ROWS - 1] = 1;
}

/* Bit by bit: gradients reduced in bf16, fp8 gathered, bf16 moments. */
enum { TYPE_REDUCE = 1, TYPE_GATHER = 2, TYPE_MOMENTS = 4 };

struct point {
    int strategy, rows, checkpointing, types;
    int saving; /* of savings[] */
    bool split;
    int refined; /* 0: nothing; 1: prefetch; 2: buffers; 3: both */
};

/* What saves memory and costs time, each tried where the one before is too little. Those from
 * LAST_RESORT on change numbers: they are tried where nothing fits without them. */
enum early { LATE, EARLY_IF_SAME, EARLY };
static const struct saving {
    const char *offload, *settings[3];
    bool split, disks;
    bool grads;       /* gradient shards are offloaded */
    bool acts;        /* activations are offloaded, where they are only the layers' inputs */
    enum early early; /* updates at the reduction, EARLY_IF_SAME: if that changes no numbers */
    int nnumerics;    /* without those of `early` */
} savings[] = {
    {.offload = "none"},
    {.offload = "none", .split = true},
    {.offload = "none", .split = true, .early = EARLY_IF_SAME},
    {.offload = "none",
     .settings = {CHANGE_ACTS},
     .split = true,
     .acts = true,
     .early = EARLY_IF_SAME},
    {.offload = "optimizer", .split = true, .early = EARLY_IF_SAME},
    {.offload = "optimizer", .split = true},
    {.offload = "optimizer", .settings = {CHANGE_GRADS}, .split = true, .grads = true},
    {.offload = "params", .split = true, .early = EARLY_IF_SAME},
    {.offload = "params", .split = true},
    {.offload = "params", .settings = {CHANGE_GRADS}, .split = true, .grads = true},
    {.offload = "params",
     .settings = {CHANGE_ACTS},
     .split = true,
     .acts = true,
     .early = EARLY_IF_SAME},
    {.offload = "optimizer", .settings = {CHANGE_TO_DISKS}, .split = true, .disks = true},
    {.offload = "params", .settings = {CHANGE_TO_DISKS}, .split = true, .disks = true},
    {.offload = "params",
     .settings = {CHANGE_TO_DISKS, CHANGE_ACTS},
     .split = true,
     .disks = true,
     .acts = true},
    {.offload = "params",
     .settings = {CHANGE_TO_DISKS, CHANGE_ACTS, CHANGE_GRADS},
     .split = true,
     .disks = true,
     .grads = true,
     .acts = true},
    {.offload = "none", .settings = {"fsdp.grad_dtype=bfloat16"}, .split = true, .nnumerics = 1},
    {.offload = "none", .split = true, .early = EARLY},
    {.offload = "none", .settings = {"optim.master=none"}, .early = EARLY, .nnumerics = 1},
    {.offload = "optimizer", .settings = {"optim.master=none"}, .early = EARLY, .nnumerics = 1},
    {.offload = "params", .settings = {"optim.master=none"}, .early = EARLY, .nnumerics = 1},
    {.offload = "params",
     .settings = {"optim.master=none", CHANGE_ACTS},
     .acts = true,
     .early = EARLY,
     .nnumerics = 1},
};
enum { NSAVINGS = sizeof savings / sizeof savings[0], SPLIT = 1, LAST_RESORT = 15 };

/* "" where the point is not updated early. */
static bool early_settings(char out[CHANGE_EARLY_NBYTES], const struct space *s,
                           const struct point *p)
{
    const enum early early = savings[p->saving].early;
    const bool changes = change_early(out, &s->base) != CHANGE_SAME;

    if (early == LATE || s->base.updates_at_reduce || (changes && early == EARLY_IF_SAME))
        out[0] = 0;
    return out[0] && changes;
}

static void add_setting(struct change *c, const char *text)
{
    if (c->nsettings < CHANGE_MAX_SETTINGS)
        snprintf(c->setting[c->nsettings++], CHANGE_TEXT, "%s", text);
}

static void describe(struct change *c, const struct space *s, const struct point *p)
{
    const struct strategy *strategy = &s->strategy[p->strategy];
    const struct saving *saving = &savings[p->saving];
    char text[CHANGE_TEXT], early[CHANGE_EARLY_NBYTES], *at = early;

    *c = (struct change){.nnumerics = __builtin_popcount((unsigned)p->types) + saving->nnumerics};
    c->nnumerics += early_settings(early, s, p);
    c->group = c->nnumerics ? CHANGE_NUMERICS : CHANGE_SAME;
    for (int i = 0; i < strategy->nsettings; i++)
        add_setting(c, strategy->settings[i]);
    snprintf(text, sizeof text, "train.micro_batch_size=%d", s->rows[p->rows]);
    add_setting(c, text);
    if (s->step_rows != s->base.rows) {
        snprintf(text, sizeof text, "train.global_batch_size=%lld", (long long)s->step_rows);
        add_setting(c, text);
    }
    snprintf(text, sizeof text, "fsdp.activation_checkpointing=%s",
             checkpointing[p->checkpointing]);
    add_setting(c, text);
    if (p->types & TYPE_REDUCE)
        add_setting(c, "fsdp.reduce_dtype=bfloat16");
    if (p->types & TYPE_GATHER)
        add_setting(c, "fsdp.gather_dtype=float8_e4m3");
    if (p->types & TYPE_MOMENTS)
        add_setting(c, "optim.moment_dtype=bfloat16");
    if (s->base.reshards)
        add_setting(c, "fsdp.reshard_after_forward=auto");
    if (p->split)
        add_setting(c, "optim.master=split");
    for (size_t i = 0; i < 3 && saving->settings[i]; i++)
        add_setting(c, saving->settings[i]);
    for (char *setting; *early && (setting = strsep(&at, " "));)
        add_setting(c, setting);
    if (strcmp(saving->offload, "none") != 0 || s->base.offloads) {
        snprintf(text, sizeof text, "fsdp.offload=%s", saving->offload);
        add_setting(c, text);
    }
    if (s->base.names_update) /* the fastest of what the point allows */
        add_setting(c, "fsdp.offload_update=auto");
    if (p->refined & 1)
        add_setting(c, "fsdp.backward_prefetch=2");
    if (p->refined & 2)
        add_setting(c, "fsdp.grad_buffers=3");
}

/* ---- the front ------------------------------------------------------------------------------- */

static double worth(const struct search_point *p, enum search_goal goal)
{
    switch (goal) {
    case SEARCH_COST:
        return p->token_gpu_s;
    case SEARCH_GPUS:
        return p->ngpus * 1e6 + p->token_s; /* of as many GPUs the faster */
    default:
        return p->token_s;
    }
}

static bool dominates(const struct search_point *a, const struct search_point *b)
{
    return a->token_s <= b->token_s && a->answer.device_nbytes <= b->answer.device_nbytes &&
           a->token_gpu_s <= b->token_gpu_s && a->ngpus <= b->ngpus &&
           a->change.nnumerics <= b->change.nnumerics;
}

static void add_to_front(struct search_result *out, const struct search_point *p,
                         enum search_goal goal)
{
    int n = 0;

    for (int i = 0; i < out->nfront; i++)
        if (dominates(&out->front[i], p))
            return;
    for (int i = 0; i < out->nfront; i++)
        if (!dominates(p, &out->front[i]))
            out->front[n++] = out->front[i];
    if (n == SEARCH_MAX_FRONT) { /* the worst for the goal gives way */
        out->ncut++;
        if (worth(&out->front[n - 1], goal) <= worth(p, goal)) {
            out->nfront = n;
            return;
        }
        n--;
    }
    int at = n;
    for (; at > 0 && worth(&out->front[at - 1], goal) > worth(p, goal); at--)
        out->front[at] = out->front[at - 1];
    out->front[at] = *p;
    out->nfront = n + 1;
}

/* ---- planning points ------------------------------------------------------------------------- */

static bool goes_on(struct space *s)
{
    struct search_result *out = s->out;

    if (out->complete && s->opts->progress &&
        !s->opts->progress(s->opts->ctx, out->nplanned, out->nfront ? &out->front[0].answer : NULL))
        out->complete = false;
    return out->complete;
}

static double activations(const struct answer *a)
{
    double nbytes = 0;
    for (int i = 0; i < a->nmemory; i++)
        if (!a->memory[i].host && !strncmp(a->memory[i].what, "activations, saved", 18))
            nbytes += a->memory[i].nbytes;
    return nbytes;
}

static void learn_bounds(struct bounds *b, const struct answer *a)
{
    double work = 0;

    for (int k = 0; k < FSDP_WORK_NKINDS; k++)
        work += a->times.work_s[k];
    *b = (struct bounds){work / a->accumulation, activations(a), true};
}

enum tried { TRIED_FITS, TRIED_LARGE, TRIED_NOT };

/* Bytes that a point takes at least; with `saved`, whatever saves memory is tried. */
static double least_nbytes(const struct space *s, const struct point *p, bool saved)
{
    const bool away = p->checkpointing == FULL && (saved || savings[p->saving].acts);

    return (away ? 0 : s->bounds[p->rows][p->checkpointing][p->types].activation_nbytes) +
           bound_states(&s->base, s->strategy[p->strategy].shard_nranks, p->types & TYPE_MOMENTS,
                        p->split, saved || p->saving > 1);
}

static bool is_too_large(const struct space *s, const struct point *p)
{
    const struct answer *base = &s->base;
    const double least = least_nbytes(s, p, false);

    return (base->limit_nbytes > 0 && least + base->reserved_nbytes > base->limit_nbytes) ||
           (base->plan_limit_nbytes > 0 && least > base->plan_limit_nbytes);
}

/* Whatever saves memory: is a point of the front better in everything? */
static bool is_dominated(const struct space *s, const struct point *p)
{
    const struct bounds *b = &s->bounds[p->rows][p->checkpointing][p->types];
    const double accumulation = ceil((double)s->step_rows / ((double)s->rows[p->rows] * s->ngpus));
    struct search_point least = {.ngpus = s->ngpus};

    describe(&least.change, s, p);
    least.answer.device_nbytes = least_nbytes(s, p, true);
    least.token_s =
        b->micro_work_s * accumulation / ((double)s->step_rows * (double)s->base.row_tokens);
    least.token_gpu_s = least.token_s * s->ngpus;
    for (int i = 0; i < s->out->nfront; i++)
        if (dominates(&s->out->front[i], &least))
            return true;
    return false;
}

/* What a plan would say, as far as bounds can. */
static bool is_ruled_out(enum tried *out, const struct space *s, const struct point *p)
{
    if (s->opts->no_bounds || !s->bounds[p->rows][p->checkpointing][p->types].known)
        return false;
    *out = is_dominated(s, p) ? TRIED_NOT : TRIED_LARGE;
    return *out == TRIED_NOT || is_too_large(s, p);
}

static enum tried try_point(struct space *s, const struct point *p)
{
    struct question q = *s->q;
    struct search_point found = {.ngpus = s->ngpus};
    struct fsdp_err err = FSDP_ERR_INIT;
    enum tried tried;

    if (is_ruled_out(&tried, s, p)) {
        s->out->npruned++;
        return tried;
    }
    q.ngpus = s->ngpus;
    q.quick = true;
    describe(&found.change, s, p);
    s->out->nplanned++;
    if (change_answer(&found.answer, &q, &found.change, &err)) {
        s->out->nrefused++;
        return TRIED_NOT;
    }
    change_pin_update(&found.change, &found.answer, true);
    struct bounds *b = &s->bounds[p->rows][p->checkpointing][p->types];
    if (!b->known)
        learn_bounds(b, &found.answer);
    found.token_s = found.answer.step_s / found.answer.step_tokens;
    found.token_gpu_s = found.token_s * s->ngpus;
    if (found.answer.fits) {
        add_to_front(s->out, &found, s->opts->goal);
        return TRIED_FITS;
    }
    s->out->nlarge++;
    if (!(s->out->least.token_s > 0) ||
        found.answer.device_nbytes < s->out->least.answer.device_nbytes)
        s->out->least = found;
    return TRIED_LARGE;
}

/* Is it what another saving is already, in this run? */
static bool is_repeated(const struct space *s, const struct point *p)
{
    const struct saving *saving = &savings[p->saving];
    char early[CHANGE_EARLY_NBYTES];

    if (p->saving == SPLIT)
        return !p->split;
    if (saving->acts && (p->checkpointing != FULL || s->base.offloads_acts))
        return true;
    if (saving->grads && (s->base.updates_at_reduce || s->base.offloads_grads))
        return true;
    if (saving->disks)
        return !change_has_disks(&s->base, s->q);
    if (saving->nnumerics && saving->early == LATE) /* shards in bf16 */
        return s->base.updates_at_reduce || s->base.narrow_grads;
    early_settings(early, s, p);
    return !saving->acts && saving->early != LATE && !saving->nnumerics && !*early;
}

/* What saves memory costs time, so that each is tried only where there is too little without it. */
static void try_savings(struct space *s, struct point p, int first, int end)
{
    bool splits = bound_has_masters(&s->base) && strcmp(s->base.gathered, "float32") != 0;

    for (p.saving = first; p.saving < end && goes_on(s); p.saving++) {
        p.split = savings[p.saving].split && splits;
        if (is_repeated(s, &p))
            continue;
        const enum tried tried = try_point(s, &p);
        if (tried == TRIED_FITS || (tried == TRIED_NOT && p.saving == 0))
            return;
        if (tried == TRIED_NOT && p.saving == SPLIT)
            splits = false;
    }
}

static void search_points(struct space *s, int first, int end)
{
    struct point p = {0};

    for (p.types = 0; p.types < s->ntypes; p.types++)
        for (p.checkpointing = 0; p.checkpointing < NCHECKPOINTING; p.checkpointing++)
            for (p.rows = 0; p.rows < s->nrows; p.rows++)
                for (p.strategy = s->nstrategies - 1; p.strategy >= 0; p.strategy--) {
                    if (!goes_on(s))
                        return;
                    try_savings(s, p, first, end);
                }
}

static void search_space(struct space *s)
{
    search_points(s, 0, LAST_RESORT);
    if (s->out->nfront && !s->out->last_resort)
        return;
    if (s->opts->keep_numerics || !s->out->complete)
        return;
    search_points(s, LAST_RESORT, NSAVINGS);
    s->out->last_resort = s->out->nfront > 0;
}

/* ---- refining -------------------------------------------------------------------------------- */

static void refine(struct space *s)
{
    static const char *const more[] = {"fsdp.backward_prefetch=2", "fsdp.grad_buffers=3",
                                       "fsdp.reshard_after_forward=false"};
    struct search_point *front = fsdp_alloc(SEARCH_MAX_FRONT, sizeof *front, "search", NULL);
    const int n = s->out->nfront;
    struct question q = *s->q;

    if (!front)
        return;
    memcpy(front, s->out->front, (size_t)n * sizeof *front);
    q.quick = true;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof more / sizeof more[0] && goes_on(s); k++) {
            struct search_point found = {.change = front[i].change, .ngpus = front[i].ngpus};
            struct fsdp_err err = FSDP_ERR_INIT;
            q.ngpus = found.ngpus;
            add_setting(&found.change, more[k]);
            s->out->nplanned++;
            if (change_answer(&found.answer, &q, &found.change, &err) || !found.answer.fits)
                continue;
            found.token_s = found.answer.step_s / found.answer.step_tokens;
            found.token_gpu_s = found.token_s * found.ngpus;
            /* A setting more must give more than a plan can tell apart. */
            if (found.token_s < front[i].token_s * (1 - ANSWER_EQUAL_PERCENT / 100.0))
                add_to_front(s->out, &found, s->opts->goal);
        }
    fsdp_free(front);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int open_space(struct space *s, int ngpus, int64_t rows, struct fsdp_err *err)
{
    struct question q = *s->q;

    q.ngpus = s->ngpus = ngpus;
    q.quick = true;
    FSDP_TRY(answer_make(&s->base, &q, err));
    s->step_rows = rows ? rows / ngpus * ngpus : s->base.rows;
    s->ntypes = s->opts->keep_numerics ? 1 : NTYPES;
    memset(s->bounds, 0, sizeof s->bounds);
    list_strategies(s);
    list_rows(s);
    return FSDP_OK;
}

/* Of points that are equal to the best, those that change fewer numbers come first. */
static void mark_equal(struct search_result *out, enum search_goal goal)
{
    const struct search_point *best = &out->front[0];
    int n = 0;

    while (n < out->nfront &&
           (goal == SEARCH_COST ? answer_is_equal(best->token_gpu_s, out->front[n].token_gpu_s)
                                : best->ngpus == out->front[n].ngpus &&
                                      answer_is_equal(best->token_s, out->front[n].token_s)))
        n++;
    for (int i = 1; i < n; i++) {
        const struct search_point p = out->front[i];
        int at = i;
        for (; at > 0 && out->front[at - 1].change.nnumerics > p.change.nnumerics; at--)
            out->front[at] = out->front[at - 1];
        out->front[at] = p;
    }
    for (int i = 1; i < n; i++)
        out->front[i].equal = true;
}

/* With the rows that the run has and, where more are allowed, with those. Fewer GPUs than all may
 * be too few for the run as it stands. */
static int search_world(struct space *s, int ngpus, bool all, struct fsdp_err *err)
{
    struct fsdp_err smaller = FSDP_ERR_INIT;
    int rc = open_space(s, ngpus, 0, all ? err : &smaller);

    if (rc)
        return all ? rc : FSDP_OK;
    if (s->opts->most_rows && s->opts->most_rows < s->base.rows)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "--max-global-batch %lld: the run has %lld rows a step, which it cannot "
            "go below",
            (long long)s->opts->most_rows, (long long)s->base.rows);
    search_space(s);
    if (s->opts->most_rows / ngpus * ngpus > s->base.rows) {
        rc = open_space(s, ngpus, s->opts->most_rows, err);
        if (rc == FSDP_OK)
            search_space(s);
    }
    return rc;
}

/* For time all GPUs; for cost and GPUs also half of them, a quarter, down to one node. */
int search_run(struct search_result *out, const struct question *q, const struct search_opts *opts,
               struct fsdp_err *err)
{
    struct space *s = fsdp_alloc(1, sizeof *s, "search", err);
    const int node = q->cluster->clock.net.node_nranks;
    int rc = FSDP_OK;

    if (!s)
        return FSDP_ENOMEM;
    memset(out, 0, sizeof *out);
    out->complete = true;
    *s = (struct space){.q = q, .opts = opts, .out = out};
    for (int n = q->ngpus; rc == FSDP_OK && n >= 1; n /= 2) {
        rc = search_world(s, n, n == q->ngpus, err);
        if (opts->goal == SEARCH_TIME || n % 2 || (n / 2) % (n / 2 < node ? 1 : node))
            break;
    }
    if (rc == FSDP_OK)
        refine(s);
    mark_equal(out, opts->goal);
    fsdp_free(s);
    return rc;
}
