/* SPDX-License-Identifier: Apache-2.0 */
/* Coverage: tilings are accepted, holes and overlaps named. Plans: every element from where it is,
 * within the budget. */
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/layout/layout.h"
#include "../../ckpt/layout/plan.h"
#include "tap.h"

static unsigned seed = 7;

static uint64_t pick(uint64_t below)
{
    return (uint64_t)rand_r(&seed) % below;
}

static void begin(struct ckpt_layout *l, const struct fsdp_tensor *t)
{
    memset(l, 0, sizeof *l);
    ckpt_layout_add_tensor(l, t, FSDP_SLICE_MODEL, NULL);
    ckpt_layout_add_file(l, "file-a", 1 << 20, NULL);
    ckpt_layout_add_file(l, "file-b", 1 << 20, NULL);
}

static void put(struct ckpt_layout *l, int file, const struct fsdp_box *box, uint64_t *pos)
{
    const struct fsdp_tensor *t = &l->tensors[0].tensor;
    struct ckpt_piece piece = {
        .tensor = 0, .file = file, .offset = box->offset, .length = box->length, .pos = pos[file]};
    pos[file] += fsdp_box_nelem(box, t->ndim) * fsdp_dtype_nbytes(t->dtype);
    ckpt_layout_add_piece(l, &piece, NULL);
}

/* A random tiling by cuts. */
static void tile(struct ckpt_layout *l, struct fsdp_box box, int depth, uint64_t *pos)
{
    int ndim = l->tensors[0].tensor.ndim, d = ndim ? (int)pick((uint64_t)ndim) : 0;
    if (!ndim || depth == 0 || box.length[d] < 2) {
        put(l, (int)pick(2), &box, pos);
        return;
    }
    struct fsdp_box low = box, high = box;
    low.length[d] = 1 + pick(box.length[d] - 1);
    high.offset[d] += low.length[d];
    high.length[d] -= low.length[d];
    tile(l, high, depth - 1, pos);
    tile(l, low, depth - 1, pos);
}

static const struct fsdp_tensor tensors[] = {
    {"scalar", FSDP_F32, 0, {0}},        {"vector", FSDP_F32, 1, {97}},
    {"matrix", FSDP_F32, 2, {31, 17}},   {"cube", FSDP_F32, 3, {9, 11, 5}},
    {"four", FSDP_F32, 4, {4, 3, 5, 6}},
};
enum { NTENSORS = sizeof tensors / sizeof tensors[0] };

static void test_random_tilings(void)
{
    for (int i = 0; i < NTENSORS; i++) {
        bool accepted = true, holes = true, overlaps = true;
        for (int round = 0; round < 100; round++) {
            struct ckpt_layout l;
            struct fsdp_err err = FSDP_ERR_INIT;
            uint64_t pos[2] = {0, 0};
            begin(&l, &tensors[i]);
            tile(&l, ckpt_box_whole(&tensors[i]), 6, pos);
            accepted &= ckpt_layout_seal(&l, &err) == FSDP_OK;
            size_t victim = pick(l.npieces);
            struct ckpt_piece saved = l.pieces[victim];
            struct fsdp_box box = ckpt_piece_box(&saved, tensors[i].ndim);
            l.pieces[victim] = l.pieces[--l.npieces];
            holes &=
                ckpt_layout_seal(&l, &err) == FSDP_ECORRUPT && strstr(err.text, tensors[i].name);
            ckpt_layout_add_piece(&l, &saved, NULL);
            /* The same box again, or one element more of it. */
            if (tensors[i].ndim) {
                int d = (int)pick((uint64_t)tensors[i].ndim);
                box.length[d] = 1;
                saved.length = box.length;
            }
            ckpt_layout_add_piece(&l, &saved, NULL);
            overlaps &= ckpt_layout_seal(&l, &err) == FSDP_ECORRUPT &&
                        (strstr(err.text, "both hold") != NULL);
            ckpt_layout_free(&l);
        }
        ok(accepted, "%s: random tilings are accepted", tensors[i].name);
        ok(holes, "%s: a lost box is noticed", tensors[i].name);
        ok(overlaps, "%s: a box stored twice is noticed", tensors[i].name);
    }
}

struct cover_case {
    const char *what;
    int nboxes;
    struct fsdp_box boxes[5];
    const char *says; /* NULL: accepted */
};
/* of a 6 x 6 matrix */
static const struct cover_case cases[] = {
    {"pinwheel",
     5,
     {{{0, 0}, {2, 4}}, {{0, 4}, {4, 2}}, {{4, 2}, {2, 4}}, {{2, 0}, {4, 2}}, {{2, 2}, {2, 2}}},
     NULL},
    {"pinwheel without its middle",
     4,
     {{{0, 0}, {2, 4}}, {{0, 4}, {4, 2}}, {{4, 2}, {2, 4}}, {{2, 0}, {4, 2}}},
     "4 elements of [0:6, 0:6]"},
    {"nothing", 0, {{{0}, {0}}}, "all of it"},
    {"last rows lost", 1, {{{0, 0}, {4, 6}}}, "no file holds [4:6, 0:6] (next to what 'file-a'"},
    {"first rows lost", 1, {{{1, 0}, {5, 6}}}, "no file holds [0:1, 0:6]"},
    {"rows between lost", 2, {{{0, 0}, {2, 6}}, {{4, 0}, {2, 6}}}, "no file holds [2:4, 0:6]"},
    {"a column of a row block lost",
     2,
     {{{0, 0}, {3, 6}}, {{3, 0}, {3, 5}}},
     "no file holds [3:6, 5:6]"},
    {"two row blocks overlap", 2, {{{0, 0}, {4, 6}}, {{3, 0}, {3, 6}}}, "both hold [3:4, 0:6]"},
    {"overlap makes up for a hole", 2, {{{0, 0}, {3, 6}}, {{1, 0}, {3, 6}}}, "[4:6, 0:6]"},
    {"box leaves the tensor", 1, {{{0, 0}, {7, 6}}}, "leaves it in dimension 0"},
    {"box leaves the tensor by overflow", 1, {{{UINT64_MAX, 0}, {2, 6}}}, "leaves it"},
};

static void test_cases(void)
{
    static const struct fsdp_tensor t = {"m", FSDP_F32, 2, {6, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ckpt_layout l;
        struct fsdp_err err = FSDP_ERR_INIT;
        uint64_t pos[2] = {0, 0};
        begin(&l, &t);
        for (int k = 0; k < cases[i].nboxes; k++)
            put(&l, 0, &cases[i].boxes[k], pos);
        int rc = ckpt_layout_seal(&l, &err);
        ok(cases[i].says ? rc == FSDP_ECORRUPT && strstr(err.text, cases[i].says) : rc == FSDP_OK,
           "%s: %s", cases[i].what, rc ? err.text : "tiles");
        ckpt_layout_free(&l);
    }
    /* Many boxes: quadratic proofs would take minutes. */
    static const struct fsdp_tensor tall = {"tall", FSDP_F32, 2, {200000, 4}};
    struct ckpt_layout l;
    uint64_t pos[2] = {0, 0};
    begin(&l, &tall);
    for (uint64_t i = 0; i < 200000; i++)
        put(&l, 0, &(struct fsdp_box){{(i * 7919) % 200000, i % 2 * 0}, {1, 4}}, pos);
    ok(ckpt_layout_seal(&l, NULL) == FSDP_OK, "200000 boxes");
    ckpt_layout_free(&l);
    /* A staircase of 20000 levels must not overflow the stack. */
    static const struct fsdp_tensor wide = {"wide", FSDP_F32, 2, {20000, 20000}};
    begin(&l, &wide);
    for (uint64_t i = 0; i < 19999; i++)
        put(&l, 0,
            i % 2 ? &(struct fsdp_box){{i / 2 + 1, i / 2}, {19999 - i / 2, 1}}
                  : &(struct fsdp_box){{i / 2, i / 2}, {1, 20000 - i / 2}},
            pos);
    ok(ckpt_layout_seal(&l, NULL) == FSDP_EUNSUPPORTED, "a deep staircase is refused");
    ckpt_layout_free(&l);
}

/* Follows a plan on files made of element numbers. */
static bool follow(const struct ckpt_layout *l, const struct fsdp_box *want, uint64_t budget,
                   uint32_t *const files[2])
{
    const struct fsdp_tensor *t = &l->tensors[0].tensor;
    struct ckpt_plan plan;
    bool good = ckpt_plan_make(&plan, l, 0, want, budget, NULL) == FSDP_OK;
    uint64_t nelem = fsdp_box_nelem(want, t->ndim), next = 0;
    uint32_t *out = calloc(nelem + 1, sizeof *out);
    for (size_t b = 0; b < plan.nblocks; b++) {
        const struct ckpt_block *block = &plan.blocks[b];
        good &= block->pos == next && block->nelem <= budget &&
                block->nelem == fsdp_box_nelem(&block->box, t->ndim);
        next += block->nelem;
        for (size_t e = 0; e < block->nextents; e++) {
            const struct ckpt_extent *x = &plan.extents[block->first + e];
            uint64_t index[FSDP_MAX_DIMS] = {0};
            int k;
            do {
                uint64_t src = x->pos / 4, dst = block->pos + x->dst;
                for (k = 0; k < x->nloops; k++) {
                    src += index[k] * x->src_stride[k];
                    dst += index[k] * x->dst_stride[k];
                }
                good &= src - x->pos / 4 + x->run_nelem <= x->span_nelem;
                memcpy(out + dst, files[x->file] + src, x->run_nelem * 4);
                for (k = x->nloops - 1; k >= 0 && ++index[k] == x->count[k]; k--)
                    index[k] = 0;
            } while (k >= 0);
        }
    }
    good &= next == nelem;
    for (uint64_t i = 0; i < nelem; i++) {
        uint64_t left = i, at = 0, index[FSDP_MAX_DIMS];
        for (int k = t->ndim - 1; k >= 0; k--) {
            index[k] = want->offset[k] + left % want->length[k];
            left /= want->length[k];
        }
        for (int k = 0; k < t->ndim; k++)
            at = at * t->shape[k] + index[k];
        good &= out[i] == at + 1;
    }
    ckpt_plan_free(&plan);
    free(out);
    return good;
}

static void fill_files(const struct ckpt_layout *l, uint32_t *const files[2])
{
    const struct fsdp_tensor *t = &l->tensors[0].tensor;
    for (size_t p = 0; p < l->npieces; p++) {
        const struct fsdp_box stored = ckpt_piece_box(&l->pieces[p], t->ndim), *box = &stored;
        uint64_t nelem = fsdp_box_nelem(box, t->ndim);
        for (uint64_t i = 0; i < nelem; i++) {
            uint64_t left = i, at = 0, index[FSDP_MAX_DIMS];
            for (int k = t->ndim - 1; k >= 0; k--) {
                index[k] = box->offset[k] + left % box->length[k];
                left /= box->length[k];
            }
            for (int k = 0; k < t->ndim; k++)
                at = at * t->shape[k] + index[k];
            files[l->pieces[p].file][l->pieces[p].pos / 4 + i] = (uint32_t)at + 1;
        }
    }
}

static void test_plans(void)
{
    uint32_t *files[2] = {calloc(4096, 4), calloc(4096, 4)};
    for (int i = 0; i < NTENSORS; i++) {
        bool good = true;
        for (int round = 0; round < 100; round++) {
            struct ckpt_layout l;
            struct fsdp_box want = ckpt_box_whole(&tensors[i]);
            uint64_t pos[2] = {0, 0};
            begin(&l, &tensors[i]);
            tile(&l, want, 4, pos);
            if (ckpt_layout_seal(&l, NULL))
                good = false;
            fill_files(&l, files);
            for (int d = 0; round % 3 && d < tensors[i].ndim; d++) {
                want.offset[d] = pick(tensors[i].shape[d]);
                want.length[d] = 1 + pick(tensors[i].shape[d] - want.offset[d]);
            }
            good &= follow(&l, &want, 1 + pick(200), files);
            ckpt_layout_free(&l);
        }
        ok(good, "%s: random boxes from random pieces under random budgets", tensors[i].name);
    }
    free(files[0]);
    free(files[1]);
}

static void test_replicas(void)
{
    bool good = true;
    for (int n = 1; n <= 5; n++) {
        struct fsdp_box box = {{10, 0}, {7, 3}}, part;
        uint64_t next = 10;
        for (int r = 0; r < n; r++) {
            ckpt_replica_part(&part, &box, 2, r, n);
            good &= part.offset[0] == next && part.length[1] == 3;
            next += part.length[0];
        }
        good &= next == 17;
        good &= ckpt_replica_part(&part, &box, 0, n - 1, n) == (n == 1);
    }
    ok(good, "replicas share rows, in order; a scalar is replica 0's");
}

/* A pinwheel whose middle is cut into columns: no plane separates them from the arms. Quadratic
 * would be minutes. */
static void test_interlocked(uint64_t ncolumns, bool accepted)
{
    const struct fsdp_tensor t = {"wheel", FSDP_U8, 2, {6, ncolumns + 4}};
    const struct fsdp_box arms[] = {{{0, 0}, {2, ncolumns + 2}},
                                    {{0, ncolumns + 2}, {4, 2}},
                                    {{4, 2}, {2, ncolumns + 2}},
                                    {{2, 0}, {4, 2}}};
    struct ckpt_layout l;
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t pos[2] = {0, 0};
    begin(&l, &t);
    for (int i = 0; i < 4; i++)
        put(&l, 0, &arms[i], pos);
    for (uint64_t i = 0; i < ncolumns; i++)
        put(&l, 1, &(struct fsdp_box){{2, 2 + i}, {2, 1}}, pos);
    tap_limit_cpu(90);
    int rc = ckpt_layout_seal(&l, &err);
    tap_limit_cpu(0);
    diag("%s", rc ? err.text : "accepted");
    ok(accepted ? rc == FSDP_OK : rc == FSDP_EUNSUPPORTED && strstr(err.text, "'wheel'"),
       "%d interlocked boxes are %s", (int)ncolumns + 4, accepted ? "checked" : "refused");
    ckpt_layout_free(&l);
}

int main(void)
{
    test_random_tilings();
    test_interlocked(1500, true);
    test_interlocked(400000, false);
    test_cases();
    test_plans();
    test_replicas();
    return tap_done();
}
