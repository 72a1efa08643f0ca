/* SPDX-License-Identifier: Apache-2.0 */
/* Setting one key of a cluster.yaml. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cluster_impl.h"

/* Short names, and values in the place of a section. */
static const char *whole_name(const char *key, bool *in_place)
{
    static const struct {
        const char *name, *key;
    } names[] = {{"gpu", "gpu.like"},
                 {"node", "node.gpus"},
                 {"network", "network.cards"},
                 {"net", "network.cards"},
                 {"price", "price_per_gpu_hour"},
                 {"measured.nccl", "measured.collectives"}};

    *in_place = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i].name, key)) {
            *in_place = i < 3;
            return names[i].key;
        }
    return key;
}

static bool is_table(enum cluster_table *table, const char *key, size_t len)
{
    for (int i = 0; i < CLUSTER_NTABLES; i++) {
        const char *name = cluster_table_name((enum cluster_table)i);
        if (len == strlen("measured.") + strlen(name) && !strncmp(key, "measured.", 9) &&
            !strncmp(key + 9, name, strlen(name))) {
            *table = (enum cluster_table)i;
            return true;
        }
    }
    return false;
}

static int take_tier(struct cluster_raw *raw, const char *where, const char *key, const char *value,
                     struct fsdp_err *err)
{
    struct tier {
        int64_t nodes;
        double factor;
    } tier = {0, 0};
    static const struct fsdp_tunable keys[] = {
        {"network.tiers.nodes", FSDP_TUNABLE_INT, NULL, "", "1..10000000",
         offsetof(struct tier, nodes)},
        {"network.tiers.factor", FSDP_TUNABLE_FLOAT, NULL, "", "0<..10",
         offsetof(struct tier, factor)},
    };
    char name[256];
    int index = 0;
    const char *dot = strchr(key, ']');

    sscanf(strchr(key, '['), "[%d", &index);
    if (index >= FSDP_MAX_TIERS)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: network.tiers: more than %d tiers", where,
                            FSDP_MAX_TIERS);
    if (!value || !dot || dot[1] != '.')
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: network.tiers: an element is a mapping, such as {nodes: 32, "
                            "factor: 0.9}",
                            where);
    snprintf(name, sizeof name, "network.tiers%s", dot + 1);
    FSDP_TRY(fsdp_tunable_set(keys, 2, &tier, where, name, value, err));
    struct fsdp_tier *to = &raw->network.tiers[index];
    if (index >= raw->network.ntiers) {
        raw->network.ntiers = index + 1;
        *to = (struct fsdp_tier){0, 0};
    }
    if (tier.nodes)
        to->nodes = (int)tier.nodes;
    else
        to->factor = tier.factor;
    return FSDP_OK;
}

static int take_pair(struct cluster_raw *raw, const char *where, const char *const *values,
                     int nvalues, struct fsdp_err *err)
{
    struct pair {
        double x[FSDP_TUNABLE_FLOATS_NELEM];
    } pair;
    static const struct fsdp_tunable key = {
        "measured.contention",   FSDP_TUNABLE_FLOATS, "1, 0", "", "0..1024",
        offsetof(struct pair, x)};

    if (!values)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: measured.contention: allowed: a number, or pairs such as [[8, "
                            "0.06], [16, 0.12]]",
                            where);
    FSDP_TRY(fsdp_tunable_set_list(&key, 1, &pair, where, key.name, values, nvalues, err));
    if (raw->measured.npairs == CLUSTER_MAX_PAIRS)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: measured.contention: more than %d pairs", where,
                            CLUSTER_MAX_PAIRS);
    if (raw->measured.npairs && raw->measured.pairs[raw->measured.npairs - 1][0] >= pair.x[0])
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: measured.contention: pairs must be in the order of their first "
                            "numbers, and %g follows %g",
                            where, pair.x[0], raw->measured.pairs[raw->measured.npairs - 1][0]);
    memcpy(raw->measured.pairs[raw->measured.npairs++], pair.x, 2 * sizeof pair.x[0]);
    return FSDP_OK;
}

/* "measured.gemm[3]" and the like. */
static int take_element(struct cluster_impl *impl, const char *where, const char *key,
                        const char *value, const char *const *values, int nvalues,
                        struct fsdp_err *err)
{
    const size_t len = strcspn(key, "[");
    const bool pair =
        len == strlen("measured.contention") && !strncmp(key, "measured.contention", len);
    enum cluster_table table;

    if (len == strlen("network.tiers") && !strncmp(key, "network.tiers", len))
        return take_tier(&impl->raw, where, key, value, err);
    if (pair)
        return take_pair(&impl->raw, where, values, nvalues, err);
    if (is_table(&table, key, len) && values)
        return cluster_table_row(impl, table, where, values, nvalues, err);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: %.*s: an element of the list is not a plain value",
                        where, (int)len, key);
}

int cluster_take(struct cluster_impl *impl, const char *where, int line, const char *given,
                 const char *value, const char *const *values, int nvalues, struct fsdp_err *err)
{
    char name[400];
    bool in_place;
    enum cluster_table table;
    const size_t len = strcspn(given, "[");

    snprintf(name, sizeof name, "%.*s", (int)(len < 300 ? len : 300), given);
    const char *key = whole_name(name, &in_place);
    int row;
    FSDP_TRY(fsdp_tunable_find(&row, cluster_table_of_keys, cluster_nkeys, where, key, err));
    if (given[len]) {
        char element[500];
        snprintf(element, sizeof element, "%s%.90s", key, given + len);
        FSDP_TRY(take_element(impl, where, element, value, values, nvalues, err));
    } else if (values) {
        if (row == cluster_row("network.tiers") && !nvalues)
            return FSDP_OK;
        if (is_table(&table, key, strlen(key)))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s: %s: allowed: the path of a TSV file, or a list of lists, one "
                                "for each row",
                                where, key);
        FSDP_TRY(fsdp_tunable_set_list(cluster_table_of_keys, cluster_nkeys, &impl->raw, where, key,
                                       values, nvalues, err));
    } else {
        FSDP_TRY(fsdp_tunable_set(cluster_table_of_keys, cluster_nkeys, &impl->raw, where, key,
                                  value, err));
    }
    impl->raw.line[row] = line;
    impl->raw.aliased[row] = in_place;
    return FSDP_OK;
}
