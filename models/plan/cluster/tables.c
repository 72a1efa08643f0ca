/* SPDX-License-Identifier: Apache-2.0 */
/* Measured tables: rows of text, files of them, and what factors make of them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster_impl.h"

enum { MAX_ROWS = 100000, MAX_FIELDS = 8, FILE_MAX_NBYTES = 16 << 20 };

static const char *const columns[CLUSTER_NTABLES] = {
    "type m n k flops_per_s", "type keys head_size pass flops_per_s",
    "type nbytes kernels pass nbytes_per_s", "collective ranks nodes nbytes seconds"};
enum { NCOLUMNS = 5 };
/* Of copies of any type: rows of another table's form. */
static const char copy_columns[] = "nbytes nbytes_per_s";
enum { COPY_NCOLUMNS = 2 };
const char *const cluster_collective_words[FSDP_NCOLLECTIVES] = {"all_gather", "reduce_scatter",
                                                                 "all_reduce"};

static int refuse_field(const char *where, enum cluster_table table, int column, const char *text,
                        const char *allowed, struct fsdp_err *err)
{
    const char *name = columns[table];

    for (int i = 0; i < column; i++)
        name += strcspn(name, " ") + 1;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s: measured.%s: %.*s: '%.60s' is not allowed; allowed: %s", where,
                        cluster_table_name(table), (int)strcspn(name, " "), name, text, allowed);
}

/* A number above 0, or of at least 1 where it is a count. */
static int take_number(double *out, const char *where, enum cluster_table table, int column,
                       const char *text, bool count, struct fsdp_err *err)
{
    char *end;
    const double x = strtod(text, &end);

    if (end == text || *end || !(x > 0) || !(x < 1e24) || strpbrk(text, "xX"))
        return refuse_field(where, table, column, text, "a number above 0", err);
    if (count && (!(x >= 1 && x <= 1e9) || x != floor(x)))
        return refuse_field(where, table, column, text, "a whole number of at least 1", err);
    *out = x;
    return FSDP_OK;
}

static int take_type(enum fsdp_dtype *out, const char *where, enum cluster_table table,
                     const char *text, struct fsdp_err *err)
{
    if (fsdp_dtype_parse(out, text, NULL) != FSDP_OK || !fsdp_dtype_is_float(*out))
        return refuse_field(where, table, 0, text, "a type such as bf16, f32 or f8_e4m3", err);
    return FSDP_OK;
}

static int take_direction(double *out, const char *where, enum cluster_table table,
                          const char *text, struct fsdp_err *err)
{
    if (strcasecmp(text, "forward") && strcasecmp(text, "backward"))
        return refuse_field(where, table, 3, text, "forward or backward", err);
    *out = strcasecmp(text, "forward") ? 2 : 1;
    return FSDP_OK;
}

static int take_kernels(double *out, const char *where, const char *text, struct fsdp_err *err)
{
    char known[160] = "";

    for (int pass = 0; pass < FSDP_NPASSES; pass++) {
        const char *name = fsdp_pass_name((enum fsdp_pass)pass);
        const size_t len = strlen(known);
        if (!strcasecmp(text, name)) {
            *out = pass;
            return FSDP_OK;
        }
        snprintf(known + len, sizeof known - len, "%s%s", pass ? ", " : "", name);
    }
    return refuse_field(where, CLUSTER_COPY, 2, text, known, err);
}

/* Columns 0, 1 and 4 are alike in all tables. */
static int take_rate(struct fsdp_rate *r, enum cluster_table table, const char *where,
                     const char *const *f, int nfields, struct fsdp_err *err)
{
    *r = (struct fsdp_rate){.type = FSDP_F32};
    if (nfields == COPY_NCOLUMNS) {
        FSDP_TRY(take_number(&r->m, where, table, 1, f[0], false, err));
        return take_number(&r->per_s, where, table, 4, f[1], false, err);
    }
    FSDP_TRY(take_type(&r->type, where, table, f[0], err));
    FSDP_TRY(take_number(&r->m, where, table, 1, f[1], false, err));
    if (table == CLUSTER_COPY)
        FSDP_TRY(take_kernels(&r->n, where, f[2], err));
    else
        FSDP_TRY(take_number(&r->n, where, table, 2, f[2], false, err));
    if (table == CLUSTER_GEMM)
        FSDP_TRY(take_number(&r->k, where, table, 3, f[3], false, err));
    else
        FSDP_TRY(take_direction(&r->k, where, table, f[3], err));
    return take_number(&r->per_s, where, table, 4, f[4], false, err);
}

static int take_collective(struct fsdp_collective_time *t, const char *where, const char *const *f,
                           struct fsdp_err *err)
{
    const enum cluster_table table = CLUSTER_COLLECTIVES;
    double nranks, nnodes;
    int kind = 0;

    while (kind < FSDP_NCOLLECTIVES && strcasecmp(f[0], cluster_collective_words[kind]))
        kind++;
    if (kind == FSDP_NCOLLECTIVES)
        return refuse_field(where, table, 0, f[0], "all_gather, reduce_scatter or all_reduce", err);
    FSDP_TRY(take_number(&nranks, where, table, 1, f[1], true, err));
    FSDP_TRY(take_number(&nnodes, where, table, 2, f[2], true, err));
    if (nnodes > nranks)
        return refuse_field(where, table, 2, f[2], "at most as many nodes as ranks", err);
    *t = (struct fsdp_collective_time){
        .kind = (enum fsdp_collective)kind, .nranks = (int)nranks, .nnodes = (int)nnodes};
    FSDP_TRY(take_number(&t->nbytes, where, table, 3, f[3], false, err));
    return take_number(&t->seconds, where, table, 4, f[4], false, err);
}

int cluster_table_row(struct cluster_impl *impl, enum cluster_table table, const char *where,
                      const char *const *fields, int nfields, struct fsdp_err *err)
{
    const bool copy = table == CLUSTER_COPY;

    if (nfields != NCOLUMNS && !(copy && nfields == COPY_NCOLUMNS))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: measured.%s: a row of %d values; it has %d: %s%s%s", where,
                            cluster_table_name(table), nfields, NCOLUMNS, columns[table],
                            copy ? "; or 2: " : "", copy ? copy_columns : "");
    if (cluster_table_nrows(impl, table) >= MAX_ROWS)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: measured.%s: more than %d rows", where,
                            cluster_table_name(table), MAX_ROWS);
    if (table == CLUSTER_COLLECTIVES) {
        struct fsdp_collective_time time, *times;
        FSDP_TRY(take_collective(&time, where, fields, err));
        times = fsdp_alloc_grow(impl->times, impl->ntimes, &impl->max_times, sizeof time,
                                "measured collectives", err);
        if (!times)
            return FSDP_ENOMEM;
        impl->times = times;
        times[impl->ntimes++] = time;
        return FSDP_OK;
    }
    struct fsdp_rate rate, *rates;
    FSDP_TRY(take_rate(&rate, table, where, fields, nfields, err));
    rates = fsdp_alloc_grow(impl->rates[table], impl->nrates[table], &impl->max_rates[table],
                            sizeof rate, "measured rates", err);
    if (!rates)
        return FSDP_ENOMEM;
    impl->rates[table] = rates;
    rates[impl->nrates[table]++] = rate;
    return FSDP_OK;
}

size_t cluster_table_nrows(const struct cluster_impl *impl, enum cluster_table table)
{
    return table == CLUSTER_COLLECTIVES ? impl->ntimes : impl->nrates[table];
}

void cluster_table_clear(struct cluster_impl *impl, enum cluster_table table)
{
    if (table == CLUSTER_COLLECTIVES) {
        fsdp_free(impl->times);
        impl->times = NULL;
        impl->ntimes = impl->max_times = 0;
        return;
    }
    fsdp_free(impl->rates[table]);
    impl->rates[table] = NULL;
    impl->nrates[table] = impl->max_rates[table] = 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

char *cluster_join_path(const char *yaml, const char *file, struct fsdp_err *err)
{
    const char *slash = yaml ? strrchr(yaml, '/') : NULL;

    if (file[0] == '/' || !slash)
        return fsdp_strdup(file, err);
    return fsdp_sprintf(err, "%.*s/%s", (int)(slash - yaml), yaml, file);
}

static bool are_names(const char *name, const char *const *fields, int nfields)
{
    int i = 0;

    for (; i < nfields && *name; i++) {
        const size_t len = strcspn(name, " ");
        if (strlen(fields[i]) != len || strncasecmp(fields[i], name, len))
            return false;
        name += len + (name[len] == ' ');
    }
    return i == nfields && !*name;
}

static bool begins_names(const char *name, const char *field)
{
    const size_t len = strcspn(name, " ");
    return strlen(field) == len && !strncasecmp(field, name, len);
}

/* The line of names, which may stand first, must name all of them. */
static int check_names(const char *where, enum cluster_table table, const char *const *fields,
                       int nfields, struct fsdp_err *err)
{
    if (are_names(columns[table], fields, nfields) ||
        (table == CLUSTER_COPY && are_names(copy_columns, fields, nfields)))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "%s: the columns of measured.%s are %s", where,
                        cluster_table_name(table), columns[table]);
}

int cluster_table_read(struct cluster_impl *impl, enum cluster_table table, const char *path,
                       struct fsdp_err *err)
{
    char *text = NULL, where[FSDP_TUNABLE_STRING_NBYTES * 2 + 32];
    size_t nbytes;
    int rc, line = 0;
    bool first = true;

    FSDP_TRY(fsdp_file_read(&text, &nbytes, path, FILE_MAX_NBYTES, err));
    if (strlen(text) != nbytes) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s: not a text file: it has a zero byte", path);
        goto out;
    }
    char *rest = text + (!strncmp(text, "\xef\xbb\xbf", 3) ? 3 : 0);
    for (char *row; (row = strsep(&rest, "\n"));) {
        const char *fields[MAX_FIELDS];
        int nfields = 0;
        char *save = NULL;
        snprintf(where, sizeof where, "%s:%d", path, ++line);
        for (char *f = strtok_r(row, " \t\r", &save); f && f[0] != '#';
             f = strtok_r(NULL, " \t\r", &save))
            if (nfields++ < MAX_FIELDS)
                fields[nfields - 1] = f;
        if (!nfields)
            continue;
        const bool names =
            first && (begins_names(columns[table], fields[0]) ||
                      (table == CLUSTER_COPY && begins_names(copy_columns, fields[0])));
        first = false;
        FSDP_TRY_GOTO(names ? check_names(where, table, fields, nfields, err)
                            : cluster_table_row(impl, table, where, fields, nfields, err),
                      out);
    }
    rc = cluster_table_nrows(impl, table)
             ? FSDP_OK
             : fsdp_err_set(err, FSDP_EINVAL, "%s: it has no rows; columns are %s", path,
                            columns[table]);
out:
    fsdp_free(text);
    return rc;
}

static void put_columns(FILE *to, const char *names)
{
    for (; *names; names++)
        fputc(*names == ' ' ? '\t' : *names, to);
}

/* Are all rows copies of no type and direction? */
static bool is_short(const struct cluster_impl *impl, enum cluster_table table)
{
    for (size_t i = 0; table == CLUSTER_COPY && i < impl->nrates[table]; i++)
        if (impl->rates[table][i].k > 0)
            return false;
    return table == CLUSTER_COPY;
}

void cluster_put_columns(FILE *to, enum cluster_table table)
{
    put_columns(to, columns[table]);
}

void cluster_put_collective(FILE *to, const struct fsdp_collective_time *t, const char *separator)
{
    fprintf(to, "%s%s%d%s%d%s%.10g%s%.6g", cluster_collective_words[t->kind], separator, t->nranks,
            separator, t->nnodes, separator, t->nbytes, separator, t->seconds);
}

void cluster_put_rate(FILE *to, enum cluster_table table, const struct fsdp_rate *r,
                      const char *separator)
{
    fprintf(to, "%s%s%.10g%s", fsdp_dtype_name(r->type), separator, r->m, separator);
    if (table == CLUSTER_COPY)
        fprintf(to, "%s%s", fsdp_pass_name((enum fsdp_pass)(int)r->n), separator);
    else
        fprintf(to, "%.10g%s", r->n, separator);
    if (table == CLUSTER_GEMM)
        fprintf(to, "%.10g", r->k);
    else
        fprintf(to, "%s", r->k > 1.5 ? "backward" : "forward");
    fprintf(to, "%s%.6g", separator, r->per_s);
}

static void print_row(FILE *to, const struct cluster_impl *impl, enum cluster_table table, size_t i,
                      const char *separator)
{
    const struct fsdp_rate *r = table == CLUSTER_COLLECTIVES ? NULL : &impl->rates[table][i];

    if (!r)
        cluster_put_collective(to, &impl->times[i], separator);
    else if (is_short(impl, table))
        fprintf(to, "%.10g%s%.6g", r->m, separator, r->per_s);
    else
        cluster_put_rate(to, table, r, separator);
}

void cluster_table_print(FILE *to, const struct cluster_impl *impl, enum cluster_table table)
{
    put_columns(to, is_short(impl, table) ? copy_columns : columns[table]);
    for (size_t i = 0; i < cluster_table_nrows(impl, table); i++) {
        fputc('\n', to);
        print_row(to, impl, table, i, "\t");
    }
    fputc('\n', to);
}

void cluster_table_print_inline(FILE *to, const struct cluster_impl *impl, enum cluster_table table)
{
    for (size_t i = 0; i < cluster_table_nrows(impl, table); i++) {
        fprintf(to, "\n    - [");
        print_row(to, impl, table, i, ", ");
        fputc(']', to);
    }
    fputc('\n', to);
}

/* ---- factors --------------------------------------------------------------------------------- */

static double factor_of_rate(const struct cluster_raw *raw, enum cluster_table table,
                             const struct fsdp_rate *r)
{
    const bool is_8 = fsdp_dtype_nbytes(r->type) == 1;
    return raw->measured.factor[table == CLUSTER_COPY   ? CLUSTER_MEMORY
                                : table == CLUSTER_SDPA ? CLUSTER_ATTENTION
                                : is_8                  ? CLUSTER_PRODUCT_8
                                                        : CLUSTER_PRODUCT];
}

/* Rows of a type, n and k together, as the clock wants them. */
static int compare_rates(const void *a, const void *b)
{
    const struct fsdp_rate *x = a, *y = b;

    if (x->type != y->type)
        return x->type < y->type ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    if (x->k != y->k)
        return x->k < y->k ? -1 : 1;
    return x->m < y->m ? -1 : x->m > y->m;
}

/* The network's clock without the factors, which derive.c has put into it. */
static struct fsdp_net_clock unscaled(const struct fsdp_net_clock *scaled,
                                      const struct cluster_raw *raw)
{
    const double *f = raw->measured.factor;
    struct fsdp_net_clock net = *scaled;

    if (!raw->other_gpu) {
        net.node_nbytes_per_s *= f[CLUSTER_NODE];
        net.nvls_nbytes_per_s *= f[CLUSTER_NODE];
    }
    net.flat_share *= f[CLUSTER_FLAT];
    net.rail_share *= f[CLUSTER_RAIL];
    net.start_s /= f[CLUSTER_LATENCY];
    net.node_hop_s /= f[CLUSTER_LATENCY];
    net.net_hop_s /= f[CLUSTER_LATENCY];
    net.pat_hop_s /= f[CLUSTER_LATENCY];
    return net;
}

/* What the links do not take of a measured time is latency, and has its factor. */
static struct fsdp_collective_time scaled_time(const struct fsdp_net_clock *unscaled,
                                               const struct fsdp_collective_time *time,
                                               const double *factor)
{
    const struct fsdp_group group = {time->nranks, time->nnodes, time->nranks / time->nnodes};
    struct fsdp_net_clock net = *unscaled;
    struct fsdp_collective_time out = *time;

    net.measured = time;
    net.nmeasured = 1;
    const struct fsdp_transfer way =
        fsdp_collective_transfer(&net, time->kind, group, time->nbytes);
    const double link = factor[time->nnodes == 1              ? CLUSTER_NODE
                               : time->nranks == time->nnodes ? CLUSTER_RAIL
                                                              : CLUSTER_FLAT];
    const double late = way.latency_s < time->seconds ? way.latency_s : time->seconds;
    out.seconds = late * factor[CLUSTER_LATENCY] + (time->seconds - late) * link;
    return out;
}

int cluster_scale(struct fsdp_clock *clock, struct cluster_impl *impl, struct fsdp_err *err)
{
    struct fsdp_rates *const to[CLUSTER_NRATES] = {
        [CLUSTER_GEMM] = &clock->device.products,
        [CLUSTER_SDPA] = &clock->device.attention,
        [CLUSTER_COPY] = &clock->device.copies,
    };
    const double *factor = impl->raw.measured.factor;

    for (int table = 0; table < CLUSTER_NRATES; table++) {
        const size_t n = impl->raw.other_gpu ? 0 : impl->nrates[table];
        struct fsdp_rate *rates = fsdp_alloc(n, sizeof *rates, "measured rates", err);
        if (!rates)
            return FSDP_ENOMEM;
        fsdp_free(impl->scaled[table]);
        impl->scaled[table] = rates;
        for (size_t i = 0; i < n; i++) {
            rates[i] = impl->rates[table][i];
            rates[i].per_s /= factor_of_rate(&impl->raw, (enum cluster_table)table, &rates[i]);
        }
        qsort(rates, n, sizeof *rates, compare_rates);
        *to[table] = (struct fsdp_rates){.rate = rates, .nrates = (int)n};
    }
    const size_t n = impl->raw.other_net ? 0 : impl->ntimes;
    struct fsdp_collective_time *times = fsdp_alloc(n, sizeof *times, "measured collectives", err);
    if (!times)
        return FSDP_ENOMEM;
    fsdp_free(impl->scaled_times);
    impl->scaled_times = times;
    const struct fsdp_net_clock net = unscaled(&clock->net, &impl->raw);
    for (size_t i = 0; i < n; i++)
        times[i] = scaled_time(&net, &impl->times[i], factor);
    clock->net.measured = times;
    clock->net.nmeasured = (int)n;
    return FSDP_OK;
}
