/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn_mirror.h: operators of a device whose memory the host does not see, for suites that know host
 * memory alone. Every call copies what its pointers point to, runs the operator there, waits, and
 * copies it all back. Pieces of memory end where their allocation does, so that what reaches past
 * the end is seen where anything sees it.
 */
#ifndef NN_MIRROR_H
#define NN_MIRROR_H

#include "suite.h"

enum { MIRROR_MOST = 16, MIRROR_PAGE = 4096 };

struct mirror_piece {
    void *host; /* NULL: unused */
    char *base, *at;
    size_t nbytes, pages_nbytes;
    bool back;
};

static struct {
    const struct nn_ops *ops;
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct mirror_piece piece[MIRROR_MOST]; /* memory stays for later calls */
} mirror;

static inline void mirror_must(int rc)
{
    if (rc) {
        diag("%s", err.text);
        abort();
    }
}

/* Unused memory of that size, or the last that is unused. */
static inline struct mirror_piece *mirror_free_piece(size_t pages_nbytes)
{
    struct mirror_piece *unused = NULL;
    for (int i = 0; i < MIRROR_MOST; i++)
        if (!mirror.piece[i].host) {
            unused = &mirror.piece[i];
            if (unused->pages_nbytes == pages_nbytes)
                return unused;
        }
    fsdp_device_free(mirror.device, unused->base);
    unused->base = fsdp_device_alloc(mirror.device, pages_nbytes, "mirror", &err);
    unused->pages_nbytes = pages_nbytes;
    mirror_must(unused->base ? FSDP_OK : FSDP_ENOMEM);
    return unused;
}

/* The device's copy of host memory; the same one for the same memory. */
static inline void *mirror_up(const void *host, size_t nbytes, bool back)
{
    if (!host || !nbytes)
        return NULL;
    for (int i = 0; i < MIRROR_MOST; i++)
        if (mirror.piece[i].host == host) {
            mirror.piece[i].back |= back;
            return mirror.piece[i].at;
        }
    const size_t pages = (nbytes + MIRROR_PAGE - 1) / MIRROR_PAGE * MIRROR_PAGE;
    struct mirror_piece *p = mirror_free_piece(pages);
    p->host = (void *)(uintptr_t)host;
    p->at = p->base + (pages - nbytes);
    p->nbytes = nbytes;
    p->back = back;
    mirror_must(fsdp_copy(mirror.lane, p->at, p->host, nbytes, &err));
    return p->at;
}

/* Scratch memory is NaN before a call, unless the call may read what the one before left there. */
static inline void *mirror_work(const void *host, size_t nelem, bool is_kept)
{
    if (host && !is_kept)
        memset((void *)(uintptr_t)host, 0xff, nelem * sizeof(float));
    return mirror_up(host, nelem * sizeof(float), true);
}

static inline int mirror_down(int rc)
{
    for (int i = 0; i < MIRROR_MOST && !rc; i++)
        if (mirror.piece[i].host && mirror.piece[i].back)
            rc = fsdp_copy(mirror.lane, mirror.piece[i].host, mirror.piece[i].at,
                           mirror.piece[i].nbytes, &err);
    rc = rc ? rc : fsdp_lane_sync(mirror.lane, &err);
    for (int i = 0; i < MIRROR_MOST; i++)
        mirror.piece[i].host = NULL;
    if (rc)
        diag("%s", err.text);
    return rc;
}

static inline size_t mirror_nbytes(size_t nelem, enum fsdp_dtype dtype)
{
    return nelem * fsdp_dtype_nbytes(dtype);
}

/* a.FIELD of a copy becomes the device's: nelem of a type; OUT comes back. */
#define MIRROR_IN(field, nelem, dtype) a.field = mirror_up(a.field, mirror_nbytes(nelem, dtype), 0)
#define MIRROR_OUT(field, nelem, dtype) a.field = mirror_up(a.field, mirror_nbytes(nelem, dtype), 1)
/* Defines mirror_NAME, whose body fits the copy `a`. */
#define MIRROR(name, type, body)                                                                   \
    static int mirror_##name(struct fsdp_lane *lane, const struct type *args,                      \
                             struct fsdp_err *failure)                                             \
    {                                                                                              \
        struct type a = *args;                                                                     \
        (void)lane;                                                                                \
        body return mirror_down(mirror.ops->name(mirror.lane, &a, failure));                       \
    }

static inline size_t area(int rows, int cols)
{
    return (size_t)rows * (size_t)cols;
}

static inline void mirror_linear_work(struct nn_linear *p)
{
    p->work = mirror_work(p->work, mirror.ops->linear_work_nelem(p),
                          p->after_weight || (p->made && *p->made));
}

/* A weight up to element nelem, which may be codes. */
#define MIRROR_WEIGHT(nelem)                                                                       \
    do {                                                                                           \
        a.w = mirror_up(a.w, a.w_amax ? (nelem) : mirror_nbytes(nelem, a.w_dtype), false);         \
        a.w_amax = a.w_amax ? mirror_up(a.w_amax, sizeof(double), false) : NULL;                   \
    } while (0)
#define MIRROR_SHARED a.w_shared = mirror_up(a.w_shared, sizeof *a.w_shared, false)

/* Up to the last element of w, which may be some columns of a wider one. */
static inline size_t w_nelem(const struct nn_linear *a)
{
    return a->ldw ? area(a->nin - 1, a->ldw) + (size_t)a->nout : area(a->nout, a->nin);
}

/* Up to the last element of y. */
static inline size_t y_nelem(const struct nn_linear *a)
{
    return area(a->rows - 1, nn_linear_ldy(a)) + (size_t)a->nout;
}

MIRROR(linear_forward, nn_linear, {
    mirror_linear_work(&a);
    MIRROR_IN(x, area(a.rows, a.nin), a.dtype);
    MIRROR_WEIGHT(w_nelem(&a));
    MIRROR_SHARED;
    MIRROR_IN(b, (size_t)a.nout, a.w_dtype);
    MIRROR_OUT(out, y_nelem(&a), a.y_dtype);
})
MIRROR(f8_amax, nn_f8_amax, {
    for (int i = 0; i < a.count; i++)
        MIRROR_IN(w[i], area(a.rows[i], a.cols[i]), a.dtype);
    a.amax = mirror_up(a.amax, sizeof *a.amax, true);
})
MIRROR(linear_backward_input, nn_linear, {
    mirror_linear_work(&a);
    MIRROR_IN(dy, y_nelem(&a), a.y_dtype);
    MIRROR_WEIGHT(w_nelem(&a));
    MIRROR_SHARED;
    MIRROR_OUT(out, area(a.rows, a.nin), a.dtype);
})
MIRROR(linear_backward_weight, nn_linear, {
    mirror_linear_work(&a);
    MIRROR_IN(dy, y_nelem(&a), a.y_dtype);
    MIRROR_IN(x, area(a.rows, a.nin), a.dtype);
    MIRROR_OUT(out, w_nelem(&a), a.dw_dtype);
    MIRROR_OUT(db, (size_t)a.nout, a.dw_dtype);
})

MIRROR(embedding_forward, nn_embedding, {
    MIRROR_IN(w, area(a.vocab, a.dim), a.w_dtype);
    a.tokens = mirror_up(a.tokens, (size_t)a.rows * sizeof(int32_t), false);
    MIRROR_OUT(out, area(a.rows, a.dim), a.dtype);
})
MIRROR(embedding_backward, nn_embedding, {
    MIRROR_IN(dy, area(a.rows, a.dim), a.dtype);
    a.tokens = mirror_up(a.tokens, (size_t)a.rows * sizeof(int32_t), false);
    MIRROR_OUT(out, area(a.vocab, a.dim), a.dw_dtype);
})
MIRROR(rmsnorm_forward, nn_rmsnorm, {
    MIRROR_IN(x, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(w, (size_t)a.dim, a.w_dtype);
    MIRROR_OUT(y, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(x_copy, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(rstd, (size_t)a.rows, FSDP_F32);
})
MIRROR(rmsnorm_backward, nn_rmsnorm_backward, {
    MIRROR_IN(x, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(w, (size_t)a.dim, a.w_dtype);
    MIRROR_IN(rstd, (size_t)a.rows, FSDP_F32);
    MIRROR_OUT(dy, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(dx, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(dw, (size_t)a.dim, a.dw_dtype);
})
MIRROR(layernorm_forward, nn_layernorm, {
    MIRROR_IN(x, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(w, (size_t)a.dim, a.w_dtype);
    MIRROR_IN(b, (size_t)a.dim, a.w_dtype);
    MIRROR_OUT(y, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(x_copy, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(mean, (size_t)a.rows, FSDP_F32);
    MIRROR_OUT(rstd, (size_t)a.rows, FSDP_F32);
})
MIRROR(layernorm_backward, nn_layernorm_backward, {
    MIRROR_IN(x, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(w, (size_t)a.dim, a.w_dtype);
    MIRROR_IN(b, (size_t)a.dim, a.w_dtype);
    MIRROR_IN(mean, (size_t)a.rows, FSDP_F32);
    MIRROR_IN(rstd, (size_t)a.rows, FSDP_F32);
    MIRROR_OUT(dy, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(dx, area(a.rows, a.dim), a.dtype);
    MIRROR_OUT(dw, (size_t)a.dim, a.dw_dtype);
    MIRROR_OUT(db, (size_t)a.dim, a.dw_dtype);
})
MIRROR(rope_table, nn_rope_table, { /* the frequencies are host memory */
                                    MIRROR_OUT(cos, area(a.T, a.half), FSDP_F32);
                                    MIRROR_OUT(sin, area(a.T, a.half), FSDP_F32);
})

/* The tables have a row for each position that occurs. */
static inline int rope_rows(const struct nn_rope *a)
{
    int most = a->T - 1;
    for (int i = 0; a->positions && i < a->B * a->T; i++)
        most = a->positions[i] > most ? a->positions[i] : most;
    return most + 1;
}

MIRROR(rope, nn_rope, {
    const int nrows = rope_rows(&a);
    MIRROR_IN(cos, area(nrows, nn_rope_R(&a) / 2), FSDP_F32);
    MIRROR_IN(sin, area(nrows, nn_rope_R(&a) / 2), FSDP_F32);
    a.positions = mirror_up(a.positions, area(a.B, a.T) * sizeof(int32_t), false);
    MIRROR_IN(from, area(a.B * a.T, a.heads * a.D), a.dtype);
    /* the last row ends with its heads */
    MIRROR_OUT(x, area(a.B * a.T - 1, nn_rope_ld(&a)) + (size_t)(a.heads * a.D), a.dtype);
})

static inline void mirror_attention_args(struct nn_attention *p)
{
    struct nn_attention a = *p;
    const size_t nq = area(a.B * a.Tq, a.NH * a.D), nk = area(a.B * a.Tk, a.NKV * a.D);
    MIRROR_OUT(q, nq, a.dtype);
    MIRROR_OUT(k, nk, a.dtype);
    MIRROR_OUT(v, nk, a.dtype);
    MIRROR_OUT(o, nq, a.dtype);
    MIRROR_OUT(lse, area(a.B * a.NH, a.Tq), FSDP_F32);
    MIRROR_IN(d_o, nq, a.dtype);
    a.work = mirror_work(a.work, mirror.ops->attention_work_nelem(p), false);
    a.starts = mirror_up(a.starts, area(a.B, a.Tq) * sizeof(int32_t), false);
    MIRROR_IN(sinks, (size_t)a.NH, a.w_dtype);
    MIRROR_OUT(dsinks, (size_t)a.NH, a.dw_dtype);
    *p = a;
}

MIRROR(attention_forward, nn_attention, {
    a.d_o = NULL;
    mirror_attention_args(&a);
})

/* Where the host has what lies at `at`, in `device` or in its work memory, which came back. */
static inline void *mirror_left(void *at, void *device, void *host, const struct nn_attention *a,
                                const struct nn_attention *args)
{
    return at == device ? host : (char *)args->work + ((char *)at - (char *)a->work);
}

static int mirror_attention_backward(struct fsdp_lane *lane, const struct nn_attention *args,
                                     struct fsdp_err *failure)
{
    struct nn_attention a = *args;
    (void)lane;
    mirror_attention_args(&a);
    struct nn_attention_left left = {a.q, a.k};
    a.left = args->left ? &left : NULL;
    const int rc = mirror_down(mirror.ops->attention_backward(mirror.lane, &a, failure));
    if (args->left)
        *args->left = (struct nn_attention_left){mirror_left(left.dq, a.q, args->q, &a, args),
                                                 mirror_left(left.dk, a.k, args->k, &a, args)};
    return rc;
}
MIRROR(glu_forward, nn_glu, {
    MIRROR_IN(gate, a.nelem, a.dtype);
    MIRROR_IN(up, a.nelem, a.dtype);
    MIRROR_OUT(y, a.nelem, a.dtype);
})
MIRROR(glu_backward, nn_glu, {
    MIRROR_OUT(gate, a.nelem, a.dtype);
    MIRROR_OUT(up, a.nelem, a.dtype);
    MIRROR_OUT(y, a.nelem, a.dtype);
})
MIRROR(pointwise_forward, nn_pointwise, {
    MIRROR_IN(x, a.nelem, a.dtype);
    MIRROR_OUT(y, a.nelem, a.dtype);
})
MIRROR(pointwise_backward, nn_pointwise, {
    MIRROR_OUT(x, a.nelem, a.dtype);
    MIRROR_OUT(y, a.nelem, a.dtype);
})
MIRROR(scale_add, nn_scale_add, {
    MIRROR_IN(x, a.nelem, a.dtype);
    MIRROR_OUT(out, a.nelem, a.dtype);
})
MIRROR(lengths, nn_lengths, {
    const size_t nw = a.ldw ? area(a.nin - 1, a.ldw) + (size_t)a.nout : area(a.nout, a.nin);
    MIRROR_IN(w, nw, a.dtype);
    MIRROR_IN(a, area(a.r, a.nin), a.dtype);
    MIRROR_IN(b, area(a.nout, a.r), a.dtype);
    MIRROR_OUT(length, (size_t)a.nout, FSDP_F32);
})

static inline void mirror_columns(struct nn_columns *p)
{
    struct nn_columns a = *p;
    MIRROR_IN(x, area(a.rows, nn_columns_ld(&a)), a.dtype);
    MIRROR_IN(magnitude, (size_t)a.cols, a.w_dtype);
    MIRROR_IN(length, (size_t)a.cols, FSDP_F32);
    MIRROR_IN(b, (size_t)a.cols, a.w_dtype);
    *p = a;
}

MIRROR(columns_forward, nn_columns, {
    mirror_columns(&a);
    a.dy = NULL;
    MIRROR_OUT(out, area(a.rows, nn_columns_ld(&a)), a.dtype);
})
MIRROR(columns_backward, nn_columns, {
    mirror_columns(&a);
    MIRROR_IN(dy, area(a.rows, nn_columns_ld(&a)), a.dtype);
    MIRROR_OUT(out, (size_t)a.cols, a.dw_dtype);
})

/* Up to the last element of the last block. */
static inline size_t blocks_nelem(const struct nn_copy_blocks *a, int row, int block)
{
    return area(a->rows - 1, row) + area(a->nblocks - 1, block) + (size_t)a->width;
}

MIRROR(copy_blocks, nn_copy_blocks, {
    MIRROR_IN(x, blocks_nelem(&a, a.x_row, a.x_block), a.dtype);
    MIRROR_OUT(out, blocks_nelem(&a, a.out_row, a.out_block), a.dtype);
})
MIRROR(logits, nn_logits, { MIRROR_OUT(logits, a.nelem, a.dtype); })
MIRROR(dropout, nn_dropout, {
    MIRROR_IN(x, (size_t)a.B * a.row_nelem, a.dtype);
    MIRROR_OUT(out, (size_t)a.B * a.row_nelem, a.dtype);
})
MIRROR(cross_entropy, nn_cross_entropy, {
    MIRROR_OUT(logits, area(a.rows - 1, nn_cross_entropy_ld(&a)) + (size_t)a.vocab, a.dtype);
    a.targets = mirror_up(a.targets, (size_t)a.rows * sizeof(int32_t), false);
    a.loss_sum = mirror_up(a.loss_sum, sizeof(double), true);
    MIRROR_IN(loss_scale, 1, FSDP_F32);
    MIRROR_IN(weights, (size_t)a.rows, FSDP_F32);
})
#define MIRROR_INTS(field, nelem, back)                                                            \
    a.field = mirror_up(a.field, (nelem) * sizeof(int32_t), back)

MIRROR(route_forward, nn_route, {
    MIRROR_IN(logits, area(a.rows, a.experts), a.dtype);
    MIRROR_OUT(probs, area(a.rows, a.experts), FSDP_F32);
    MIRROR_OUT(weight, area(a.rows, a.chosen), FSDP_F32);
    MIRROR_OUT(lse, (size_t)a.rows, FSDP_F32);
    MIRROR_INTS(expert, area(a.rows, a.chosen), true);
})
MIRROR(route_backward, nn_route_backward, {
    MIRROR_OUT(dlogits, area(a.rows, a.experts), a.dtype);
    MIRROR_IN(dweight, area(a.rows, a.chosen), FSDP_F32);
    MIRROR_IN(balance, (size_t)a.experts, FSDP_F32);
    MIRROR_IN(probs, area(a.rows, a.experts), FSDP_F32);
    MIRROR_IN(weight, area(a.rows, a.chosen), FSDP_F32);
    MIRROR_IN(lse, (size_t)a.rows, FSDP_F32);
    MIRROR_IN(loss_scale, 1, FSDP_F32);
    MIRROR_INTS(expert, area(a.rows, a.chosen), false);
})
MIRROR(expert_order, nn_expert_order, {
    MIRROR_INTS(first, (size_t)a.experts + 1, true);
    MIRROR_INTS(slot, area(a.rows, a.chosen), true);
    MIRROR_INTS(place, area(a.rows, a.chosen), true);
    MIRROR_INTS(expert, area(a.rows, a.chosen), false);
})
MIRROR(expert_load, nn_expert_load, {
    a.counts = mirror_up(a.counts, (size_t)a.experts * sizeof(double), true);
    a.sums = mirror_up(a.sums, (size_t)a.experts * sizeof(double), true);
    a.squares = mirror_up(a.squares, sizeof(double), true);
    MIRROR_IN(probs, area(a.rows, a.experts), FSDP_F32);
    MIRROR_IN(lse, (size_t)a.rows, FSDP_F32);
    MIRROR_INTS(expert, area(a.rows, a.chosen), false);
})
MIRROR(balance, nn_balance, {
    a.loss = mirror_up(a.loss, sizeof(double), true);
    a.total = mirror_up(a.total, area(a.layers, a.experts) * sizeof(double), true);
    MIRROR_OUT(balance, (size_t)a.experts, FSDP_F32);
    a.counts = mirror_up(a.counts, area(a.layers, a.experts) * sizeof(double), false);
    a.sums = mirror_up(a.sums, (size_t)a.experts * sizeof(double), false);
    a.squares = mirror_up(a.squares, sizeof(double), false);
    a.z_loss = mirror_up(a.z_loss, sizeof(double), true);
    MIRROR_IN(loss_scale, 1, FSDP_F32);
})
MIRROR(spread_rows, nn_spread_rows, {
    MIRROR_OUT(out, area(a.rows * a.chosen, a.dim), a.dtype);
    MIRROR_IN(x, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(weight, area(a.rows, a.chosen), FSDP_F32);
    MIRROR_INTS(slot, area(a.rows, a.chosen), false);
})
MIRROR(collect_rows, nn_collect_rows, {
    MIRROR_OUT(out, area(a.rows, a.dim), a.dtype);
    MIRROR_IN(x, area(a.rows * a.chosen, a.dim), a.dtype);
    MIRROR_IN(weight, area(a.rows, a.chosen), FSDP_F32);
    MIRROR_INTS(place, area(a.rows, a.chosen), false);
})
/* How many experts there are at least. */
static inline size_t mirror_last(const int32_t *expert, int nslots)
{
    int32_t last = -1;
    for (int i = 0; i < nslots; i++)
        last = expert[i] > last ? expert[i] : last;
    return (size_t)(last + 1);
}
MIRROR(weigh_backward, nn_weigh_backward, {
    MIRROR_OUT(dy, area(a.nplaces, a.dim), a.dtype);
    MIRROR_IN(y, area(a.nplaces, a.dim), a.dtype);
    MIRROR_OUT(dweight, (size_t)a.nplaces, FSDP_F32);
    MIRROR_IN(weight, (size_t)a.nplaces, FSDP_F32);
    MIRROR_INTS(slot, (size_t)a.nplaces, false);
    MIRROR_IN(b, a.b ? mirror_last(a.expert, a.nplaces) * (size_t)a.nout : 0, a.w_dtype);
    MIRROR_IN(d_out, area(a.nplaces, a.nout), a.dtype);
    MIRROR_INTS(expert, (size_t)a.nplaces, false);
})

/* Of all matrices and what lies between them; of a list, each matrix. */
static inline size_t mirror_experts(struct nn_grouped *p)
{
    static const void *each[NN_MAX_EXPERTS];
    const size_t matrix = area(p->nin, p->nout);
    struct nn_grouped a = *p;
    const size_t all = (size_t)(a.experts - 1) * a.stride + matrix;

    MIRROR_OUT(work, mirror.ops->grouped_work_nelem(&a), FSDP_F32);
    a.w = mirror_up(a.w, a.w_amax ? all : mirror_nbytes(all, a.w_dtype), false);
    if (a.w_amax)
        a.w_amax = mirror_up(a.w_amax, ((size_t)(a.experts - 1) * a.amax_step + 1) * sizeof(double),
                             false);
    for (int e = 0; e < a.experts && a.w_each; e++)
        each[e] = mirror_up(a.w_each[e], mirror_nbytes(matrix, a.w_dtype), false);
    a.w_each = a.w_each ? each : NULL;
    MIRROR_INTS(first, (size_t)a.experts + 1, false);
    *p = a;
    return all;
}

MIRROR(grouped_forward, nn_grouped, {
    mirror_experts(&a);
    MIRROR_IN(b, area(a.experts, a.nout), a.w_dtype);
    MIRROR_IN(x, area(a.nplaces, a.nin), a.dtype);
    MIRROR_OUT(out, area(a.nplaces, a.nout), a.dtype);
})
MIRROR(grouped_backward_input, nn_grouped, {
    mirror_experts(&a);
    MIRROR_IN(dy, area(a.nplaces, a.nout), a.dtype);
    MIRROR_OUT(out, area(a.nplaces, a.nin), a.dtype);
})
MIRROR(grouped_backward_weight, nn_grouped, {
    const size_t all = mirror_experts(&a);
    MIRROR_IN(dy, area(a.nplaces, a.nout), a.dtype);
    MIRROR_IN(x, area(a.nplaces, a.nin), a.dtype);
    MIRROR_OUT(out, all, a.dw_dtype);
    MIRROR_OUT(db, area(a.experts, a.nout), a.dw_dtype);
})
MIRROR(split_tokens, nn_split_tokens,
       { /* the tokens are host memory */
         a.inputs = mirror_up(a.inputs, area(a.B, a.T) * sizeof(int32_t), true);
         a.targets = mirror_up(a.targets, area(a.B, a.T) * sizeof(int32_t), true);
       })
MIRROR(positions, nn_positions, {
    a.out = mirror_up(a.out, area(a.B, a.T) * sizeof(int32_t), true);
    a.starts = mirror_up(a.starts, area(a.B, a.T) * sizeof(int32_t), false);
})

static inline size_t mirror_linear_work_nelem(const struct nn_linear *shape)
{
    return mirror.ops->linear_work_nelem(shape);
}

static inline size_t mirror_grouped_work_nelem(const struct nn_grouped *shape)
{
    return mirror.ops->grouped_work_nelem(shape);
}

static inline size_t mirror_attention_work_nelem(const struct nn_attention *shape)
{
    return mirror.ops->attention_work_nelem(shape);
}

static const struct nn_ops mirror_ops = {
    .abi = NN_OPS_ABI,
    .name = "mirror",
    .linear_work_nelem = mirror_linear_work_nelem,
    .linear_forward = mirror_linear_forward,
    .linear_backward_input = mirror_linear_backward_input,
    .linear_backward_weight = mirror_linear_backward_weight,
    .f8_amax = mirror_f8_amax,
    .embedding_forward = mirror_embedding_forward,
    .embedding_backward = mirror_embedding_backward,
    .rmsnorm_forward = mirror_rmsnorm_forward,
    .rmsnorm_backward = mirror_rmsnorm_backward,
    .layernorm_forward = mirror_layernorm_forward,
    .layernorm_backward = mirror_layernorm_backward,
    .rope_table = mirror_rope_table,
    .rope = mirror_rope,
    .attention_work_nelem = mirror_attention_work_nelem,
    .attention_forward = mirror_attention_forward,
    .attention_backward = mirror_attention_backward,
    .glu_forward = mirror_glu_forward,
    .glu_backward = mirror_glu_backward,
    .pointwise_forward = mirror_pointwise_forward,
    .pointwise_backward = mirror_pointwise_backward,
    .scale_add = mirror_scale_add,
    .lengths = mirror_lengths,
    .columns_forward = mirror_columns_forward,
    .columns_backward = mirror_columns_backward,
    .copy_blocks = mirror_copy_blocks,
    .logits = mirror_logits,
    .dropout = mirror_dropout,
    .cross_entropy = mirror_cross_entropy,
    .route_forward = mirror_route_forward,
    .route_backward = mirror_route_backward,
    .expert_order = mirror_expert_order,
    .expert_load = mirror_expert_load,
    .balance = mirror_balance,
    .spread_rows = mirror_spread_rows,
    .collect_rows = mirror_collect_rows,
    .weigh_backward = mirror_weigh_backward,
    .grouped_work_nelem = mirror_grouped_work_nelem,
    .grouped_forward = mirror_grouped_forward,
    .grouped_backward_input = mirror_grouped_backward_input,
    .grouped_backward_weight = mirror_grouped_backward_weight,
    .split_tokens = mirror_split_tokens,
    .positions = mirror_positions,
};

/* From now on the suites test these operators of this device. */
static inline void mirror_use(const struct nn_ops *ops, struct fsdp_device *device)
{
    mirror.ops = ops;
    mirror.device = device;
    mirror_must(fsdp_lane_create(&mirror.lane, device, "compute", &err));
    nn = &mirror_ops;
    suite_mixed_slack = 20;
}

#endif
