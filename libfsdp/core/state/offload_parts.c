/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a flat that have their home in host memory, or a file, in this order, each on a
 * boundary of OFFLOAD_PART_ALIGN, there and in a state slot alike:
 *
 *   master | rest | optimizer tensors ... | the gathered copy
 *
 * With a file the gathered copy is apart, in host memory: every gather reads it, and a step reads
 * and writes the others once.
 */
#include "offload_parts.h"

#include "gather.h"
#include "slots.h"

bool offload_param(const struct fsdp *f, int flat)
{
    return f->opts.offload == FSDP_OFFLOAD_PARAMS && !f->units.flats[flat].whole;
}

bool offload_state(const struct fsdp *f, int flat)
{
    const struct flat *of = &f->units.flats[flat];
    return f->opts.offload != FSDP_OFFLOAD_NONE && !of->whole && !of->nf4;
}

bool offload_on_host(const struct fsdp *f, int flat)
{
    return engine_updates_on_host(f) && f->units.flats[flat].trainable && offload_state(f, flat);
}

bool offload_passes(const struct fsdp *f, int flat)
{
    return !offload_on_host(f, flat) || !offload_param(f, flat) || offload_in_file(&f->opts);
}

bool offload_in_file(const struct fsdp_opts *opts)
{
    return opts->offload != FSDP_OFFLOAD_NONE && opts->offload_dir && *opts->offload_dir;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int add_part(struct offload_part *parts, int n, void **at, uint64_t nbytes,
                    enum offload_home home)
{
    uint64_t pos = offload_parts_end(parts, n);
    pos = (pos + OFFLOAD_PART_ALIGN - 1) / OFFLOAD_PART_ALIGN * OFFLOAD_PART_ALIGN;
    parts[n] = (struct offload_part){at, pos, nbytes, home};
    return n + 1;
}

int offload_parts(struct offload_part parts[OFFLOAD_MAX_PARTS], const struct fsdp *f,
                  int flat_index, struct flat_state *s)
{
    const struct flat *flat = &f->units.flats[flat_index];
    uint64_t nelem = flat->cut.shard_nelem;
    bool split = flat_has_split_master(f, flat), apart = flat_has_separate_master(f, flat);
    const enum offload_home home = f->offload.in_file ? OFFLOAD_FILE : OFFLOAD_HOST;
    int n = 0;

    if (!offload_state(f, flat_index))
        return 0;
    if (apart && !flat->codec) /* encoding reads all masters at once */
        n = add_part(parts, n, (void **)&s->master, nelem * sizeof *s->master, home);
    if (split)
        n = add_part(parts, n, (void **)&s->rest, nelem * sizeof *s->rest, home);
    for (int k = 0; flat->trainable && k < f->optim.nslots; k++)
        if (slots_nbytes(f, flat_index, k))
            n = add_part(parts, n, &s->optim[k], slots_nbytes(f, flat_index, k), home);
    if (offload_param(f, flat_index)) /* to be stored again where a step is skipped */
        n = add_part(parts, n, &s->param, gather_shard_nbytes(flat), OFFLOAD_HOST);
    return n;
}

int offload_parts_for_host(struct offload_part parts[OFFLOAD_MAX_PARTS], const struct fsdp *f,
                           int flat, struct flat_state *s)
{
    const int n = offload_parts(parts, f, flat, s);

    if (offload_param(f, flat))
        return n;
    return add_part(parts, n, &s->param, gather_shard_nbytes(&f->units.flats[flat]),
                    OFFLOAD_DEVICE);
}

uint64_t offload_parts_end(const struct offload_part *parts, int n)
{
    return n ? parts[n - 1].pos + parts[n - 1].nbytes : 0;
}

const struct offload_part *offload_parts_at(const struct offload_part *parts, int n,
                                            enum offload_home home, int *nthere)
{
    while (n && parts->home != home)
        parts++, n--;
    *nthere = 0;
    while (*nthere < n && parts[*nthere].home == home)
        ++*nthere;
    return parts;
}

void offload_parts_point(const struct offload_part *parts, int n, char *base)
{
    for (int i = 0; i < n; i++)
        *parts[i].at = base ? base + (parts[i].pos - parts[0].pos) : NULL;
}

void offload_join_master(const struct fsdp *f, int flat, struct flat_state *s)
{
    if (flat_gathers_master(f, &f->units.flats[flat]))
        s->master = s->param;
}
