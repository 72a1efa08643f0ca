/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective load: every rank reads its own boxes; then all prove together that what they read
 * is what was saved.
 *
 * The CRC of a whole tensor is the xor of what its parts contribute, so ranks exchange 8 bytes per
 * tensor and replica. A tensor that the ranks did not read exactly once cannot be judged so; the
 * files that hold it are then checked whole.
 */
#include <string.h>

#include "util/crc.h"
#include "source/format_ops.h"

enum { EXCHANGE_NTENSORS = 1024 };

/* What one rank read of a tensor. */
struct share {
    uint64_t part, nelem;
    int32_t replica, wanted;
};

struct loader {
    struct ckpt *ckpt;
    const struct ckpt_load_args *args;
    struct fsdp_oob *oob;
    struct ckpt_buffers buffers;
    struct share *shares; /* [ntensors] */
    bool *suspect;        /* [nfiles] to be checked whole */
};

static int load_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct loader *l = ctx;
    int tensor = -1;

    if (kind == FSDP_SLICE_OPTIM && !l->args->optim)
        return FSDP_OK;
    if (l->args->replica >= 0 && slice->nreplica > 1 && slice->replica != l->args->replica)
        return FSDP_OK;
    FSDP_TRY(ckpt_slice_match(&tensor, l->ckpt, slice, err));
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    struct share *share = &l->shares[tensor];
    share->wanted = 1;
    if (!nelem)
        return FSDP_OK;
    /* A second slice of a tensor (an alias, another replica) spoils the sum: more elements than
     * there are. */
    share->nelem += nelem;
    share->replica = slice->replica;
    return ckpt_slice_read(l->ckpt, tensor, slice, io, &l->buffers, &share->part, err);
}

static int load_mine(struct loader *l, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &l->ckpt->m.layout;
    if (l->args->version != CKPT_LOAD_ARGS_VERSION || !l->args->slices)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_load: bad arguments");
    size_t most = CKPT_MIN_BLOCK_NBYTES;
    for (int i = 0; i < layout->ntensors && most < CKPT_BLOCK_NBYTES; i++) {
        const struct fsdp_tensor *t = &layout->tensors[i].tensor;
        uint64_t nbytes = fsdp_tensor_nelem(t) * fsdp_dtype_nbytes(t->dtype);
        nbytes = nbytes < CKPT_BLOCK_NBYTES ? nbytes : CKPT_BLOCK_NBYTES;
        most = nbytes > most ? (size_t)nbytes : most;
    }
    FSDP_TRY(ckpt_buffers_create(&l->buffers, most, err));
    l->shares = fsdp_alloc((size_t)layout->ntensors, sizeof *l->shares, "load shares", err);
    l->suspect = fsdp_alloc((size_t)layout->nfiles, sizeof *l->suspect, "load files", err);
    if (!l->shares || !l->suspect)
        return FSDP_ENOMEM;
    return l->args->slices(l->args->slices_ctx, load_slice, l, err);
}

/* Elements that a replica read of a tensor, and the CRC of these parts; r: the replica's first
 * rank.
 */
static uint64_t sum_replica(uint64_t *sum, const struct share *shares, size_t stride, int nranks,
                            int r)
{
    const int replica = shares[(size_t)r * stride].replica;
    uint64_t nelem = 0;

    *sum = 0;
    for (int q = r; q < nranks; q++) {
        const struct share *share = &shares[(size_t)q * stride];
        if (!share->nelem || share->replica != replica)
            continue;
        *sum ^= share->part;
        nelem += share->nelem;
    }
    return nelem;
}

static bool is_first_of_replica(const struct share *shares, size_t stride, int r)
{
    for (int q = 0; q < r; q++)
        if (shares[(size_t)q * stride].nelem &&
            shares[(size_t)q * stride].replica == shares[(size_t)r * stride].replica)
            return false;
    return shares[(size_t)r * stride].nelem > 0;
}

/* Tells the caller of a tensor that was read whole. */
static void tell_whole(const struct loader *l, const struct share *shares, size_t stride,
                       const struct ckpt_tensor *tensor)
{
    uint64_t sum;

    for (int r = 0; l->args->whole && r < l->oob->size; r++) {
        if (!is_first_of_replica(shares, stride, r))
            continue;
        if (sum_replica(&sum, shares, stride, l->oob->size, r) ==
            fsdp_tensor_nelem(&tensor->tensor))
            l->args->whole(l->args->whole_ctx, tensor->tensor.name, sum);
        return;
    }
}

/* Judges a tensor by all ranks' shares; sets *actual if its fingerprint is wrong. */
enum verdict { UNREAD, GOOD, DAMAGED, UNKNOWN };

static enum verdict judge_tensor(uint64_t *actual, const struct share *shares, size_t stride,
                                 int nranks, const struct ckpt_tensor *tensor)
{
    uint64_t total = fsdp_tensor_nelem(&tensor->tensor);
    enum verdict verdict = UNREAD;

    for (int r = 0; r < nranks; r++) {
        uint64_t sum;
        if (!is_first_of_replica(shares, stride, r))
            continue;
        if (sum_replica(&sum, shares, stride, nranks, r) != total)
            return UNKNOWN;
        if (sum != tensor->fingerprint) {
            *actual = sum;
            return DAMAGED;
        }
        verdict = GOOD;
    }
    return verdict;
}

/* Where pieces have checksums of their own. */
static enum verdict was_read(const struct share *shares, size_t stride, int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (shares[(size_t)r * stride].nelem)
            return UNKNOWN;
    return UNREAD;
}

/* All ranks judge all tensors alike. *damaged: the first damaged tensor, -1 if none. */
static int judge_all(struct loader *l, int *damaged, uint64_t *actual, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &l->ckpt->m.layout;
    size_t most =
        (size_t)layout->ntensors < EXCHANGE_NTENSORS ? (size_t)layout->ntensors : EXCHANGE_NTENSORS;
    struct share *all = fsdp_alloc((size_t)l->oob->size * most, sizeof *all, "load shares", err);
    int rc = fsdp_oob_agree(l->oob, all ? FSDP_OK : FSDP_ENOMEM, err);

    bool by_piece = l->ckpt->format->check_piece;
    *damaged = -1;
    for (int from = 0; rc == FSDP_OK && from < layout->ntensors; from += EXCHANGE_NTENSORS) {
        int left = layout->ntensors - from;
        size_t count = (size_t)(left < EXCHANGE_NTENSORS ? left : EXCHANGE_NTENSORS);
        rc = l->oob->allgather(l->oob, &l->shares[from], count * sizeof *all, all, err);
        for (size_t i = 0; rc == FSDP_OK && i < count; i++) {
            const struct ckpt_tensor *tensor = &layout->tensors[from + (int)i];
            uint64_t sum;
            tell_whole(l, &all[i], count, tensor);
            enum verdict verdict = tensor->has_fingerprint
                                       ? judge_tensor(&sum, &all[i], count, l->oob->size, tensor)
                                   : by_piece ? was_read(&all[i], count, l->oob->size)
                                              : GOOD;
            if (verdict == DAMAGED && *damaged < 0) {
                *damaged = from + (int)i;
                *actual = sum;
            }
            for (size_t p = layout->first[from + (int)i];
                 verdict == UNKNOWN && p < layout->first[from + (int)i + 1]; p++)
                l->suspect[layout->pieces[p].file] = true;
        }
    }
    fsdp_free(all);
    return rc;
}

/* Of a file whose pieces have checksums: those of the tensors that were asked for. */
static int check_pieces(struct loader *l, int file, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &l->ckpt->m.layout;
    for (size_t p = 0; p < layout->npieces; p++)
        if (layout->pieces[p].file == file &&
            (l->args->optim || layout->tensors[layout->pieces[p].tensor].kind == FSDP_SLICE_MODEL))
            FSDP_TRY(l->ckpt->format->check_piece(l->ckpt, p, err));
    return FSDP_OK;
}

/* The suspect files, shared out among the ranks. */
static int check_suspects(struct loader *l, struct fsdp_err *err)
{
    int turn = 0;
    for (int i = 0; i < l->ckpt->m.layout.nfiles; i++) {
        bool bad = false;
        if (!l->suspect[i] || turn++ % l->oob->size != l->oob->rank)
            continue;
        if (l->ckpt->format->check_piece) {
            FSDP_TRY(check_pieces(l, i, err));
            continue;
        }
        FSDP_TRY(ckpt_file_check(&bad, NULL, l->ckpt, i, err));
        for (int t = 0; bad && t < l->ckpt->m.layout.ntensors; t++) {
            const struct ckpt_layout *layout = &l->ckpt->m.layout;
            for (size_t p = layout->first[t]; l->shares[t].wanted && p < layout->first[t + 1]; p++)
                if (layout->pieces[p].file == i)
                    return fsdp_err_set(err, FSDP_ECORRUPT,
                                        "tensor '%s': the checksum of its file "
                                        "'%s/%s' is wrong",
                                        layout->tensors[t].tensor.name, l->ckpt->path,
                                        layout->files[i].path);
        }
        if (bad)
            return fsdp_err_set(err, FSDP_ECORRUPT, "'%s/%s': its checksum is wrong", l->ckpt->path,
                                l->ckpt->m.layout.files[i].path);
    }
    return FSDP_OK;
}

static int run_load(struct loader *l, struct fsdp_err *err)
{
    int damaged, rc = FSDP_OK;
    uint64_t actual = 0;

    rc = load_mine(l, err);
    if (rc == FSDP_OK)
        rc = ckpt_unchanged(l->ckpt, err);
    FSDP_TRY(fsdp_oob_agree(l->oob, rc, err));
    FSDP_TRY(judge_all(l, &damaged, &actual, err));
    if (damaged >= 0 && l->oob->rank == 0)
        rc = ckpt_fingerprint_blame(l->ckpt, damaged, actual, err);
    else if (damaged < 0)
        rc = check_suspects(l, err);
    return fsdp_oob_agree(l->oob, rc, err);
}

static bool is_alias(const struct ckpt_load_args *args, const char *name)
{
    for (int i = 0; i < args->naliases; i++)
        if (!strcmp(name, args->aliases[i].name))
            return true;
    return false;
}

/* Weights that the run does not have, said by one rank. */
static void tell_unused(const struct loader *l)
{
    const struct ckpt_layout *layout = &l->ckpt->m.layout;

    for (int i = 0; l->oob->rank == 0 && i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        if (t->kind == FSDP_SLICE_MODEL && !l->shares[i].wanted &&
            !is_alias(l->args, t->tensor.name))
            fsdp_log(FSDP_LOG_WARN, "tensor '%s' of '%s' is not used", t->tensor.name,
                     l->ckpt->path);
    }
}

int ckpt_load(struct ckpt *ckpt, const struct ckpt_load_args *args, struct fsdp_oob *oob,
              struct fsdp_err *err)
{
    struct loader l = {.ckpt = ckpt, .args = args, .oob = oob};
    struct fsdp_err local = FSDP_ERR_INIT;
    ckpt_warn_unread(ckpt);
    int rc = run_load(&l, &local);

    if (rc == FSDP_OK && !args->some)
        tell_unused(&l);
    ckpt_buffers_destroy(&l.buffers);
    fsdp_free(l.shares);
    fsdp_free(l.suspect);
    if (rc)
        fsdp_err_pass(err, rc, &local);
    return rc;
}
