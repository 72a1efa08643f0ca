/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small matrices against sums in fp64, at sizes around those of registers and panels,
 * with elements between rows that must be left alone, and what lies behind matrices unreadable. */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nn/cpu/cpu.h"
#include "nn_ref.h"

struct guarded {
    char *map, *end; /* of what can be read */
    size_t nbytes;
};

/* nbytes that end where reading is an error. */
static struct guarded guarded(size_t nbytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (nbytes + page - 1) / page * page;
    struct guarded g = {.nbytes = room + page};

    g.map = mmap(NULL, g.nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + room, page, PROT_NONE))
        abort();
    g.end = g.map + room;
    return g;
}

/* A matrix as it lies, of random values that bf16 has where it is in bf16. */
struct operand {
    struct guarded mem;
    struct nn_matrix x;
    float *values; /* [nrows][ld] */
};

static struct operand operand(int rows, int cols, bool transposed, enum fsdp_dtype dtype, int gap)
{
    const int nrows = transposed ? cols : rows, ncols = transposed ? rows : cols, ld = ncols + gap;
    const size_t nelem = (size_t)(nrows - 1) * (size_t)ld + (size_t)ncols;
    const size_t nbytes = nelem * fsdp_dtype_nbytes(dtype);
    struct operand o = {.mem = guarded(nbytes), .values = ref_values(nelem, 1)};

    fsdp_cpu_convert(o.mem.end - nbytes, dtype, o.values, FSDP_F32, nelem);
    fsdp_cpu_convert(o.values, FSDP_F32, o.mem.end - nbytes, dtype, nelem);
    o.x = (struct nn_matrix){o.mem.end - nbytes, ld, transposed, dtype, 0};
    return o;
}

static double at(const struct operand *o, int row, int col, bool rounded)
{
    const size_t ld = (size_t)o->x.ld;
    const float value = o->x.transposed ? o->values[(size_t)col * ld + (size_t)row]
                                        : o->values[(size_t)row * ld + (size_t)col];
    return rounded ? (double)fsdp_bf16_to_f32(fsdp_f32_to_bf16(value)) : (double)value;
}

struct kind {
    const char *what;
    enum fsdp_dtype a, b;
    bool a_transposed, b_transposed;
};

/* The largest error, in units of fp32 of the largest sum; what lies between rows of c counts. */
static double error_of(const struct kind *kind, int m, int n, int k, int gap, bool adds)
{
    const bool pairs = kind->b == FSDP_BF16;
    struct operand a = operand(m, k, kind->a_transposed, kind->a, gap);
    struct operand b = operand(k, n, kind->b_transposed, kind->b, gap);
    struct operand c = operand(m, n, false, FSDP_F32, gap);
    const float alpha = 0.25f;
    double worst = 0;
    float *got = (float *)(uintptr_t)c.x.at;

    nn_tile_gemm(
        &(struct nn_product){
            .m = m, .n = n, .k = k, .a = a.x, .b = b.x, .c = got, .ldc = c.x.ld, .beta = adds},
        alpha);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n + (i + 1 < m ? gap : 0); j++) {
            const size_t here = (size_t)i * (size_t)c.x.ld + (size_t)j;
            double sum = j < n && !adds ? 0 : (double)c.values[here], size = 1;
            for (int l = 0; l < k && j < n; l++) {
                const double term = (double)alpha * at(&a, i, l, pairs) * at(&b, l, j, false);
                sum += term;
                size += fabs(term);
            }
            const double off = fabs((double)got[here] - sum) / size;
            worst = off <= worst ? worst : isfinite(off) ? off : 1e30;
        }
    const struct operand *all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        munmap(all[i]->mem.map, all[i]->mem.nbytes);
        free(all[i]->values);
    }
    return worst;
}

static void test(const struct kind *kind)
{
    static const int ms[] = {1, 3, 6, 11, 64, 71}, ns[] = {1, 16, 17, 48, 64, 70, 130};
    static const int ks[] = {1, 2, 7, 32, 64, 255, 258, 515};
    const bool needs_even = kind->a == FSDP_BF16;
    double worst = 0;
    int nsizes = 0;

    if (!nn_tile_has(kind->b)) {
        tap_skip("%s: this processor has no such instructions", kind->what);
        return;
    }
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (size_t l = 0; l < sizeof ks / sizeof *ks; l++) {
                if (needs_even && ks[l] % 2)
                    continue;
                worst = fmax(worst,
                             error_of(kind, ms[i], ns[j], ks[l], nsizes % 2 * 2, nsizes % 3 == 0));
                nsizes++;
            }
    ok(worst < 2e-6, "%s: %d sizes, error %.1e of the terms", kind->what, nsizes, worst);
}

int main(void)
{
    static const struct kind kinds[] = {
        {"fp32, a b", FSDP_F32, FSDP_F32, false, false},
        {"fp32, a bT", FSDP_F32, FSDP_F32, false, true},
        {"fp32, aT b", FSDP_F32, FSDP_F32, true, false},
        {"fp32, aT bT", FSDP_F32, FSDP_F32, true, true},
        {"bf16, a bT", FSDP_BF16, FSDP_BF16, false, true},
        {"bf16, a b", FSDP_BF16, FSDP_BF16, false, false},
        {"fp32 rounded, a b in bf16", FSDP_F32, FSDP_BF16, false, false},
        {"fp32 rounded, aT b in bf16", FSDP_F32, FSDP_BF16, true, false},
        {"fp32 rounded, aT bT in bf16", FSDP_F32, FSDP_BF16, true, true},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        test(&kinds[i]);
    return tap_done();
}
