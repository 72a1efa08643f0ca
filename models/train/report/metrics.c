/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "metrics_table.h"
#include "sink.h"

struct metrics {
    int fd;
    char *path;
};

/* ---- what a resume cuts off ------------------------------------------------------------------ */

static bool is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The step of a finished line, -1: it is none, or is not finished. attempt may be NULL. */
static int64_t line_step(const char *line, size_t nbytes, int *attempt)
{
    if (!nbytes || line[nbytes - 1] != '\n')
        return -1;
    json_t *row = json_loadb(line, nbytes, 0, NULL);
    const json_t *at = json_object_get(row, "step"), *start = json_object_get(row, "attempt");
    int64_t step = json_is_integer(at) ? json_integer_value(at) : -1;
    const int64_t number = json_is_integer(start) ? json_integer_value(start) : 1;
    if (attempt)
        *attempt = number > 0 && number < 1 << 30 ? (int)number : 1;
    json_decref(row);
    return step;
}

/* The three files of a cut: what there is, what is kept, and what will be done again. */
struct cut {
    char *path; /* behind links, which stay links */
    char *kept_path, *redone_path;
    FILE *from, *kept, *redone;
    bool changed, has_rows, has_others; /* lines that are whole and no rows */
    int nredone;
};

static int cut_open(struct cut *cut, const char *path, struct fsdp_err *err)
{
    char whole[PATH_MAX];

    cut->path = fsdp_strdup(realpath(path, whole) ? whole : path, err);
    cut->kept_path = cut->path ? fsdp_sprintf(err, "%s.tmp", cut->path) : NULL;
    cut->redone_path = fsdp_sprintf(err, "%s" METRICS_REDONE, path);
    if (!cut->kept_path || !cut->redone_path)
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_file_stream(&cut->from, path, err));
    unlink(cut->kept_path); /* a killed start's */
    if (!(cut->kept = fopen(cut->kept_path, "wx")))
        return fsdp_err_sys(err, errno, "metrics: %s", cut->kept_path);
    return FSDP_OK;
}

/* The file of what is done again comes with its first line. */
static int cut_redone(struct cut *cut, const char *line, size_t nbytes, struct fsdp_err *err)
{
    cut->nredone++;
    if ((!cut->redone && !(cut->redone = fopen(cut->redone_path, "a"))) ||
        fwrite(line, 1, nbytes, cut->redone) != nbytes)
        return fsdp_err_sys(err, errno, "metrics: %s", cut->redone_path);
    return FSDP_OK;
}

static int cut_lines(struct cut *cut, int64_t step, struct fsdp_err *err)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    int rc = FSDP_OK;

    while (rc == FSDP_OK && (len = getline(&line, &room, cut->from)) > 0) {
        const int64_t at = line_step(line, (size_t)len, NULL);
        cut->has_rows |= at >= 0;
        cut->has_others |= at < 0 && line[len - 1] == '\n' && strspn(line, " \t\r\n") < (size_t)len;
        if (at >= 0 && at <= step) {
            fwrite(line, 1, (size_t)len, cut->kept);
            continue;
        }
        cut->changed = true;
        if (at > step)
            rc = cut_redone(cut, line, (size_t)len, err);
    }
    free(line);
    if (rc == FSDP_OK &&
        (ferror(cut->from) || fflush(cut->kept) || ferror(cut->kept) || fsync(fileno(cut->kept))))
        rc = fsdp_err_sys(err, errno, "metrics: %s", cut->kept_path);
    return rc;
}

/* Lines alone that no run has written: the setting names a file by mistake, which must not be lost.
 */
static int check_rows(const struct cut *cut, struct fsdp_err *err)
{
    if (cut->has_rows || !cut->has_others)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST,
                        "'%s' is there already, and has no line of metrics; name "
                        "another file, or remove it",
                        cut->path);
}

/* What was moved is on the disk before it goes from the other file. */
static int cut_close(struct cut *cut, int rc, struct fsdp_err *err)
{
    if (cut->redone) {
        int failed = fflush(cut->redone) || fsync(fileno(cut->redone)) ? errno : 0;
        if (fclose(cut->redone) && !failed)
            failed = errno;
        if (failed && !rc)
            rc = fsdp_err_sys(err, failed, "metrics: %s", cut->redone_path);
    }
    if (cut->kept && fclose(cut->kept) && !rc)
        rc = fsdp_err_sys(err, errno, "metrics: %s", cut->kept_path);
    if (!rc && cut->changed && rename(cut->kept_path, cut->path) != 0)
        rc = fsdp_err_sys(err, errno, "metrics: %s", cut->kept_path);
    if (cut->kept && (rc || !cut->changed))
        unlink(cut->kept_path);
    if (cut->from)
        fclose(cut->from);
    fsdp_free(cut->path);
    fsdp_free(cut->kept_path);
    fsdp_free(cut->redone_path);
    return rc;
}

static int move_later(const char *path, int64_t step, struct fsdp_err *err)
{
    struct cut cut = {0};

    int rc = cut_open(&cut, path, err);
    if (rc == FSDP_OK)
        rc = cut_lines(&cut, step, err);
    if (rc == FSDP_OK)
        rc = check_rows(&cut, err);
    if (rc == FSDP_OK && !step && cut.nredone)
        fsdp_log(FSDP_LOG_WARN,
                 "'%s' has %d line%s of an earlier run, and this one begins at step 1: they are "
                 "moved to '%s'",
                 cut.path, cut.nredone, cut.nredone == 1 ? "" : "s", cut.redone_path);
    return cut_close(&cut, rc, err);
}

/* ---- the number of a start ------------------------------------------------------------------- */

/* The greatest attempt in the last lines of a file. */
static int last_attempt(const char *path)
{
    enum { TAIL_NBYTES = 1 << 16 };
    char *line = NULL;
    size_t room = 0;
    ssize_t len;
    int last = 0, attempt;
    FILE *in = is_regular(path) ? fopen(path, "r") : NULL;

    if (!in)
        return 0;
    if (fseeko(in, -TAIL_NBYTES, SEEK_END) != 0)
        rewind(in); /* the file is shorter */
    while ((len = getline(&line, &room, in)) > 0)
        if (line_step(line, (size_t)len, &attempt) >= 0 && attempt > last)
            last = attempt;
    free(line);
    fclose(in);
    return last;
}

int metrics_attempts(const char *path)
{
    char *redone = path[0] ? fsdp_sprintf(NULL, "%s" METRICS_REDONE, path) : NULL;
    const int here = path[0] ? last_attempt(path) : 0, there = redone ? last_attempt(redone) : 0;

    fsdp_free(redone);
    return here > there ? here : there;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A pipe is fine while somebody reads it; opening one that nobody reads would wait. */
static int open_to_append(int *out, const char *path, struct fsdp_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);

    if (fd < 0 && errno == ENXIO)
        return fsdp_err_set(err, FSDP_EIO, "metrics: %s is a pipe or socket that nobody reads",
                            path);
    if (fd < 0 || fcntl(fd, F_SETFL, O_APPEND))
        return fsdp_err_sys(err, errno, "metrics: %s", path);
    *out = fd;
    return FSDP_OK;
}

/* Until it is closed: a second run would move the lines of the first. One that was killed may take
 * a moment to end. */
static int lock_file(const struct metrics *metrics, struct fsdp_err *err)
{
    enum { TRIES = 30, WAIT_NS = 100000000 };
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    for (int i = 0; i < TRIES; i++) {
        if (!fcntl(metrics->fd, F_OFD_SETLK, &whole) || (errno != EAGAIN && errno != EACCES))
            return FSDP_OK; /* or the file system has no locks */
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
    }
    return fsdp_err_set(err, FSDP_EEXIST,
                        "metrics: another run is writing '%s'; name another file for this one",
                        metrics->path);
}

/* What is kept may be a new file, which has the name now. */
static int follow_name(struct metrics *metrics, struct fsdp_err *err)
{
    struct stat mine, named;

    if (fstat(metrics->fd, &mine) || stat(metrics->path, &named) ||
        (mine.st_dev == named.st_dev && mine.st_ino == named.st_ino))
        return FSDP_OK;
    const int old = metrics->fd;
    metrics->fd = -1;
    int rc = open_to_append(&metrics->fd, metrics->path, err);
    if (rc == FSDP_OK)
        rc = lock_file(metrics, err);
    close(old);
    return rc;
}

static int open_file(struct metrics *metrics, int64_t step, struct fsdp_err *err)
{
    FSDP_TRY(open_to_append(&metrics->fd, metrics->path, err));
    if (!is_regular(metrics->path))
        return FSDP_OK;
    FSDP_TRY(lock_file(metrics, err));
    FSDP_TRY(move_later(metrics->path, step, err));
    return follow_name(metrics, err);
}

int metrics_open(struct metrics **out, const char *path, int64_t step, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_err_prefix(err, fsdp_folder_make_above(path, 0777, err), "metrics: "));
    struct metrics *metrics = fsdp_alloc(1, sizeof *metrics, "metrics", err);
    if (!metrics)
        return FSDP_ENOMEM;
    metrics->fd = -1;
    metrics->path = fsdp_strdup(path, err);
    const int rc = metrics->path ? open_file(metrics, step, err) : FSDP_ENOMEM;
    if (rc)
        metrics_close(metrics);
    else
        *out = metrics;
    return rc;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->fd >= 0)
        close(metrics->fd);
    fsdp_free(metrics->path);
    fsdp_free(metrics);
}

/* "key": value, or [values]. */
static char *add(char *to, const struct metric *m, const struct metrics_row *row, int nvalues)
{
    const bool list = m->type == METRIC_SOURCES;

    to += sprintf(to, "\"%s\": %s", m->key, list ? "[" : "");
    for (int i = 0; i < nvalues; i++) {
        if (i)
            to = stpcpy(to, ", ");
        to = metric_print(to, m, row, i);
    }
    if (list)
        *to++ = ']';
    return to;
}

int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct fsdp_err *err)
{
    char line[2048 + METRIC_NBYTES * METRICS_MAX_SOURCES];
    char *to = stpcpy(line, "{");

    for (int i = 0; i < metrics_ntable; i++) {
        const struct metric *m = &metrics_table[i];
        const int nvalues = m->key ? metric_nvalues(m, row) : 0;
        if (!nvalues)
            continue;
        if (to > line + 1)
            to = stpcpy(to, ", ");
        to = add(to, m, row, nvalues);
    }
    to = stpcpy(to, "}\n");
    ssize_t nbytes = to - line, done = write(metrics->fd, line, (size_t)nbytes);
    if (done < 0)
        return fsdp_err_sys(err, errno, "metrics: %s", metrics->path);
    if (done < nbytes)
        return fsdp_err_sys(err, ENOSPC, "metrics: %s", metrics->path);
    return FSDP_OK;
}

/* ---- as a sink ------------------------------------------------------------------------------- */

static const char *metrics_where(const struct config *config)
{
    return config->log.metrics;
}

static int open_sink(void **ctx, const char *path, const struct sink_run *run, struct fsdp_err *err)
{
    struct metrics *metrics = NULL;

    FSDP_TRY(metrics_open(&metrics, path, run->step, err));
    *ctx = metrics;
    return FSDP_OK;
}

static int write_row(void *ctx, const struct metrics_row *row, struct fsdp_err *err)
{
    return metrics_write(ctx, row, err);
}

static void close_sink(void *ctx, enum sink_end end, const char *why)
{
    (void)end;
    (void)why;
    metrics_close(ctx);
}

const struct sink_ops metrics_sink = {.key = "log.metrics",
                                      .takes_steps = true,
                                      .where = metrics_where,
                                      .open = open_sink,
                                      .row = write_row,
                                      .close = close_sink};
