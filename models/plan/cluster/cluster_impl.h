/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_impl.h: what the files of this folder share: the settings as they were given. */
#ifndef CLUSTER_IMPL_H
#define CLUSTER_IMPL_H

#include <stdio.h>

#include "cluster.h"
#include "fsdp/tunable.h"

enum { CLUSTER_MAX_KEYS = 96, CLUSTER_MAX_PAIRS = 32, CLUSTER_NRATES = CLUSTER_COLLECTIVES };
/* Numbers that may be left out are CLUSTER_AUTO then, which no range of theirs holds. */
#define CLUSTER_AUTO (-1.0)

/* The values of the keys, in the units of the keys. */
struct cluster_raw {
    struct {
        char like[FSDP_TUNABLE_STRING_NBYTES], name[FSDP_TUNABLE_STRING_NBYTES];
        double peak_bf16, peak_fp8, peak_fp32, hbm, memory_gib, watts;
        double product_share, product_share_fp8, product_half, attention_share, hbm_share;
        double pointwise, launch_us, step_ms, pcie;
        int64_t sms;
    } gpu;
    struct {
        int64_t gpus, nics;
        double nvlink, nvls, nic, host_gib, host_memory, nvme, nvme_gib;
    } node;
    struct {
        char cards[FSDP_TUNABLE_STRING_NBYTES];
        int kind;
        double eta_flat, eta_rail, start_us, node_hop_us, hop_us, pat_hop_us, node_half_mib,
            half_mib, contention, jitter, collectives;
        int64_t ctas;
        struct fsdp_tier tiers[FSDP_MAX_TIERS];
        int ntiers;
    } network;
    int64_t gpus;
    double reserved_gib, price_per_gpu_hour, watts_per_gpu, pue;
    char currency[FSDP_TUNABLE_STRING_NBYTES];
    struct {
        double gpu_mtbf_h, restart_s, requeue_s, storage;
    } reliability;
    struct {
        char file[CLUSTER_NTABLES][FSDP_TUNABLE_STRING_NBYTES];
        double number[CLUSTER_NNUMBERS], factor[CLUSTER_NFACTORS];
        double pairs[CLUSTER_MAX_PAIRS][2]; /* thread blocks of a collective, slowdown */
        int npairs;
    } measured;
    /* Another device or network was chosen: its tables do not hold. */
    bool other_gpu, other_net;
    int line[CLUSTER_MAX_KEYS];     /* per key: its line in the file, 0: default, or one of: */
    bool aliased[CLUSTER_MAX_KEYS]; /* it was given in the place of its section: "gpu: h100" */
};
enum { CLUSTER_FROM_COMMAND = -1, CLUSTER_FROM_OPTION = -2, CLUSTER_FROM_MEASURE = -3 };

struct cluster_impl {
    struct cluster_raw raw;
    char *path; /* NULL: words */
    /* As they were read, and with the factors in them. */
    struct fsdp_rate *rates[CLUSTER_NRATES], *scaled[CLUSTER_NRATES];
    size_t nrates[CLUSTER_NRATES], max_rates[CLUSTER_NRATES];
    struct fsdp_collective_time *times, *scaled_times;
    size_t ntimes, max_times;
};

extern const struct fsdp_tunable cluster_table_of_keys[];
extern const int cluster_nkeys;
/* Row of a key that is in the table. */
int cluster_row(const char *key);
/* The number of a key that takes one, or CLUSTER_AUTO. */
double cluster_number(const struct cluster_raw *raw, const char *key);
/* Sets one key from the text of a file or a command line. `where` begins errors. Keys in the place
 * of a section ("gpu: h100") and short names are known. values: of a list. */
int cluster_take(struct cluster_impl *impl, const char *where, int line, const char *key,
                 const char *value, const char *const *values, int nvalues, struct fsdp_err *err);
/* FSDP_EINVAL with where the key got its value before the text. */
int cluster_refuse(const struct cluster_impl *impl, const char *key, struct fsdp_err *err,
                   const char *fmt, ...) FSDP_PRINTF(4, 5);
const char *cluster_place(char *out, size_t out_nbytes, const struct cluster_impl *impl,
                          const char *key);

/* "measured.contention" and the like. */
const char *cluster_number_key(enum cluster_number number);
/* Has a measured number taken the place of this key's? */
bool cluster_number_instead(enum cluster_number *number, const struct cluster_impl *impl,
                            const char *key);
/* A command line gives this key: a measured number is dropped. FSDP_EINVAL where a table has taken
 * the key's place. */
int cluster_make_way_for(struct cluster_impl *impl, const char *key, struct fsdp_err *err);

/* Fills the cluster from its settings. On failure it is as before. */
int cluster_derive(struct cluster *cluster, struct fsdp_err *err);

/* A row of a table, from its fields. */
int cluster_table_row(struct cluster_impl *impl, enum cluster_table table, const char *where,
                      const char *const *fields, int nfields, struct fsdp_err *err);
/* All rows of a TSV file. */
int cluster_table_read(struct cluster_impl *impl, enum cluster_table table, const char *path,
                       struct fsdp_err *err);
/* Drops the rows. */
void cluster_table_clear(struct cluster_impl *impl, enum cluster_table table);
size_t cluster_table_nrows(const struct cluster_impl *impl, enum cluster_table table);
/* The path of a file that a cluster.yaml names: relative to it. Freed with fsdp_free. */
char *cluster_join_path(const char *yaml, const char *file, struct fsdp_err *err);
/* As a file of its own, and as lists in a cluster.yaml under "measured.NAME:". */
void cluster_table_print(FILE *to, const struct cluster_impl *impl, enum cluster_table table);
void cluster_table_print_inline(FILE *to, const struct cluster_impl *impl,
                                enum cluster_table table);
/* Rows with the cluster's factors in them, in memory of the impl's, of what the clock then shows.
 */
int cluster_scale(struct fsdp_clock *clock, struct cluster_impl *impl, struct fsdp_err *err);

#endif
