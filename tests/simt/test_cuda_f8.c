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

int main(void)
{
    if (!open_cuda(90))
        return 1;
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
    run_f8(NN_F8_BLOCK);
    ok(simt_lt_eights() == neights + before, "none on compute capability 8.0");
    ok(nlines == 1 && strstr(lines, "compute capability 8.0 has no"), "which is told once: %s",
       lines);
    test_experts(false);
    return tap_done();
}
