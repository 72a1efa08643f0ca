/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster as a file: its own text with what was measured, or keys for words. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster_impl.h"

enum { FILE_MAX_NBYTES = 1 << 20 };

/* ---- the section `measured` ------------------------------------------------------------------ */

static bool is_key(const char *line)
{
    return isalnum((unsigned char)*line) || *line == '_' || *line == '"' || *line == '\'';
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* Where the section begins and ends in a text; both its end where it has none. Comments right
 * before the next section belong to that. */
static void find_measured(const char **begin, const char **end, const char *text)
{
    const char *line = text;

    while (*line && (strncmp(line, "measured", 8) || line[8 + strspn(line + 8, " ")] != ':'))
        line = next_line(line);
    *begin = line;
    *end = *line ? next_line(line) : line;
    for (line = *end; *line && !is_key(line); line = next_line(line))
        if (*line == ' ' || *line == '}' || *line == ']' || *line == '-')
            *end = next_line(line);
}

static bool keeps(const struct cluster_impl *impl, enum cluster_table table)
{
    return (table == CLUSTER_COLLECTIVES ? !impl->raw.other_net : !impl->raw.other_gpu) &&
           cluster_table_nrows(impl, table);
}

/* As the written file names a table's file: next to it, or by its whole path. */
static char *file_from(const struct cluster_impl *impl, enum cluster_table table, const char *path,
                       struct fsdp_err *err)
{
    const char *file = impl->raw.measured.file[table], *from = impl->path ? impl->path : "";
    const int line = impl->raw.line[cluster_row("measured.gemm") + (int)table];
    const size_t here = strrchr(path, '/') ? (size_t)(strrchr(path, '/') - path) : 0;
    const size_t there = strrchr(from, '/') ? (size_t)(strrchr(from, '/') - from) : 0;

    if (file[0] == '/' || line <= 0 || (here == there && !strncmp(path, from, here)))
        return fsdp_strdup(file, err);
    char *joined = cluster_join_path(from, file, err),
         *whole = joined ? realpath(joined, NULL) : NULL;
    if (joined && !whole)
        fsdp_err_sys(err, errno, "%s", joined);
    fsdp_free(joined);
    char *out = whole ? fsdp_strdup(whole, err) : NULL;
    free(whole);
    return out;
}

static int print_tables(FILE *to, const struct cluster_impl *impl, const char *path,
                        struct fsdp_err *err)
{
    struct fsdp_tunable row = {.name = "file", .type = FSDP_TUNABLE_STRING};
    char text[FSDP_TUNABLE_STRING_NBYTES];
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    int rc = value ? FSDP_OK : FSDP_ENOMEM;

    for (int i = 0; i < CLUSTER_NTABLES && rc == FSDP_OK; i++) {
        const enum cluster_table table = (enum cluster_table)i;
        if (!keeps(impl, table))
            continue;
        fprintf(to, "  %s:", cluster_table_name(table));
        if (!impl->raw.measured.file[i][0]) {
            cluster_table_print_inline(to, impl, table);
            continue;
        }
        char *file = file_from(impl, table, path, err);
        if (!file || strlen(file) >= sizeof text) {
            rc = file ? fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", file) : FSDP_EIO;
        } else {
            strcpy(text, file);
            fsdp_tunable_format(value, &row, text);
            fprintf(to, " %s\n", value);
        }
        fsdp_free(file);
    }
    fsdp_free(value);
    return rc;
}

static int print_measured(FILE *to, const struct cluster_impl *impl, const char *path,
                          struct fsdp_err *err)
{
    const struct cluster_raw *raw = &impl->raw;
    bool any = false, factors = false;

    for (int i = 0; i < CLUSTER_NTABLES; i++)
        any |= keeps(impl, (enum cluster_table)i);
    for (int i = 0; i < CLUSTER_NFACTORS; i++)
        factors |= raw->measured.factor[i] != 1;
    for (int i = 0; i < CLUSTER_NNUMBERS; i++)
        any |= raw->measured.number[i] != CLUSTER_AUTO;
    if (!any && !factors && !raw->measured.npairs)
        return FSDP_OK;
    fprintf(to, "measured:\n");
    FSDP_TRY(print_tables(to, impl, path, err));
    if (raw->measured.npairs) {
        fprintf(to, "  contention: [");
        for (int i = 0; i < raw->measured.npairs; i++)
            fprintf(to, "%s[%.10g, %.6g]", i ? ", " : "", raw->measured.pairs[i][0],
                    raw->measured.pairs[i][1]);
        fprintf(to, "]\n");
    }
    for (int i = 0; i < CLUSTER_NNUMBERS; i++)
        if (raw->measured.number[i] != CLUSTER_AUTO)
            fprintf(to, "  %s: %.6g\n",
                    cluster_number_key((enum cluster_number)i) + strlen("measured."),
                    raw->measured.number[i]);
    if (factors)
        fprintf(to, "  factors: # measured time / modelled time\n");
    for (int i = 0; i < CLUSTER_NFACTORS; i++)
        if (raw->measured.factor[i] != 1)
            fprintf(to, "    %s: %.6g\n", cluster_factor_name((enum cluster_factor)i),
                    raw->measured.factor[i]);
    return FSDP_OK;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Keys that were given, by sections; where nothing but words made the cluster, these. */
static int print_keys(FILE *to, const struct cluster_raw *raw, struct fsdp_err *err)
{
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    const char *last = "";

    if (!value)
        return FSDP_ENOMEM;
    for (int i = 0; i < cluster_nkeys; i++) {
        const struct fsdp_tunable *row = &cluster_table_of_keys[i];
        const char *dot = strchr(row->name, '.');
        if (!raw->line[i] || row->type == FSDP_TUNABLE_MAPS || !strncmp(row->name, "measured.", 9))
            continue;
        const size_t len = dot ? (size_t)(dot - row->name) : 0;
        if (dot && strncmp(last, row->name, len + 1))
            fprintf(to, "%.*s:\n", (int)len, row->name);
        last = row->name;
        fsdp_tunable_format(value, row, raw);
        fprintf(to, "%s%s: %s\n", dot ? "  " : "", dot ? dot + 1 : row->name, value);
    }
    fsdp_free(value);
    return FSDP_OK;
}

static int print_cluster(FILE *to, const struct cluster_impl *impl, const char *path,
                         struct fsdp_err *err)
{
    char *text = NULL;
    const char *begin, *end;
    size_t nbytes;

    if (!impl->path) {
        FSDP_TRY(print_keys(to, &impl->raw, err));
        return print_measured(to, impl, path, err);
    }
    FSDP_TRY(fsdp_file_read(&text, &nbytes, impl->path, FILE_MAX_NBYTES, err));
    find_measured(&begin, &end, text);
    fwrite(text, 1, (size_t)(begin - text), to);
    if (begin > text && begin[-1] != '\n')
        fputc('\n', to);
    const int rc = print_measured(to, impl, path, err);
    fputs(end, to);
    fsdp_free(text);
    return rc;
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef int print_f(FILE *to, const void *what, const char *path, struct fsdp_err *err);
typedef int check_f(const char *part, struct fsdp_err *err);

/* Writes path.part, looks at it, and gives it its name. */
static int write_file(const char *path, print_f *print, const void *what, check_f *check,
                      struct fsdp_err *err)
{
    char *part = fsdp_sprintf(err, "%s.part", path);
    int fd = -1, rc = FSDP_ENOMEM;

    if (!part)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(fsdp_file_open(&fd, part, O_WRONLY | O_CREAT | O_TRUNC, err), out);
    FILE *to = fdopen(fd, "w");
    if (!to) {
        close(fd);
        rc = fsdp_err_set(err, FSDP_ENOMEM, "%s: no memory to write it", part);
        goto out;
    }
    rc = print(to, what, path, err);
    const bool written = fflush(to) == 0 && !ferror(to) && fsync(fd) == 0;
    const int why = errno;
    if ((fclose(to) || !written) && rc == FSDP_OK)
        rc = fsdp_err_sys(err, written ? errno : why, "%s: cannot write", path);
    if (rc == FSDP_OK && check)
        rc = check(part, err);
    if (rc == FSDP_OK && rename(part, path))
        rc = fsdp_err_sys(err, errno, "%s: cannot write", path);
    if (rc)
        unlink(part);
out:
    fsdp_free(part);
    return rc;
}

static int print_whole(FILE *to, const void *what, const char *path, struct fsdp_err *err)
{
    return print_cluster(to, what, path, err);
}

/* A text that a section cannot be put into, such as {gpu: h100, ...}, must not take its place. */
static int check_whole(const char *part, struct fsdp_err *err)
{
    struct cluster read;
    const int rc = cluster_load(&read, part, err);

    if (rc == FSDP_OK)
        cluster_close(&read);
    return fsdp_err_hint(err, rc,
                         "; the section measured could not be put into its text: write one key a "
                         "line, from the first column on");
}

int cluster_write(const struct cluster *cluster, const char *path, struct fsdp_err *err)
{
    return write_file(path, print_whole, cluster->impl, check_whole, err);
}

struct table_of {
    const struct cluster_impl *impl;
    enum cluster_table table;
};

static int print_table(FILE *to, const void *what, const char *path, struct fsdp_err *err)
{
    const struct table_of *of = what;

    (void)path;
    (void)err;
    cluster_table_print(to, of->impl, of->table);
    return FSDP_OK;
}

int cluster_write_table(const struct cluster *cluster, enum cluster_table table, const char *path,
                        struct fsdp_err *err)
{
    const struct table_of of = {cluster->impl, table};

    if (!cluster_table_nrows(cluster->impl, table))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: measured.%s has no rows", path,
                            cluster_table_name(table));
    return write_file(path, print_table, &of, NULL, err);
}
