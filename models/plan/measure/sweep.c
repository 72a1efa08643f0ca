/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdarg.h>
#include <unistd.h>

#include "sweep.h"

/* The slowest of n normal values is about sigma sqrt(2 ln n) above their mean. */
static double jitter_of(struct sweep *s)
{
    const int n = s->opts->oob->size;

    if (n < 2 || s->nspread < 1)
        return 0;
    return sweep_mean(s->spread, s->nspread) / sqrt(2 * log(n));
}

int measure_run(struct measured *out, const struct measure_opts *opts, struct fsdp_err *err)
{
    struct sweep *s = fsdp_alloc(1, sizeof *s, "sweeps", err);
    int rc = s ? FSDP_OK : FSDP_ENOMEM;

    *out = (struct measured){.contention = -1};
    rc = fsdp_oob_agree(opts->oob, rc, err);
    if (rc == FSDP_OK)
        rc = sweep_open(s, opts, out, err);
    if (rc == FSDP_OK)
        rc = sweep_products(s, err);
    if (rc == FSDP_OK)
        rc = sweep_attention(s, err);
    if (rc == FSDP_OK)
        rc = sweep_passes(s, err);
    if (rc == FSDP_OK)
        rc = sweep_host(s, err);
    if (rc == FSDP_OK)
        out->jitter = jitter_of(s);
    if (rc == FSDP_OK && opts->mesh)
        rc = sweep_collectives(s, err);
    if (rc == FSDP_OK && s->nsweeps)
        out->scatter = s->scatter / s->nsweeps;
    if (rc == FSDP_OK && opts->mesh && !fsdp_device_is_host(opts->device))
        rc = sweep_contention(s, err);
    if (s && s->opts)
        sweep_close(s);
    fsdp_free(s);
    if (rc)
        measured_free(out);
    return rc;
}

void measured_free(struct measured *m)
{
    fsdp_free(m->products);
    fsdp_free(m->attention);
    fsdp_free(m->copies);
    fsdp_free(m->collectives);
    *m = (struct measured){.contention = -1};
}

void measured_apply(struct fsdp_clock *clock, const struct measured *m, bool serial)
{
    struct fsdp_device_clock *d = &clock->device;

    d->serial = serial;
    if (m->nproducts)
        d->products = (struct fsdp_rates){m->products, m->nproducts};
    if (m->nattention)
        d->attention = (struct fsdp_rates){m->attention, m->nattention};
    if (m->ncopies)
        d->copies = (struct fsdp_rates){m->copies, m->ncopies};
    if (m->ncollectives) {
        clock->net.measured = m->collectives;
        clock->net.nmeasured = m->ncollectives;
    }
    if (m->contention >= 0)
        clock->net.contention = m->contention;
    if (m->host_nbytes_per_s > 0)
        clock->net.host_nbytes_per_s = m->host_nbytes_per_s;
    if (m->host_memory_nbytes_per_s > 0)
        clock->net.host_memory_nbytes_per_s = m->host_memory_nbytes_per_s;
    clock->net.jitter = m->jitter;
}
