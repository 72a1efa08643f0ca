/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of products in 8 bits on CUDA's operators, emulated on the CPU: by codes, as Hopper has
 * them, and on a GPU without such products by their values. */
/* run: timeout=300 */
#include "f8_codes.h"

#include "../models/suite_f8_experts.h"

/* Of experts: of many rows by codes, on Hopper, a product for each expert and one for the rest of
 * its rows; of few rows, and on other GPUs, by values. */
static void test_experts(bool by_codes)
{
    const int before = simt_lt_eights();

    nlines = 0, lines[0] = 0;
    run_f8_experts();
    const int n = simt_lt_eights() - before;
    ok(by_codes ? n == 3 * 2 * (2 * 4 + 2 + 3 * 3 + 3 * 3 + 2 * 4 + 3) + 2 * (2 * 5 + 3) : n == 0,
       "experts: %d products were in 8 bits", n);
    ok(by_codes ? nlines == 2 && strstr(lines, "more than 512 rows an expert") &&
                      strstr(lines, "matrices of 33 x 20")
                : nlines == 1 && strstr(lines, "experts: compute capability 8.0 has no"),
       "others are told once: %s", lines);
    nlines = 0, lines[0] = 0;
}

/* ---- maps of the same x ---------------------------------------------------------------------- */

enum { MAPS_ROWS = 48, MAPS_NIN = 32, MAPS_NOUT = 64, MAPS_MOST = 3 };

static void *upload(const void *from, size_t nbytes)
{
    void *at = fsdp_device_alloc(mirror.device, nbytes, "maps", &err);
    mirror_must(fsdp_copy(mirror.lane, at, from, nbytes, &err));
    mirror_must(fsdp_lane_sync(mirror.lane, &err));
    return at;
}

struct maps_case {
    int count;
    bool transposed, biased, gathered, apart; /* apart: matrices do not lie next to each other */
    bool at_once;
};

/* As codes, or in bf16, and what their scale is made of. */
static void maps_weight(struct nn_linear *a, const struct maps_case *c, size_t nelem)
{
    float *wide = f8_values(nelem, FSDP_BF16);
    uint16_t *narrow = f8_narrow(wide, nelem, FSDP_BF16);
    uint8_t *codes = malloc(nelem);
    double greatest = 0;
    uint32_t bits;

    for (size_t i = 0; i < nelem; i++)
        greatest = fmax(greatest, fabs((double)wide[i]));
    for (size_t i = 0; i < nelem; i++)
        codes[i] = fsdp_f32_to_f8_e4m3(wide[i]);
    bits = nn_f8_bits((float)greatest);
    a->w = c->gathered ? upload(codes, nelem) : upload(narrow, nelem * sizeof *narrow);
    a->w_amax = c->gathered ? upload(&greatest, sizeof greatest) : NULL;
    a->w_shared = c->gathered ? NULL : upload(&bits, sizeof bits);
    free(wide), free(narrow), free(codes);
}

/* Several maps whose matrices share a scale are one product, with the bits of each alone. */
static void test_maps(struct maps_case c)
{
    const size_t nw = MAPS_NIN * MAPS_NOUT, ny = MAPS_ROWS * MAPS_NOUT, nx = MAPS_ROWS * MAPS_NIN;
    const int ldw = c.transposed ? MAPS_MOST * MAPS_NOUT : 0;
    struct nn_maps a = {.count = c.count,
                        .w_step = c.transposed ? MAPS_NOUT : nw + (c.apart ? 64 : 0),
                        .b_step = MAPS_NOUT,
                        .y_step = ny + 16};
    const size_t nws = MAPS_MOST * (nw + 64), nys = MAPS_MOST * a.y_step;
    float *x = f8_values(nx, FSDP_BF16), *b = f8_values(MAPS_MOST * MAPS_NOUT, FSDP_BF16);
    void *narrow_x = f8_narrow(x, nx, FSDP_BF16);
    void *narrow_b = f8_narrow(b, MAPS_MOST * MAPS_NOUT, FSDP_BF16);
    uint16_t *y[2] = {calloc(nys, 2), calloc(nys, 2)};
    void *const at[2] = {upload(y[0], nys * 2), upload(y[1], nys * 2)};
    enum nn_f8_made made = NN_F8_NOTHING;
    const int before = simt_lt_batched();
    bool done = false;

    a.first = (struct nn_linear){.out = at[0],
                                 .x = upload(narrow_x, nx * 2),
                                 .b = c.biased ? upload(narrow_b, MAPS_MOST * MAPS_NOUT * 2) : NULL,
                                 .rows = MAPS_ROWS,
                                 .nin = MAPS_NIN,
                                 .nout = MAPS_NOUT,
                                 .ldw = ldw,
                                 .dtype = FSDP_BF16,
                                 .y_dtype = FSDP_BF16,
                                 .w_dtype = FSDP_BF16,
                                 .dw_dtype = FSDP_BF16,
                                 .f8 = {FSDP_F8_E4M3, FSDP_F8_E4M3, NN_F8_TENSOR},
                                 .made = &made};
    maps_weight(&a.first, &c, nws);
    const size_t work = nn_cuda_ops.linear_work_nelem(&a.first) * sizeof(float);
    a.first.work = fsdp_device_alloc(mirror.device, work, "work", &err);
    int rc = nn_cuda_ops.maps_forward(mirror.lane, &a, &done, &err);
    for (int i = 0; i < c.count && done; i++) {
        struct nn_linear one = a.first;
        one.out = nn_at(at[1], FSDP_BF16, (size_t)i * a.y_step);
        one.w = nn_at(one.w, c.gathered ? FSDP_U8 : FSDP_BF16, (size_t)i * a.w_step);
        one.b = nn_at(one.b, FSDP_BF16, (size_t)i * a.b_step);
        one.made = i % 2 ? &made : NULL; /* of x there are the codes that all maps took */
        rc |= nn_cuda_ops.linear_forward(mirror.lane, &one, &err);
    }
    for (int i = 0; i < 2; i++)
        rc |= fsdp_copy(mirror.lane, y[i], at[i], nys * 2, &err);
    rc |= fsdp_lane_sync(mirror.lane, &err);
    ok(!rc && done == c.at_once && simt_lt_batched() == before + (done ? c.count : 0) &&
           !memcmp(y[0], y[1], nys * 2),
       "%d maps of one scale%s%s%s%s: %s", c.count, c.transposed ? ", transposed" : "",
       c.biased ? ", with a bias" : "", c.gathered ? ", gathered in codes" : "",
       c.apart ? ", with space between them" : "", done ? "at once" : "apart");
    void *const all[] = {at[0],
                         at[1],
                         (void *)(uintptr_t)a.first.x,
                         (void *)(uintptr_t)a.first.b,
                         (void *)(uintptr_t)a.first.w,
                         (void *)(uintptr_t)a.first.w_amax,
                         (void *)(uintptr_t)a.first.w_shared,
                         a.first.work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        fsdp_device_free(mirror.device, all[i]);
    free(x), free(b), free(narrow_x), free(narrow_b), free(y[0]), free(y[1]);
}

static void run_maps(bool at_once)
{
    test_maps((struct maps_case){2, false, false, false, false, at_once});
    test_maps((struct maps_case){2, false, true, false, true, at_once});
    test_maps((struct maps_case){2, true, true, false, false, at_once});
    test_maps((struct maps_case){3, false, true, true, true, at_once});
    test_maps((struct maps_case){2, true, false, true, false, at_once});
    test_maps((struct maps_case){3, true, true, true, false, false}); /* no room for a third */
    test_maps((struct maps_case){3, false, false, false, false, false});
}

int main(void)
{
    if (!open_cuda(90))
        return 1;
    run_maps(true);
    test_experts(true);
    const int before = simt_lt_eights();
    run_f8(NN_F8_BLOCK);
    const int neights = simt_lt_eights() - before, nrows = of_rows();
    ok(neights - nrows >= 3 * 4 * 3 + 16 * 4, "%d products were in 8 bits", neights);
    ok(nrows >= 3 * 6 * 3 + 4 && !of_blocks(), "%d of them with scales of rows", nrows);
    ok(nlines == 2 && strstr(lines, "multiples of 16") &&
           strstr(lines, "scales of blocks on compute capability 9.0"),
       "others are told once: %s", lines);
    nlines = 0, lines[0] = 0;
    simt_set_capability(80);
    run_maps(false);
    run_f8(NN_F8_BLOCK);
    ok(simt_lt_eights() == neights + before, "none on compute capability 8.0");
    ok(nlines == 1 && strstr(lines, "compute capability 8.0 has no"), "which is told once: %s",
       lines);
    test_experts(false);
    return tap_done();
}
