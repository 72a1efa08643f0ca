/* SPDX-License-Identifier: Apache-2.0 */
/* A save in progress. saver.c runs it, save_write.c writes one rank's files, finish.c is the
 * part of rank 0, and in staging of each node's leader. flush.c publishes with it, too. */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include "file/zst.h"
#include "util/limits.h"
#include "layout/contents.h"
#include "keep/commit.h"
#include "store/store.h"

enum { CKPT_NKINDS = 2 }; /* enum fsdp_slice_kind: a folder and a file per rank for each */

/* What a rank tells rank 0 about a box that it wrote, and about its files. */
struct ckpt_saved_piece {
    int32_t tensor, kind;
    struct fsdp_box box;
    uint64_t fingerprint_part;
};
struct ckpt_saved_file {
    uint64_t nbytes, header_nbytes; /* zero: not written */
    uint32_t crc32c, npieces;
};

struct ckpt_saver {
    const struct ckpt_save_args *args;
    struct fsdp_oob *oob;
    bool staged;      /* made in args->staging */
    bool leads;       /* makes and publishes the folder: rank 0; in staging, a rank of each */
    const char *root; /* that the folder is made in */
    const struct ckpt_store_ops *store;
    struct ckpt_commit commit; /* of its folder */
    struct ckpt_manifest
        m; /* tensors from the state layout, in its order; the same on every rank */
    struct ckpt_saved_file files[CKPT_NKINDS];
    size_t npieces, max_pieces;
    struct ckpt_saved_piece *pieces; /* of this rank, in the order of the slices */
    bool compress;
    bool made_temp, handed_over, committed;
};

/* "model" and "optim" */
const char *ckpt_kind_folder(int kind);
/* "model/shard-00001-model-00001-of-00001.safetensors", and ".zst" behind it if compressed */
char *ckpt_shard_name(int kind, int number, bool compressed, struct fsdp_err *err);
/* The number of a rank's files. They are numbered by shard: a checkpoint does not tell on how many
 * levels its ranks gathered. */
static inline int ckpt_save_number(const struct ckpt_saver *saver, int rank)
{
    const struct fsdp_state_layout *layout = saver->args->layout;
    int index = rank % layout->shard_size;
    return rank - index + fsdp_shard_of_index(index, layout->shard_size, layout->inner_size);
}

/* save_write.c: lists this rank's pieces; then writes them. Local. */
int ckpt_save_collect(struct ckpt_saver *saver, struct fsdp_err *err);
int ckpt_save_write(struct ckpt_saver *saver, struct fsdp_err *err);

/* Names the folder by step and uuid. Local. */
int ckpt_save_name(struct ckpt_saver *saver, struct fsdp_err *err);
/* Takes back what this rank did. Local. */
void ckpt_save_undo(struct ckpt_saver *saver);
/* Frees what the saver holds. */
void ckpt_save_free(struct ckpt_saver *saver);

/* finish.c. Local.
 *   choose    rank 0: root is there; are files compressed?
 *   begin     who leads: makes the folder
 *   gather    rank 0: takes what all ranks report (reports[r] begins with
 *             ckpt_saved_file[CKPT_NKINDS], then its pieces), proves coverage, copies the extras
 *   publish   who leads: writes the manifest, publishes */
int ckpt_save_choose(struct ckpt_saver *saver, struct fsdp_err *err);
int ckpt_save_begin(struct ckpt_saver *saver, struct fsdp_err *err);
int ckpt_save_gather(struct ckpt_saver *saver, const char *reports, const size_t *lens,
                     struct fsdp_err *err);
int ckpt_save_publish(struct ckpt_saver *saver, const char *manifest, size_t nbytes,
                      struct fsdp_err *err);

#endif
