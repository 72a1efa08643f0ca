/* SPDX-License-Identifier: Apache-2.0 */
/* The cut: every element has one owner, cuts fall between rows, shards are equal, and row lengths
 * without a small common multiple are cut in chunks. */
#include <string.h>

#include "fsdp/base.h"
#include "tap.h"

static const struct fsdp_tensor tensors[] = {
    {"embed", FSDP_F32, 2, {256, 64}}, {"norm", FSDP_F32, 1, {64}},
    {"down", FSDP_F32, 2, {64, 176}},  {"scalar", FSDP_F32, 0, {0}},
    {"odd", FSDP_F32, 3, {5, 3, 7}},   {"empty", FSDP_F32, 2, {0, 9}},
};
enum { NTENSORS = sizeof tensors / sizeof tensors[0] };

/* lcm(128, 1023, 767, 513) is 1.7e10: cut between rows, this would fill 64 GiB a rank. */
static const struct fsdp_tensor odd[] = {
    {"up", FSDP_F32, 2, {64, 1023}},   {"norm", FSDP_F32, 1, {1023}},
    {"down", FSDP_F32, 2, {5, 767}},   {"scalar", FSDP_F32, 0, {0}},
    {"conv", FSDP_F32, 3, {7, 9, 57}}, {"empty", FSDP_F32, 2, {0, 9}},
};
enum { NODD = sizeof odd / sizeof odd[0] };

static void check(const char *what, const struct fsdp_tensor *list, int ntensors, int nranks,
                  bool chunked)
{
    struct fsdp_cut cut;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool tiled = true, contiguous = true, in_shard = true, even = true, aligned = true;

    ok(fsdp_cut_create(&cut, list, ntensors, nranks, &err) == FSDP_OK && cut.chunked == chunked,
       "%s, %d ranks: cut made, %s", what, nranks, chunked ? "in chunks" : "between rows");
    for (int i = 0; i < ntensors; i++) {
        uint64_t next = 0, total = 0, row = fsdp_tensor_row_nelem(&list[i]);
        uint64_t chunk = fsdp_cut_chunk_nelem(&cut, &list[i]), next_pos = 0;
        aligned &= cut.start[i] % FSDP_CUT_ALIGN == 0;
        for (int r = 0; r < nranks; r++) {
            struct fsdp_box box;
            uint64_t pos, nelem = fsdp_cut_box(&box, &pos, &cut, list, i, r);
            uint64_t shard = cut.shard_nelem * (uint64_t)r, at = box.offset[0] * row;
            in_shard &= pos + nelem <= cut.shard_nelem;
            if (chunked && list[i].ndim) { /* as torch's Shard(0) has it, empty ones, too */
                uint64_t from = chunk * (uint64_t)r, all = fsdp_tensor_nelem(&list[i]);
                even &=
                    at == (from < all ? from : all) && nelem == (from >= all          ? 0
                                                                 : all - from < chunk ? all - from
                                                                                      : chunk);
            }
            if (!nelem)
                continue;
            tiled &= list[i].ndim == 0 || box.offset[0] == next;
            next += box.length[0];
            total += nelem;
            tiled &= fsdp_box_nelem(&box, list[i].ndim) == nelem;
            contiguous &= chunked ? pos == cut.start[i] / (uint64_t)nranks && pos >= next_pos
                                  : shard + pos == cut.start[i] + at;
        }
        next_pos = cut.start[i] / (uint64_t)nranks + chunk;
        in_shard &= !chunked || next_pos <= cut.shard_nelem;
        if (chunked && i + 1 < ntensors)
            in_shard &= next_pos * (uint64_t)nranks <= cut.start[i + 1];
        tiled &= total == fsdp_tensor_nelem(&list[i]);
    }
    ok(tiled, "%s, %d ranks: boxes tile every tensor in row order", what, nranks);
    ok(contiguous, "%s, %d ranks: a box is contiguous in its owner's shard", what, nranks);
    ok(in_shard, "%s, %d ranks: no box leaves its shard or meets another", what, nranks);
    ok(even && aligned, "%s, %d ranks: aligned; chunks are ceil(rows / ranks) rows", what, nranks);
    fsdp_cut_destroy(&cut);
}

/* One tensor of row length 2065 and one row: 128 rows of padding are more than 1 MiB (of fp32). */
static void test_choice(void)
{
    static const struct {
        uint64_t rows, row;
        int nranks;
        bool chunked;
    } cases[] = {
        {1, 2065, 1, true},             /* 127 of 128 rows are padding, 1.0004 MiB */
        {1, 2063, 1, false},            /* 0.9994 MiB */
        {128, 2065, 1, false},          /* none at all */
        {128 * 40, 2065, 2, false},     /* none */
        {128 * 40 + 1, 4095, 1, false}, /* 2 MiB, but 2.5 % */
        {128 * 30 + 1, 4095, 1, true},  /* 3.3 % */
        {1, 3145728, 2, false},         /* one row: chunks would be padded as much */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_tensor one = {"one", FSDP_F32, 2, {cases[i].rows, cases[i].row}};
        struct fsdp_cut cut;
        ok(!fsdp_cut_create(&cut, &one, 1, cases[i].nranks, NULL) &&
               cut.chunked == cases[i].chunked,
           "%llu rows of %llu on %d ranks: %s", (unsigned long long)cases[i].rows,
           (unsigned long long)cases[i].row, cases[i].nranks,
           cases[i].chunked ? "chunks" : "between rows");
        fsdp_cut_destroy(&cut);
    }
}

int main(void)
{
    for (int nranks = 1; nranks <= 9; nranks++) {
        check("small rows", tensors, NTENSORS, nranks, false);
        check("odd rows", odd, NODD, nranks, true);
    }
    test_choice();

    struct fsdp_tensor huge[] = {{"a", FSDP_F32, 2, {3, (UINT64_C(1) << 61) - 1}},
                                 {"b", FSDP_F32, 2, {3, (UINT64_C(1) << 61) - 3}}};
    struct fsdp_cut cut;
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(fsdp_cut_create(&cut, huge, 2, 2, &err) == FSDP_EINVAL && strstr(err.text, "overflow"),
       "overflow is refused: %s", err.text);
    return tap_done();
}
