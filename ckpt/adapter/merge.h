/* SPDX-License-Identifier: Apache-2.0 */
/* merge.h: adapters that are added to a model's weights. Private to this folder. */
#ifndef CKPT_ADAPTER_MERGE_H
#define CKPT_ADAPTER_MERGE_H

#include <jansson.h>
#include <pthread.h>

#include "ckpt/adapter.h"

struct ckpt_merged {
    struct ckpt_adapter *adapter;
    double weight;
    char *path; /* as it was given */
};

/* The model's tensor of a weight, under the name that its files have for it; NULL: there is none.
 */
const struct ckpt_tensor *ckpt_adapter_find_stored(const struct ckpt *model, const char *weight);
/* Logs a warning where a run trained the adapter on another model than this. Compares tensors of up
 * to 16 MiB, until it has read 128 MiB. Blocks. */
void ckpt_adapter_warn_base(const struct ckpt_adapter *adapter, struct ckpt *model);

/* Lengths of the columns of adapted matrices (in, out), each made from all of its rows. */
enum { CKPT_NLENGTHS = 16 };
struct ckpt_lengths {
    char *name[CKPT_NLENGTHS]; /* of the weight; NULL: unused */
    float *length[CKPT_NLENGTHS];
    int next; /* to be replaced */
    pthread_mutex_t lock;
};

struct ckpt_adapters {
    struct ckpt_merged *all;
    int count;
    struct ckpt *model;          /* borrowed; NULL: not checked yet */
    struct ckpt_lengths lengths; /* of the one adapter that has magnitudes */
};

/* A and B of a weight. Of experts, which have theirs in one A (experts r, in) and one B (out,
 * r experts), it is the weight of one, or of all (experts, rows, columns). */
#define CKPT_ALL_EXPERTS UINT64_MAX
struct ckpt_low {
    const struct ckpt_tensor *a, *b;
    struct ckpt_rank rank;
    bool across;           /* the weight is (in, out) */
    uint64_t experts;      /* 1: it is no weight of experts */
    uint64_t expert;       /* or CKPT_ALL_EXPERTS */
    uint64_t nparts, part; /* the outputs of B are those of nparts weights, of which it is one */
};
/* Has the weight either of them? */
bool ckpt_merged_low(struct ckpt_low *low, const struct ckpt_merged *m, const char *weight);
/* The name that files of way i of ckpt_expert_nstored give to a weight of the module with adapters
 * of experts, as its tensor names it; apart: each expert has one. False: none. Pure. */
int ckpt_expert_nstored(void);
bool ckpt_expert_weight(char *weight, size_t weight_nbytes, bool *apart, int i, uint64_t expert,
                        const struct ckpt_adapter_spec *spec, const char *module);

/* ---- names of experts' parameters (parameters.c), pure ---- */

#define CKPT_NESTED ".base_layer" /* behind a module whose gate_up_proj is wrapped twice */
bool ckpt_name_ends(const char *name, size_t nbytes, const char *end);
/* Does target_parameters name one of the module's two: by the whole name or an end after a dot? */
bool ckpt_parameter_is_named(const struct ckpt_adapter_spec *spec, const char *module,
                             size_t nbytes, bool is_down);
/* "gate_up_proj" or "down_proj" */
const char *ckpt_expert_parameter(bool is_down);
/* May target_parameters have this name? */
bool ckpt_adapter_is_parameter(const char *name);

/* ---- rank_pattern and alpha_pattern (patterns.c) ---- */

/* Those of json[key]; NULL: none. whole: its numbers are positive integers. FSDP_EUNSUPPORTED names
 * an expression that cannot be matched. */
struct ckpt_patterns;
int ckpt_patterns_read(struct ckpt_patterns **out, const json_t *json, const char *key, bool whole,
                       const char *path, struct fsdp_err *err);
void ckpt_patterns_free(struct ckpt_patterns *patterns);
/* Of the module of this name, or where none matches `otherwise`. Pure, thread safe. */
double ckpt_patterns_value(const struct ckpt_patterns *patterns, const char *module,
                           double otherwise);

/* The change of a block is left (rows, r) times right (r, columns of the weight). */
struct ckpt_factors {
    float *left, *right;
    size_t r, ncols;
    double scale;
};
/* Of the rows of a matrix that a box has; low->expert is a number. Freed by ckpt_factors_free, also
 * after an error. */
int ckpt_factors_read(struct ckpt_factors *f, const struct ckpt_merged *m,
                      const struct ckpt_low *low, const struct fsdp_box *box, uint64_t ncols,
                      struct fsdp_err *err);
void ckpt_factors_free(struct ckpt_factors *f);
/* change[n] += scale * (left right)[row, first + ...]. sum: n elements of scratch. */
void ckpt_factors_add(float *change, float *sum, const struct ckpt_factors *f, size_t row,
                      size_t first, size_t n);
/* A box of a tensor, in `dtype`. */
int ckpt_merged_read(void *out, struct ckpt *ckpt, const struct fsdp_tensor *t,
                     const struct fsdp_box *box, enum fsdp_dtype dtype, struct fsdp_err *err);

/* What DoRA multiplies a box of a weight with: magnitude / length, of each row (by_row) or of each
 * column of the box. */
struct ckpt_scales {
    float *scale; /* freed with fsdp_free; NULL: nothing is multiplied */
    bool by_row;
};
int ckpt_scales_read(struct ckpt_scales *scales, struct ckpt_adapters *a,
                     const struct fsdp_tensor *weight, const struct fsdp_box *box,
                     struct fsdp_err *err);
void ckpt_lengths_free(struct ckpt_lengths *lengths);

/* The adapter's tensor that is this part ("lora_A.weight") of a weight; NULL where it has none. */
const struct ckpt_tensor *ckpt_merged_part(const struct ckpt_merged *m, const char *weight,
                                           const char *part);

#endif
