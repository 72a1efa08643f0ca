/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "find.h"

const char *const top_sort_words[] = {"name", "state", "seen", "left", NULL};

struct walk {
    struct top_jobs *jobs;
    const char *top; /* the folder that was given */
    double now;
    int nfolders;
};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void job_free(struct top_job *job)
{
    fsdp_free(job->path);
    fsdp_free(job->name);
    *job = (struct top_job){0};
}

void top_jobs_free(struct top_jobs *jobs)
{
    for (int i = 0; i < jobs->njobs; i++)
        job_free(&jobs->job[i]);
    fsdp_free(jobs->job);
    *jobs = (struct top_jobs){0};
}

static int grow(struct top_jobs *jobs, struct fsdp_err *err)
{
    const int room = jobs->room ? 2 * jobs->room : 16;
    struct top_job *more = fsdp_alloc((size_t)room, sizeof *more, "jobs", err);

    if (!more)
        return FSDP_ENOMEM;
    if (jobs->njobs)
        memcpy(more, jobs->job, (size_t)jobs->njobs * sizeof *more);
    fsdp_free(jobs->job);
    jobs->job = more;
    jobs->room = room;
    return FSDP_OK;
}

/* A run is called by its folder below the one that was given; of that itself, by the whole path. */
static char *name_of(const char *path, const char *top, struct fsdp_err *err)
{
    const size_t ntop = strlen(top), nbytes = strlen(path);
    const char *name = strncmp(path, top, ntop) == 0 && path[ntop] == '/' ? path + ntop + 1 : path;
    size_t len = nbytes - (size_t)(name - path);
    char whole[PATH_MAX];

    if (fsdp_text_ends(path, STATUS_SUFFIX))
        len -= strlen(STATUS_SUFFIX);
    else if (!strcmp(name, STATUS_NAME) && realpath(top, whole))
        return fsdp_strdup(whole, err);
    else if (fsdp_text_ends(path, "/" STATUS_NAME))
        len -= strlen("/" STATUS_NAME);
    return fsdp_sprintf(err, "%.*s", (int)len, name);
}

/* Another program's file is no error, nor one that is gone meanwhile. */
static void note_unread(struct top_jobs *jobs, int status, const struct fsdp_err *why)
{
    if (status == FSDP_ENOTFOUND || status == FSDP_EUNSUPPORTED)
        return;
    if (!jobs->nunread++)
        snprintf(jobs->unread, sizeof jobs->unread, "%s", why->text);
}

static int add_file(struct walk *w, const char *path, bool from_metrics, struct fsdp_err *err)
{
    struct top_jobs *jobs = w->jobs;
    struct fsdp_err why = FSDP_ERR_INIT;

    if (jobs->njobs == jobs->room)
        FSDP_TRY(grow(jobs, err));
    struct top_job *job = &jobs->job[jobs->njobs];
    *job = (struct top_job){.from_metrics = from_metrics};
    job->path = fsdp_strdup(path, err);
    job->name = job->path ? name_of(path, w->top, err) : NULL;
    if (!job->name) {
        job_free(job);
        return FSDP_ENOMEM;
    }
    const int rc = top_job_read(job, w->now, &why);
    if (rc == FSDP_OK) {
        jobs->njobs++;
        return FSDP_OK;
    }
    job_free(job);
    if (!from_metrics)
        note_unread(jobs, rc, &why);
    return FSDP_OK;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* The newest file of JSON lines that is not the metrics of a status next to it. */
struct newest {
    char *path;
    struct timespec at;
};

static int take_newest(struct newest *newest, const char *path, const struct stat *st,
                       struct fsdp_err *err)
{
    char *other = fsdp_sprintf(err, "%s" STATUS_SUFFIX, path);
    struct stat there;

    if (!other)
        return FSDP_ENOMEM;
    const bool known = stat(other, &there) == 0;
    fsdp_free(other);
    if (known || (newest->path && (st->st_mtim.tv_sec < newest->at.tv_sec ||
                                   (st->st_mtim.tv_sec == newest->at.tv_sec &&
                                    st->st_mtim.tv_nsec <= newest->at.tv_nsec))))
        return FSDP_OK;
    fsdp_free(newest->path);
    newest->path = fsdp_strdup(path, err);
    newest->at = st->st_mtim;
    return newest->path ? FSDP_OK : FSDP_ENOMEM;
}

static int walk_folder(struct walk *w, const char *folder, int depth, struct fsdp_err *err);

static void note_skipped(struct top_jobs *jobs, const char *path, int depth)
{
    if (!jobs->too_deep && !jobs->too_many)
        snprintf(jobs->skipped, sizeof jobs->skipped, "%s", path);
    if (depth >= TOP_MAX_DEPTH)
        jobs->too_deep = true;
    else
        jobs->too_many = true;
}

void top_cut_text(char *out, size_t out_nbytes, const struct top_jobs *jobs)
{
    out[0] = '\0';
    if (jobs->too_many)
        snprintf(out, out_nbytes, "runs in more than %d folders are not shown; give a folder: %s",
                 TOP_MAX_FOLDERS, jobs->skipped);
    else if (jobs->too_deep)
        snprintf(out, out_nbytes, "runs more than %d levels deep are not shown; give a folder: %s",
                 TOP_MAX_DEPTH, jobs->skipped);
}

void top_unread_text(char *out, size_t out_nbytes, const struct top_jobs *jobs)
{
    out[0] = '\0';
    if (jobs->nunread == 1)
        snprintf(out, out_nbytes, "1 file cannot be read: %s", jobs->unread);
    else if (jobs->nunread)
        snprintf(out, out_nbytes, "%d files cannot be read; the first: %s", jobs->nunread,
                 jobs->unread);
}

static int take_entry(struct walk *w, const char *folder, const char *name, int depth,
                      struct newest *newest, struct fsdp_err *err)
{
    struct stat st;

    if (name[0] == '.' || !strncmp(name, "step-", 5))
        return FSDP_OK;
    char *path = fsdp_sprintf(err, "%s/%s", folder, name);
    if (!path)
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    if (lstat(path, &st) != 0)
        ;
    else if (S_ISDIR(st.st_mode) && (depth >= TOP_MAX_DEPTH || w->nfolders >= TOP_MAX_FOLDERS))
        note_skipped(w->jobs, path, depth);
    else if (S_ISDIR(st.st_mode))
        rc = walk_folder(w, path, depth + 1, NULL) == FSDP_ENOMEM ? FSDP_ENOMEM : FSDP_OK;
    else if (S_ISREG(st.st_mode) &&
             (!strcmp(name, STATUS_NAME) || fsdp_text_ends(name, STATUS_SUFFIX)))
        rc = add_file(w, path, false, err);
    else if (S_ISREG(st.st_mode) && fsdp_text_ends(name, ".jsonl"))
        rc = take_newest(newest, path, &st, err);
    fsdp_free(path);
    return rc;
}

static int walk_folder(struct walk *w, const char *folder, int depth, struct fsdp_err *err)
{
    struct newest newest = {0};
    const struct dirent *entry;
    int rc = FSDP_OK;
    DIR *dir = opendir(folder);

    if (!dir)
        return fsdp_err_sys(err, errno, "%s", folder);
    w->nfolders++;
    while (rc == FSDP_OK && (entry = readdir(dir)))
        rc = take_entry(w, folder, entry->d_name, depth, &newest, err);
    closedir(dir);
    if (rc == FSDP_OK && newest.path)
        rc = add_file(w, newest.path, true, err);
    fsdp_free(newest.path);
    return rc;
}

/* Metrics whose run has a status elsewhere. */
static bool is_told_elsewhere(const struct top_jobs *jobs, const struct top_job *job)
{
    char whole[PATH_MAX];

    if (!job->from_metrics || !realpath(job->path, whole))
        return false;
    for (int i = 0; i < jobs->njobs; i++)
        if (!jobs->job[i].from_metrics && !strcmp(jobs->job[i].status.metrics, whole))
            return true;
    return false;
}

static void drop_doubles(struct top_jobs *jobs)
{
    int nkept = 0;

    for (int i = 0; i < jobs->njobs; i++) {
        bool again = is_told_elsewhere(jobs, &jobs->job[i]);
        for (int k = 0; k < nkept && !again; k++)
            again = !strcmp(jobs->job[k].path, jobs->job[i].path);
        if (again)
            job_free(&jobs->job[i]);
        else
            jobs->job[nkept++] = jobs->job[i];
    }
    jobs->njobs = nkept;
}

int top_find(struct top_jobs *out, int nfolders, char *const *folders, double now,
             struct fsdp_err *err)
{
    int rc = FSDP_OK;

    *out = (struct top_jobs){0};
    for (int i = 0; i < nfolders && rc == FSDP_OK; i++) {
        struct walk w = {.jobs = out, .top = folders[i], .now = now};
        rc = walk_folder(&w, folders[i], 0, err);
    }
    if (rc)
        top_jobs_free(out);
    else
        drop_doubles(out);
    return rc;
}

void top_refresh(struct top_jobs *jobs, double now)
{
    for (int i = 0; i < jobs->njobs; i++) {
        struct top_job next = jobs->job[i];
        if (top_job_read(&next, now, NULL) == FSDP_OK)
            jobs->job[i] = next;
    }
}

/* ---- order ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct top_job *)a)->name, ((const struct top_job *)b)->name);
}

/* What needs a look comes first, and what has ended last. */
static int weight_of(const struct top_job *job)
{
    return top_state_is_bad(job->state) ? 0 : top_state_is_active(job->state) ? 1 : 2;
}

static int by_state(const void *a, const void *b)
{
    const int diff = weight_of(a) - weight_of(b);
    return diff ? diff : by_name(a, b);
}

static int by_number(double x, double y, const void *a, const void *b)
{
    if (isnan(x) != isnan(y))
        return isnan(x) ? 1 : -1;
    return x < y ? -1 : x > y ? 1 : by_name(a, b);
}

static int by_seen(const void *a, const void *b)
{
    return by_number(((const struct top_job *)a)->seen_s, ((const struct top_job *)b)->seen_s, a,
                     b);
}

static int by_left(const void *a, const void *b)
{
    return by_number(((const struct top_job *)a)->left_s, ((const struct top_job *)b)->left_s, a,
                     b);
}

void top_sort(struct top_jobs *jobs, enum top_sort by)
{
    static int (*const orders[])(const void *, const void *) = {by_name, by_state, by_seen,
                                                                by_left};
    if (jobs->njobs)
        qsort(jobs->job, (size_t)jobs->njobs, sizeof *jobs->job, orders[by]);
}
