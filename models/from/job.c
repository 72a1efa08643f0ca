/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "job.h"

const char *from_get(const struct from_job *job, const char *path)
{
    char full[FROM_PATH_NBYTES + 64];
    snprintf(full, sizeof full, "%s%s%s", job->prefix, job->prefix[0] ? "." : "", path);
    const struct from_leaf *leaf = from_leaves_find(&job->leaves, full);
    return leaf ? leaf->value : NULL;
}

bool from_is_true(const char *value)
{
    return value &&
           (!strcasecmp(value, "true") || !strcasecmp(value, "yes") || !strcmp(value, "1"));
}

bool from_is_auto(const char *value)
{
    return value && strcmp(value, "auto") == 0;
}

bool from_number(double *out, const char *value)
{
    char *end = NULL;
    *out = value ? strtod(value, &end) : 0;
    return value && *value && !*end && isfinite(*out);
}

bool from_has(const struct from_job *job, const char *key)
{
    for (int i = 0; i < job->nsettings; i++)
        if (strcmp(job->settings[i].key, key) == 0)
            return true;
    return false;
}

void from_set(struct from_job *job, const char *key, const char *why, const char *fmt, ...)
{
    struct from_setting *to = job->settings;
    va_list ap;

    while (to < job->settings + job->nsettings && strcmp(to->key, key) != 0)
        to++;
    if (to == job->settings + FROM_MOST_SETTINGS)
        return; /* more than there are keys */
    job->nsettings += to == job->settings + job->nsettings;
    snprintf(to->key, sizeof to->key, "%s", key);
    snprintf(to->why, sizeof to->why, "%s", why);
    va_start(ap, fmt);
    vsnprintf(to->value, sizeof to->value, fmt, ap);
    va_end(ap);
    fsdp_text_clean(to->value); /* a character may have been cut in two */
}

void from_set_text(struct from_job *job, const char *key, const char *why, const char *text)
{
    char quoted[FROM_VALUE_NBYTES];
    size_t len = 0;

    quoted[len++] = '"';
    for (; *text && len < sizeof quoted - 4; text++) {
        if (*text == '"' || *text == '\\')
            quoted[len++] = '\\';
        quoted[len++] = *text;
    }
    quoted[len++] = '"';
    quoted[len] = 0;
    from_set(job, key, why, "%s", quoted);
}

void from_remark(struct from_job *job, enum from_fate fate, const struct from_leaf *leaf,
                 const char *fmt, ...)
{
    struct from_remark *to = &job->remarks[job->nremarks];
    va_list ap;

    if (job->nremarks == FROM_MOST_REMARKS - 1)
        fmt = "and more, which are not listed";
    else
        job->nremarks++;
    to->fate = fate;
    snprintf(to->key, sizeof to->key, "%s", leaf->path);
    snprintf(to->value, sizeof to->value, "%.79s", leaf->value);
    va_start(ap, fmt);
    vsnprintf(to->text, sizeof to->text, fmt, ap);
    va_end(ap);
}

/* ---- the table ---- */

static bool row_matches(const char *theirs, const char *path)
{
    size_t len = strlen(theirs);
    if (len && theirs[len - 1] == '*')
        return strncmp(theirs, path, len - 1) == 0 ||
               (len > 1 && theirs[len - 2] == '.' && strlen(path) == len - 2 &&
                strncmp(theirs, path, len - 2) == 0);
    return strcmp(theirs, path) == 0;
}

static const struct from_row *row_of(const struct from_source *source, const char *path)
{
    for (int i = 0; i < source->nrows; i++)
        if (row_matches(source->rows[i].theirs, path))
            return &source->rows[i];
    return NULL;
}

/* Is the value one of "a|b"? Capitals do not count. */
static bool is_off(const char *off, const char *value)
{
    const size_t len = strlen(value);
    for (const char *at = off; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strcspn(at, "|") == len && strncasecmp(at, value, len) == 0)
            return true;
    return false;
}

static void run_leaf(struct from_job *job, const struct from_source *source, struct from_leaf *leaf,
                     const char *path)
{
    const struct from_row *row = row_of(source, path);
    double number;

    leaf->seen = true;
    if (!row && strcmp(leaf->value, "{}") == 0)
        from_remark(job, FROM_HAVE, leaf, "empty");
    else if (!row)
        from_remark(job, FROM_UNKNOWN, leaf, "%s has no such key, as far as this program knows",
                    source->title);
    else if (!leaf->value[0] || is_off(row->off, leaf->value))
        from_remark(job, FROM_HAVE, leaf, "asks for nothing");
    else if (row->fate == FROM_SET && from_is_auto(leaf->value))
        from_remark(job, FROM_OPEN, leaf, "the Trainer fills it in; here: %s", row->ours);
    else if (row->convert)
        row->convert(job, row, leaf);
    else if (row->fate != FROM_SET)
        from_remark(job, row->fate, leaf, "%s", row->note);
    else if (from_number(&number, leaf->value))
        from_set(job, row->ours, leaf->path, "%.12g", number);
    else
        from_remark(job, FROM_LOST, leaf, "not a number, as %s expects it", row->ours);
}

void from_run(struct from_job *job, const struct from_source *source)
{
    const size_t len = strlen(job->prefix);
    for (int i = 0; i < job->leaves.count; i++) {
        struct from_leaf *leaf = &job->leaves.all[i];
        bool mine = !len || (strncmp(leaf->path, job->prefix, len) == 0 && leaf->path[len] == '.');
        if (mine && !leaf->seen)
            run_leaf(job, source, leaf, leaf->path + (len ? len + 1 : 0));
    }
    if (source->finish)
        source->finish(job);
}
