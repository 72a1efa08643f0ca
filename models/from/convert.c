/* SPDX-License-Identifier: Apache-2.0 */
/* Whose configuration it is, and the two texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "from.h"
#include "job.h"

static const struct from_source *const sources[] = {&from_accelerate, &from_deepspeed};
enum { NSOURCES = sizeof sources / sizeof sources[0] };

/* ---- text that grows ---- */

struct text {
    char *data;
    size_t nbytes, capacity;
    bool failed;
};

static void text_put(struct text *t, const char *fmt, ...) FSDP_PRINTF(2, 3);
static void text_put(struct text *t, const char *fmt, ...)
{
    enum { LINE_NBYTES = 4096 };
    va_list ap;

    if (!t->failed && t->capacity - t->nbytes < LINE_NBYTES) {
        char *more = fsdp_alloc(2 * t->capacity + LINE_NBYTES, 1, "text", NULL);
        if (more && t->nbytes)
            memcpy(more, t->data, t->nbytes);
        t->failed = !more;
        if (more) {
            fsdp_free(t->data);
            t->data = more;
            t->capacity = 2 * t->capacity + LINE_NBYTES;
        }
    }
    if (t->failed)
        return;
    va_start(ap, fmt);
    int len = vsnprintf(t->data + t->nbytes, t->capacity - t->nbytes, fmt, ap);
    va_end(ap);
    t->nbytes += len < LINE_NBYTES ? (size_t)len : LINE_NBYTES - 1;
}

static int give(char **out, struct text *t, struct fsdp_err *err)
{
    if (t->failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "no memory for the configuration");
    *out = t->data;
    return FSDP_OK;
}

/* ---- whose it is ---- */

static bool begins_a_row(const struct from_source *source, const char *path)
{
    const size_t len = strcspn(path, ".");
    for (int i = 0; i < source->nrows; i++) {
        const char *theirs = source->rows[i].theirs;
        if (strncmp(theirs, path, len) == 0 && strchr(".*", theirs[len]))
            return true;
    }
    return false;
}

static const struct from_source *recognize(const struct from_leaves *leaves)
{
    const struct from_source *best = NULL;
    int most = 0;
    for (int s = 0; s < NSOURCES; s++) {
        int known = 0;
        for (int i = 0; i < leaves->count; i++)
            known += begins_a_row(sources[s], leaves->all[i].path);
        if (known > most) {
            best = sources[s];
            most = known;
        }
    }
    return best;
}

/* ---- the run.yaml ---- */

static const char *const fates[] = {
    [FROM_OPEN] = "To fill in",
    [FROM_LOST] = "Without a counterpart",
    [FROM_UNKNOWN] = "Unknown keys, of which nothing is made",
    [FROM_LINE] = "On the command line",
    [FROM_HAVE] = "Nothing to set",
};
static const enum from_fate order[] = {FROM_OPEN, FROM_LOST, FROM_UNKNOWN, FROM_LINE, FROM_HAVE};

/* Text of a file, as a comment must have it: in one line, and no half of a character at its end. */
static const char *one_line(char out[160], const char *text)
{
    snprintf(out, 160, "%s", text);
    return fsdp_text_clean(out);
}

static void put_remarks(struct text *t, const struct from_job *job, enum from_fate fate)
{
    bool any = false;
    char key[160], value[160];
    for (int i = 0; i < job->nremarks; i++) {
        const struct from_remark *r = &job->remarks[i];
        if (r->fate != fate)
            continue;
        if (!any)
            text_put(t, "\n# %s:\n", fates[fate]);
        any = true;
        text_put(t, "#   %s: %s  - %s\n", one_line(key, r->key), one_line(value, r->value),
                 r->text);
    }
}

static void put_section(struct text *t, const struct from_job *job, const char *name)
{
    const size_t len = strlen(name);
    bool any = false;
    char why[160];
    for (int i = 0; i < job->nsettings; i++) {
        const struct from_setting *s = &job->settings[i];
        if (strncmp(s->key, name, len) || s->key[len] != '.')
            continue;
        if (!any)
            text_put(t, "%s:\n", name);
        any = true;
        text_put(t, "  %s: %s%s%s\n", s->key + len + 1, s->value, s->why[0] ? "  # " : "",
                 one_line(why, s->why));
    }
}

static void put_command(struct text *t, const struct from_job *job)
{
    const int per_node = job->nnodes > 1 ? job->nranks / job->nnodes : job->nranks;
    text_put(t, "fsdp-launch");
    if (job->nnodes > 1)
        text_put(t, " --nnodes %d --node-rank R --master-addr %s", job->nnodes,
                 job->master[0] ? job->master : "HOST");
    if (job->nnodes > 1 && job->port[0])
        text_put(t, " --master-port %s", job->port);
    if (per_node > 0)
        text_put(t, " -n %d", per_node);
    else
        text_put(t, " -n RANKS");
    text_put(t, " run.yaml");
}

static void put_yaml(struct text *t, const struct from_job *job, const char *title)
{
    static const char *const sections[] = {"model", "data",       "train", "optim",
                                           "fsdp",  "checkpoint", "log"};
    char path[160];
    text_put(t, "# What %s says, a configuration of %s.\n", one_line(path, job->path), title);
    text_put(t, "# Fill in what is in capitals: it was in a script, not in that file. Then:\n#   ");
    put_command(t, job);
    text_put(t,
             "\n# fsdp-launch --print-config run.yaml shows all settings and what they mean.\n\n");
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        put_section(t, job, sections[i]);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        put_remarks(t, job, order[i]);
}

/* ---- the summary ---- */

static void put_names(struct text *t, const struct from_job *job, enum from_fate fate,
                      const char *what)
{
    char key[160];
    int n = 0;
    for (int i = 0; i < job->nremarks; i++)
        if (job->remarks[i].fate == fate)
            text_put(t, "%s%s", n++ ? ", " : what, one_line(key, job->remarks[i].key));
    if (n)
        text_put(t, "\n");
}

static void put_summary(struct text *t, const struct from_job *job, const char *title, int nmade)
{
    int nhave = 0;
    char path[160];
    for (int i = 0; i < job->nremarks; i++)
        nhave += job->remarks[i].fate == FROM_HAVE;
    text_put(t, "%s (%s): %d settings; %d keys need none\n", one_line(path, job->path), title,
             nmade, nhave);
    put_names(t, job, FROM_OPEN, "to fill in: ");
    put_names(t, job, FROM_LOST, "without a counterpart: ");
    put_names(t, job, FROM_UNKNOWN, "unknown keys: ");
    text_put(t, "start it with: ");
    put_command(t, job);
    text_put(t, "\n");
}

/* ---- both ---- */

/* Those that every run needs, and that a script had. */
static void add_placeholders(struct from_job *job)
{
    from_set(job, "model.path", "a folder with config.json and weights", "MODEL_FOLDER");
    from_set(job, "data.path", "files of text, JSON Lines or tokens (docs/data.md)", "DATA_FILES");
    if (!from_has(job, "train.steps"))
        from_set(job, "train.steps", "STEPS IN ALL", "1000");
}

int from_convert(char **yaml, char **summary, const char *path, struct fsdp_err *err)
{
    struct from_job *job = fsdp_alloc(1, sizeof *job, "conversion", err);
    const struct from_source *source;
    struct text both[2] = {{0}, {0}};
    int rc = FSDP_ENOMEM;

    if (!job)
        return rc;
    job->path = path;
    FSDP_TRY_GOTO(from_leaves_read(&job->leaves, path, "", err), out);
    if (from_leaves_find(&job->leaves, "model.path") ||
        from_leaves_find(&job->leaves, "train.steps")) {
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "%s: is a configuration of fsdp-launch already: start it without --from",
                          path);
        goto out;
    }
    if (!(source = recognize(&job->leaves))) {
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "%s: neither a configuration of accelerate nor of DeepSpeed: none of "
                          "their keys is in it",
                          path);
        goto out;
    }
    from_run(job, source);
    const int nmade = job->nsettings;
    add_placeholders(job);
    put_yaml(&both[0], job, source->title);
    put_summary(&both[1], job, source->title, nmade);
    if ((rc = give(yaml, &both[0], err)) == FSDP_OK)
        rc = give(summary, &both[1], err);
out:
    if (rc) {
        fsdp_free(both[0].data);
        fsdp_free(both[1].data);
    }
    from_leaves_free(&job->leaves);
    fsdp_free(job);
    return rc;
}

int from_table(char **out, const char *name, struct fsdp_err *err)
{
    static const char *const words[] = {[FROM_SET] = "",
                                        [FROM_HAVE] = "nothing to set",
                                        [FROM_LINE] = "",
                                        [FROM_OPEN] = "",
                                        [FROM_LOST] = "**none**"};
    struct text t = {0};

    for (int s = 0; s < NSOURCES; s++)
        for (int i = 0; !strcmp(sources[s]->name, name) && i < sources[s]->nrows; i++) {
            const struct from_row *row = &sources[s]->rows[i];
            const char *word = words[row->fate], *tick = row->ours ? "`" : "";
            text_put(&t, "| `%s` | %s%s%s%s%s | %s |\n", row->theirs, word,
                     word[0] && row->ours ? "; " : "", tick, row->ours ? row->ours : "", tick,
                     row->note ? row->note : "");
        }
    text_put(&t, "%s", "");
    return give(out, &t, err);
}
