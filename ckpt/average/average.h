/* SPDX-License-Identifier: Apache-2.0 */
/* An average as those use it who read tensors. Stored tensors are those of the first checkpoint. */
#ifndef CKPT_AVERAGE_READ_H
#define CKPT_AVERAGE_READ_H

#include "ckpt/average.h"
#include "source/source.h"

/* Finds a stored tensor in all checkpoints. FSDP_EMISMATCH names the tensor, and the checkpoint
 * that lacks it or has it in another shape. Before it is read. */
int ckpt_average_take(struct ckpt_average *a, int stored, struct fsdp_err *err);
/* FSDP_EMISMATCH names a tensor of another checkpoint that is wanted and that the first lacks. */
typedef bool ckpt_average_wanted_f(const void *ctx, const struct ckpt_tensor *t);
int ckpt_average_check_rest(const struct ckpt_average *a, ckpt_average_wanted_f *wanted,
                            const void *ctx, struct fsdp_err *err);
/* Does it hold of a pair of stored tensors in every checkpoint? After both were taken. */
typedef bool ckpt_average_pair_f(const struct ckpt *ckpt, int one, int other);
bool ckpt_average_every(const struct ckpt_average *a, ckpt_average_pair_f *holds, int one,
                        int other);
/* The weight of checkpoint i in the order of the paths; 1 where all are equal. */
double ckpt_average_weight(const struct ckpt_average *a, int i);
/* Bytes of an element of a stored tensor, in all checkpoints together. After it was taken. */
uint64_t ckpt_average_elem_nbytes(const struct ckpt_average *a, int stored);
/* Adds to a hash which checkpoints they are, and their weights; in whatever order they were given.
 */
uint64_t ckpt_average_hash(const struct ckpt_average *a, uint64_t hash);

struct ckpt_average_dst {
    void *dst; /* row-major: doubles, of other tensors than floating ones the stored type */
    void *scratch;
    size_t scratch_nbytes; /* at least CKPT_MIN_BLOCK_NBYTES */
    /* They will be rounded to float, and then to a type of fewer bits. The values are such that
     * both roundings together are one. */
    bool narrow;
    uint64_t *sum; /* gets the box's part of the joint fingerprint added */
};
/* A box of a stored tensor. Tensors that are not floating must be equal in all; FSDP_EMISMATCH
 * names one that is not. Thread safe. Blocks. */
int ckpt_average_read(const struct ckpt_average_dst *to, struct ckpt_average *a, int stored,
                      const struct fsdp_box *box, struct fsdp_err *err);
/* The joint fingerprint of a stored tensor, of all checkpoints that have one; false: none has. */
bool ckpt_average_fingerprint(uint64_t *out, const struct ckpt_average *a, int stored);
/* The error for a tensor whose joint fingerprint is another: finds the damaged checkpoint and file.
 */
int ckpt_average_blame(struct ckpt_average *a, int stored, struct fsdp_err *err);
/* None of the others than the first has changed. */
int ckpt_average_unchanged(struct ckpt_average *a, struct fsdp_err *err);
/* After the last read: what the formats still check of the others than the first, and that none of
 * them has changed. */
int ckpt_average_finish(struct ckpt_average *a, struct fsdp_err *err);

#endif
