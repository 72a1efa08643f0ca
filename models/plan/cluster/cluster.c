/* SPDX-License-Identifier: Apache-2.0 */
/* Making clusters from files and words, and changing them. */
#include <stdio.h>
#include <string.h>

#include "cluster_impl.h"
#include "yaml/sections.h"

static const char *const required[] = {"gpu", "node", "network"};

/* A section, or a value in its place, that the table has. */
static int known_section(const char *where, const char *section, struct fsdp_err *err)
{
    char known[400] = "", last[64] = "";
    const char *near = NULL;
    int distance = (int)strnlen(section, 40) / 3 + 1;

    for (int i = 0; i < cluster_nkeys; i++) {
        const char *name = cluster_table_of_keys[i].name;
        char top[64];
        snprintf(top, sizeof top, "%.*s", (int)strcspn(name, "."), name);
        if (!strcmp(top, section) && strchr(name, '.'))
            return FSDP_OK;
        if (!strcmp(top, section))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s: %s: has no value; give one or remove the line", where,
                                section);
        if (!strcmp(top, last))
            continue;
        snprintf(last, sizeof last, "%s", top);
        const size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", top);
        if (fsdp_text_distance(section, top) <= distance) {
            distance = fsdp_text_distance(section, top) - 1;
            near = strchr(name, '.') ? cluster_table_of_keys[i].name : name;
        }
    }
    if (near)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: unknown section '%.60s'; did you mean %.*s? (%s)", where, section,
                            (int)strcspn(near, "."), near, known);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: unknown section '%.60s'; a cluster has %s", where,
                        section, known);
}

static int take_yaml(void *ctx, int line, const char *key, const char *value,
                     const char *const *values, int nvalues, struct fsdp_err *err)
{
    struct cluster_impl *impl = ctx;
    char where[FSDP_TUNABLE_STRING_NBYTES + 16];

    snprintf(where, sizeof where, "%s:%d", impl->path, line);
    if (!value && !values)
        return known_section(where, key, err);
    if (!strchr(key, '.')) { /* in the place of a section, which may take no value */
        bool takes = false;
        for (int i = 0; i < cluster_nkeys; i++)
            takes |= !strcmp(cluster_table_of_keys[i].name, key);
        for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
            takes |= !strcmp(required[i], key);
        if (!takes) {
            FSDP_TRY(known_section(where, key, err));
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s: %s: is a section; write '%s:' and, indented under it, 'key: "
                                "value'",
                                where, key, key);
        }
    }
    return cluster_take(impl, where, line, key, value, values, nvalues, err);
}

/* Tables that files hold; the keys are paths. */
static int read_tables(struct cluster_impl *impl, struct fsdp_err *err)
{
    for (int i = 0; i < CLUSTER_NTABLES; i++) {
        const char *file = impl->raw.measured.file[i];
        char key[64], where[FSDP_TUNABLE_STRING_NBYTES + 128];
        if (!file[0])
            continue;
        snprintf(key, sizeof key, "measured.%s", cluster_table_name((enum cluster_table)i));
        char *path = cluster_join_path(impl->path, file, err);
        if (!path)
            return FSDP_ENOMEM;
        const int rc = cluster_table_read(impl, (enum cluster_table)i, path, err);
        fsdp_free(path);
        if (rc)
            return fsdp_err_prefix(err, rc, "%s: ", cluster_place(where, sizeof where, impl, key));
    }
    return FSDP_OK;
}

static int make_cluster(struct cluster *out, struct fsdp_err *err)
{
    *out = (struct cluster){.impl = fsdp_alloc(1, sizeof *out->impl, "cluster", err)};
    if (!out->impl)
        return FSDP_ENOMEM;
    return fsdp_tunable_defaults(cluster_table_of_keys, cluster_nkeys, &out->impl->raw, err);
}

int cluster_load(struct cluster *out, const char *path, struct fsdp_err *err)
{
    static const struct sections_form form = {
        .section = "gpu", .values = true, .maps = true, .lists = true};
    int rc;

    if (strlen(path) >= FSDP_TUNABLE_STRING_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", path);
    FSDP_TRY_GOTO(make_cluster(out, err), out);
    if (!(out->impl->path = fsdp_strdup(path, err))) {
        rc = FSDP_ENOMEM;
        goto out;
    }
    FSDP_TRY_GOTO(sections_read(path, &form, take_yaml, out->impl, err), out);
    FSDP_TRY_GOTO(read_tables(out->impl, err), out);
    rc = cluster_derive(out, err);
out:
    if (rc)
        cluster_close(out);
    return rc;
}

int cluster_words(struct cluster *out, const char *gpu, const char *net, int node_ngpus,
                  struct fsdp_err *err)
{
    char count[24];
    int rc;

    snprintf(count, sizeof count, "%d", node_ngpus);
    FSDP_TRY_GOTO(make_cluster(out, err), out);
    const struct {
        const char *option, *key, *value;
    } words[] = {{"--gpu", "gpu.like", gpu},
                 {"--node-size", "node.gpus", count},
                 {"--net", "network.cards", net && net[0] ? net : "none"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        FSDP_TRY_GOTO(cluster_take(out->impl, words[i].option, CLUSTER_FROM_OPTION, words[i].key,
                                   words[i].value, NULL, 0, err),
                      out);
    rc = cluster_derive(out, err);
out:
    if (rc)
        cluster_close(out);
    return rc;
}

/* All keys that begin so are as if they had not been given. */
static int forget(struct cluster_raw *raw, const char *prefix, struct fsdp_err *err)
{
    for (int i = 0; i < cluster_nkeys; i++)
        if (!strncmp(cluster_table_of_keys[i].name, prefix, strlen(prefix))) {
            FSDP_TRY(fsdp_tunable_set(cluster_table_of_keys, cluster_nkeys, raw, "",
                                      cluster_table_of_keys[i].name, cluster_table_of_keys[i].def,
                                      err));
            raw->line[i] = 0;
        }
    return FSDP_OK;
}

/* Before another device or network takes the place of what the file described. */
static int make_way(struct cluster_raw *raw, const char *key, struct fsdp_err *err)
{
    if (!strcmp(key, "gpu") || !strcmp(key, "gpu.like")) {
        static const char *const of_gpu[] = {"gpu.", "node.nvl", "network.contention",
                                             "watts_per_gpu"};
        for (size_t i = 0; i < sizeof of_gpu / sizeof of_gpu[0]; i++)
            FSDP_TRY(forget(raw, of_gpu[i], err));
        raw->other_gpu = true;
    } else if (!strcmp(key, "net") || !strcmp(key, "network") || !strcmp(key, "network.cards")) {
        FSDP_TRY(forget(raw, "node.nic", err));
        FSDP_TRY(forget(raw, "network.eta", err));
        raw->other_net = true;
    }
    return FSDP_OK;
}

static bool names_table(const char *key)
{
    char name[64];

    for (int i = 0; i < CLUSTER_NTABLES; i++) {
        snprintf(name, sizeof name, "measured.%s", cluster_table_name((enum cluster_table)i));
        if (!strcmp(key, name))
            return true;
    }
    return !strcmp(key, "measured.nccl");
}

int cluster_set(struct cluster *cluster, const char *key, const char *value, struct fsdp_err *err)
{
    struct cluster_raw *raw = &cluster->impl->raw;
    struct cluster_raw *before = fsdp_alloc_unset(1, sizeof *before, "cluster", err);
    int rc;

    if (!before)
        return FSDP_ENOMEM;
    *before = *raw;
    if (names_table(key)) {
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "command line: %.60s: tables stand in a cluster.yaml; give it with "
                          "--cluster",
                          key);
        goto out;
    }
    FSDP_TRY_GOTO(make_way(raw, key, err), out);
    FSDP_TRY_GOTO(cluster_make_way_for(cluster->impl, key, err), out);
    if (!strcmp(key, "measured.contention"))
        raw->measured.npairs = 0;
    FSDP_TRY_GOTO(
        cluster_take(cluster->impl, "command line", CLUSTER_FROM_COMMAND, key, value, NULL, 0, err),
        out);
    rc = cluster_derive(cluster, err);
out:
    if (rc)
        *raw = *before;
    fsdp_free(before);
    return rc;
}

int cluster_set_factor(struct cluster *cluster, enum cluster_factor factor, double value,
                       struct fsdp_err *err)
{
    struct cluster_raw *raw = &cluster->impl->raw;
    const double before = raw->measured.factor[factor];

    if (!(value >= 1e-4 && value <= 1e4))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "factor %s is %g: measured times and modelled ones must not differ by "
                            "more than a factor of 10000",
                            cluster_factor_name(factor), value);
    raw->measured.factor[factor] = value;
    raw->line[cluster_row("measured.factors.product") + (int)factor] = CLUSTER_FROM_MEASURE;
    const int rc = cluster_derive(cluster, err);
    if (rc)
        raw->measured.factor[factor] = before;
    return rc;
}

static int note_file(struct cluster_impl *impl, enum cluster_table table, const char *file,
                     struct fsdp_err *err)
{
    if (file && strlen(file) >= FSDP_TUNABLE_STRING_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", file);
    snprintf(impl->raw.measured.file[table], FSDP_TUNABLE_STRING_NBYTES, "%s", file ? file : "");
    impl->raw.line[cluster_row("measured.gemm") + (int)table] = CLUSTER_FROM_MEASURE;
    return FSDP_OK;
}

int cluster_set_rates(struct cluster *cluster, enum cluster_table table, const char *file,
                      const struct fsdp_rate *rate, int nrates, struct fsdp_err *err)
{
    struct cluster_impl *impl = cluster->impl;
    struct fsdp_rate *copy = fsdp_alloc((size_t)nrates, sizeof *copy, "measured rates", err);

    if (!copy)
        return FSDP_ENOMEM;
    const int rc = note_file(impl, table, file, err);
    if (rc) {
        fsdp_free(copy);
        return rc;
    }
    memcpy(copy, rate, (size_t)nrates * sizeof *copy);
    cluster_table_clear(impl, table);
    impl->rates[table] = copy;
    impl->nrates[table] = impl->max_rates[table] = (size_t)nrates;
    impl->raw.other_gpu = false;
    return cluster_derive(cluster, err);
}

int cluster_set_collectives(struct cluster *cluster, const char *file,
                            const struct fsdp_collective_time *time, int ntimes,
                            struct fsdp_err *err)
{
    struct cluster_impl *impl = cluster->impl;
    struct fsdp_collective_time *copy =
        fsdp_alloc((size_t)ntimes, sizeof *copy, "measured collectives", err);

    if (!copy)
        return FSDP_ENOMEM;
    const int rc = note_file(impl, CLUSTER_COLLECTIVES, file, err);
    if (rc) {
        fsdp_free(copy);
        return rc;
    }
    memcpy(copy, time, (size_t)ntimes * sizeof *copy);
    cluster_table_clear(impl, CLUSTER_COLLECTIVES);
    impl->times = copy;
    impl->ntimes = impl->max_times = (size_t)ntimes;
    impl->raw.other_net = false;
    return cluster_derive(cluster, err);
}

int cluster_set_number(struct cluster *cluster, enum cluster_number number, double value,
                       struct fsdp_err *err)
{
    struct cluster_raw *raw = &cluster->impl->raw;
    const int row = cluster_row("measured.contention") + (int)number;
    char text[40];

    snprintf(text, sizeof text, "%.9g", value);
    FSDP_TRY(fsdp_tunable_set(cluster_table_of_keys, cluster_nkeys, raw, "measured",
                              cluster_table_of_keys[row].name, text, err));
    if (number == CLUSTER_MEASURED_CONTENTION)
        raw->measured.npairs = 0;
    raw->line[row] = CLUSTER_FROM_MEASURE;
    return cluster_derive(cluster, err);
}

const char *cluster_where(char *out, size_t out_nbytes, const struct cluster *cluster,
                          const char *key)
{
    return cluster_place(out, out_nbytes, cluster->impl, key);
}

void cluster_close(struct cluster *cluster)
{
    struct cluster_impl *impl = cluster->impl;

    if (impl) {
        for (int i = 0; i < CLUSTER_NTABLES; i++)
            cluster_table_clear(impl, (enum cluster_table)i);
        for (int i = 0; i < CLUSTER_NRATES; i++)
            fsdp_free(impl->scaled[i]);
        fsdp_free(impl->scaled_times);
        fsdp_free(impl->path);
    }
    fsdp_free(impl);
    *cluster = (struct cluster){.impl = NULL};
}
