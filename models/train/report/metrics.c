/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "metrics.h"

struct metrics {
    int fd;
    char *path;
};

/* Creates the folders above a file. */
static int make_parents(const char *path, struct fsdp_err *err)
{
    char *copy = fsdp_strdup(path, err);

    if (!copy)
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    for (char *slash = strchr(copy + 1, '/'); slash && !rc; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            rc = fsdp_err_sys(err, errno, "metrics: cannot create folder %s", copy);
        *slash = '/';
    }
    fsdp_free(copy);
    return rc;
}

/* Is this a finished line of a step up to `step`? */
static bool is_kept(const char *line, size_t nbytes, int64_t step)
{
    if (!nbytes || line[nbytes - 1] != '\n')
        return false;
    json_t *row = json_loadb(line, nbytes, 0, NULL);
    const json_t *at = json_object_get(row, "step");
    bool kept = json_is_integer(at) && json_integer_value(at) <= step;
    json_decref(row);
    return kept;
}

/* Copies what is kept to `to`. */
static int filter(FILE *from, FILE *to, int64_t step, bool *changed)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t len;

    *changed = false;
    while ((len = getline(&line, &room, from)) > 0) {
        if (is_kept(line, (size_t)len, step))
            fwrite(line, 1, (size_t)len, to);
        else
            *changed = true;
    }
    free(line);
    return ferror(from) || fflush(to) || ferror(to) || fsync(fileno(to)) ? errno : 0;
}

static int drop_later(const char *path, int64_t step, struct fsdp_err *err)
{
    bool changed = false;
    struct stat st;
    int rc = FSDP_OK;
    FILE *from, *to = NULL;

    if (stat(path, &st) || !S_ISREG(st.st_mode)) /* a pipe or a terminal has no past */
        return FSDP_OK;
    FSDP_TRY(fsdp_file_stream(&from, path, err));
    char *other = fsdp_sprintf(err, "%s.tmp", path);
    if (!other)
        rc = FSDP_ENOMEM;
    else if (!(to = fopen(other, "w")))
        rc = fsdp_err_sys(err, errno, "metrics: %s", other);
    else {
        int failed = filter(from, to, step, &changed);
        if (fclose(to) && !failed)
            failed = errno;
        if (!failed && changed && rename(other, path) != 0)
            failed = errno;
        if (failed || !changed)
            unlink(other);
        if (failed)
            rc = fsdp_err_sys(err, failed, "metrics: %s", other);
    }
    fclose(from);
    fsdp_free(other);
    return rc;
}

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

int metrics_open(struct metrics **out, const char *path, int64_t step, struct fsdp_err *err)
{
    FSDP_TRY(make_parents(path, err));
    FSDP_TRY(drop_later(path, step, err));
    struct metrics *metrics = fsdp_alloc(1, sizeof *metrics, "metrics", err);
    if (!metrics)
        return FSDP_ENOMEM;
    metrics->fd = -1;
    metrics->path = fsdp_strdup(path, err);
    int rc = metrics->path ? open_to_append(&metrics->fd, path, err) : FSDP_ENOMEM;
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

static char *add_number(char *to, const char *key, double value)
{
    if (isfinite(value))
        return to + sprintf(to, ", \"%s\": %.9g", key, value);
    return to + sprintf(to, ", \"%s\": null", key);
}

int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct fsdp_err *err)
{
    char line[640 + 22 * METRICS_MAX_SOURCES];
    char *to = line + sprintf(line, "{\"step\": %" PRId64, row->step);

    to = add_number(to, "loss", row->loss);
    to = add_number(to, "grad_norm", row->grad_norm);
    to = add_number(to, "lr", row->lr);
    to += sprintf(to, ", \"tokens\": %" PRId64, row->tokens);
    if (row->has_counted)
        to += sprintf(to, ", \"counted_tokens\": %" PRId64, row->counted);
    to = add_number(to, "tokens_per_s", row->tokens_per_s);
    to = add_number(to, "tflops", row->tflops);
    if (row->mfu > 0)
        to = add_number(to, "mfu", row->mfu);
    to = add_number(to, "time", row->time);
    if (row->loss_scale > 0)
        to = add_number(to, "loss_scale", row->loss_scale);
    if (row->skipped)
        to = stpcpy(to, ", \"skipped\": true");
    if (row->saving)
        to = stpcpy(to, ", \"saving\": true");
    if (row->held > 0)
        to = add_number(to, "save_held_s", row->held);
    if (row->flushed > 0)
        to = add_number(to, "flush_s", row->flushed);
    for (int i = 0; i < row->nsources && i < METRICS_MAX_SOURCES; i++)
        to += sprintf(to, "%s%" PRIu64, i ? ", " : ", \"rows_by_source\": [", row->source_rows[i]);
    if (row->nsources)
        *to++ = ']';
    if (row->has_eval)
        to = add_number(to, "eval_loss", row->eval_loss);
    if (row->has_eval && row->eval_nats_per_byte > 0) {
        to = add_number(to, "eval_nats_per_byte", row->eval_nats_per_byte);
        to = add_number(to, "eval_bits_per_byte", row->eval_nats_per_byte / M_LN2);
    }
    to = stpcpy(to, "}\n");
    ssize_t nbytes = to - line, done = write(metrics->fd, line, (size_t)nbytes);
    if (done < 0)
        return fsdp_err_sys(err, errno, "metrics: %s", metrics->path);
    if (done < nbytes)
        return fsdp_err_sys(err, ENOSPC, "metrics: %s", metrics->path);
    return FSDP_OK;
}
