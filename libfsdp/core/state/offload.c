/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offloaded state: the parts of a flat that have their home in host memory, or a file, in this
 * order, each on a boundary of PART_ALIGN, there and in a state slot alike:
 *
 *   master | rest | optimizer tensors ... | the gathered copy
 *
 * With a file the gathered copy is apart, in host memory: every gather reads it, and a step reads
 * and writes the others once.
 */
#include "offload.h"

#include "gather.h"
#include "offload_file.h"
#include "slots.h"

enum { PART_ALIGN = OFFLOAD_FILE_BLOCK, MAX_PARTS = 3 + MAX_SLOTS };

struct part {
    void **at;            /* of the flat_state that is asked about */
    uint64_t pos, nbytes; /* pos: in a slot */
    enum offload_home home;
};

bool offload_param(const struct fsdp *f, int flat)
{
    return f->opts.offload == FSDP_OFFLOAD_PARAMS && !f->units.flats[flat].whole;
}

bool offload_state(const struct fsdp *f, int flat)
{
    const struct flat *of = &f->units.flats[flat];
    return f->opts.offload != FSDP_OFFLOAD_NONE && !of->whole && !of->nf4;
}

bool offload_in_file(const struct fsdp_opts *opts)
{
    return opts->offload != FSDP_OFFLOAD_NONE && opts->offload_dir && *opts->offload_dir;
}

enum { MOST_SLOTS = 64 }; /* as the setting allows */

int offload_plan(const struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; f->opts.offload == FSDP_OFFLOAD_PARAMS && k < f->units.nflats; k++)
        if (f->units.flats[k].codec || f->units.flats[k].nf4) {
            fsdp_err_set(err, FSDP_EUNSUPPORTED,
                         "parameters that are gathered as %s cannot be offloaded: offload the "
                         "optimizer alone, or gather them in param_dtype",
                         flat_sent_name(&f->units.flats[k]));
            return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "offload");
        }
    const bool away = f->opts.offload != FSDP_OFFLOAD_NONE || f->opts.offload_activations ||
                      f->opts.offload_gradients;
    if (!away || (f->opts.offload_slots >= 1 && f->opts.offload_slots <= MOST_SLOTS))
        return FSDP_OK;
    fsdp_err_set(err, FSDP_EINVAL, "%d places for what is offloaded: give 1 to %d",
                 f->opts.offload_slots, MOST_SLOTS);
    return fsdp_err_blame(err, FSDP_EINVAL, "offload_slots");
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int add_part(struct part *parts, int n, void **at, uint64_t nbytes, enum offload_home home)
{
    uint64_t pos = n ? parts[n - 1].pos + parts[n - 1].nbytes : 0;
    pos = (pos + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    parts[n] = (struct part){at, pos, nbytes, home};
    return n + 1;
}

static int parts_of(struct part parts[MAX_PARTS], const struct fsdp *f, int flat_index,
                    struct flat_state *s)
{
    const struct flat *flat = &f->units.flats[flat_index];
    uint64_t nelem = flat->cut.shard_nelem;
    bool split = flat_is_split(f, flat), apart = flat_is_apart(f, flat);
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

static uint64_t end_of(const struct part *parts, int n)
{
    return n ? parts[n - 1].pos + parts[n - 1].nbytes : 0;
}

/* The parts that live there, which follow each other: the first of them, and their number. */
static const struct part *parts_at(const struct part *parts, int n, enum offload_home home,
                                   int *nthere)
{
    while (n && parts->home != home)
        parts++, n--;
    *nthere = 0;
    while (*nthere < n && parts[*nthere].home == home)
        ++*nthere;
    return parts;
}

uint64_t offload_home_nbytes(const struct fsdp *f, int flat, enum offload_home home)
{
    struct part parts[MAX_PARTS];
    struct flat_state s = {0};
    int n;
    const struct part *first = parts_at(parts, parts_of(parts, f, flat, &s), home, &n);
    return n ? end_of(first, n) - first->pos : 0;
}

uint64_t offload_slot_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int k = 0; k < f->units.nflats; k++) {
        struct part parts[MAX_PARTS];
        struct flat_state s = {0};
        uint64_t nbytes = end_of(parts, parts_of(parts, f, k, &s));
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

uint64_t offload_staged_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int k = 0; k < f->units.nflats; k++) {
        uint64_t nbytes = offload_home_nbytes(f, k, OFFLOAD_FILE);
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

/* base: where the first part is. */
static void point(const struct part *parts, int n, char *base)
{
    for (int i = 0; i < n; i++)
        *parts[i].at = base ? base + (parts[i].pos - parts[0].pos) : NULL;
}

static bool is_one(const struct fsdp *f, int flat)
{
    return flat_is_one(f, &f->units.flats[flat]);
}

/* Where a master is the gathered copy the two move together. */
void offload_place(struct fsdp *f, int flat, enum offload_home home, char *base)
{
    struct part parts[MAX_PARTS];
    struct flat_state *s = &f->flats[flat];
    int n;
    const struct part *first = parts_at(parts, parts_of(parts, f, flat, s), home, &n);
    point(first, n, base);
    if (offload_param(f, flat) && is_one(f, flat))
        s->master = s->param;
}

struct flat_state offload_at(const struct fsdp *f, int flat, int slot)
{
    struct flat_state s = f->flats[flat];
    struct part parts[MAX_PARTS];
    int n = slot < 0 ? 0 : parts_of(parts, f, flat, &s);
    if (n)
        point(parts, n, f->offload.slots[slot]);
    if (n && is_one(f, flat))
        s.master = s.param;
    return s;
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum way { FETCH, STORE, STORE_BEHIND };

/* Parts of a flat at once: they lie in the file as in a slot, and in whole blocks. */
static int copy_file(struct engine_offload *offload, const struct part *parts, int n, int slot,
                     enum way way, struct fsdp_lane *lane, struct fsdp_err *err)
{
    char *home = *parts[0].at, *there = offload->slots[slot], *staged = offload->staged_slots[slot];
    uint64_t nbytes = (end_of(parts, n) + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    const bool fetch = way == FETCH;

    staged = staged ? staged : there; /* the device is the host */
    if (fetch)
        FSDP_TRY(offload_file_read(offload->file, lane, staged, home, nbytes, err));
    if (staged != there)
        FSDP_TRY(fsdp_copy(lane, fetch ? there : staged, fetch ? staged : there, nbytes, err));
    if (way == STORE_BEHIND)
        return offload_file_write_behind(offload->file, lane, home, staged, nbytes, err);
    return fetch ? FSDP_OK : offload_file_write(offload->file, lane, home, staged, nbytes, err);
}

static int copy_parts(struct fsdp *f, int flat, int slot, enum way way, struct fsdp_lane *lane,
                      struct fsdp_err *err)
{
    const bool fetch = way == FETCH;
    struct flat_state home = f->flats[flat];
    struct part parts[MAX_PARTS];
    int n = parts_of(parts, f, flat, &home);

    int nfile;
    const struct part *in_file = parts_at(parts, n, OFFLOAD_FILE, &nfile);

    if (nfile) /* the first in the slot, too */
        FSDP_TRY(copy_file(&f->offload, in_file, nfile, slot, way, lane, err));
    /* On the host the slot is what the unit before may still be written from. */
    if (fetch && n > nfile && f->offload.file && !f->offload.staged_slots[slot])
        FSDP_TRY(offload_file_wait(f->offload.file, lane, f->offload.slots[slot], end_of(parts, n),
                                   err));
    for (int i = nfile; i < n; i++) {
        void *at_home = *parts[i].at, *there = f->offload.slots[slot] + parts[i].pos;
        FSDP_TRY(fsdp_copy(lane, fetch ? there : at_home, fetch ? at_home : there, parts[i].nbytes,
                           err));
    }
    return FSDP_OK;
}

int offload_fetch(struct fsdp *f, int flat, int slot, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return copy_parts(f, flat, slot, FETCH, lane, err);
}

int offload_store(struct fsdp *f, int flat, int slot, bool last, struct fsdp_lane *lane,
                  struct fsdp_err *err)
{
    FSDP_TRY(copy_parts(f, flat, slot, STORE_BEHIND, lane, err));
    return last && f->offload.file ? offload_file_settle(f->offload.file, lane, err) : FSDP_OK;
}

int offload_copy_host(const struct engine_offload *offload, struct fsdp_lane *lane, void *dst,
                      const void *src, size_t nbytes, struct fsdp_err *err)
{
    if (offload_file_holds(offload->file, src))
        return offload_file_read(offload->file, lane, dst, src, nbytes, err);
    if (offload_file_holds(offload->file, dst))
        return offload_file_write(offload->file, lane, dst, src, nbytes, err);
    return fsdp_copy(lane, dst, src, nbytes, err);
}

int offload_copy(const struct fsdp *f, struct fsdp_lane *lane, void *dst, const void *src,
                 size_t nbytes, struct fsdp_err *err)
{
    char *to = dst, *staged = f->offload.file ? f->offload.staged_slots[0] : NULL;
    const char *from = src;
    bool read = offload_file_holds(f->offload.file, src);

    if (!staged || (!read && !offload_file_holds(f->offload.file, dst)))
        return offload_copy_host(&f->offload, lane, dst, src, nbytes, err);
    for (size_t at = 0, n, most = offload_staged_nbytes(f); at < nbytes; at += n) {
        n = nbytes - at < most ? nbytes - at : most;
        FSDP_TRY(offload_copy_host(&f->offload, lane, staged, from + at, n, err));
        FSDP_TRY(offload_copy_host(&f->offload, lane, to + at, staged, n, err));
    }
    return FSDP_OK;
}

int offload_begin(struct flat_state *out, struct fsdp *f, int flat, struct fsdp_err *err)
{
    *out = offload_at(f, flat, offload_state(f, flat) ? 0 : -1);
    if (!offload_state(f, flat))
        return FSDP_OK;
    return offload_fetch(f, flat, 0, f->lanes[SCHED_COMPUTE], err);
}

int offload_end(struct fsdp *f, int flat, struct fsdp_err *err)
{
    if (!offload_state(f, flat))
        return FSDP_OK;
    return copy_parts(f, flat, 0, STORE, f->lanes[SCHED_COMPUTE], err);
}

uint64_t offload_copied_nbytes(const struct fsdp *f, int flat)
{
    struct flat_state s = {0};
    struct part parts[MAX_PARTS];
    uint64_t nbytes = 0;

    for (int i = 0, n = parts_of(parts, f, flat, &s); i < n; i++)
        nbytes += parts[i].nbytes;
    return nbytes;
}
