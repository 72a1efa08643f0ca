/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "watch.h"

enum {
    ADOPT_TRIES = 3,   /* an output without its note is then no other watcher's work any more */
    END_TRIES = 6,     /* without a run, for a checkpoint that fails */
    MAX_PAUSE_S = 60,  /* between two tries */
    NOTE_NBYTES = 128, /* a name of a note */
};

struct known {
    int64_t step;
    bool done; /* published, or gone before it could be */
    bool made; /* its weights are there: what is missing is the command, or the note */
    bool lost; /* made, and its checkpoint was removed before the rest was done */
    int tries;
    double again; /* when it may be tried again */
};

struct watcher {
    const struct watch_args *args;
    struct watch_run run;
    struct known *known;
    size_t nknown, max_known;
    int64_t newest; /* published; -1: none */
    bool over;      /* there is no run any more */
    int npending;   /* of the last look: finished, and neither published nor gone */
    int failures;   /* looks in a row in which the root or `latest` failed */
    bool worked;    /* one was published: there may be new ones */
};

static void note_of(char name[NOTE_NBYTES], int64_t step)
{
    snprintf(name, NOTE_NBYTES, "step-%08lld.published", (long long)step);
}

static struct known *known_of(struct watcher *w, int64_t step, struct fsdp_err *err)
{
    for (size_t i = 0; i < w->nknown; i++)
        if (w->known[i].step == step)
            return &w->known[i];
    struct known *grown =
        fsdp_alloc_grow(w->known, w->nknown, &w->max_known, sizeof *grown, "known steps", err);
    if (!grown)
        return NULL;
    w->known = grown;
    w->known[w->nknown] = (struct known){.step = step};
    return &w->known[w->nknown++];
}

static void set_done(struct watcher *w, struct known *k)
{
    k->done = true;
    w->newest = k->step > w->newest ? k->step : w->newest;
}

/* `latest` names the highest step that is published. Another watcher may write it at the same time,
 * so it is looked at after each look at the steps, too. */
static int put_latest(const struct watcher *w, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *text = NULL, line[NOTE_NBYTES];
    long long step = -1;

    if (w->newest < 0)
        return FSDP_OK;
    const int rc = ckpt_note_read(&text, w->args->out, "latest", &why);
    if (rc && rc != FSDP_ENOTFOUND)
        return fsdp_err_pass(err, rc, &why);
    if (rc == FSDP_OK && sscanf(text, "step-%lld", &step) != 1)
        step = -1;
    fsdp_free(text);
    if (step >= w->newest)
        return FSDP_OK;
    snprintf(line, sizeof line, "step-%08lld\n", (long long)w->newest);
    return ckpt_note_write(w->args->out, "latest", line, err);
}

/* ---- one checkpoint -------------------------------------------------------------------------- */

/* A file is published whole. In an object store, too, where what is in the way of one is one. */
static bool is_whole(const struct watch_args *args, const char *path)
{
    struct ckpt *ckpt = NULL;
    struct stat st;
    if (args->suffix[0])
        return ckpt_path_is_url(path) || (!stat(path, &st) && S_ISREG(st.st_mode));
    const bool good = ckpt_open(&ckpt, path, NULL) == FSDP_OK;
    ckpt_close(ckpt);
    return good;
}

static int make_weights(struct watcher *w, const char *source, const char *out,
                        struct fsdp_err *err)
{
    struct tool *tool = w->args->tool;
    struct ckpt_reshard_result result;
    struct ckpt *ckpt = NULL;

    tool->args.out = out;
    tool->args.progress = tool_progress;
    tool->args.progress_ctx = tool;
    tool->begun = fsdp_time_now();
    int rc = ckpt_open_with(&ckpt, source, tool->config, err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(&result, ckpt, &tool->args, err);
    ckpt_close(ckpt);
    if (rc == FSDP_OK)
        tool_print_result(tool, &result);
    fflush(stdout);
    return rc;
}

/* Weights, the command, then the note: whoever finds the note finds all done. */
static int publish(struct watcher *w, struct known *k, const char *source, struct fsdp_err *err)
{
    const struct watch_args *args = w->args;
    struct fsdp_err why = FSDP_ERR_INIT;
    char note[NOTE_NBYTES], text[NOTE_NBYTES];
    char *out = fsdp_sprintf(err, "%s/step-%08lld%s", args->out, (long long)k->step, args->suffix);
    int rc = out ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && !k->made)
        rc = make_weights(w, source, out, &why);
    if (rc == FSDP_EEXIST && k->tries >= ADOPT_TRIES && is_whole(args, out))
        rc = FSDP_OK;
    k->made = k->made || rc == FSDP_OK;
    if (rc == FSDP_OK && args->then)
        rc = watch_then(args->then, k->step, source, out, &why);
    note_of(note, k->step);
    snprintf(text, sizeof text, "{\"step\": %lld}\n", (long long)k->step);
    if (rc == FSDP_OK)
        rc = ckpt_note_write(args->out, note, text, &why);
    fsdp_free(out);
    return fsdp_err_pass(err, rc, &why);
}

/* Something else than the checkpoint is wrong: an option, a file that it names. */
static bool is_hopeless(const struct known *k, int rc, const struct fsdp_err *why)
{
    return why->setting[0] || rc == FSDP_EINVAL || rc == FSDP_EUNSUPPORTED || rc == FSDP_ENOMEM ||
           (rc == FSDP_ENOTFOUND && k->tries > 1);
}

/* It is tried again, left alone, or the end of all. */
static int judge_failure(struct watcher *w, struct known *k, int rc, struct fsdp_err *why)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *source = NULL;
    bool finished = true;

    if (tool_is_stopped())
        return rc;
    if (ckpt_step_path(&source, &finished, w->args->root, k->step, &err) == FSDP_OK && !finished) {
        if (!k->made)
            fsdp_log(FSDP_LOG_WARN, "'%s' was removed while it was read, and is left out", source);
        k->lost = k->made; /* which is said in the end */
        k->done = true;
    } else if (is_hopeless(k, rc, why)) {
        fsdp_free(source);
        return rc;
    } else {
        const double pause = w->args->poll_s * pow(2, k->tries);
        if (rc != FSDP_EEXIST || k->tries >= ADOPT_TRIES)
            fsdp_log(FSDP_LOG_WARN, "step %lld is tried again: %s", (long long)k->step, why->text);
        k->again = fsdp_time_now() + (pause < MAX_PAUSE_S ? pause : MAX_PAUSE_S);
        k->tries++;
        w->npending++;
    }
    fsdp_free(source);
    return FSDP_OK;
}

static int look_at_step(struct watcher *w, int64_t step, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char note[NOTE_NBYTES], *text = NULL, *source = NULL;
    bool finished = false;
    struct known *k = known_of(w, step, err);

    if (!k)
        return FSDP_ENOMEM;
    if (k->done)
        return FSDP_OK;
    note_of(note, step);
    int rc = ckpt_note_read(&text, w->args->out, note, &why);
    fsdp_free(text);
    if (rc == FSDP_OK) {
        set_done(w, k);
        return FSDP_OK;
    }
    if (rc == FSDP_ENOTFOUND)
        rc = ckpt_step_path(&source, &finished, w->args->root, step, &why);
    if (rc == FSDP_OK && finished && k->again > fsdp_time_now())
        w->npending++;
    else if (rc == FSDP_OK && finished && (rc = publish(w, k, source, &why)) == FSDP_OK)
        set_done(w, k);
    w->worked |= rc == FSDP_OK && finished && k->done;
    fsdp_free(source);
    if (rc && (rc = judge_failure(w, k, rc, &why)))
        return fsdp_err_pass(err, rc, &why);
    return FSDP_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* A root that is not there yet has no steps; a store that does not answer is asked again. The
 * newest goes first, and after it there may be newer ones: an old one may be removed any time. */
static int look(struct watcher *w, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int64_t *steps = NULL;
    int nsteps = 0;

    w->npending = 0;
    w->worked = false;
    int rc = ckpt_steps(&steps, &nsteps, w->args->root, &why);
    if (rc && rc != FSDP_ENOTFOUND) {
        fsdp_log(FSDP_LOG_WARN, "%s", why.text);
        w->npending++;
    }
    bool failed = rc && rc != FSDP_ENOTFOUND;
    rc = FSDP_OK;
    for (int i = nsteps - 1; rc == FSDP_OK && i >= 0 && !w->worked && !tool_is_stopped(); i--)
        rc = look_at_step(w, steps[i], err);
    fsdp_free(steps);
    const int put = rc == FSDP_OK ? put_latest(w, &why) : FSDP_OK;
    if (put && put != FSDP_ENOTFOUND) /* not found: another watcher's note took this one's name */
        fsdp_log(FSDP_LOG_WARN, "%s", why.text);
    w->npending += put != FSDP_OK;
    failed |= put && put != FSDP_ENOTFOUND;
    w->failures = failed ? w->failures + 1 : 0;
    return rc;
}

static bool gives_up(const struct watcher *w)
{
    int most = w->failures;
    for (size_t i = 0; i < w->nknown; i++)
        if (!w->known[i].done && w->known[i].tries > most)
            most = w->known[i].tries;
    return most >= END_TRIES;
}

static void pause_until(double when)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    while (!tool_is_stopped() && fsdp_time_now() < when)
        nanosleep(&moment, NULL);
}

/* The run's last checkpoint is there before it is over: so first that is asked, then looked. */
static int watch_on(struct watcher *w, struct fsdp_err *err)
{
    while (!tool_is_stopped()) {
        w->over = w->over || watch_run_is_over(&w->run, w->args);
        FSDP_TRY(look(w, err));
        if (w->worked)
            continue;
        if (w->over && !w->nknown)
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "'%s' is no folder of checkpoints, or the run has saved none",
                                w->args->root);
        if (w->over && !w->npending)
            return FSDP_OK;
        if (w->over && gives_up(w))
            return fsdp_err_set(err, FSDP_EIO,
                                "not all checkpoints of '%s' could be published; the same command "
                                "tries again",
                                w->args->root);
        pause_until(fsdp_time_now() + w->args->poll_s);
    }
    return FSDP_OK;
}

/* Weights are there of which the command after them failed, and there is no other try: the
 * checkpoint was removed. */
static int report_lost(const struct watcher *w, struct fsdp_err *err)
{
    char steps[256] = "";
    int nlost = 0;
    for (size_t i = 0; i < w->nknown; i++) {
        const struct known *k = &w->known[i];
        const size_t len = strlen(steps);
        if (!k->lost && (k->done || !k->made))
            continue;
        nlost++;
        snprintf(steps + len, sizeof steps - len, "%s%lld", len ? ", " : "", (long long)k->step);
    }
    if (!nlost)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EIO,
                        "step%s %s: the weights are in '%s', but %s failed, and the checkpoint was "
                        "removed before another try",
                        nlost == 1 ? "" : "s", steps, w->args->out,
                        w->args->then ? "--then" : "the note that they are published");
}

int watch(const struct watch_args *args)
{
    struct watcher w = {.args = args, .newest = -1};
    struct fsdp_err err = FSDP_ERR_INIT;

    tool_watch(args->tool);
    int rc = ckpt_path_check(args->root, &err);
    if (rc == FSDP_OK)
        rc = ckpt_root_make(args->out, &err);
    if (rc == FSDP_OK)
        rc = watch_on(&w, &err);
    if (rc == FSDP_OK && !tool_is_stopped())
        rc = report_lost(&w, &err);
    fsdp_free(w.known);
    const int status = rc ? tool_fail(args->tool, tool_status(&err), err.text) : TOOL_DONE;
    return tool_end(args->tool, status);
}
