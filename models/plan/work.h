/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: what the parts of a decoder compute, as pieces of work for the clock. Pure: the same for
 * a model that is built and for one of which only dimensions are known. */
#ifndef PLAN_WORK_H
#define PLAN_WORK_H

#include "fsdp/clock.h"

enum { WORK_MAX = 32 };
struct work_list {
    struct fsdp_work item[WORK_MAX];
    int nitems;
};

/* Where a part's work is done. A head whose loss is computed in backward has all of it there. */
enum work_place { WORK_IN_LAYER, WORK_IN_HEAD };

/* y (rows, nout) = x (rows, nin) wᵀ: forward, and the gradients of x and, where it is trained, of
 * w. */
struct work_linear {
    double rows, nin, nout;
    enum fsdp_dtype type; /* of the operands */
    bool trained;
    double times; /* such products; 0: one */
};
void work_add_linear(struct work_list *list, const struct work_linear *linear,
                     enum work_place place);

/* Where the operands, which are of type `from`, are made 8-bit codes first: each is read twice, for
 * its greatest absolute value and to be encoded, and its codes are written. */
struct work_codes {
    enum fsdp_dtype from;
    bool x_is_made;          /* for a map before, which reads the same x */
    bool x_is_made_backward; /* likewise for the gradient of w */
    /* w comes in codes: they are read once, to be transposed for one of the two products that take
     * w, or to become 16-bit values for both. */
    bool w_is_codes;
};
void work_add_codes(struct work_list *list, const struct work_linear *linear,
                    const struct work_codes *codes, enum work_place place);

/* Attention from q, k and v to its output. keys: that a query sees, the mean. */
struct work_attention {
    double rows, keys, heads, head_dim;
    enum fsdp_dtype type;
};
void work_add_attention(struct work_list *list, const struct work_attention *attention);

/* Pointwise kernels that read and write so many bytes of a type in forward, and `backward` times as
 * many in backward. cheap: selective activation checkpointing repeats them. */
struct work_pass {
    enum fsdp_pass pass;
    double nbytes, backward;
    enum fsdp_dtype type;
    bool cheap;
};
void work_add_pass(struct work_list *list, const struct work_pass *pass, enum work_place place);
/* The same of copies. */
void work_add_bytes(struct work_list *list, double nbytes, double backward, bool cheap,
                    enum work_place place);

/* Bytes of backward's pointwise kernels, relative to forward's. */
#define PLAN_BACKWARD_BYTES 1.6
/* Bytes of the pointwise kernels of a part, forward, each pass over memory counted once. */
enum { WORK_ELEMS_BRANCH = 5 }; /* norm: read, write; addition to the stream: two reads, a write */
/* One branch of a layer: its norm and its addition to the stream. */
double work_branch_nbytes(double rows, double dim, enum fsdp_dtype type);
/* act(x), or act(gate) * up, of rows of `ffn` elements. */
double work_activation_nbytes(double rows, double ffn, bool gated, enum fsdp_dtype type);
/* Loss and its gradient over rows of logits. */
double work_loss_nbytes(double rows, double vocab, enum fsdp_dtype type);

#endif
