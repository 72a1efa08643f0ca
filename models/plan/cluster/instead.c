/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured takes the place of a key's number. */
#include <string.h>

#include "cluster_impl.h"

static const struct number_row {
    const char *key;
    enum cluster_number number;
} numbers[] = {{"network.contention", CLUSTER_MEASURED_CONTENTION},
               {"network.jitter", CLUSTER_MEASURED_JITTER},
               {"gpu.step_ms", CLUSTER_MEASURED_STEP_MS},
               {"gpu.pcie", CLUSTER_MEASURED_HOST},
               {"node.host_memory", CLUSTER_MEASURED_HOST_MEMORY}};

static const struct table_row {
    const char *key;
    enum cluster_table table;
    int elem_nbytes; /* of the rows that count; 0: all */
    enum cluster_factor factor;
} tables[] = {{"gpu.peak_bf16", CLUSTER_GEMM, 2, CLUSTER_PRODUCT},
              {"gpu.peak_fp8", CLUSTER_GEMM, 1, CLUSTER_PRODUCT_8},
              {"gpu.peak_fp32", CLUSTER_GEMM, 4, CLUSTER_PRODUCT},
              {"gpu.product_share", CLUSTER_GEMM, 0, CLUSTER_PRODUCT},
              {"gpu.product_share_fp8", CLUSTER_GEMM, 1, CLUSTER_PRODUCT_8},
              {"gpu.product_half", CLUSTER_GEMM, 0, CLUSTER_PRODUCT},
              {"gpu.attention_share", CLUSTER_SDPA, 0, CLUSTER_ATTENTION},
              {"gpu.hbm", CLUSTER_COPY, 0, CLUSTER_MEMORY},
              {"gpu.hbm_share", CLUSTER_COPY, 0, CLUSTER_MEMORY}};

static const struct number_row *number_of(const char *key)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!strcmp(numbers[i].key, key))
            return &numbers[i];
    return NULL;
}

static bool is_measured(const struct cluster_raw *raw, enum cluster_number number)
{
    return raw->measured.number[number] != CLUSTER_AUTO ||
           (number == CLUSTER_MEASURED_CONTENTION && raw->measured.npairs);
}

bool cluster_number_instead(enum cluster_number *number, const struct cluster_impl *impl,
                            const char *key)
{
    const struct number_row *row = number_of(key);

    if (!row || impl->raw.other_gpu || !is_measured(&impl->raw, row->number))
        return false;
    *number = row->number;
    return true;
}

static bool has_rows(const struct cluster_impl *impl, const struct table_row *row)
{
    for (size_t i = 0; i < impl->nrates[row->table]; i++)
        if (!row->elem_nbytes ||
            fsdp_dtype_nbytes(impl->rates[row->table][i].type) == (size_t)row->elem_nbytes)
            return true;
    return false;
}

int cluster_make_way_for(struct cluster_impl *impl, const char *key, struct fsdp_err *err)
{
    const struct number_row *row = number_of(key);

    if (row)
        impl->raw.measured.number[row->number] = CLUSTER_AUTO;
    if (row && row->number == CLUSTER_MEASURED_CONTENTION)
        impl->raw.measured.npairs = 0;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (!strcmp(tables[i].key, key) && !impl->raw.other_gpu && has_rows(impl, &tables[i]))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "command line: %s changes nothing: the table measured.%s has taken "
                                "its place; change measured.factors.%s instead (1.1: takes a tenth "
                                "longer)",
                                key, cluster_table_name(tables[i].table),
                                cluster_factor_name(tables[i].factor));
    return FSDP_OK;
}
