/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mix.h: assigns rows of a mixture to sources. Row -> (source, row of that source) is a pure
 * function of the weights, so that all ranks, world sizes and resumed runs agree.
 *
 * Sources are the leaves of a binary tree, in which the two lightest are joined first (Huffman,
 * 1952). Of the first k rows of a node, its left child gets k * left / (left + right), rounded to
 * the nearest integer. In every prefix, the rows of a source differ from its share by at most two;
 * with up to three sources, by less than one.
 */
#ifndef DATA_MIX_H
#define DATA_MIX_H

#include "fsdp/base.h"

struct data_mix;

/* weights[nsources] are positive. FSDP_EINVAL; FSDP_ENOMEM. Local. */
int data_mix_create(struct data_mix **out, const double *weights, int nsources,
                    struct fsdp_err *err);
void data_mix_destroy(struct data_mix *mix);
/* Row `row` of the mixture is row *source_row of *source. Pure. */
void data_mix_at(const struct data_mix *mix, uint64_t row, int *source, uint64_t *source_row);
/* How many of the first nrows rows are from each source. Pure. */
void data_mix_counts(const struct data_mix *mix, uint64_t nrows, uint64_t *counts);
/* A source's fraction of all rows, 0 to 1. Pure. */
double data_mix_share(const struct data_mix *mix, int source);
uint64_t data_mix_hash(const struct data_mix *mix, uint64_t seed);

#endif
