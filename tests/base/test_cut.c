/* SPDX-License-Identifier: Apache-2.0 */
/* The cut: every element has one owner, cuts fall between rows, shards are equal. */
#include <string.h>

#include "fsdp/base.h"
#include "tap.h"

static const struct fsdp_tensor tensors[] = {
    {"embed", FSDP_F32, 2, {256, 64}}, {"norm", FSDP_F32, 1, {64}},
    {"down", FSDP_F32, 2, {64, 176}},  {"scalar", FSDP_F32, 0, {0}},
    {"odd", FSDP_F32, 3, {5, 3, 7}},   {"empty", FSDP_F32, 2, {0, 9}},
};
enum { NTENSORS = sizeof tensors / sizeof tensors[0] };

static void check(int nranks)
{
    struct fsdp_cut cut;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool tiled = true, contiguous = true, in_shard = true;

    ok(fsdp_cut_create(&cut, tensors, NTENSORS, nranks, &err) == FSDP_OK, "%d ranks: cut made",
       nranks);
    for (int i = 0; i < NTENSORS; i++) {
        uint64_t next = 0, total = 0, row = fsdp_tensor_row_nelem(&tensors[i]);
        for (int r = 0; r < nranks; r++) {
            struct fsdp_box box;
            uint64_t pos, nelem = fsdp_cut_box(&box, &pos, &cut, tensors, i, r);
            in_shard &= pos + nelem <= cut.shard_nelem;
            if (!nelem)
                continue;
            tiled &= tensors[i].ndim == 0 || box.offset[0] == next;
            next += box.length[0];
            total += nelem;
            tiled &= fsdp_box_nelem(&box, tensors[i].ndim) == nelem;
            contiguous &= cut.shard_nelem * (uint64_t)r + pos == cut.start[i] + box.offset[0] * row;
        }
        tiled &= total == fsdp_tensor_nelem(&tensors[i]);
    }
    ok(tiled, "%d ranks: boxes tile every tensor in row order", nranks);
    ok(contiguous, "%d ranks: a box is contiguous in its owner's shard", nranks);
    ok(in_shard, "%d ranks: no box leaves its shard", nranks);
    fsdp_cut_destroy(&cut);
}

int main(void)
{
    for (int nranks = 1; nranks <= 9; nranks++)
        check(nranks);

    struct fsdp_tensor huge[] = {{"a", FSDP_F32, 2, {3, (UINT64_C(1) << 61) - 1}},
                                 {"b", FSDP_F32, 2, {3, (UINT64_C(1) << 61) - 3}}};
    struct fsdp_cut cut;
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(fsdp_cut_create(&cut, huge, 2, 2, &err) == FSDP_EINVAL && strstr(err.text, "overflow"),
       "overflow is refused: %s", err.text);
    return tap_done();
}
