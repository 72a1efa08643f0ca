/* SPDX-License-Identifier: Apache-2.0 */
/* The layout: which tensors there are, which boxes of them are stored, and where their bytes are.
 * Every format reader gives one; the planner takes one. */
#ifndef CKPT_LAYOUT_H
#define CKPT_LAYOUT_H

#include "ckpt/ckpt.h"
#include "util/pool.h"

struct ckpt_layout_file {
    char *path;                     /* relative to the checkpoint */
    uint64_t nbytes, header_nbytes; /* as it is stored; of what it holds */
    uint32_t crc32c;
    bool has_crc;
};

/* A box whose bytes lie row-major and contiguous in a file, or in an archive in a file. */
struct ckpt_piece {
    int tensor, file;
    const uint64_t *offset, *length; /* [ndim] each, of the layout: the box */
    uint64_t pos;                    /* first byte in the file; of the blob, where there is one */
    uint64_t blob_nbytes; /* a torch.save archive holds the bytes (blob.h); 0: they lie bare */
    uint64_t reach; /* largest end in dimension 0 of this and all pieces of the tensor before it */
};

struct ckpt_layout {
    int ntensors;
    size_t max_tensors;
    struct ckpt_tensor *tensors;
    struct ckpt_pool names; /* of tensors */
    int nfiles;
    size_t max_files;
    struct ckpt_layout_file *files;
    size_t npieces, max_pieces;
    struct ckpt_pool dims;     /* of pieces */
    struct ckpt_piece *pieces; /* sorted by tensor, then offset, once sealed */
    size_t *first;             /* [ntensors + 1] first piece of each tensor */
    size_t nslots;             /* a power of two */
    int *slots;                /* tensors by their names' hash: index + 1; 0: free */
};

/* Each copies what it is given. Their indices count up from 0. */
int ckpt_layout_add_tensor(struct ckpt_layout *layout, const struct fsdp_tensor *tensor,
                           enum fsdp_slice_kind kind, struct fsdp_err *err);
/* Copies all but the names: `stored` and tensor->name, which may be its end, are of layout->names.
 */
int ckpt_layout_add_stored(struct ckpt_layout *layout, const struct fsdp_tensor *tensor,
                           const char *stored, enum fsdp_slice_kind kind, struct fsdp_err *err);
int ckpt_layout_add_file(struct ckpt_layout *layout, const char *path, uint64_t nbytes,
                         struct fsdp_err *err);
/* Room for so many in all: growing step by step touches three times the memory. */
int ckpt_layout_reserve_tensors(struct ckpt_layout *layout, size_t ntensors, struct fsdp_err *err);
int ckpt_layout_reserve_pieces(struct ckpt_layout *layout, size_t npieces, struct fsdp_err *err);
/* Copies the box. Empty ones are dropped. */
int ckpt_layout_add_piece(struct ckpt_layout *layout, const struct ckpt_piece *piece,
                          struct fsdp_err *err);
/* After the last tensor: makes ckpt_layout_find work; refuses two tensors of one name. */
int ckpt_layout_index(struct ckpt_layout *layout, struct fsdp_err *err);
/* -1 if there is none. */
int ckpt_layout_find(const struct ckpt_layout *layout, const char *name);
/* Looks at `near` first: lists of the same tensors mostly have one order. */
int ckpt_layout_find_near(const struct ckpt_layout *layout, const char *name, int near);
/* After the last piece: sorts the pieces and proves that they tile every tensor: no hole, no
 * overlap. The error names tensor, file and range. O(n log n) for cuts along dimensions. */
int ckpt_layout_seal(struct ckpt_layout *layout, struct fsdp_err *err);
void ckpt_layout_free(struct ckpt_layout *layout);

struct fsdp_box ckpt_piece_box(const struct ckpt_piece *piece, int ndim);

/* coverage.c: do the pieces tile the tensor? Reorders `order` (indices of npieces pieces). */
int ckpt_coverage_prove(const struct ckpt_layout *layout, int tensor, size_t *order, size_t npieces,
                        struct fsdp_err *err);

/* "[0:4, 8:16]" into out. */
void ckpt_box_text(char *out, size_t out_nbytes, const struct fsdp_box *box, int ndim);
struct fsdp_box ckpt_box_whole(const struct fsdp_tensor *tensor);
/* The largest box that begins at element `at` of the rows [row, row + nrows) of a tensor, is
 * contiguous in them, and has at most most_nelem elements (at least one). Returns how many. */
uint64_t ckpt_box_run(struct fsdp_box *out, const struct fsdp_tensor *tensor, uint64_t row,
                      uint64_t nrows, uint64_t at, uint64_t most_nelem);
/* The part of a box that replica `replica` of nreplica writes: an even share of its rows. A scalar
 * goes to replica 0. Returns its number of elements. */
uint64_t ckpt_replica_part(struct fsdp_box *out, const struct fsdp_box *box, int ndim, int replica,
                           int nreplica);

#endif
