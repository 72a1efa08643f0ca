/* SPDX-License-Identifier: Apache-2.0 */
/* The suite of products in 8 bits on CUDA's operators, emulated on the CPU: with scales of blocks
 * by codes, as Blackwell has them, and by the values of codes where the library does not know them.
 */
/* run: timeout=300 */
#include "f8_codes.h"

int main(void)
{
    if (!open_cuda(100))
        return 1;
    run_f8(NN_F8_BLOCK);
    const int nblocks = of_blocks(), neights = simt_lt_eights();
    ok(!of_rows() && nblocks >= 3 * 2 * 3 + 2, "%d products have scales of blocks", nblocks);
    ok(neights - nblocks >= 3 * 4 * 3 + 16 * 4, "%d have one", neights - nblocks);
    ok(nlines == 2 && strstr(lines, "multiples of 16") &&
           strstr(lines, "scales of rows on compute capability 10.0"),
       "others are told once: %s", lines);
    nlines = 0, lines[0] = 0;
    simt_lt_set_version(120800);
    f8_exact_lines(NN_F8_TENSOR);
    f8_exact_lines(NN_F8_BLOCK);
    ok(of_blocks() == nblocks && simt_lt_eights() == neights + 2,
       "cuBLASLt 12.8 has products with one scale alone");
    ok(nlines == 1 && strstr(lines, "scales of blocks"), "which is told once: %s", lines);
    return tap_done();
}
