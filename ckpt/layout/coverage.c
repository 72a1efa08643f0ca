/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proof that boxes tile a region. Outline: sort the boxes along a dimension and sweep. Where no box
 * spans a position, the region falls apart there into slabs, each of which must be tiled by its own
 * boxes; a gap between slabs is a hole. Cuts along one dimension end after one sweep, grids after
 * one per dimension. Boxes that cannot be separated in any dimension overlap, or interlock (a
 * pinwheel): those few are compared pairwise along a sweep, and their volumes added. The number of
 * comparisons is bounded, so that a file cannot make it quadratic.
 */
#include <stdlib.h>
#include <string.h>

#include "layout.h"

struct proof {
    const struct ckpt_layout *layout;
    const struct fsdp_tensor *tensor;
    struct fsdp_err *err;
    int depth;                /* of the recursion: bounded, since boxes come from files */
    size_t npairs, max_pairs; /* interlocked boxes compared */
};

enum { MAX_DEPTH = 200, MIN_PAIRS = 1 << 21, PAIRS_PER_PIECE = 100 };

struct by_dim {
    const struct ckpt_piece *pieces;
    int dim;
};

static int compare_offset(const void *a, const void *b, void *ctx)
{
    const struct by_dim *by = ctx;
    uint64_t x = by->pieces[*(const size_t *)a].offset[by->dim];
    uint64_t y = by->pieces[*(const size_t *)b].offset[by->dim];
    return x < y ? -1 : x > y;
}

static int missing(const struct proof *p, const struct fsdp_box *hole,
                   const struct ckpt_piece *near)
{
    char text[256];
    ckpt_box_text(text, sizeof text, hole, p->tensor->ndim);
    if (!near)
        return fsdp_err_set(p->err, FSDP_ECORRUPT, "tensor '%s': no file holds %s%s",
                            p->tensor->name, text,
                            fsdp_box_nelem(hole, p->tensor->ndim) == fsdp_tensor_nelem(p->tensor)
                                ? ", which is all of it"
                                : "");
    return fsdp_err_set(p->err, FSDP_ECORRUPT,
                        "tensor '%s': no file holds %s (next to what '%s' holds)", p->tensor->name,
                        text, p->layout->files[near->file].path);
}

static struct fsdp_box box_of(const struct proof *p, const struct ckpt_piece *piece)
{
    return ckpt_piece_box(piece, p->tensor->ndim);
}

static int overlap(const struct proof *p, const struct ckpt_piece *a, const struct ckpt_piece *b)
{
    char text[256];
    struct fsdp_box both, of_a = box_of(p, a), of_b = box_of(p, b);
    fsdp_box_intersect(&both, &of_a, &of_b, p->tensor->ndim);
    ckpt_box_text(text, sizeof text, &both, p->tensor->ndim);
    return fsdp_err_set(p->err, FSDP_ECORRUPT, "tensor '%s': '%s' and '%s' both hold %s",
                        p->tensor->name, p->layout->files[a->file].path,
                        p->layout->files[b->file].path, text);
}

/* One box in a region. */
static int prove_one(const struct proof *p, const struct fsdp_box *region,
                     const struct ckpt_piece *piece)
{
    for (int d = 0; d < p->tensor->ndim; d++) {
        uint64_t begin = piece->offset[d], end = begin + piece->length[d];
        struct fsdp_box hole = *region;
        if (begin > region->offset[d]) {
            hole.length[d] = begin - region->offset[d];
            return missing(p, &hole, piece);
        }
        if (end < region->offset[d] + region->length[d]) {
            hole.offset[d] = end;
            hole.length[d] = region->offset[d] + region->length[d] - end;
            return missing(p, &hole, piece);
        }
    }
    return FSDP_OK;
}

/* Boxes that no plane separates; sorted by dimension 0. */
static int prove_interlocked(struct proof *p, const struct fsdp_box *region, size_t *order,
                             size_t npieces)
{
    const struct ckpt_piece *pieces = p->layout->pieces;
    uint64_t volume = 0;
    for (size_t i = 0; i < npieces; i++) {
        const struct ckpt_piece *a = &pieces[order[i]];
        const struct fsdp_box of_a = box_of(p, a);
        volume += fsdp_box_nelem(&of_a, p->tensor->ndim);
        for (size_t j = i + 1; j < npieces; j++) {
            const struct ckpt_piece *b = &pieces[order[j]];
            struct fsdp_box both, of_b;
            if (b->offset[0] >= a->offset[0] + a->length[0])
                break;
            if (p->npairs++ >= p->max_pairs)
                return fsdp_err_set(p->err, FSDP_EUNSUPPORTED,
                                    "tensor '%s': %zu of its boxes interlock, too many to check; "
                                    "save it in rows, columns or a grid",
                                    p->tensor->name, npieces);
            of_b = box_of(p, b);
            if (fsdp_box_intersect(&both, &of_a, &of_b, p->tensor->ndim))
                return overlap(p, a, b);
        }
    }
    uint64_t need = fsdp_box_nelem(region, p->tensor->ndim);
    if (volume == need)
        return FSDP_OK;
    char text[256];
    ckpt_box_text(text, sizeof text, region, p->tensor->ndim);
    return fsdp_err_set(p->err, FSDP_ECORRUPT,
                        "tensor '%s': %llu elements of %s are in no file (near what '%s' holds)",
                        p->tensor->name, (unsigned long long)(need - volume), text,
                        p->layout->files[pieces[order[0]].file].path);
}

static int prove(struct proof *p, const struct fsdp_box *region, size_t *order, size_t npieces,
                 int dim, int untried);

/* Sweeps along `dim`; *nslabs gets the number of slabs found. With more than one, each is proved.
 */
static int sweep(struct proof *p, const struct fsdp_box *region, size_t *order, size_t npieces,
                 int dim, int *nslabs)
{
    const struct ckpt_piece *pieces = p->layout->pieces, *before = NULL;
    struct by_dim by = {pieces, dim};
    uint64_t end = region->offset[dim], region_end = end + region->length[dim];
    size_t begin = 0;

    qsort_r(order, npieces, sizeof *order, compare_offset, &by);
    *nslabs = 0;
    for (size_t i = 0; i <= npieces; i++) {
        const struct ckpt_piece *piece = i < npieces ? &pieces[order[i]] : NULL;
        uint64_t next = piece ? piece->offset[dim] : region_end;
        if (next > end) {
            struct fsdp_box hole = *region;
            hole.offset[dim] = end;
            hole.length[dim] = next - end;
            return missing(p, &hole, before ? before : piece);
        }
        /* A slab ends where all boxes so far have ended. */
        if (i > begin && next >= end && (begin > 0 || i < npieces)) {
            struct fsdp_box slab = *region;
            slab.offset[dim] = pieces[order[begin]].offset[dim];
            slab.length[dim] = end - slab.offset[dim];
            p->depth++;
            FSDP_TRY(prove(p, &slab, order + begin, i - begin, (dim + 1) % p->tensor->ndim,
                           p->tensor->ndim - 1));
            p->depth--;
            begin = i;
            ++*nslabs;
        }
        if (piece && next + piece->length[dim] >= end) {
            end = next + piece->length[dim];
            before = piece;
        }
    }
    return FSDP_OK;
}

static int prove(struct proof *p, const struct fsdp_box *region, size_t *order, size_t npieces,
                 int dim, int untried)
{
    if (npieces == 0)
        return missing(p, region, NULL);
    if (npieces == 1)
        return prove_one(p, region, &p->layout->pieces[order[0]]);
    for (; untried > 0 && p->depth < MAX_DEPTH; untried--, dim = (dim + 1) % p->tensor->ndim) {
        int nslabs;
        FSDP_TRY(sweep(p, region, order, npieces, dim, &nslabs));
        if (nslabs)
            return FSDP_OK;
    }
    struct by_dim by = {p->layout->pieces, 0};
    qsort_r(order, npieces, sizeof *order, compare_offset, &by);
    return prove_interlocked(p, region, order, npieces);
}

/* The common case: whole rows, one box behind the other. False says nothing. */
static bool is_rows(const struct ckpt_layout *layout, const struct fsdp_tensor *t,
                    const size_t *order, size_t npieces)
{
    uint64_t next = 0;
    for (size_t i = 0; i < npieces; i++) {
        const struct ckpt_piece *box = &layout->pieces[order[i]];
        if (box->offset[0] != next)
            return false;
        next += box->length[0];
        for (int d = 1; d < t->ndim; d++)
            if (box->offset[d] || box->length[d] != t->shape[d])
                return false;
    }
    return t->ndim && next == t->shape[0];
}

int ckpt_coverage_prove(const struct ckpt_layout *layout, int tensor, size_t *order, size_t npieces,
                        struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &layout->tensors[tensor].tensor;
    struct proof p = {.layout = layout,
                      .tensor = t,
                      .err = err,
                      .max_pairs = MIN_PAIRS + PAIRS_PER_PIECE * npieces};
    struct fsdp_box whole = ckpt_box_whole(t);

    for (size_t i = 0; i < npieces; i++) {
        const struct ckpt_piece *piece = &layout->pieces[order[i]];
        for (int d = 0; d < t->ndim; d++)
            if (piece->length[d] > t->shape[d] || piece->offset[d] > t->shape[d] - piece->length[d])
                return fsdp_err_set(err, FSDP_ECORRUPT,
                                    "tensor '%s': the box in '%s' leaves it in dimension %d",
                                    t->name, layout->files[piece->file].path, d);
    }
    if (fsdp_tensor_nelem(t) == 0)
        return FSDP_OK;
    if (t->ndim == 0 && npieces > 1)
        return fsdp_err_set(err, FSDP_ECORRUPT, "tensor '%s': '%s' and '%s' both hold it", t->name,
                            layout->files[layout->pieces[order[0]].file].path,
                            layout->files[layout->pieces[order[1]].file].path);
    if (is_rows(layout, t, order, npieces))
        return FSDP_OK;
    return prove(&p, &whole, order, npieces, 0, t->ndim);
}
