/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured, as tables of tab-separated values. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "plan/cluster/cluster.h"

enum { PATH_NBYTES = 4096, MAX_LINES = 100000 };

/* ---- writing --------------------------------------------------------------------------------- */

/* head: its first line; NULL: the caller writes it. */
static FILE *table_open(const char *folder, const char *name, const char *head,
                        struct fsdp_err *err)
{
    char path[PATH_NBYTES];
    FILE *to;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    to = fopen(path, "we");
    if (!to)
        fsdp_err_sys(err, errno, "cannot write %s", path);
    else if (head)
        fprintf(to, "%s\n", head);
    return to;
}

static int table_close(FILE *to, const char *folder, const char *name, struct fsdp_err *err)
{
    bool bad = ferror(to);

    errno = 0;
    bad |= fclose(to) != 0;
    return bad ? fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s/%s", folder, name)
               : FSDP_OK;
}

/* rates: of other tables than that of collectives. */
static int write_rows(const struct measured *m, const char *folder, enum cluster_table table,
                      const struct fsdp_rate *rates, int nrows, struct fsdp_err *err)
{
    char name[32];

    snprintf(name, sizeof name, "%s.tsv", cluster_table_name(table));
    FILE *to = table_open(folder, name, NULL, err);
    if (!to)
        return FSDP_EIO;
    fprintf(to, "# ");
    cluster_put_columns(to, table);
    for (int i = 0; i < nrows; i++) {
        fputc('\n', to);
        if (table == CLUSTER_COLLECTIVES)
            cluster_put_collective(to, &m->collectives[i], "\t");
        else
            cluster_put_rate(to, table, &rates[i], "\t");
    }
    fputc('\n', to);
    return table_close(to, folder, name, err);
}

static int write_numbers(const struct measured *m, const char *folder, struct fsdp_err *err)
{
    FILE *to = table_open(folder, "numbers.tsv", "# what\tvalue", err);

    if (!to)
        return FSDP_EIO;
    fprintf(to,
            "contention\t%.6g\nhost\t%.6g\nhost_memory\t%.6g\njitter\t%.6g\nmemory\t%."
            "6g\nproduct\t%.6g\nrendezvous\t%"
            ".6g\nscatter\t%.6g\n",
            m->contention, m->host_nbytes_per_s, m->host_memory_nbytes_per_s, m->jitter,
            m->memory_nbytes_per_s, m->product_per_s, m->rendezvous_s, m->scatter);
    return table_close(to, folder, "numbers.tsv", err);
}

int measured_write(const struct measured *m, const char *folder, struct fsdp_err *err)
{
    FSDP_TRY(write_rows(m, folder, CLUSTER_GEMM, m->products, m->nproducts, err));
    FSDP_TRY(write_rows(m, folder, CLUSTER_SDPA, m->attention, m->nattention, err));
    FSDP_TRY(write_rows(m, folder, CLUSTER_COPY, m->copies, m->ncopies, err));
    FSDP_TRY(write_rows(m, folder, CLUSTER_COLLECTIVES, NULL, m->ncollectives, err));
    return write_numbers(m, folder, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef int line_f(struct measured *m, char *const *word, struct fsdp_err *err);

/* A number, or the name of a pass. */
static double kernels(const char *word)
{
    for (int pass = 0; pass < FSDP_NPASSES; pass++)
        if (!strcmp(word, fsdp_pass_name((enum fsdp_pass)pass)))
            return pass;
    return atof(word);
}

static int read_rate(struct fsdp_rate **rates, int *nrates, size_t *max, char *const *word,
                     struct fsdp_err *err)
{
    struct fsdp_rate r = {.m = atof(word[1]), .n = kernels(word[2]), .per_s = atof(word[4])};

    r.k = !strcmp(word[3], "forward") ? 1 : !strcmp(word[3], "backward") ? 2 : atof(word[3]);
    FSDP_TRY(fsdp_dtype_parse(&r.type, word[0], err));
    if (!(r.m > 0) || !(r.per_s > 0))
        return fsdp_err_set(err, FSDP_ECORRUPT, "a rate of %s at a size of %s", word[4], word[1]);
    struct fsdp_rate *all =
        fsdp_alloc_grow(*rates, (size_t)*nrates, max, sizeof *all, "measured rates", err);
    if (!all)
        return FSDP_ENOMEM;
    *rates = all;
    all[(*nrates)++] = r;
    return FSDP_OK;
}

static int line_product(struct measured *m, char *const *word, struct fsdp_err *err)
{
    return read_rate(&m->products, &m->nproducts, &m->max_products, word, err);
}

static int line_attention(struct measured *m, char *const *word, struct fsdp_err *err)
{
    return read_rate(&m->attention, &m->nattention, &m->max_attention, word, err);
}

static int line_copy(struct measured *m, char *const *word, struct fsdp_err *err)
{
    return read_rate(&m->copies, &m->ncopies, &m->max_copies, word, err);
}

static int line_collective(struct measured *m, char *const *word, struct fsdp_err *err)
{
    struct fsdp_collective_time t = {.nranks = atoi(word[1]), .nnodes = atoi(word[2])};
    int kind = 0;

    while (kind < FSDP_NCOLLECTIVES && strcmp(word[0], cluster_collective_words[kind]) != 0)
        kind++;
    t.kind = (enum fsdp_collective)kind;
    t.nbytes = atof(word[3]);
    t.seconds = atof(word[4]);
    if (kind == FSDP_NCOLLECTIVES || t.nranks < 1 || t.nnodes < 1 || !(t.nbytes > 0) ||
        !(t.seconds >= 0))
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' of %s ranks is no collective", word[0],
                            word[1]);
    struct fsdp_collective_time *all =
        fsdp_alloc_grow(m->collectives, (size_t)m->ncollectives, &m->max_collectives, sizeof *all,
                        "measured collectives", err);
    if (!all)
        return FSDP_ENOMEM;
    m->collectives = all;
    all[m->ncollectives++] = t;
    return FSDP_OK;
}

static int line_number(struct measured *m, char *const *word, struct fsdp_err *err)
{
    const struct {
        const char *name;
        double *to;
    } numbers[] = {{"contention", &m->contention},
                   {"host", &m->host_nbytes_per_s},
                   {"host_memory", &m->host_memory_nbytes_per_s},
                   {"jitter", &m->jitter},
                   {"memory", &m->memory_nbytes_per_s},
                   {"product", &m->product_per_s},
                   {"rendezvous", &m->rendezvous_s},
                   {"scatter", &m->scatter}};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!strcmp(word[0], numbers[i].name)) {
            *numbers[i].to = atof(word[1]);
            return FSDP_OK;
        }
    return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is no number that is measured", word[0]);
}

/* Words of a line between tabs; returns their count. */
static int split(char **word, int max, char *line)
{
    int n = 0;

    line[strcspn(line, "\r\n")] = 0;
    for (char *at = line; at && n < max; n++) {
        word[n] = at;
        at = strchr(at, '\t');
        if (at)
            *at++ = 0;
    }
    return n;
}

static int read_table(struct measured *m, const char *folder, const char *name, int nwords,
                      line_f *take, struct fsdp_err *err)
{
    char path[PATH_NBYTES], line[512], *word[8];
    int rc = FSDP_OK, at = 1;
    FILE *from;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    from = fopen(path, "re");
    if (!from)
        return fsdp_err_sys(err, errno, "cannot read %s", path);
    if (!fgets(line, sizeof line, from))
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "%s is empty", path);
    while (rc == FSDP_OK && at++ < MAX_LINES && fgets(line, sizeof line, from)) {
        const int n = split(word, 8, line);
        if (n != nwords)
            rc = fsdp_err_set(err, FSDP_ECORRUPT, "%s:%d: %d columns, where %d are wanted", path,
                              at, n, nwords);
        else
            rc = fsdp_err_prefix(err, take(m, word, err), "%s:%d: ", path, at);
    }
    fclose(from);
    return rc;
}

int measured_read(struct measured *out, const char *folder, struct fsdp_err *err)
{
    *out = (struct measured){.contention = -1};
    int rc = read_table(out, folder, "gemm.tsv", 5, line_product, err);
    if (rc == FSDP_OK)
        rc = read_table(out, folder, "sdpa.tsv", 5, line_attention, err);
    if (rc == FSDP_OK)
        rc = read_table(out, folder, "copy.tsv", 5, line_copy, err);
    if (rc == FSDP_OK)
        rc = read_table(out, folder, "collectives.tsv", 5, line_collective, err);
    if (rc == FSDP_OK)
        rc = read_table(out, folder, "numbers.tsv", 2, line_number, err);
    if (rc)
        measured_free(out);
    return rc;
}
