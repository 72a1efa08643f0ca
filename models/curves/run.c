/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "line.h"
#include "run.h"

static const char *const fixed[RUN_NFIXED] = {"step", "tokens", "time", "wall", "attempt", "ranks"};

int curves_run_create(struct run *out, const char *const *keys, int nkeys, struct fsdp_err *err)
{
    *out = (struct run){.ncolumns = RUN_NFIXED};
    memcpy(out->key, fixed, sizeof fixed);
    if (nkeys > RUN_MAX_KEYS)
        return fsdp_err_set(err, FSDP_EINVAL, "%d keys: at most %d", nkeys, RUN_MAX_KEYS);
    for (int i = 0; i < nkeys; i++)
        out->key[out->ncolumns++] = keys[i];
    return FSDP_OK;
}

void curves_run_destroy(struct run *run)
{
    fsdp_free(run->path);
    fsdp_free(run->label);
    fsdp_free(run->row);
    *run = (struct run){0};
}

int curves_run_column(const struct run *run, const char *key)
{
    for (int i = 0; i < run->ncolumns; i++)
        if (!strcmp(run->key[i], key))
            return i;
    return -1;
}

struct run_row *curves_run_add(struct run *run, struct fsdp_err *err)
{
    struct run_row *rows =
        fsdp_alloc_grow(run->row, run->nrows, &run->max_rows, sizeof *rows, "metrics", err);

    if (!rows)
        return NULL;
    run->row = rows;
    struct run_row *row = &rows[run->nrows++];
    row->redone = false;
    for (int i = 0; i < RUN_MAX_COLUMNS; i++)
        row->value[i] = NAN;
    return row;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct taking {
    const struct run *run;
    struct run_row *row;
};

static void take_number(void *ctx, const char *key, size_t nbytes, double value)
{
    const struct taking *taking = ctx;

    for (int i = 0; i < taking->run->ncolumns; i++)
        if (!strncmp(taking->run->key[i], key, nbytes) && !taking->run->key[i][nbytes])
            taking->row->value[i] = value;
}

/* What a file of metrics never has: it is another, or one without an end. */
enum { MAX_LINE = 1 << 20, MAX_OTHERS = 10000 };

/* Into line[MAX_LINE + 1], with its newline. *len 0: no more; above MAX_LINE: it is longer. */
static void next_line(size_t *len, char *line, FILE *from)
{
    int c = 0;

    for (*len = 0; *len <= MAX_LINE && c != '\n' && (c = getc_unlocked(from)) != EOF;)
        line[(*len)++] = (char)c;
    if (*len <= MAX_LINE)
        line[*len] = '\0';
}

static int check_limits(const struct run *run, size_t len, uint64_t nlines, struct fsdp_err *err)
{
    static const char fix[] = "name the file of log.metrics";

    if (len > MAX_LINE)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: a line is longer than 1 MiB, so this is no file of metrics; %s",
                            run->path, fix);
    if (nlines > MAX_OTHERS && !run->nrows)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: the first %d lines are no metrics; %s",
                            run->path, MAX_OTHERS, fix);
    return FSDP_OK;
}

/* Thinning keeps a row of each start of the run: it does not help if nearly every line is one. */
static int check_room(struct run *run, struct fsdp_err *err)
{
    if (run->nrows < RUN_MAX_ROWS)
        return FSDP_OK;
    curves_run_thin(run, RUN_NFIXED);
    if (run->nrows <= RUN_MAX_ROWS / 4 * 3)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s: the run was started more than %d times, so this is no file of "
                        "metrics; name the file of log.metrics",
                        run->path, RUN_MAX_ROWS / 4);
}

static int read_lines(struct run *run, FILE *from, bool redone, struct fsdp_err *err)
{
    char *line = fsdp_alloc_unset(MAX_LINE + 1, 1, "a line of metrics", err);
    uint64_t nlines = 0;
    size_t len;
    int rc = line ? FSDP_OK : FSDP_ENOMEM;

    errno = 0;
    while (!rc && (next_line(&len, line, from), len)) {
        if ((rc = check_limits(run, len, ++nlines, err)) || (rc = check_room(run, err)))
            break;
        struct taking taking = {run, curves_run_add(run, err)};
        if (!taking.row) {
            rc = FSDP_ENOMEM;
            break;
        }
        taking.row->redone = redone;
        if (line_read(line, (size_t)len, take_number, &taking) &&
            isfinite(taking.row->value[RUN_STEP]))
            continue;
        run->nrows--;
        if (line[len - 1] != '\n')
            run->ends_in_middle = true;
        else if (strspn(line, " \t\r\n") < (size_t)len)
            run->nbad++;
    }
    if (!rc && ferror(from))
        rc = fsdp_err_sys(err, errno ? errno : EIO, "%s", run->path);
    fsdp_free(line);
    return rc;
}

static int read_redone(struct run *run, struct fsdp_err *err)
{
    char *path = fsdp_sprintf(err, "%s.redone", run->path);
    FILE *from;

    if (!path)
        return FSDP_ENOMEM;
    from = fopen(path, "re");
    fsdp_free(path);
    if (!from)
        return FSDP_OK; /* nothing ran twice */
    const int rc = read_lines(run, from, true, err);
    fclose(from);
    return rc;
}

static int find_file(char **out, const char *path, struct stat *st, struct fsdp_err *err)
{
    const size_t len = strlen(path);

    if (!len || stat(path, st))
        return fsdp_err_sys(err, len ? errno : ENOENT, "%s", len ? path : "''");
    if (!S_ISDIR(st->st_mode))
        return (*out = fsdp_strdup(path, err)) ? FSDP_OK : FSDP_ENOMEM;
    char *inside = fsdp_sprintf(err, "%s%smetrics.jsonl", path, path[len - 1] == '/' ? "" : "/");
    if (!inside)
        return FSDP_ENOMEM;
    if (stat(inside, st)) {
        fsdp_free(inside);
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "%s: there is no metrics.jsonl in this folder; name the file that "
                            "log.metrics names",
                            path);
    }
    *out = inside;
    return FSDP_OK;
}

int curves_run_read(struct run *run, const char *path, struct fsdp_err *err)
{
    const bool is_stdin = !strcmp(path, "-");
    struct stat st = {0};

    if (is_stdin)
        run->path = fsdp_strdup("standard input", err);
    else
        FSDP_TRY(find_file(&run->path, path, &st, err));
    if (!run->path)
        return FSDP_ENOMEM;
    FILE *from = is_stdin ? stdin : fopen(run->path, "re");
    if (!from)
        return fsdp_err_sys(err, errno, "%s", run->path);
    int rc = read_lines(run, from, false, err);
    if (!is_stdin)
        fclose(from);
    if (!rc && S_ISREG(st.st_mode))
        rc = read_redone(run, err);
    return rc;
}

/* ---- fewer rows ------------------------------------------------------------------------------ */

/* Puts the rows of a group that stay at `to`, in order; returns how many. */
static size_t keep_two(struct run_row *to, const struct run_row *group, size_t n, int column)
{
    size_t least = 0, most = 0;

    for (size_t i = 1; i < n; i++) {
        if (group[i].value[column] < group[least].value[column])
            least = i;
        if (group[i].value[column] > group[most].value[column])
            most = i;
    }
    if (least == most)
        most = n - 1;
    const size_t first = least < most ? least : most, second = least + most - first;
    const struct run_row kept = group[second]; /* to may overlap the group */
    *to = group[first];
    if (first == second)
        return 1;
    to[1] = kept;
    return 2;
}

/* A file need not tell attempts. */
static bool same_start(const struct run_row *a, const struct run_row *b)
{
    const double one = a->value[RUN_ATTEMPT], other = b->value[RUN_ATTEMPT];

    return a->redone == b->redone && (one == other || (isnan(one) && isnan(other)));
}

void curves_run_thin(struct run *run, int column)
{
    size_t nkept = 0;

    for (size_t i = 0; i < run->nrows;) {
        size_t n = 1;
        while (n < 4 && i + n < run->nrows && same_start(&run->row[i], &run->row[i + n]))
            n++;
        nkept += keep_two(&run->row[nkept], &run->row[i], n, column);
        i += n;
    }
    run->nrows = nkept;
}

/* ---- names of keys --------------------------------------------------------------------------- */

struct naming {
    char *out;
    size_t nbytes;
};

static void take_name(void *ctx, const char *key, size_t nbytes, double value)
{
    const struct naming *naming = ctx;
    const size_t len = strlen(naming->out);

    (void)value;
    if (len + nbytes + 3 < naming->nbytes)
        snprintf(naming->out + len, naming->nbytes - len, "%s%.*s", len ? ", " : "", (int)nbytes,
                 key);
}

void curves_run_keys_text(char *out, size_t nbytes, const char *path)
{
    struct naming naming = {out, nbytes};
    char *line = fsdp_alloc_unset(MAX_LINE + 1, 1, "a line of metrics", NULL);
    FILE *from = NULL;
    size_t len = 0;

    out[0] = 0;
    /* A pipe has been read already. */
    if (line && fsdp_file_stream(&from, path, NULL) == FSDP_OK) {
        next_line(&len, line, from);
        if (len && len <= MAX_LINE)
            line_read(line, len, take_name, &naming);
        fclose(from);
    }
    fsdp_free(line);
}
