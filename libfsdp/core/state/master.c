/* SPDX-License-Identifier: Apache-2.0 */
#include "master.h"

#include <string.h>

#include "device/common/formula.h"
#include "nf4.h"
#include "offload.h"
#include "slots.h"

int master_plan(struct fsdp *f, struct fsdp_err *err)
{
    bool any = false;

    for (int k = 0; k < f->units.nflats; k++) {
        struct flat *flat = &f->units.flats[k];
        const bool bare = flat_is_bf16_alone(f, flat);
        any |= bare || flat_has_split_master(f, flat);
        for (int i = 0; bare && i < flat->ntensors; i++)
            flat->tensors[i].dtype = FSDP_BF16;
    }
    if (any || f->opts.optim.master == FSDP_MASTER_WHOLE)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, "master",
        "masters can be %s where parameters are gathered in BF16, and here none are: "
        "param_dtype bfloat16 does so (without a gather_dtype)",
        f->opts.optim.master == FSDP_MASTER_SPLIT ? "split" : "left out");
}

uint64_t master_joined_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int k = 0; k < f->units.nflats; k++) {
        uint64_t nelem = f->units.flats[k].cut.shard_nelem;
        const struct flat *flat = &f->units.flats[k];
        if ((flat_has_split_master(f, flat) || flat_has_no_master(f, flat)) && nelem > most)
            most = nelem;
    }
    return (most < MASTER_PIECE ? most : MASTER_PIECE) * sizeof(float);
}

/* A range of a flat's master, on the device, and where it comes from. */
struct range {
    struct fsdp *f;
    struct fsdp_lane *lane;
    const struct flat_state *s, *home; /* home NULL: it is there */
    enum fsdp_dtype dtype;             /* of s->param */
    int nf4;                           /* the flat, where it is in NF4; else -1 */
    uint64_t pos, nelem;
};

/* Between the homes of a range and the device. */
static int bring(const struct range *r, bool back, struct fsdp_err *err)
{
    const struct flat_state *to = back ? r->home : r->s, *from = back ? r->s : r->home;
    struct fsdp_lane *lane = r->lane;

    if (!r->home)
        return FSDP_OK;
    if (to->master)
        return offload_copy(r->f, lane, to->master + r->pos, from->master + r->pos,
                            r->nelem * sizeof *to->master, err);
    FSDP_TRY(offload_copy(r->f, lane, (uint16_t *)to->param + r->pos,
                          (uint16_t *)from->param + r->pos, r->nelem * sizeof(uint16_t), err));
    if (!to->rest)
        return FSDP_OK;
    return offload_copy(r->f, lane, to->rest + r->pos, from->rest + r->pos,
                        r->nelem * sizeof(uint16_t), err);
}

/* The range's part of a visit's rounding. */
static int narrow(const struct range *r, uint16_t *param, const float *x,
                  const struct master_visit *v, struct fsdp_err *err)
{
    struct fsdp_rounding rounding = *v->rounding;

    rounding.first += r->pos - v->pos;
    return fsdp_narrow(r->lane, param, x, r->nelem, &rounding, err);
}

/* Out of the 16 bits, or 4, that there are instead of a master, or into them. */
static int widen(const struct range *r, const struct master_visit *v, float *x, bool back,
                 struct fsdp_err *err)
{
    struct fsdp_lane *lane = r->lane;
    uint16_t *param = (uint16_t *)r->s->param + r->pos, *rest = r->s->rest;

    if (r->nf4 >= 0)
        return back ? nf4_put(r->f, r->nf4, r->pos, x, r->nelem, err)
                    : nf4_get(r->f, r->nf4, r->pos, x, r->nelem, err);
    if (!rest && back && v->rounding)
        return narrow(r, param, x, v, err);
    if (!rest)
        return back ? fsdp_cast(lane, param, r->dtype, x, FSDP_F32, r->nelem, err)
                    : fsdp_cast(lane, x, FSDP_F32, param, r->dtype, r->nelem, err);
    return back ? fsdp_split(lane, param, rest + r->pos, x, r->nelem, err)
                : fsdp_join(lane, x, param, rest + r->pos, r->nelem, err);
}

static int visit_range(const struct range *r, const struct master_visit *v, struct fsdp_err *err)
{
    const bool narrow = !r->s->master;
    float *x = narrow ? r->f->mem.joined : r->s->master + r->pos;

    if (v->reads)
        FSDP_TRY(bring(r, false, err));
    if (v->reads && narrow)
        FSDP_TRY(widen(r, v, x, false, err));
    FSDP_TRY(v->fn(v->ctx, x, r->pos - v->pos, r->nelem, err));
    if (v->writes && narrow)
        FSDP_TRY(widen(r, v, x, true, err));
    return v->writes ? bring(r, true, err) : FSDP_OK;
}

/* of: all but its place. */
static int visit_pieces(const struct range *of, const struct master_visit *v, struct fsdp_err *err)
{
    uint64_t most = of->s->master && !of->home ? v->nelem : MASTER_PIECE;

    for (uint64_t at = 0; at < v->nelem; at += most) {
        struct range range = *of;
        range.lane = v->lane ? v->lane : of->f->lanes[SCHED_COMPUTE];
        range.pos = v->pos + at;
        range.nelem = v->nelem - at < most ? v->nelem - at : most;
        FSDP_TRY(visit_range(&range, v, err));
    }
    return FSDP_OK;
}

int master_each_at(struct fsdp *f, const struct flat_state *s, const struct master_visit *visit,
                   struct fsdp_err *err)
{
    const struct range range = {.f = f, .s = s, .dtype = FSDP_BF16, .nf4 = -1};
    return visit_pieces(&range, visit, err);
}

int master_each(struct fsdp *f, int flat, const struct master_visit *visit, struct fsdp_err *err)
{
    const struct flat_state *home = &f->flats[flat], s = offload_at(f, flat, 0);
    const bool there = !offload_state(f, flat);
    const struct range range = {.f = f,
                                .s = there ? home : &s,
                                .home = there ? NULL : home,
                                .dtype = f->units.flats[flat].param_dtype,
                                .nf4 = f->units.flats[flat].nf4 ? flat : -1};
    return visit_pieces(&range, visit, err);
}

struct copying {
    const struct fsdp *f;
    struct fsdp_lane *lane;
    float *dst;
    const float *src;
};

static int copy_out(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    struct copying *c = ctx;
    return offload_copy(c->f, c->lane, c->dst + at, x, nelem * sizeof *x, err);
}

static int copy_in(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    struct copying *c = ctx;
    return fsdp_copy(c->lane, x, c->src + at, nelem * sizeof *x, err);
}

int master_copy(struct fsdp *f, int flat, uint64_t pos, float *dst, uint64_t nelem,
                struct fsdp_err *err)
{
    struct copying c = {.f = f, .lane = f->lanes[SCHED_COMPUTE], .dst = dst};
    const struct master_visit visit = {
        .pos = pos, .nelem = nelem, .reads = true, .fn = copy_out, .ctx = &c};
    return master_each(f, flat, &visit, err);
}

int master_set(struct fsdp *f, int flat, uint64_t pos, const float *src, uint64_t nelem,
               struct fsdp_err *err)
{
    struct copying c = {.f = f, .lane = f->lanes[SCHED_COMPUTE], .src = src};
    const struct master_visit visit = {
        .pos = pos, .nelem = nelem, .writes = true, .fn = copy_in, .ctx = &c};
    return master_each(f, flat, &visit, err);
}

/* ---- halves, from the host ------------------------------------------------------------------- */

enum { HALVES_PIECE = 1 << 16 };

struct halves {
    uint16_t param[HALVES_PIECE], rest[HALVES_PIECE];
    float x[HALVES_PIECE];
};

static float widened(uint16_t param, enum fsdp_dtype dtype)
{
    return dtype == FSDP_F16 ? fsdp_f16_to_f32(param) : fsdp_bf16_to_f32(param);
}

static uint16_t narrowed(float x, enum fsdp_dtype dtype)
{
    return dtype == FSDP_F16 ? fsdp_f32_to_f16(x) : fsdp_f32_to_bf16(x);
}

/* The elements [first, first + nelem) into h. */
static int fetch(const struct master_halves *m, struct halves *h, uint64_t first, size_t nelem,
                 struct fsdp_err *err)
{
    FSDP_TRY(offload_copy_host(m->offload, m->lane, h->param, (const uint16_t *)m->param + first,
                               nelem * 2, err));
    if (m->rest)
        FSDP_TRY(offload_copy_host(m->offload, m->lane, h->rest, m->rest + first, nelem * 2, err));
    FSDP_TRY(fsdp_lane_sync(m->lane, err));
    for (size_t i = 0; i < nelem; i++)
        h->x[i] = m->rest ? master_join(h->param[i], h->rest[i]) : widened(h->param[i], m->dtype);
    return FSDP_OK;
}

static int store(const struct master_halves *m, struct halves *h, uint64_t first, size_t nelem,
                 struct fsdp_err *err)
{
    for (size_t i = 0; i < nelem; i++)
        if (m->rest)
            master_split(&h->param[i], &h->rest[i], h->x[i]);
        else
            h->param[i] = narrowed(h->x[i], m->dtype);
    FSDP_TRY(offload_copy_host(m->offload, m->lane, (uint16_t *)m->param + first, h->param,
                               nelem * 2, err));
    if (m->rest)
        FSDP_TRY(offload_copy_host(m->offload, m->lane, m->rest + first, h->rest, nelem * 2, err));
    return fsdp_lane_sync(m->lane, err);
}

/* A piece of [pos, end): its elements, and which of its bytes are meant. */
static size_t piece_of(uint64_t pos, uint64_t end, uint64_t *first, size_t *skip, size_t *nbytes)
{
    *first = pos / 4;
    *skip = pos % 4;
    uint64_t most = (uint64_t)HALVES_PIECE * 4 - *skip;
    *nbytes = end - pos < most ? end - pos : most;
    return (*skip + *nbytes + 3) / 4;
}

int master_read_halves(const struct master_halves *m, uint64_t pos, void *dst, size_t nbytes,
                       struct fsdp_err *err)
{
    struct halves *h = fsdp_alloc(1, sizeof *h, "halves of masters", err);
    char *to = dst;
    int rc = h ? FSDP_OK : FSDP_ENOMEM;

    for (uint64_t end = pos + nbytes; pos < end && !rc;) {
        uint64_t first;
        size_t skip, here, nelem = piece_of(pos, end, &first, &skip, &here);
        rc = fetch(m, h, first, nelem, err);
        if (!rc)
            memcpy(to, (const char *)h->x + skip, here);
        pos += here;
        to += here;
    }
    fsdp_free(h);
    return rc;
}

int master_write_halves(const struct master_halves *m, uint64_t pos, const void *src, size_t nbytes,
                        struct fsdp_err *err)
{
    struct halves *h = fsdp_alloc(1, sizeof *h, "halves of masters", err);
    const char *from = src;
    int rc = h ? FSDP_OK : FSDP_ENOMEM;

    for (uint64_t end = pos + nbytes; pos < end && !rc;) {
        uint64_t first;
        size_t skip, here, nelem = piece_of(pos, end, &first, &skip, &here);
        if (skip || here % 4) /* the rest of an element stays */
            rc = fetch(m, h, first, nelem, err);
        memcpy((char *)h->x + skip, from, here);
        if (!rc)
            rc = store(m, h, first, nelem, err);
        pos += here;
        from += here;
    }
    fsdp_free(h);
    return rc;
}

/* Slot o of parameter i of flat k begins as its master. */
static int state_begin(struct fsdp *f, int k, int i, int o, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[k];
    struct fsdp_box box;
    uint64_t pos,
        nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, flat_shard(f, flat));

    if (!nelem || !slots_has(f, k, i, o) ||
        f->optim.written[o * f->units.nparams + flat->params[i]])
        return FSDP_OK;
    return master_copy(f, k, pos, state_at(&f->optim, &f->flats[k], o, slots_pos(f, k, i, o)),
                       nelem, err);
}

static int flat_begin(struct fsdp *f, int k, int o, struct fsdp_err *err)
{
    for (int i = 0; f->units.flats[k].trainable && i < f->units.flats[k].ntensors; i++)
        FSDP_TRY(state_begin(f, k, i, o, err));
    return FSDP_OK;
}

int master_state_begin(struct fsdp *f, struct fsdp_err *err)
{
    for (int o = 0; o < f->optim.nslots; o++)
        for (int k = 0; f->optim.from_weights[o] && k < f->units.nflats; k++)
            FSDP_TRY(flat_begin(f, k, o, err));
    return FSDP_OK;
}
