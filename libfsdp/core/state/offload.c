/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded state: where it is stored, and the copies to the place of its update and back. */
#include "offload.h"

#include "offload_file.h"
#include "offload_parts.h"

enum { MOST_SLOTS = 64 }; /* as the setting allows */

/* What updates on the host need to be there. */
static int check_host(const struct fsdp *f, struct fsdp_err *err)
{
    if (!engine_updates_on_host(f))
        return FSDP_OK;
    if (f->opts.offload == FSDP_OFFLOAD_NONE)
        return fsdp_err_set_blame(
            err, FSDP_EINVAL, "offload_update",
            "offload_update host: no optimizer state lives there: set fsdp.offload "
            "optimizer or params");
    if (f->opts.offload_gradients)
        return FSDP_OK;
    return fsdp_err_set_blame(err, FSDP_EINVAL, "offload_update",
                              "offload_update host: gradient shards must live there, too: set "
                              "fsdp.offload_gradients true");
}

int offload_plan(const struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(check_host(f, err));
    for (int k = 0; f->opts.offload == FSDP_OFFLOAD_PARAMS && k < f->units.nflats; k++)
        if (f->units.flats[k].codec || f->units.flats[k].nf4)
            return fsdp_err_set_blame(
                err, FSDP_EUNSUPPORTED, "offload",
                "parameters that are gathered as %s cannot be offloaded: offload the "
                "optimizer alone, or gather them in param_dtype",
                flat_sent_name(&f->units.flats[k]));
    const bool away = f->opts.offload != FSDP_OFFLOAD_NONE || f->opts.offload_activations ||
                      f->opts.offload_gradients;
    if (!away || (f->opts.offload_slots >= 1 && f->opts.offload_slots <= MOST_SLOTS))
        return FSDP_OK;
    return fsdp_err_set_blame(err, FSDP_EINVAL, "offload_slots",
                              "%d places for what is offloaded: give 1 to %d",
                              f->opts.offload_slots, MOST_SLOTS);
}

/* ---- parts ----------------------------------------------------------------------------------- */

uint64_t offload_home_nbytes(const struct fsdp *f, int flat, enum offload_home home)
{
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    struct flat_state s = {0};
    int n;
    const struct offload_part *first =
        offload_parts_at(parts, offload_parts(parts, f, flat, &s), home, &n);
    return n ? offload_parts_end(first, n) - first->pos : 0;
}

uint64_t offload_slot_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int k = 0; k < f->units.nflats; k++) {
        struct offload_part parts[OFFLOAD_MAX_PARTS];
        struct flat_state s = {0};
        uint64_t nbytes = offload_parts_end(parts, offload_parts(parts, f, k, &s));
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

/* For an update on the host: the parts that live elsewhere, which follow each other. */
static const struct offload_part *passing_parts(struct offload_part parts[OFFLOAD_MAX_PARTS],
                                                const struct fsdp *f, int flat,
                                                struct flat_state *s, int *npassing)
{
    const struct offload_part *first = parts;
    int n = offload_parts_for_host(parts, f, flat, s);

    while (n && first->home == OFFLOAD_HOST)
        first++, n--;
    while (n && first[n - 1].home == OFFLOAD_HOST)
        n--;
    *npassing = n;
    return first;
}

static uint64_t passing_nbytes(const struct fsdp *f, int flat)
{
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    struct flat_state s = {0};
    int n;
    const struct offload_part *first = passing_parts(parts, f, flat, &s, &n);
    return n ? offload_parts_end(first, n) - first->pos : 0;
}

uint64_t offload_staged_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int k = 0; k < f->units.nflats; k++) {
        uint64_t nbytes =
            offload_on_host(f, k) ? passing_nbytes(f, k) : offload_home_nbytes(f, k, OFFLOAD_FILE);
        most = nbytes > most ? nbytes : most;
    }
    return most;
}

void offload_place(struct fsdp *f, int flat, enum offload_home home, char *base)
{
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    struct flat_state *s = &f->flats[flat];
    int n;
    const struct offload_part *first =
        offload_parts_at(parts, offload_parts(parts, f, flat, s), home, &n);
    offload_parts_point(first, n, base);
    if (offload_param(f, flat))
        offload_join_master(f, flat, s);
}

struct flat_state offload_at(const struct fsdp *f, int flat, int slot)
{
    struct flat_state s = f->flats[flat];
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    int n = slot < 0 ? 0 : offload_parts(parts, f, flat, &s);
    if (n) {
        offload_parts_point(parts, n, f->offload.slots[slot]);
        offload_join_master(f, flat, &s);
    }
    return s;
}

struct flat_state offload_host_at(const struct fsdp *f, int flat, int slot)
{
    struct flat_state s = f->flats[flat];
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    int n;
    const struct offload_part *first = passing_parts(parts, f, flat, &s, &n);

    if (n)
        offload_parts_point(first, n, f->offload.staged_slots[slot]);
    offload_join_master(f, flat, &s);
    return s;
}

/* ---- copies ---------------------------------------------------------------------------------- */

enum way { FETCH, STORE, STORE_BEHIND };

/* Of a slot: where updates find it, and what it passes through on its way to a file. */
struct passage {
    char *there, *staged;
};

static struct passage passage_of(const struct fsdp *f, int slot, bool on_host)
{
    char *there = on_host ? f->offload.staged_slots[slot] : f->offload.slots[slot];
    char *staged = f->offload.staged_slots[slot];

    return (struct passage){there, staged ? staged : there}; /* NULL: the device is the host */
}

/* Parts of a flat at once: they lie in the file as in a slot, and in whole blocks. */
static int copy_file(struct fsdp *f, const struct offload_part *parts, int n,
                     const struct passage *by, enum way way, struct fsdp_lane *lane,
                     struct fsdp_err *err)
{
    struct offload_file *file = f->offload.file;
    char *home = *parts[0].at;
    uint64_t nbytes = (offload_parts_end(parts, n) + OFFLOAD_PART_ALIGN - 1) / OFFLOAD_PART_ALIGN *
                      OFFLOAD_PART_ALIGN;
    const bool fetch = way == FETCH;

    if (fetch)
        FSDP_TRY(offload_file_read(file, lane, by->staged, home, nbytes, err));
    if (by->staged != by->there)
        FSDP_TRY(fsdp_copy(lane, fetch ? by->there : by->staged, fetch ? by->staged : by->there,
                           nbytes, err));
    if (way == STORE_BEHIND)
        return offload_file_write_behind(file, lane, home, by->staged, nbytes, err);
    return fetch ? FSDP_OK : offload_file_write(file, lane, home, by->staged, nbytes, err);
}

/* Between the parts' homes and a slot, which the first of them begins. */
static int copy_parts(struct fsdp *f, const struct offload_part *parts, int n,
                      const struct passage *by, enum way way, struct fsdp_lane *lane,
                      struct fsdp_err *err)
{
    const bool fetch = way == FETCH;
    int nfile;
    const struct offload_part *in_file = offload_parts_at(parts, n, OFFLOAD_FILE, &nfile);

    if (nfile) /* the first in the slot, too */
        FSDP_TRY(copy_file(f, in_file, nfile, by, way, lane, err));
    /* The slot is what the unit before may still be written from. */
    if (fetch && n > nfile && f->offload.file && by->staged == by->there)
        FSDP_TRY(offload_file_wait(f->offload.file, lane, by->there,
                                   offload_parts_end(parts, n) - parts[0].pos, err));
    for (int i = nfile; i < n; i++) {
        void *at_home = *parts[i].at, *there = by->there + (parts[i].pos - parts[0].pos);
        FSDP_TRY(fsdp_copy(lane, fetch ? there : at_home, fetch ? at_home : there, parts[i].nbytes,
                           err));
    }
    return FSDP_OK;
}

static int copy_all(struct fsdp *f, int flat, int slot, enum way way, struct fsdp_lane *lane,
                    struct fsdp_err *err)
{
    struct flat_state home = f->flats[flat];
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    const int n = offload_parts(parts, f, flat, &home);
    const struct passage by = passage_of(f, slot, false);

    return copy_parts(f, parts, n, &by, way, lane, err);
}

static int copy_passing(struct fsdp *f, int flat, int slot, enum way way, struct fsdp_lane *lane,
                        struct fsdp_err *err)
{
    struct flat_state home = f->flats[flat];
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    int n;
    const struct offload_part *first = passing_parts(parts, f, flat, &home, &n);
    const struct passage by = passage_of(f, slot, true);

    return copy_parts(f, first, n, &by, way, lane, err);
}

int offload_fetch(struct fsdp *f, int flat, int slot, struct fsdp_lane *lane, struct fsdp_err *err)
{
    return offload_on_host(f, flat) ? copy_passing(f, flat, slot, FETCH, lane, err)
                                    : copy_all(f, flat, slot, FETCH, lane, err);
}

int offload_store(struct fsdp *f, int flat, int slot, bool last, struct fsdp_lane *lane,
                  struct fsdp_err *err)
{
    FSDP_TRY(offload_on_host(f, flat) ? copy_passing(f, flat, slot, STORE_BEHIND, lane, err)
                                      : copy_all(f, flat, slot, STORE_BEHIND, lane, err));
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
    return copy_all(f, flat, 0, FETCH, f->lanes[SCHED_COMPUTE], err);
}

int offload_end(struct fsdp *f, int flat, struct fsdp_err *err)
{
    if (!offload_state(f, flat))
        return FSDP_OK;
    return copy_all(f, flat, 0, STORE, f->lanes[SCHED_COMPUTE], err);
}

uint64_t offload_copied_nbytes(const struct fsdp *f, int flat)
{
    const bool on_host = offload_on_host(f, flat);
    struct flat_state s = {0};
    struct offload_part parts[OFFLOAD_MAX_PARTS];
    uint64_t nbytes = 0;
    const int n =
        on_host ? offload_parts_for_host(parts, f, flat, &s) : offload_parts(parts, f, flat, &s);

    for (int i = 0; i < n; i++)
        if (!on_host || parts[i].home == OFFLOAD_DEVICE)
            nbytes += parts[i].nbytes;
    return nbytes;
}

/* ---- updates on the host --------------------------------------------------------------------- */

int offload_host_open(struct fsdp *f, struct fsdp_err *err)
{
    if (!engine_updates_on_host(f))
        return FSDP_OK;
    FSDP_TRY(fsdp_device_open(&f->offload.host, "cpu", 0, err));
    return fsdp_lane_create(&f->offload.host_lane, f->offload.host, "host update", err);
}

void offload_host_close(struct fsdp *f)
{
    fsdp_lane_destroy(f->offload.host_lane);
    fsdp_device_close(f->offload.host);
}

int offload_store_scalars(struct fsdp *f, struct fsdp_lane *lane, struct fsdp_err *err)
{
    struct host_scalars *to = f->offload.host_scalars;

    FSDP_TRY(fsdp_copy(lane, &to->clip_coef, f->scalars.clip_coef, sizeof to->clip_coef, err));
    return fsdp_copy(lane, &to->scale, f->scalars.scale, sizeof to->scale, err);
}
