/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_sizes.h: how much memory the operators on CUDA take, without CUDA: what plans of memory for
 * a GPU that is not here are made of. models/nn/cuda takes its own sizes from here.
 */
#ifndef NN_CUDA_SIZES_H
#define NN_CUDA_SIZES_H

#include "nn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nn_product;
struct nn_matrix;

enum {
    /* Scratch memory of the lane that computes, outside what is planned. */
    NN_CUDA_SCRATCH_NBYTES = 64 << 20,
    NN_CUDA_LOGITS_NELEM = 512 << 20, /* nn_ops.logits_nelem */
    NN_CUDA_LOGITS_ALIGN = 64         /* nn_ops.logits_align */
};

/* ---- products -------------------------------------------------------------------------------- */

/* Of an F32 with a 16-bit matrix: the F32 one is taken in two 16-bit halves. Its shape as it lies,
 * how far apart the halves' rows lie, at multiples of 16 bytes, where tensor cores read fast, and
 * the elements of a half. */
struct nn_cuda_half {
    int nrows, ncols, ld;
    size_t nelem;
};
bool nn_cuda_is_mixed(const struct nn_product *g);
struct nn_cuda_half nn_cuda_half_of(const struct nn_product *g);
/* Of products in 8 bits, the first elements of work are the greatest absolute values, as bits, of
 * the operand that lies first and of the other one, and their scales, where each has one. */
enum { NN_CUDA_F8_CELLS = 64, NN_CUDA_F8_SCALE = 2 };
/* An operand whose elements were rounded to 8 bits, as bf16: its shape as it lies, in how many
 * lines the product sums, and its place in work, behind the cells: `amax` elements for the greatest
 * absolute values of lines, `scales` for scales of lines or blocks, then the matrix of `nelem`. All
 * are multiples of 64 elements of fp32. Codes take the first half of the matrix. */
struct nn_cuda_f8_place {
    int nrows, ncols, ld, nlines;
    size_t amax, scales, nelem;
};
/* Of operand b, or of a. */
struct nn_cuda_f8_place nn_cuda_f8_place(const struct nn_product *g, bool of_b);
/* The place that lies first in work, then the other one. */
struct nn_cuda_f8_place nn_cuda_f8_place_at(const struct nn_product *g, int at);
static inline size_t nn_cuda_f8_place_nelem(const struct nn_cuda_f8_place *p)
{
    return p->amax + p->scales + p->nelem;
}
/* Scales of blocks are bytes, exponents with 127 added, of tiles of so many lines and so many
 * successive blocks of a line: the layout that cuBLASLt documents for them. How many bytes an
 * operand's take, with the rest of its last tiles. */
enum { NN_CUDA_F8_TILE_LINES = 128, NN_CUDA_F8_TILE_BLOCKS = 4 };
size_t nn_cuda_f8_scales_nbytes(int nlines, int nsum);
/* The product in bf16 of operands that were rounded so, with the places in its work. */
struct nn_product nn_cuda_f8_decoded(const struct nn_product *g);
/* The type in which the products run. */
enum fsdp_dtype nn_cuda_narrow_of(const struct nn_product *g);
/* Is the output one that cuBLASLt cannot give, so that it is made in F32 first? */
bool nn_cuda_needs_store(const struct nn_product *g);
/* nn_ops.linear_work_nelem, nn_ops.grouped_work_nelem */
size_t nn_cuda_linear_work_nelem(const struct nn_linear *shape);
size_t nn_cuda_grouped_work_nelem(const struct nn_grouped *shape);

/* Where experts have few rows each, their products are one launch, and the host need not know how
 * many: one expert's product would not fill a GPU. Large ones are faster by cuBLASLt. Mixed types
 * that are not in 8 bits are always its products; the host then waits for the rows of small groups
 * at each product. */
enum { NN_CUDA_SMALL_GROUP = 512 };
static inline bool nn_cuda_groups_are_small(int nplaces, int experts)
{
    return nplaces <= NN_CUDA_SMALL_GROUP * experts;
}

/* Rows of an expert's product of codes beyond a multiple of these are a product of their own. */
enum { NN_CUDA_F8_TAIL = 16 };
/* Work of experts' products in 8 bits, behind NN_CUDA_F8_CELLS: x or dy of all places, and w of all
 * experts, or for the gradient of w the other one of x and dy, as bf16. Then what a product is made
 * in that is stored in another type. Elements of fp32, multiples of 64. */
struct nn_cuda_grouped_room {
    size_t x, dy, w, product;
};
struct nn_cuda_grouped_room nn_cuda_grouped_room(const struct nn_grouped *a);
/* Elements of bf16 from one expert's matrix to the next, for aligned reads. */
static inline size_t nn_cuda_grouped_w_stride(const struct nn_grouped *a)
{
    return ((size_t)a->nin * (size_t)a->nout + 7) / 8 * 8;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* By plain kernels: delta (B, NH, Tq), and dq in the type of q behind it. */
size_t nn_cuda_attention_delta_nelem(const struct nn_attention *shape);
size_t nn_cuda_plain_attention_work_nelem(const struct nn_attention *shape);

/* What FSDP_CUDA_ATTENTION says. */
enum nn_cuda_attention { NN_CUDA_CUDNN, NN_CUDA_DETERMINISTIC, NN_CUDA_PLAIN };
enum nn_cuda_attention nn_cuda_attention_chosen(void);
/* Of messages where cuDNN's attention is not used: what that costs, by the model of an 8B Llama on
 * an H100 with rows of 4096 positions. */
#define NN_CUDA_SLOW                                                                               \
    "plain kernels, without tensor cores (modelled: 40 times cuDNN's time, 5 times an 8B's step)"
/* Reasons for them that were told, to tell each once; zeros at first. */
struct nn_cuda_reasons {
    const char *told[16];
    int ntold;
};
/* Adds why, a constant text, or NULL for none, unless it is there or 16 are. Was it added? Any
 * thread. */
bool nn_cuda_add_reason(struct nn_cuda_reasons *to, const char *why);
/* Why cuDNN's plans do not take this shape on a GPU of this compute capability (90: 9.0), in both
 * directions; NULL: they do. Packed: plans for several documents in a row. Static. */
const char *nn_cuda_beyond_cudnn(const struct nn_attention *shape, bool packed, int capability);

/* Plans for packed documents are for so many of them, a power of two; what it has more than the
 * batch are documents of no positions. Plans are made for the steps from the one of shape->B
 * documents to that of shape->documents. */
int nn_cuda_documents_step(int documents);

/* What a plan of cuDNN is made for besides the shape. */
struct nn_cuda_way {
    bool deterministic;
    int documents; /* of packed plans; 0: rows are sequences */
    bool drops;
};
/* Bytes of the pieces of work of cuDNN's backward plan for B sequences of T, in the order in which
 * they lie, each a multiple of 256: seeds of dropout, one of the tables of packed documents, sums
 * of d_o o, dq in
 * fp32, gradients that cannot take the place of q, k and v while the kernel reads them, those of
 * keys and values for each head of q, where packed documents share keys among heads, and cuDNN's
 * workspace. */
enum { NN_CUDA_NTABLES = 4 };
struct nn_cuda_room {
    size_t seeds, table, delta, accum, dq, dk, dv, dk_heads, dv_heads, workspace;
};
struct nn_cuda_room nn_cuda_room_of(const struct nn_attention *shape, struct nn_cuda_way way,
                                    size_t workspace_nbytes);
/* Sequences at once: deterministic plans are for one. */
int nn_cuda_room_rows(const struct nn_attention *shape, struct nn_cuda_way way);
/* Elements of work of plans with these workspaces. */
size_t nn_cuda_cudnn_work_nelem(const struct nn_attention *shape, struct nn_cuda_way way,
                                size_t forward_nbytes, size_t backward_nbytes);
/* The workspace that cuDNN asks for, by what 9.19 was asked for GPUs that were described to it
 * (tests/simt/cudnn_plans.sh): on compute capability 9.0 to the byte, on others to 256 bytes for
 * heads of 16 elements or more. Local. */
size_t nn_cuda_cudnn_workspace(const struct nn_attention *shape, struct nn_cuda_way way,
                               bool backward, int capability);

/* ---- operators of a GPU that is described ---------------------------------------------------- */

/* Sizes are those of a GPU of this compute capability (90: 9.0) with cuDNN; nothing can be called,
 * as a described device has no memory. In described.c, which libfsdp-cuda.so does without. */
const struct nn_ops *nn_cuda_described_ops(int capability);

#ifdef __cplusplus
}
#endif
#endif
