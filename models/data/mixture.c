/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "mix.h"
#include "mixture.h"

struct data_mixture {
    int nsources;
    struct data **sources;
    struct data_mix *mix;
    uint64_t nrows;
};

static int share_rows(struct data_mixture *m, const double *weights, const double *passes,
                      struct fsdp_err *err)
{
    double *shares = fsdp_alloc((size_t)m->nsources, sizeof *shares, "shares", err);
    double nrows = 0;

    if (!shares)
        return FSDP_ENOMEM;
    for (int i = 0; i < m->nsources; i++) {
        const double taken = (double)data_nrows(m->sources[i]) * (passes ? passes[i] : 1);
        nrows += taken;
        shares[i] = weights ? weights[i] : taken;
    }
    m->nrows = m->nsources == 1 && !passes ? data_nrows(m->sources[0]) : (uint64_t)(nrows + 0.5);
    m->nrows += !m->nrows;
    const int rc = data_mix_create(&m->mix, shares, m->nsources, err);
    fsdp_free(shares);
    return rc;
}

static void close_all(struct data *const *sources, int nsources)
{
    for (int i = 0; i < nsources; i++)
        data_close(sources[i]);
}

int data_mixture_create(struct data_mixture **out, struct data *const *sources, int nsources,
                        const double *weights, const double *passes, struct fsdp_err *err)
{
    struct data_mixture *m = fsdp_alloc(1, sizeof *m, "mixture", err);
    int rc = FSDP_ENOMEM;

    if (m)
        m->sources = fsdp_alloc((size_t)nsources, sizeof(struct data *), "mixture", err);
    if (!m || !m->sources) {
        close_all(sources, nsources);
        fsdp_free(m);
        return FSDP_ENOMEM;
    }
    memcpy(m->sources, sources, (size_t)nsources * sizeof(struct data *));
    m->nsources = nsources;
    FSDP_TRY_GOTO(share_rows(m, weights, passes, err), out);
    *out = m;
    return FSDP_OK;
out:
    data_mixture_close(m);
    return rc;
}

void data_mixture_close(struct data_mixture *m)
{
    if (!m)
        return;
    close_all(m->sources, m->nsources);
    data_mix_destroy(m->mix);
    fsdp_free(m->sources);
    fsdp_free(m);
}

uint64_t data_mixture_seed(uint64_t seed, int i)
{
    return seed ^ (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
}

int data_mixture_nsources(const struct data_mixture *m)
{
    return m->nsources;
}

const struct data *data_mixture_source(const struct data_mixture *m, int i)
{
    return m->sources[i];
}

double data_mixture_share(const struct data_mixture *m, int i)
{
    return data_mix_share(m->mix, i);
}

void data_mixture_counts(const struct data_mixture *m, uint64_t nrows, uint64_t *counts)
{
    data_mix_counts(m->mix, nrows, counts);
}

void data_mixture_warn(struct data_mixture *m)
{
    for (int i = 0; i < m->nsources; i++)
        data_warn(m->sources[i]);
}

uint64_t data_mixture_nrows(const struct data_mixture *m)
{
    return m->nrows;
}

/* That of a single source is the source's own. */
uint64_t data_mixture_hash(const struct data_mixture *m)
{
    if (m->nsources == 1)
        return data_hash(m->sources[0]);
    uint64_t hash = data_mix_hash(m->mix, FSDP_HASH_SEED);
    for (int i = 0; i < m->nsources; i++) {
        const uint64_t own = data_hash(m->sources[i]);
        hash = fsdp_hash(hash, &own, sizeof own);
    }
    return hash;
}

bool data_mixture_has_labels(const struct data_mixture *m)
{
    for (int i = 0; i < m->nsources; i++)
        if (data_has_labels(m->sources[i]))
            return true;
    return false;
}

uint64_t data_mixture_row_id(const struct data_mixture *m, uint64_t row)
{
    return data_row_id(m->sources[0], row);
}

bool data_mixture_has_weights(const struct data_mixture *m)
{
    for (int i = 0; i < m->nsources; i++)
        if (data_has_weights(m->sources[i]))
            return true;
    return false;
}

int data_mixture_row(struct data_mixture *m, uint64_t row, const struct data_row *out,
                     struct fsdp_err *err)
{
    int source;
    uint64_t source_row;

    data_mix_at(m->mix, row, &source, &source_row);
    struct data *data = m->sources[source];
    FSDP_TRY(data_row(data, source_row, out, err));
    for (int t = 0; out->weights && !data_has_weights(data) && t < data_seq_len(data); t++)
        out->weights[t] = 1;
    if (data_has_labels(data) || !out->labels)
        return FSDP_OK;
    for (int t = 0; t < data_seq_len(data); t++) {
        out->labels[t] = out->tokens[t + 1];
        out->starts[t] = 0;
    }
    return FSDP_OK;
}

void data_mixture_ahead(struct data_mixture *m, uint64_t first, uint64_t nrows)
{
    int source;
    uint64_t source_row;

    for (uint64_t row = first; row < first + nrows; row++) {
        data_mix_at(m->mix, row, &source, &source_row);
        data_ahead(m->sources[source], source_row);
    }
}
