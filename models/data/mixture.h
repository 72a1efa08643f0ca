/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixture.h: one or several sources as rows. Each source has its own files, format and seeded
 * order, and passes over it again as often as its share asks for. Row number -> tokens stays a pure
 * function of files, settings and seed.
 */
#ifndef DATA_MIXTURE_H
#define DATA_MIXTURE_H

#include "data.h"

struct data_mixture;

/* Of sources[nsources], which it owns from here on, also when it fails. weights NULL: a source has
 * passes[i] times its rows (NULL: once) in as many rows as all of them have so. FSDP_EINVAL;
 * FSDP_ENOMEM. Local. */
int data_mixture_create(struct data_mixture **out, struct data *const *sources, int nsources,
                        const double *weights, const double *passes, struct fsdp_err *err);
void data_mixture_close(struct data_mixture *mixture);

/* The seed of source i, for its order: that of the run for the first. Pure. */
uint64_t data_mixture_seed(uint64_t seed, int i);

int data_mixture_nsources(const struct data_mixture *mixture);
const struct data *data_mixture_source(const struct data_mixture *mixture, int i);
double data_mixture_share(const struct data_mixture *mixture, int i); /* 0 to 1 */
/* counts[nsources]: how many of the first nrows rows are from each. Pure. */
void data_mixture_counts(const struct data_mixture *mixture, uint64_t nrows, uint64_t *counts);

/* As those of data.h. Rows of one pass: those of all sources, each taken passes[i] times (once,
 * where weights were given). */
void data_mixture_warn(struct data_mixture *mixture);
uint64_t data_mixture_nrows(const struct data_mixture *mixture);
uint64_t data_mixture_hash(const struct data_mixture *mixture);
bool data_mixture_has_labels(const struct data_mixture *mixture);
/* labels and starts may be NULL where data_mixture_has_labels is false, and are filled if not. */
int data_mixture_row(struct data_mixture *mixture, uint64_t row, const struct data_row *out,
                     struct fsdp_err *err);

/* Rows [first, first + nrows) are read soon. Local, never blocks. */
void data_mixture_ahead(struct data_mixture *mixture, uint64_t first, uint64_t nrows);

#endif
