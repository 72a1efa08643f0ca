/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"
#include "nf4.h"
#include "offload.h"
#include "slots.h"

#include <string.h>

enum { DECODE_NELEM = 1 << 22 };

void gather_plan(struct fsdp *f)
{
    f->encoding.namax = 0;
    for (int k = 0; k < f->units.nflats; k++)
        gather_see(&f->units.flats[k]);
    for (int pass = 0; pass < 2; pass++) { /* the trainable ones first */
        for (int k = 0; k < f->units.nflats; k++) {
            struct flat *flat = &f->units.flats[k];
            if (flat->trainable != !pass)
                continue;
            for (int i = 0; i < flat->ntensors; i++) {
                const int first = flat->scale_of[i];
                const bool shares = first < i && gather_is_encoded(flat, first);
                flat->amax[i] = shares ? flat->amax[first] : f->encoding.namax;
                f->encoding.namax += gather_is_encoded(flat, i) && !shares;
            }
        }
        f->encoding.namax_trainable = pass ? f->encoding.namax_trainable : f->encoding.namax;
    }
}

/* ---- gathering ------------------------------------------------------------------------------- */

bool gather_is_unpacked(const struct flat *flat)
{
    return flat_is_chunked(flat) && !flat->codec && !flat->nf4;
}

/* What the ranks' pieces are gathered into. */
static char *area(const struct engine_mem *mem, const struct flat *flat, void *slot)
{
    if (gather_is_unpacked(flat))
        return mem->gather_staging;
    return (char *)slot +
           (flat_travels_encoded(flat) ? gather_aligned(gather_whole_nbytes(flat)) : 0);
}

/* On two levels a node's rank `inner` has part `inner` of the flat: outer_size neighbouring shards,
 * of the ranks with its place in all nodes (fsdp_shard_of_index). */
static char *inner_part(const struct fsdp *f, const struct flat *flat, void *slot)
{
    uint64_t part = (uint64_t)(f->mesh->shard_rank / f->mesh->outer_size);
    return area(&f->mem, flat, slot) +
           part * (uint64_t)f->mesh->outer_size * gather_shard_nbytes(flat);
}

/* What this rank sends: its shard; if that is offloaded, its place in the gathered copy, where the
 * load has brought it. */
static void *mine(const struct fsdp *f, int flat_index, void *slot)
{
    const struct flat *flat = &f->units.flats[flat_index];
    if (!offload_param(f, flat_index))
        return f->flats[flat_index].param;
    return area(&f->mem, flat, slot) + (uint64_t)f->mesh->shard_rank * gather_shard_nbytes(flat);
}

int gather_load(struct fsdp *f, int flat_index, void *slot, struct fsdp_lane *lane,
                struct fsdp_err *err)
{
    return fsdp_copy(lane, mine(f, flat_index, slot), f->flats[flat_index].param,
                     gather_shard_nbytes(&f->units.flats[flat_index]), err);
}

static int all_gather(struct fsdp_comm *comm, const struct flat *flat, void *recv, const void *send,
                      uint64_t nshards, struct fsdp_lane *lane, struct fsdp_err *err)
{
    if (flat_travels_encoded(flat) || flat->any_codes)
        return fsdp_comm_all_gather(comm, recv, send, nshards * gather_shard_nbytes(flat), FSDP_U8,
                                    lane, err);
    return fsdp_comm_all_gather(comm, recv, send, nshards * flat->cut.shard_nelem,
                                flat->param_dtype, lane, err);
}

int gather_outer(struct fsdp *f, int flat_index, void *slot, struct fsdp_lane *lane,
                 struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    return all_gather(f->mesh->outer_gather, flat, inner_part(f, flat, slot),
                      mine(f, flat_index, slot), 1, lane, err);
}

/* Rows of a tensor that some neighbouring ranks sent, each as many, from the same place of its
 * shard. */
struct sent_rows {
    int rank, count;
    uint64_t pos, first, nelem; /* in the shard; in the tensor, of `rank`; of one rank */
};

/* The rows from `rank` on, which are those of one rank where the next has fewer. */
static struct sent_rows rows_from(const struct flat *flat, int i, int rank)
{
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    struct sent_rows rows = {.rank = rank};

    for (int r = rank; r < flat->cut.nranks; r++, rows.count++) {
        struct fsdp_box box;
        uint64_t pos, nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, r);
        const uint64_t first = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0;
        if (!rows.count) {
            rows.pos = pos;
            rows.first = first;
            rows.nelem = nelem;
        } else if (nelem != rows.nelem || pos != rows.pos ||
                   first != rows.first + (uint64_t)rows.count * nelem) {
            break;
        }
    }
    return rows;
}

/* sent: by all ranks. */
static int decode_rows(struct fsdp *f, const struct flat *flat, int i, const struct sent_rows *rows,
                       const char *sent, char *slot, struct fsdp_lane *lane, struct fsdp_err *err)
{
    const uint64_t shard_nbytes = gather_shard_nbytes(flat);
    const size_t elem = gather_seen_elem(flat, i);
    const struct fsdp_pieces pieces = {
        .count = (size_t)rows->count, .dst_step = rows->nelem * elem, .src_step = shard_nbytes};
    char *to = slot + flat->seen[i] + rows->first * elem;

    sent += (uint64_t)rows->rank * shard_nbytes;
    if (flat->nf4) {
        const struct nf4_part part = {.flat = flat,
                                      .tensor = i,
                                      .shard = sent,
                                      .pos = rows->pos,
                                      .first = rows->first,
                                      .nelem = rows->nelem,
                                      .count = (uint64_t)rows->count,
                                      .step = shard_nbytes,
                                      .dst = to,
                                      .dst_dtype = flat->param_dtype};
        return nf4_decode(f, &part, lane, err);
    }
    if (!gather_is_encoded(flat, i)) /* raw tensors lie whole in every rank's part */
        return fsdp_copy_pieces(
            lane, to, sent + gather_raw_start(flat, i) + rows->first * elem, rows->nelem * elem,
            &(struct fsdp_pieces){pieces.count, pieces.dst_step, shard_nbytes + pieces.dst_step},
            err);
    sent += rows->pos * flat->codec->elem_nbytes;
    if (flat->codes[i])
        return fsdp_copy_pieces(lane, to, sent, rows->nelem * elem, &pieces, err);
    return flat->codec->decode(lane, to, flat->param_dtype, sent, rows->nelem, &pieces,
                               &f->encoding.amax[flat->amax[i]], err);
}

/* One call for a tensor, or two where the last rank has fewer rows than the others. */
static int decode(struct fsdp *f, const struct flat *flat, const char *sent, char *slot,
                  struct fsdp_lane *lane, struct fsdp_err *err)
{
    for (int i = 0; i < flat->ntensors; i++) {
        struct sent_rows rows;
        for (int rank = 0; rank < flat->cut.nranks; rank += rows.count) {
            rows = rows_from(flat, i, rank);
            if (rows.nelem)
                FSDP_TRY(decode_rows(f, flat, i, &rows, sent, slot, lane, err));
        }
    }
    return FSDP_OK;
}

int gather_flat(struct fsdp *f, int flat_index, void *slot, struct fsdp_lane *lane,
                struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    const void *send = mine(f, flat_index, slot);
    uint64_t nshards = 1;

    if (flat->nf4 && !flat_travels_encoded(flat))
        return decode(f, flat, send, slot, lane, err);
    if (f->mesh->inner_size) {
        send = inner_part(f, flat, slot);
        nshards = (uint64_t)f->mesh->outer_size;
    }
    FSDP_TRY(
        all_gather(f->mesh->gather, flat, area(&f->mem, flat, slot), send, nshards, lane, err));
    return flat_travels_encoded(flat) ? decode(f, flat, area(&f->mem, flat, slot), slot, lane, err)
                                      : FSDP_OK;
}

int gather_unpack(struct fsdp *f, int flat_index, void *slot, struct fsdp_lane *lane,
                  struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    uint64_t elem = fsdp_dtype_nbytes(flat->param_dtype), nranks = (uint64_t)flat->cut.nranks;

    for (int i = 0; i < flat->ntensors; i++) {
        uint64_t chunk = fsdp_cut_chunk_nelem(&flat->cut, &flat->tensors[i]) * elem;
        const char *from = (char *)f->mem.gather_staging + flat->cut.start[i] / nranks * elem;
        char *to = (char *)slot + flat->cut.start[i] * elem;
        const struct fsdp_pieces pieces = {nranks, chunk, flat->cut.shard_nelem * elem};
        FSDP_TRY(fsdp_copy_pieces(lane, to, from, chunk, &pieces, err));
    }
    return FSDP_OK;
}

int gather_decode_seen(struct fsdp *f, int flat_index, void *dst, const void *slot,
                       struct fsdp_lane *lane, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    const size_t elem = fsdp_dtype_nbytes(flat->param_dtype);

    for (int i = 0; i < flat->ntensors; i++) {
        const uint64_t nelem = fsdp_tensor_nelem(&flat->tensors[i]);
        const char *from = (const char *)slot + flat->seen[i];
        char *to = (char *)dst + flat->cut.start[i] * elem;
        if (flat->codes[i])
            FSDP_TRY(flat->codec->decode(lane, to, flat->param_dtype, from, nelem, NULL,
                                         &f->encoding.amax[flat->amax[i]], err));
        else
            FSDP_TRY(fsdp_copy(lane, to, from, nelem * elem, err));
    }
    return FSDP_OK;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* Whole rows of a tensor that is encoded and decoded at once. */
static uint64_t decoded_nelem(const struct fsdp_tensor *tensor)
{
    uint64_t nelem = fsdp_tensor_nelem(tensor), row = fsdp_tensor_row_nelem(tensor);
    uint64_t rows = row && row < DECODE_NELEM ? DECODE_NELEM / row * row : row;
    return nelem < rows ? nelem : rows;
}

uint64_t gather_encoded_nbytes(const struct units *units)
{
    uint64_t most = 0;

    for (int k = 0; k < units->nflats; k++) {
        const struct flat *flat = &units->flats[k];
        for (int i = 0; flat->codec && !flat_travels_encoded(flat) && i < flat->ntensors; i++) {
            uint64_t nbytes = decoded_nelem(&flat->tensors[i]) * flat->codec->elem_nbytes;
            if (gather_is_encoded(flat, i) && !flat->codes[i] && nbytes > most)
                most = nbytes;
        }
    }
    return most;
}

/* Tensor i of a flat in a group of one, into the shard. amax NULL: it is not encoded. */
static int encode_here(struct fsdp *f, int flat_index, int i, const double *amax,
                       struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    uint64_t nelem = fsdp_tensor_nelem(tensor), most = decoded_nelem(tensor);
    const float *master = f->flats[flat_index].master + flat->cut.start[i];
    size_t elem = fsdp_dtype_nbytes(flat->param_dtype);
    char *param = (char *)f->flats[flat_index].param + flat->seen[i];

    if (flat->codes[i])
        return flat->codec->encode(lane, param, master, nelem, amax, err);
    if (!amax)
        return fsdp_cast(lane, param, flat->param_dtype, master, FSDP_F32, nelem, err);
    for (uint64_t at = 0; at < nelem; at += most) {
        uint64_t here = nelem - at < most ? nelem - at : most;
        FSDP_TRY(flat->codec->encode(lane, f->encoding.piece, master + at, here, amax, err));
        FSDP_TRY(flat->codec->decode(lane, param + at * elem, flat->param_dtype, f->encoding.piece,
                                     here, NULL, amax, err));
    }
    return FSDP_OK;
}

static int encode_tensor(struct fsdp *f, int flat_index, int i, const double *amax,
                         struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    size_t elem = fsdp_dtype_nbytes(flat->param_dtype);
    char *send = f->flats[flat_index].param;
    struct fsdp_box box;
    uint64_t pos;
    uint64_t nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
    const float *master = f->flats[flat_index].master + pos;

    if (!nelem)
        return FSDP_OK;
    if (amax)
        return flat->codec->encode(lane, send + pos * flat->codec->elem_nbytes, master, nelem, amax,
                                   err);
    uint64_t first = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0;
    return fsdp_cast(lane, send + gather_raw_start(flat, i) + first * elem, flat->param_dtype,
                     master, FSDP_F32, nelem, err);
}

int gather_encode(struct fsdp *f, int flat_index, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];

    for (int i = 0; i < flat->ntensors; i++) {
        const double *of = gather_is_encoded(flat, i) ? &f->encoding.amax[flat->amax[i]] : NULL;
        FSDP_TRY(flat_travels_encoded(flat) ? encode_tensor(f, flat_index, i, of, err)
                                            : encode_here(f, flat_index, i, of, err));
    }
    return FSDP_OK;
}

static int flat_amax(struct fsdp *f, int flat_index, double *row, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[flat_index];
    struct fsdp_box box;
    uint64_t pos;

    for (int i = 0; i < flat->ntensors; i++) {
        if (!gather_is_encoded(flat, i))
            continue;
        uint64_t nelem =
            fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
        FSDP_TRY(fsdp_absmax(f->lanes[SCHED_COMPUTE], &row[flat->amax[i]],
                             f->flats[flat_index].master + pos, nelem, err));
    }
    return FSDP_OK;
}

/* There is no maximum among the collectives: every shard rank of replica 0 fills its own row, and
 * the sum over all ranks brings all rows to everyone. */
int gather_amax(struct fsdp *f, bool all, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    size_t nrows = (size_t)f->mesh->shard_size;
    size_t ncols = (size_t)(all ? f->encoding.namax : f->encoding.namax_trainable);
    double *row = f->encoding.amax_rows + (size_t)f->mesh->shard_rank * ncols;

    if (!ncols)
        return FSDP_OK;
    FSDP_TRY(fsdp_zero(lane, f->encoding.amax_rows, nrows * ncols * sizeof *row, err));
    for (int k = 0; f->mesh->replicate_rank == 0 && k < f->units.nflats; k++)
        if (all || f->units.flats[k].trainable)
            FSDP_TRY(flat_amax(f, k, row, err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, f->encoding.amax_rows, f->encoding.amax_rows,
                                  nrows * ncols, FSDP_F64, lane, err));
    return fsdp_max_rows(lane, f->encoding.amax, f->encoding.amax_rows, nrows, ncols, err);
}

/* What modules see of a flat in training, where that is more than the master. */
static int write_between(struct fsdp *f, int k, const struct flat_state *s, struct fsdp_err *err)
{
    const enum fsdp_dtype dtype = f->units.flats[k].param_dtype;

    for (int r = 0; r < f->optim.nruns; r++) {
        const struct update_run *run = &f->optim.runs[r];
        struct optimizer_run args = {
            .master = s->master + run->pos,
            .param = (char *)s->param + run->pos * fsdp_dtype_nbytes(dtype),
            .param_dtype = dtype,
            .nelem = run->nelem,
            .hyper = run->hyper,
            .opts = &f->opts.optim,
        };
        if (run->flat != k)
            continue;
        slots_of_run(args.state, f, s, run, 0);
        FSDP_TRY(run->kind->gathered(f->lanes[SCHED_COMPUTE], &args, err));
    }
    return FSDP_OK;
}

/* The shard that is gathered: in evaluation the master, in training what the optimizer makes. */
static int write_gathered(struct fsdp *f, int k, bool evaluates, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[k];
    struct flat_state s;
    FSDP_TRY(offload_begin(&s, f, k, err));
    if (flat_optimizer_writes_copy(f, flat) && !evaluates)
        FSDP_TRY(write_between(f, k, &s, err));
    else
        FSDP_TRY(fsdp_cast(f->lanes[SCHED_COMPUTE], s.param, flat->param_dtype, s.master, FSDP_F32,
                           flat->cut.shard_nelem, err));
    return offload_end(f, k, err);
}

int gather_refresh(struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(gather_amax(f, true, err));
    for (int k = 0; k < f->units.nflats; k++)
        if (f->units.flats[k].codec)
            FSDP_TRY(gather_encode(f, k, err));
        else if (flat_has_separate_master(f, &f->units.flats[k]))
            FSDP_TRY(write_gathered(f, k, false, err));
    return FSDP_OK;
}

int gather_evaluates(struct fsdp *f, bool evaluates, struct fsdp_err *err)
{
    for (int k = 0; k < f->units.nflats; k++)
        if (flat_optimizer_writes_copy(f, &f->units.flats[k]))
            FSDP_TRY(write_gathered(f, k, evaluates, err));
    return FSDP_OK;
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* Vectors (norms, biases) are small, and three bits of fraction too few for them. */
static bool float8_applies(const struct fsdp_tensor *tensor)
{
    return tensor->ndim >= 2;
}

static int float8_encode(struct fsdp_lane *lane, void *dst, const float *src, size_t nelem,
                         const double *amax, struct fsdp_err *err)
{
    return fsdp_quantize(lane, dst, FSDP_F8_E4M3, src, nelem, amax, err);
}

static int float8_decode(struct fsdp_lane *lane, void *dst, enum fsdp_dtype dst_dtype,
                         const void *src, size_t nelem, const struct fsdp_pieces *pieces,
                         const double *amax, struct fsdp_err *err)
{
    struct fsdp_dequantize_args args = {.dst = dst,
                                        .dst_dtype = dst_dtype,
                                        .src = src,
                                        .src_dtype = FSDP_F8_E4M3,
                                        .nelem = nelem,
                                        .amax = amax};

    if (pieces)
        args.pieces = *pieces;
    return fsdp_dequantize(lane, &args, err);
}

const struct fsdp_gather_codec fsdp_gather_float8 = {
    .name = "F8_E4M3",
    .elem_nbytes = 1,
    .applies = float8_applies,
    .encode = float8_encode,
    .decode = float8_decode,
    .codes = FSDP_F8_E4M3,
};
