/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing what torch.distributed.checkpoint reads. Pure: these functions make bytes, the caller
 * puts them into files.
 *
 * A data file (`__R_0.distcp`, R = rank) is blobs, each at a multiple of CKPT_DCP_ALIGN:
 *
 *     | head | the box's elements, row-major | tail |  padding  | head | ...
 *     ^ pos                                         ^ pos + blob nbytes
 *
 * All sizes are known before any data is; only the tail holds the data's CRC-32, which may be put
 * together from pieces in any order (ckpt_crc32_shift of crc.h). The checkpoint is complete when
 * `.metadata` is in the folder: write it last. Use:
 *
 *     struct ckpt_dcp_meta *meta;
 *     ckpt_dcp_meta_create(&meta, err);
 *     for each tensor:
 *         t = ckpt_dcp_meta_tensor(meta, &tensor, role, stored, err)       its index, or < 0
 *         for each box of it, in file `name` at `pos`:
 *             ckpt_dcp_blob_measure(&blob, dtype, box.length, ndim)
 *             ckpt_dcp_meta_box(meta, t, &box, name, pos, err)
 *             pos = the next multiple of CKPT_DCP_ALIGN after pos + blob.nbytes
 *     ckpt_dcp_meta_alias(meta, "lm_head.weight", t, err)                  tied names
 *     ckpt_dcp_meta_train(&file, &nbytes, meta, "__0_1.distcp", &train, err)
 *                         counters and parameter groups: a small file to write as it is
 *     ckpt_dcp_meta_format(&metadata, &nbytes, meta, err)
 *     ckpt_dcp_meta_free(meta)
 *
 *     and for each box: ckpt_dcp_blob_head (tagged) -> at pos; the data at pos + blob.head_nbytes;
 *     ckpt_dcp_blob_tail with the data's CRC-32 -> write behind it.
 *
 * A rank without boxes needs no file. Several boxes of a tensor may lie in one file.
 */
#ifndef CKPT_DCP_WRITE_H
#define CKPT_DCP_WRITE_H

#include "ckpt/ckpt.h"

#define CKPT_DCP_ALIGN 64
#define CKPT_DCP_TAG_NBYTES 24

struct ckpt_dcp_blob {
    uint64_t head_nbytes, data_nbytes, tail_nbytes;
    uint64_t nbytes; /* their sum */
};

/* Of a box of `length`. The dtype is one that torch can store (ckpt_dcp_dtype_check). */
int ckpt_dcp_blob_measure(struct ckpt_dcp_blob *out, enum fsdp_dtype dtype, const uint64_t *length,
                          int ndim, struct fsdp_err *err);
/* What a blob at `pos` of `file` (a plain name) is called inside: the folder of its archive, which
 * torch ignores. A blob that was put into another file or at another place is recognized by it. */
struct ckpt_dcp_tag {
    char text[CKPT_DCP_TAG_NBYTES];
};
struct ckpt_dcp_tag ckpt_dcp_tag_of(const char *file, uint64_t pos);
/* Is the folder [nbytes] a tag? torch's own archives all have the folder `archive`. */
bool ckpt_dcp_tag_is(const char *folder, size_t nbytes);

/* *out, of *out_nbytes, is freed with fsdp_free. */
int ckpt_dcp_blob_head(char **out, size_t *out_nbytes, const struct ckpt_dcp_tag *tag,
                       enum fsdp_dtype dtype, const uint64_t *length, int ndim,
                       struct fsdp_err *err);
int ckpt_dcp_blob_tail(char **out, size_t *out_nbytes, const struct ckpt_dcp_tag *tag,
                       enum fsdp_dtype dtype, const uint64_t *length, int ndim, uint32_t crc32,
                       struct fsdp_err *err);

struct ckpt_dcp_meta;
int ckpt_dcp_meta_create(struct ckpt_dcp_meta **out, struct fsdp_err *err);
void ckpt_dcp_meta_free(struct ckpt_dcp_meta *meta);

/* Returns the tensor's index, or a negative status. tensor->name is the name here: weights go into
 * the container `model`, `state.<parameter>.<name>` (CKPT_ROLE_OPTIM) into `optim`; the rest keeps
 * its stored name (CKPT_ROLE_OTHER). `stored` (NULL: none) is the name that the source used: a
 * torch checkpoint without containers stays without. */
int ckpt_dcp_meta_tensor(struct ckpt_dcp_meta *meta, const struct fsdp_tensor *tensor,
                         enum ckpt_role role, const char *stored, struct fsdp_err *err);
/* The blob of `box` is at `pos` of `file` (a plain name). Empty boxes may be left out. */
int ckpt_dcp_meta_box(struct ckpt_dcp_meta *meta, int tensor, const struct fsdp_box *box,
                      const char *file, uint64_t pos, struct fsdp_err *err);
/* Another name of a weight: the same blobs under both. After the tensor's boxes. */
int ckpt_dcp_meta_alias(struct ckpt_dcp_meta *meta, const char *name, int tensor,
                        struct fsdp_err *err);

/* What torch's optimizers keep and a native checkpoint has in its manifest. */
struct ckpt_dcp_train {
    int64_t step;           /* -1: not known, nothing is written */
    const char *state_json; /* of the source, or NULL: hyperparameters, a torch source's values */
    bool optim;             /* the checkpoint has optimizer tensors */
    bool whole;             /* it is all of the source: of an SGD without momentum, too */
};
/* Adds, for each tensor of role MODEL that has optimizer tensors, optim.state.<name>.step (of its
 * own updates, where state_json has moments_since), or for SGD a value `step`; the parameter
 * groups; and the Python values that a torch source had. *out is the whole file `file` that holds
 * them, freed with fsdp_free; *out_nbytes = 0: there is nothing to write. After all tensors. */
int ckpt_dcp_meta_train(char **out, size_t *out_nbytes, struct ckpt_dcp_meta *meta,
                        const char *file, const struct ckpt_dcp_train *train, struct fsdp_err *err);

/* The bytes of .metadata; *out is freed with fsdp_free. */
int ckpt_dcp_meta_format(char **out, size_t *out_nbytes, const struct ckpt_dcp_meta *meta,
                         struct fsdp_err *err);

#endif
