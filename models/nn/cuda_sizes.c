/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_sizes.h"
#include "product.h"

/* ---- products -------------------------------------------------------------------------------- */

static int rows_of(const struct nn_matrix *x, int rows, int cols)
{
    return x->transposed ? cols : rows;
}

static size_t nelem_of(int rows, int cols)
{
    return ((size_t)rows * (size_t)cols + 63) / 64 * 64; /* work is cut at multiples of 256 bytes */
}

bool nn_cuda_is_mixed(const struct nn_product *g)
{
    return g->a.dtype != g->b.dtype;
}

struct nn_cuda_half nn_cuda_half_of(const struct nn_product *g)
{
    const bool a = g->a.dtype == FSDP_F32;
    const int rows = a ? g->m : g->k, cols = a ? g->k : g->n;
    const int nrows = rows_of(a ? &g->a : &g->b, rows, cols), ncols = rows + cols - nrows;
    const int ld = (ncols + 7) / 8 * 8;
    return (struct nn_cuda_half){nrows, ncols, ld, nelem_of(nrows, ld)};
}

enum fsdp_dtype nn_cuda_narrow_of(const struct nn_product *g)
{
    return g->a.dtype == FSDP_F32 ? g->b.dtype : g->a.dtype;
}

bool nn_cuda_needs_store(const struct nn_product *g)
{
    return g->c_dtype != FSDP_F32 && g->c_dtype != nn_cuda_narrow_of(g);
}

static size_t round_up(size_t nelem, size_t to)
{
    return (nelem + to - 1) / to * to;
}

size_t nn_cuda_f8_scales_nbytes(int nlines, int nsum)
{
    const size_t nblocks = ((size_t)nsum + NN_F8_BLOCK_NELEM - 1) / NN_F8_BLOCK_NELEM;
    return round_up((size_t)nlines, NN_CUDA_F8_TILE_LINES) *
           round_up(nblocks, NN_CUDA_F8_TILE_BLOCKS);
}

struct nn_cuda_f8_place nn_cuda_f8_place(const struct nn_product *g, bool of_b)
{
    const struct nn_matrix *x = of_b ? &g->b : &g->a;
    const int rows = of_b ? g->k : g->m, cols = of_b ? g->n : g->k;
    const int nrows = rows_of(x, rows, cols), ncols = rows + cols - nrows;
    const int ld = (ncols + 7) / 8 * 8, nlines = of_b ? g->n : g->m;
    const size_t each = g->f8_scale == NN_F8_ROW ? round_up((size_t)nlines, 64) : 0;
    const size_t nbytes = nn_cuda_f8_scales_nbytes(nlines, g->k);

    return (struct nn_cuda_f8_place){.nrows = nrows,
                                     .ncols = ncols,
                                     .ld = ld,
                                     .nlines = nlines,
                                     .amax = each,
                                     .scales = g->f8_scale == NN_F8_BLOCK ? round_up(nbytes / 4, 64)
                                                                          : each,
                                     .nelem = round_up(nelem_of(nrows, ld), 128) / 2};
}

struct nn_cuda_f8_place nn_cuda_f8_place_at(const struct nn_product *g, int at)
{
    return nn_cuda_f8_place(g, at != g->b_first);
}

/* The matrix of a place that begins here. */
static float *matrix_at(float *place, const struct nn_cuda_f8_place *p)
{
    return nn_at(place, FSDP_F32, p->amax + p->scales);
}

struct nn_product nn_cuda_f8_decoded(const struct nn_product *g)
{
    const struct nn_cuda_f8_place one = nn_cuda_f8_place_at(g, 0), two = nn_cuda_f8_place_at(g, 1);
    float *const begin = nn_at(g->work, FSDP_F32, NN_CUDA_F8_CELLS);
    float *const behind = nn_at(begin, FSDP_F32, nn_cuda_f8_place_nelem(&one));
    struct nn_matrix first = {matrix_at(begin, &one), one.ld, false, FSDP_BF16, FSDP_F32};
    struct nn_matrix second = {matrix_at(behind, &two), two.ld, false, FSDP_BF16, FSDP_F32};
    struct nn_product plain = *g;

    first.transposed = g->b_first ? g->b.transposed : g->a.transposed;
    second.transposed = g->b_first ? g->a.transposed : g->b.transposed;
    plain.a = g->b_first ? second : first;
    plain.b = g->b_first ? first : second;
    plain.work = nn_at(behind, FSDP_F32, nn_cuda_f8_place_nelem(&two));
    plain.is_split = false;
    return plain;
}

static size_t f8_nelem(const struct nn_product *g)
{
    const struct nn_cuda_f8_place one = nn_cuda_f8_place_at(g, 0), two = nn_cuda_f8_place_at(g, 1);
    return NN_CUDA_F8_CELLS + nn_cuda_f8_place_nelem(&one) + nn_cuda_f8_place_nelem(&two);
}

static size_t product_nelem(const struct nn_product *g)
{
    if (g->a.f8) {
        const struct nn_product plain = nn_cuda_f8_decoded(g);
        return f8_nelem(g) + (nn_cuda_needs_store(&plain) ? nelem_of(g->m, g->n) : 0);
    }
    return (nn_cuda_is_mixed(g) ? nn_cuda_half_of(g).nelem : 0) +
           (nn_cuda_needs_store(g) ? nelem_of(g->m, g->n) : 0);
}

static size_t map_nelem(const struct nn_linear *shape)
{
    const struct nn_product all[] = {nn_linear_forward_product(shape),
                                     nn_linear_backward_input_product(shape),
                                     nn_linear_backward_weight_product(shape)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        const size_t nelem = product_nelem(&all[i]);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* Rows in work begin at multiples of 8 elements, so that w takes more the one way or the other. */
size_t nn_cuda_linear_work_nelem(const struct nn_linear *shape)
{
    struct nn_linear map = *shape;
    map.ldw = 0;
    const size_t nelem = map_nelem(&map);
    map.ldw = map.nout;
    const size_t transposed = map_nelem(&map);
    return nelem > transposed ? nelem : transposed;
}

/* ---- products of experts --------------------------------------------------------------------- */

/* Of so many elements of bf16. */
static size_t room_of_values(size_t nelem)
{
    return round_up(nelem, 128) / 2;
}

/* Products of codes read up to NN_CUDA_F8_TAIL rows behind the last one (cuda/grouped_f8.c), for
 * which x and dy have room. */
struct nn_cuda_grouped_room nn_cuda_grouped_room(const struct nn_grouped *a)
{
    const size_t rows = round_up((size_t)a->nplaces, NN_CUDA_F8_TAIL) + NN_CUDA_F8_TAIL;
    const size_t nin = (size_t)a->nin, nout = (size_t)a->nout;
    const size_t most = nin > nout ? nin : nout;
    const bool is_stored = a->dtype == FSDP_F16 || a->dw_dtype == FSDP_F16;
    const size_t tail = NN_CUDA_F8_TAIL * most;
    const size_t whole = is_stored ? (size_t)a->nplaces * most : 0;
    const size_t matrix = is_stored ? nin * nout : 0;
    const size_t stored = whole > matrix ? whole : matrix;

    return (struct nn_cuda_grouped_room){
        .x = room_of_values(rows * nin),
        .dy = room_of_values(rows * nout),
        .w = room_of_values((size_t)a->experts * nn_cuda_grouped_w_stride(a)),
        .product = round_up(stored > tail ? stored : tail, 64)};
}

size_t nn_cuda_grouped_work_nelem(const struct nn_grouped *a)
{
    const struct nn_linear whole = nn_grouped_whole(a);
    const struct nn_cuda_grouped_room r = nn_cuda_grouped_room(a);
    const size_t least = r.x < r.w ? (r.x < r.dy ? r.x : r.dy) : (r.w < r.dy ? r.w : r.dy);

    if (!a->f8.dtype)
        return nn_cuda_linear_work_nelem(&whole);
    return NN_CUDA_F8_CELLS + r.x + r.dy + r.w - least + r.product;
}

/* ---- attention by plain kernels -------------------------------------------------------------- */

size_t nn_cuda_attention_delta_nelem(const struct nn_attention *x)
{
    return ((size_t)x->B * (size_t)x->NH * (size_t)x->Tq + 63) / 64 * 64;
}

size_t nn_cuda_plain_attention_work_nelem(const struct nn_attention *x)
{
    const size_t nq = (size_t)x->B * (size_t)x->Tq * (size_t)x->NH * (size_t)x->D;
    return nn_cuda_attention_delta_nelem(x) + (x->dtype == FSDP_F32 ? nq : (nq + 1) / 2);
}

/* ---- attention by cuDNN ---------------------------------------------------------------------- */

static enum nn_cuda_attention chosen;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void choose_kernels(void)
{
    static const char *const words[] = {"cudnn", "deterministic", "plain"};
    const char *text = getenv("FSDP_CUDA_ATTENTION");

    if (!text || !*text)
        return;
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, words[i])) {
            chosen = (enum nn_cuda_attention)i;
            return;
        }
    fsdp_log(FSDP_LOG_WARN,
             "FSDP_CUDA_ATTENTION=%s: takes cudnn, deterministic or plain; cudnn is used", text);
}

enum nn_cuda_attention nn_cuda_attention_chosen(void)
{
    pthread_once(&chosen_once, choose_kernels);
    return chosen;
}

/* Texts are constants, so that their addresses tell them apart. */
bool nn_cuda_add_reason(struct nn_cuda_reasons *to, const char *why)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    bool is_new = true;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < to->ntold; i++)
        is_new &= to->told[i] != why;
    is_new &= to->ntold < (int)(sizeof to->told / sizeof *to->told);
    if (is_new)
        to->told[to->ntold++] = why;
    pthread_mutex_unlock(&lock);
    return is_new;
}

enum { ROOM_ALIGN = 256, CONSTANT_NBYTES = 256 };
enum { LEAST_DOCUMENTS = 8, PACKED_CAPABILITY = 90, PACKED_D_MULTIPLE = 16 };
enum { SEEDS_NBYTES = 32, MASK_CAPABILITY = 100 }; /* where dropout keeps its mask in memory */

/* Its backward pass takes the longer heads on Hopper alone. */
static int most_D(int capability)
{
    return capability / 10 == 9 ? 256 : 128;
}

/* Of packed documents. On GPUs before 9.0 cuDNN keeps dq in fp32 for as many whole sequences as
 * there are documents, and NVIDIA's frontend refuses statistics that lie behind one another there;
 * it knows of wrong results for heads that are no multiple of 16. Deterministic plans take memory
 * by the square of the longest for each document, and so does dropout from 10.0 on. Begins in
 * elements are 32-bit numbers. */
static const char *beyond_packed(const struct nn_attention *a, int capability)
{
    if (a->drop.p > 0 && capability >= MASK_CAPABILITY)
        return "dropout in rows of several documents on a GPU from compute capability 10.0 on";
    if (nn_cuda_attention_chosen() == NN_CUDA_DETERMINISTIC)
        return "several documents in a row with FSDP_CUDA_ATTENTION=deterministic";
    if (capability < PACKED_CAPABILITY)
        return "several documents in a row on a GPU before compute capability 9.0";
    if (capability / 10 == 12)
        return "several documents in a row on a GPU of compute capability 12";
    if (a->D % PACKED_D_MULTIPLE)
        return "several documents in a row with heads that are no multiple of 16 elements";
    if ((double)a->B * a->Tq * a->NH * a->D >= 0x1p31)
        return "several documents in a row in a micro-batch of 2^31 elements";
    return NULL;
}

const char *nn_cuda_beyond_cudnn(const struct nn_attention *a, bool packed, int capability)
{
    if (a->dtype == FSDP_F32)
        return "fp32";
    if (a->drop.p > 0 && !a->drop_fast)
        return "dropout (model.attention_dropout: fast is cuDNN's)";
    if (a->drop.p > 0 && capability >= MASK_CAPABILITY &&
        nn_cuda_attention_chosen() == NN_CUDA_DETERMINISTIC)
        return "dropout with FSDP_CUDA_ATTENTION=deterministic from compute capability 10.0 on";
    if (a->softcap > 0)
        return "capped scores";
    if (a->sinks)
        return "sinks";
    if (a->Tq != a->Tk)
        return "keys kept from before";
    if (a->D % 8)
        return "heads that are no multiple of 8 elements";
    if (a->D > most_D(capability))
        return "heads of this size on this GPU";
    return packed ? beyond_packed(a, capability) : NULL;
}

int nn_cuda_documents_step(int documents)
{
    int step = LEAST_DOCUMENTS;

    while (step < documents)
        step *= 2;
    return step;
}

int nn_cuda_room_rows(const struct nn_attention *shape, struct nn_cuda_way way)
{
    return way.deterministic ? 1 : shape->B;
}

struct nn_cuda_room nn_cuda_room_of(const struct nn_attention *s, struct nn_cuda_way way,
                                    size_t workspace_nbytes)
{
    const size_t rows = (size_t)nn_cuda_room_rows(s, way) * (size_t)s->Tq;
    const size_t nq = rows * (size_t)s->NH * (size_t)s->D;
    const size_t nk = rows * (size_t)s->NKV * (size_t)s->D;
    const size_t begins = way.documents ? (size_t)way.documents + 1 : 0;
    const size_t heads = way.documents && s->NH != s->NKV ? nq : 0;
    return (struct nn_cuda_room){
        .seeds = round_up(way.drops ? SEEDS_NBYTES : 0, ROOM_ALIGN),
        .table = round_up(begins * sizeof(int32_t), ROOM_ALIGN),
        .delta = round_up(rows * (size_t)s->NH * sizeof(float), ROOM_ALIGN),
        .accum = round_up(way.deterministic ? 0 : nq * sizeof(float), ROOM_ALIGN),
        .dq = round_up(nq * sizeof(uint16_t), ROOM_ALIGN),
        .dk = round_up(nk * sizeof(uint16_t), ROOM_ALIGN),
        .dv = round_up(nk * sizeof(uint16_t), ROOM_ALIGN),
        .dk_heads = round_up(heads * sizeof(uint16_t), ROOM_ALIGN),
        .dv_heads = round_up(heads * sizeof(uint16_t), ROOM_ALIGN),
        .workspace = round_up(workspace_nbytes, ROOM_ALIGN)};
}

size_t nn_cuda_cudnn_work_nelem(const struct nn_attention *shape, struct nn_cuda_way way,
                                size_t forward_nbytes, size_t backward_nbytes)
{
    const struct nn_cuda_room r = nn_cuda_room_of(shape, way, backward_nbytes);
    const size_t tables = r.seeds + NN_CUDA_NTABLES * r.table, forward = tables + forward_nbytes;
    const size_t backward =
        tables + r.delta + r.accum + r.dq + r.dk + r.dv + r.dk_heads + r.dv_heads + r.workspace;
    const size_t most = backward > forward ? backward : forward;
    /* Work memory lies as its caller has it. */
    return (most + ROOM_ALIGN + sizeof(float) - 1) / sizeof(float);
}

/* What describes each document to a kernel. */
static size_t packed_workspace(size_t documents, bool backward)
{
    return backward ? 448 * documents + 1152 : 256 * (documents < 64 ? 64 : documents) + 768;
}

/* With heads that share keys, dk and dv of each; deterministic, what is summed of two tiles; before
 * compute capability 9.0, dq in fp32 once more; from 10.0 on, a bit for each probability that may
 * be dropped. */
size_t nn_cuda_cudnn_workspace(const struct nn_attention *s, struct nn_cuda_way way, bool backward,
                               int capability)
{
    const size_t B = (size_t)nn_cuda_room_rows(s, way), T = (size_t)s->Tq;
    const size_t heads = B * (size_t)s->NH, D = (size_t)s->D, tiles = round_up(T, 128);
    size_t nbytes = CONSTANT_NBYTES;

    if (way.documents)
        return packed_workspace((size_t)way.documents, backward);
    if (way.drops && capability >= MASK_CAPABILITY)
        nbytes += heads * tiles * tiles / 8;
    if (backward && s->NH != s->NKV)
        nbytes += 2 * sizeof(uint16_t) * heads * T * D;
    if (backward && way.deterministic)
        nbytes += 2 * heads * tiles * tiles;
    else if (backward && capability < 90)
        nbytes += sizeof(float) * heads * round_up(T, 8) * D;
    return nbytes;
}
