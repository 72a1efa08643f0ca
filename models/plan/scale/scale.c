/* SPDX-License-Identifier: Apache-2.0 */
/* Rows over GPUs: how the batch is divided, and which strategies are compared. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "config/config.h"
#include "scale.h"

/* ---- points ---------------------------------------------------------------------------------- */

static int check_end(int ngpus, int node, struct fsdp_err *err)
{
    if (ngpus > node && ngpus % node)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--scale: %d GPUs on nodes of %d: an end must be a multiple of "
                            "--node-size, or no more than it (%d or %d)",
                            ngpus, node, ngpus / node * node, (ngpus / node + 1) * node);
    return FSDP_OK;
}

int scale_points(int ngpus[SCALE_MAX_POINTS], int *npoints, const struct scale_opts *opts, int node,
                 struct fsdp_err *err)
{
    int n = 0;

    if (opts->from < 1 || opts->to < opts->from)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--scale %d..%d: give the fewest and the most GPUs, "
                            "such as 8..16384",
                            opts->from, opts->to);
    FSDP_TRY(check_end(opts->from, node, err));
    FSDP_TRY(check_end(opts->to, node, err));
    ngpus[n++] = opts->from;
    for (long at = 1; at < opts->to; at = at < node && 2 * at >= node ? node : 2 * at)
        if (at > opts->from && n < SCALE_MAX_POINTS - 1)
            ngpus[n++] = (int)at;
    if (opts->to > opts->from)
        ngpus[n++] = opts->to;
    *npoints = n;
    return FSDP_OK;
}

/* ---- notes ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void add_note(struct scale *s, const char *format, ...)
{
    char text[SCALE_NOTE];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int i = 0; i < s->nnotes; i++)
        if (!strcmp(s->note[i], text))
            return;
    if (s->nnotes < SCALE_MAX_NOTES)
        memcpy(s->note[s->nnotes++], text, sizeof text);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* The run, with what is needed to divide its batch anew. */
struct run {
    const struct question *q;
    const struct scale_opts *opts;
    struct config *config;
    int64_t micro; /* rows of a micro-batch, SCALE_PER_GPU */
    double tokens; /* below 0: not known */
    int group;     /* GPUs of a HYBRID_SHARD group: the last that fitted, or a node */
    int nplanned, nall;
    bool ended;
};

enum { MAX_SETTINGS = 6, SETTING_TEXT = 64 };
struct overrides {
    char text[MAX_SETTINGS][SETTING_TEXT];
    int nsettings;
};

__attribute__((format(printf, 2, 3))) static void set(struct overrides *to, const char *format, ...)
{
    va_list args;

    if (to->nsettings == MAX_SETTINGS)
        return;
    va_start(args, format);
    vsnprintf(to->text[to->nsettings++], SETTING_TEXT, format, args);
    va_end(args);
}

/* The rows of a step with so many GPUs, and of a micro-batch. false: they do not divide. */
static bool divide(struct scale *s, const struct run *r, int ngpus, int64_t *rows, int64_t *micro)
{
    const int64_t own = r->config->train.micro_batch_size;
    struct config_batch batch;

    *micro = r->micro;
    *rows = s->batch == SCALE_PER_GPU ? s->gpu_rows * ngpus : s->rows;
    if (s->batch == SCALE_PER_GPU)
        return *rows <= INT32_MAX;
    if (s->rows % ngpus) {
        int most = 1;
        for (int i = 0; i < s->npoints && s->ngpus[i] <= s->rows; i++)
            most = s->ngpus[i];
        if (!s->nleft_out++)
            add_note(
                s,
                "left out from %d GPUs on: numbers by which the %lld rows of a step do not divide; "
                "train.global_batch_size=%lld does up to %d",
                ngpus, (long long)s->rows, (long long)((s->rows + most / 2) / most * most), most);
        return false;
    }
    config_divide(&batch, r->config, ngpus);
    *micro = batch.micro_rows;
    while (s->rows / ngpus % *micro)
        --*micro;
    if (own && *micro < own && !s->nsmaller++)
        add_note(s,
                 "from %d GPUs on a micro-batch has fewer rows than the run's %lld: a GPU has no "
                 "more",
                 ngpus, (long long)own);
    return true;
}

static int plan(struct answer *out, struct run *r, const struct overrides *more, int ngpus,
                int64_t rows, int64_t micro, struct fsdp_err *err)
{
    enum { MOST = 192 };
    struct overrides all = *more;
    char *texts[MOST];
    struct question q = *r->q;
    int n = 0;

    set(&all, "train.global_batch_size=%lld", (long long)rows);
    set(&all, "train.micro_batch_size=%lld", (long long)micro);
    if (q.noverrides + all.nsettings > MOST)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d settings", MOST);
    for (int i = 0; i < q.noverrides; i++)
        texts[n++] = q.overrides[i];
    for (int i = 0; i < all.nsettings; i++)
        texts[n++] = all.text[i];
    q.overrides = texts;
    q.noverrides = n;
    q.ngpus = ngpus;
    q.tokens = r->tokens;
    q.quick = true;
    r->nplanned++;
    if (r->opts->progress && !r->opts->progress(r->opts->ctx, r->nplanned, r->nall))
        r->ended = true;
    return answer_make(out, &q, err);
}

/* ---- strategies ------------------------------------------------------------------------------ */

enum kind { OWN, FLAT, TWO_LEVELS, BY_NODE, NKINDS };

static void set_strategy(struct overrides *to, enum kind kind, int group)
{
    to->nsettings = 0;
    if (kind == OWN)
        return;
    set(to, "fsdp.sharding_strategy=%s", kind == BY_NODE ? "HYBRID_SHARD" : "FULL_SHARD");
    if (group)
        set(to, "fsdp.shard_size=%d", group);
    else
        set(to, "fsdp.shard_size=auto");
    set(to, "fsdp.two_level=%s", kind == TWO_LEVELS ? "true" : "false");
}

/* Where sharding over all GPUs does not fit, no group does. */
static bool may_fit(const struct scale *s, int point)
{
    for (int l = 0; l < s->nlines; l++)
        if (s->line[l].point[point].is_there && s->line[l].point[point].answer.fits)
            return true;
    return false;
}

/* Shards within a node, or within the fewest nodes on which that fits. */
static int plan_groups(struct answer *out, struct run *r, bool may, int ngpus, int64_t rows,
                       int64_t micro, struct fsdp_err *err)
{
    struct overrides more;
    struct answer wider;

    set_strategy(&more, BY_NODE, r->group);
    FSDP_TRY(plan(out, r, &more, ngpus, rows, micro, err));
    for (int size = 2 * r->group; may && !out->fits && size < ngpus && ngpus % size == 0;
         size *= 2) {
        set_strategy(&more, BY_NODE, size);
        FSDP_TRY(plan(&wider, r, &more, ngpus, rows, micro, err));
        if (!wider.fits)
            continue;
        *out = wider;
        r->group = size;
    }
    return FSDP_OK;
}

static void plan_point(struct scale *s, struct run *r, struct scale_line *line, enum kind kind,
                       int i)
{
    const int node = r->q->cluster->clock.net.node_nranks, ngpus = s->ngpus[i];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct overrides more;
    int64_t rows, micro;
    int rc;

    if (r->ended || ((kind == TWO_LEVELS || kind == BY_NODE) && ngpus <= node) ||
        !divide(s, r, ngpus, &rows, &micro))
        return;
    set_strategy(&more, kind, 0);
    if (kind == BY_NODE)
        rc = plan_groups(&line->point[i].answer, r, may_fit(s, i), ngpus, rows, micro, &err);
    else
        rc = plan(&line->point[i].answer, r, &more, ngpus, rows, micro, &err);
    line->point[i].is_there = rc == FSDP_OK;
    if (rc && !s->nrefused[kind]++)
        add_note(s, "left out: %s from %d GPUs on: %s", line->name, ngpus, err.text);
}

static bool is_same(const struct answer *a, const struct answer *b)
{
    return !strcmp(a->strategy, b->strategy) && a->shard_nranks == b->shard_nranks &&
           a->two_level == b->two_level;
}

static bool has_points(const struct scale *s, const struct scale_line *line)
{
    for (int i = 0; i < s->npoints; i++)
        if (line->point[i].is_there)
            return true;
    return false;
}

/* The own line is one of the others where it has their strategy at each point. */
static bool is_own_again(const struct scale *s, const struct scale_line *line)
{
    const struct scale_line *own = &s->line[0];
    int nsame = 0;

    for (int i = 0; i < s->npoints; i++) {
        if (!line->point[i].is_there)
            continue;
        if (!own->point[i].is_there || !is_same(&own->point[i].answer, &line->point[i].answer))
            return false;
        nsame++;
    }
    return nsame > 0;
}

static void write_settings(struct scale_line *line, enum kind kind, int group)
{
    struct overrides all;
    size_t at = 0;

    set_strategy(&all, kind, group);
    line->settings[0] = 0;
    for (int i = 0; i < all.nsettings && at < sizeof line->settings; i++)
        at += (size_t)snprintf(line->settings + at, sizeof line->settings - at, "%s%s",
                               i ? " " : "", all.text[i]);
}

/* Where a node is too small for a group, the line is that of the groups that fit. */
static void name_groups(struct scale *s, struct scale_line *line, int node)
{
    for (int i = 0; i < s->npoints; i++) {
        const struct answer *a = &line->point[i].answer;
        if (!line->point[i].is_there || !a->fits || a->shard_nranks <= node)
            continue;
        add_note(s,
                 "HYBRID_SHARD by node does not fit; from %d GPUs on its groups are the smallest "
                 "that fit: %d GPUs, on %d nodes",
                 s->ngpus[i], a->shard_nranks, a->shard_nranks / node);
        snprintf(line->name, sizeof line->name, "HYBRID_SHARD by %d nodes", a->shard_nranks / node);
        write_settings(line, BY_NODE, a->shard_nranks);
        return;
    }
}

static void add_line(struct scale *s, struct run *r, enum kind kind, const char *name)
{
    struct scale_line *line = &s->line[s->nlines];

    snprintf(line->name, sizeof line->name, "%s", name);
    line->is_own = kind == OWN;
    write_settings(line, kind, kind == BY_NODE ? r->group : 0);
    for (int i = 0; i < s->npoints; i++)
        plan_point(s, r, line, kind, i);
    if (kind == OWN) {
        s->nlines++;
    } else if (!has_points(s, line)) {
        memset(line, 0, sizeof *line);
    } else if (is_own_again(s, line)) {
        s->line[0].settings[0] = 0;
        snprintf(s->line[0].name, sizeof s->line[0].name, "%s", name);
        memset(line, 0, sizeof *line);
    } else {
        s->nlines++;
        if (kind == BY_NODE)
            name_groups(s, line, r->q->cluster->clock.net.node_nranks);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Plans the own run at the first point at which it can be, for what the configuration alone does
 * not say: the length of a row where it is auto, and the tokens of all steps. */
static int probe(struct scale *s, struct run *r, struct fsdp_err *err)
{
    const struct overrides none = {.nsettings = 0};
    struct answer answer;
    int rc = FSDP_EINVAL;

    r->tokens = -1;
    for (int i = 0; i < s->npoints && rc; i++) {
        int64_t rows, micro;
        *err = (struct fsdp_err)FSDP_ERR_INIT;
        if (!divide(s, r, s->ngpus[i], &rows, &micro)) {
            fsdp_err_set(err, FSDP_EINVAL,
                         "train.global_batch_size=%lld does not divide by %d GPUs or more: widen "
                         "--scale, or leave out --scale-batch constant",
                         (long long)s->rows, s->ngpus[i]);
            continue;
        }
        rc = plan(&answer, r, &none, s->ngpus[i], rows, micro, err);
        if (rc)
            continue;
        s->seq_len = answer.row_tokens;
        r->tokens = r->q->tokens;
        if (r->tokens == 0 && r->config->train.steps > 0)
            r->tokens = (double)r->config->train.steps *
                        (double)r->config->train.global_batch_size *
                        ((double)answer.rows / (double)rows) * (double)answer.row_tokens;
        if (r->tokens == 0)
            r->tokens = -1;
    }
    s->nnotes = s->nleft_out = s->nsmaller = 0; /* the lines tell them again */
    return rc;
}

static void begin_run(struct scale *s, struct run *r)
{
    struct config_batch batch;

    config_divide(&batch, r->config, r->q->ngpus);
    s->batch = r->opts->batch;
    s->rows = r->config->train.global_batch_size;
    r->micro =
        r->config->train.micro_batch_size ? r->config->train.micro_batch_size : batch.micro_rows;
    r->micro = r->opts->from_question ? batch.micro_rows : r->micro;
    s->gpu_rows =
        r->opts->from_question ? (int64_t)batch.micro_rows * batch.accumulation : r->micro;
}

int scale_make(struct scale *out, const struct question *q, const struct scale_opts *opts,
               struct fsdp_err *err)
{
    static const char *const names[NKINDS] = {"the run's own", "FULL_SHARD",
                                              "FULL_SHARD, two levels", "HYBRID_SHARD by node"};
    const int node = q->cluster->clock.net.node_nranks;
    struct run run = {.q = q, .opts = opts};

    memset(out, 0, sizeof *out);
    FSDP_TRY(scale_points(out->ngpus, &out->npoints, opts, node, err));
    FSDP_TRY(config_load(&run.config, q->config, q->noverrides, q->overrides, err));
    run.nall = 1 + NKINDS * out->npoints;
    run.group = node;
    begin_run(out, &run);
    const int rc = probe(out, &run, err);
    for (int kind = 0; kind < NKINDS && rc == FSDP_OK; kind++)
        add_line(out, &run, (enum kind)kind, names[kind]);
    if (rc == FSDP_OK && out->ngpus[0] <= node)
        add_note(out,
                 "two levels and groups by node are not there on one node: they would be the same "
                 "as FULL_SHARD");
    if (rc == FSDP_OK && !scale_fits(out))
        add_note(out, "the run fits nowhere here: fsdp-plan --advice always, without --scale, says "
                      "which settings make it fit");
    if (run.ended)
        add_note(out, "interrupted: not all was planned");
    fsdp_free(run.config);
    return rc;
}

bool scale_fits(const struct scale *s)
{
    for (int i = 0; i < s->npoints; i++)
        if (s->line[0].point[i].is_there && s->line[0].point[i].answer.fits)
            return true;
    return false;
}

int scale_best(const struct scale *s, int point, bool *is_equal)
{
    int best = -1;

    *is_equal = false;
    for (int l = 0; l < s->nlines; l++) {
        const struct scale_point *p = &s->line[l].point[point];
        if (p->is_there && p->answer.fits &&
            (best < 0 || p->answer.tokens_s_gpu > s->line[best].point[point].answer.tokens_s_gpu))
            best = l;
    }
    for (int l = 0; l < s->nlines && best >= 0; l++) {
        const struct scale_point *p = &s->line[l].point[point];
        if (l != best && p->is_there && p->answer.fits &&
            answer_is_equal(p->answer.tokens_s_gpu, s->line[best].point[point].answer.tokens_s_gpu))
            *is_equal = true;
    }
    return best;
}
