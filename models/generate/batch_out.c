/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "batch_impl.h"

/* ---- one line -------------------------------------------------------------------------------- */

static json_t *text_of(const char *text, size_t nbytes)
{
    char *clean;

    if (generate_words_utf8(&clean, &nbytes, text, nbytes, NULL))
        return NULL;
    json_t *out = json_stringn(clean, nbytes);
    fsdp_free(clean);
    return out;
}

static json_t *ids_of(const int32_t *tokens, int ntokens)
{
    json_t *out = json_array();
    for (int i = 0; out && i < ntokens; i++)
        if (json_array_append_new(out, json_integer(tokens[i]))) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

static int write_row(struct batch_row *row, struct fsdp_err *err)
{
    struct generate_batch *b = row->batch;
    json_t *text = row->is_text ? text_of(row->text ? row->text : "", row->text_nbytes)
                                : ids_of(row->tokens, row->ntokens);
    const char *key = row->is_text ? "completion" : "completion_tokens";

    if (json_object_set_new(row->root, key, text) ||
        json_object_set_new(row->root, "finish_reason", json_string(row->reason)) ||
        json_object_set_new(row->root, "ntokens", json_integer(row->ntokens)))
        return fsdp_err_set(err, FSDP_ENOMEM, "no memory for a completion");
    if (json_dumpf(row->root, b->file, JSON_COMPACT | JSON_REAL_PRECISION(17)) ||
        fputc('\n', b->file) == EOF || fflush(b->file))
        return fsdp_err_sys(err, errno, "%s", b->part ? b->part : "standard output");
    b->nwritten++;
    return FSDP_OK;
}

int batch_write_ready(struct generate_batch *b, struct fsdp_err *err)
{
    while (b->nwritten < b->nrows && b->rows[b->nwritten].reason)
        FSDP_TRY(write_row(&b->rows[b->nwritten], err));
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Is the line one that was made of this row? It has all of the row's keys, with their values, but
 * for those that it was given. */
static bool is_line_of(const struct batch_row *row, const char *text, size_t nbytes)
{
    static const char *const made[] = {"completion", "completion_tokens", "finish_reason",
                                       "ntokens"};
    json_t *line = json_loadb(text, nbytes, JSON_ALLOW_NUL, NULL), *value;
    bool same = json_is_object(line) && json_object_get(line, "finish_reason");
    const char *key;

    json_object_foreach(row->root, key, value)
    {
        bool ours = false;
        for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
            ours |= !strcmp(key, made[i]);
        same = same && (ours || json_equal(value, json_object_get(line, key)));
    }
    json_decref(line);
    return same;
}

/* Whole lines that are there already; *at is where they end. */
static int count_lines(struct generate_batch *b, FILE *file, off_t *at, struct fsdp_err *err)
{
    char *text = NULL;
    size_t size = 0;
    ssize_t nbytes;
    int rc = FSDP_OK;

    *at = 0;
    while (rc == FSDP_OK && (nbytes = getline(&text, &size, file)) > 0 &&
           text[nbytes - 1] == '\n') {
        if (b->nwritten == b->nrows || !is_line_of(&b->rows[b->nwritten], text, (size_t)nbytes))
            rc = fsdp_err_set(err, FSDP_EINVAL,
                              "%s:%d: not made of line %d of the prompts, so that it cannot be "
                              "resumed (--overwrite begins anew)",
                              b->part, b->nwritten + 1, b->nwritten + 1);
        b->nwritten++;
        *at += nbytes;
    }
    free(text);
    return rc;
}

static int resume(struct generate_batch *b, struct fsdp_err *err)
{
    struct fsdp_err quiet = FSDP_ERR_INIT;
    FILE *file;
    off_t at = 0;

    int rc = fsdp_file_stream(&file, b->part, &quiet);
    if (rc == FSDP_OK) {
        rc = count_lines(b, file, &at, err);
        fclose(file);
        if (rc)
            return rc;
        b->next = b->nwritten;
        if (truncate(b->part, at))
            return fsdp_err_sys(err, errno, "%s", b->part);
    } else if (rc != FSDP_ENOTFOUND) {
        return fsdp_err_pass(err, rc, &quiet);
    }
    if (!(b->file = fopen(b->part, "ae")))
        return fsdp_err_sys(err, errno, "%s", b->part);
    return FSDP_OK;
}

int generate_batch_output(struct generate_batch *b, const char *path, bool overwrite, bool resumes,
                          struct fsdp_err *err)
{
    if (!path) {
        b->file = stdout;
        return FSDP_OK;
    }
    b->out = path;
    if (!(b->part = fsdp_sprintf(err, "%s.part", path)))
        return FSDP_ENOMEM;
    if (fsdp_file_is_same(path, b->path) || fsdp_file_is_same(b->part, b->path))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' holds the prompts: name another output", path);
    if (!overwrite && access(path, F_OK) == 0)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' already exists (--overwrite replaces it)",
                            path);
    if (resumes)
        return resume(b, err);
    if (!overwrite && access(b->part, F_OK) == 0)
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s: lines of a run that was stopped (--resume continues it, "
                            "--overwrite begins anew)",
                            b->part);
    if (!(b->file = fopen(b->part, "we")))
        return fsdp_err_sys(err, errno, "%s", b->part);
    return FSDP_OK;
}

int generate_batch_finish(struct generate_batch *b, struct fsdp_err *err)
{
    if (!b->part || b->nwritten < b->nrows)
        return FSDP_OK;
    if (fsync(fileno(b->file)))
        return fsdp_err_sys(err, errno, "%s", b->part);
    if (rename(b->part, b->out))
        return fsdp_err_sys(err, errno, "%s: cannot become %s", b->part, b->out);
    return FSDP_OK;
}
