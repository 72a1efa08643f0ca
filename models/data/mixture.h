/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.h: rows of one or several sources. Each source has its own files, format and seeded
 * order. It is read again as often as its share requires. Row number -> tokens is still a pure
 * function of files, settings and seed.
 */
#ifndef DATA_MIXTURE_H
#define DATA_MIXTURE_H

#include "data.h"

struct data_mixture;

/* Takes ownership of sources[nsources], also on failure. weights NULL: one pass over the mixture
 * reads source i passes[i] times (NULL: once). FSDP_EINVAL;
 * FSDP_ENOMEM. Local. */
int data_mixture_create(struct data_mixture **out, struct data *const *sources, int nsources,
                        const double *weights, const double *passes, struct fsdp_err *err);
void data_mixture_close(struct data_mixture *mixture);

/* The seed of source i's order. Source 0 has the run's seed. Pure. */
uint64_t data_mixture_seed(uint64_t seed, int i);

int data_mixture_nsources(const struct data_mixture *mixture);
const struct data *data_mixture_source(const struct data_mixture *mixture, int i);
double data_mixture_share(const struct data_mixture *mixture, int i); /* 0 to 1 */
/* counts[nsources]: how many of the first nrows rows are from each. Pure. */
void data_mixture_counts(const struct data_mixture *mixture, uint64_t nrows, uint64_t *counts);

/* Like those of data.h. One pass has the rows of all sources, each passes[i] times (with weights:
 * once). */
void data_mixture_warn(struct data_mixture *mixture);
uint64_t data_mixture_nrows(const struct data_mixture *mixture);
uint64_t data_mixture_hash(const struct data_mixture *mixture);
bool data_mixture_has_labels(const struct data_mixture *mixture);
/* data_row_id of the only source. */
uint64_t data_mixture_row_id(const struct data_mixture *mixture, uint64_t row);
bool data_mixture_has_weights(const struct data_mixture *mixture);
/* labels and starts may be NULL where data_mixture_has_labels is false, and are filled if not. */
int data_mixture_row(struct data_mixture *mixture, uint64_t row, const struct data_row *out,
                     struct fsdp_err *err);

/* Rows [first, first + nrows) are read soon. Local, never blocks. */
void data_mixture_ahead(struct data_mixture *mixture, uint64_t first, uint64_t nrows);

#endif
