/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's attention. */
#include "suite_attention.h"

/* q, k, v, o and dsinks after both passes, with that many threads. */
enum { NKINDS = 5 };
static void pass_with_threads(int nthreads, struct shape s, float *const *in, float **out)
{
    nn_set_threads(nthreads);
    struct nn_attention a = {.B = s.B, .Tq = s.Tq, .Tk = s.Tk, .NH = s.NH, .NKV = s.NKV, .D = s.D};
    float *sinks = narrow(s.sinks, (size_t)s.NH), *dsinks = ref_output((size_t)s.NH, 0);
    a.scale = 0.2f, a.window = s.window, a.softcap = s.cap;
    a.sinks = sinks, a.dsinks = dsinks;
    copies_pass(&a, s, in, in[3]);
    out[0] = a.q, out[1] = a.k, out[2] = a.v, out[3] = a.o, out[4] = dsinks;
    free(a.lse), free(a.work), free(sinks);
}

static void test_threads(void)
{
    const struct shape s = with(shape(3, 97, 97, 4, 2, 24), 30, 3, true);
    const size_t nelem[NKINDS] = {nq(s), nk(s), nk(s), nq(s), (size_t)s.NH};
    float *in[4] = {ref_values(nq(s), 1), ref_values(nk(s), 1), ref_values(nk(s), 1),
                    ref_values(nq(s), 1)};
    float *one[NKINDS], *three[NKINDS];
    bool same = true;

    pass_with_threads(1, s, in, one);
    pass_with_threads(3, s, in, three);
    for (int i = 0; i < NKINDS; i++) {
        same &= !memcmp(one[i], three[i], nelem[i] * sizeof(float));
        free(one[i]), free(three[i]);
    }
    ok(same, "three threads give the bits of one");
    for (int i = 0; i < 4; i++)
        free(in[i]);
}

/* With a window, the memory of scores does not depend on the number of keys; dk and dv hold all. */
static void test_work(void)
{
    enum { T = 4096, D = 8 };
    struct nn_attention a = {.B = 1, .Tq = T, .Tk = T, .NH = 1, .NKV = 1, .D = D, .window = 100};
    size_t nelem[2];
    nn_set_threads(1);
    for (int i = 0; i < 2; i++, a.Tq = a.Tk = 2 * T)
        nelem[i] = nn->attention_work_nelem(&a);
    ok(nelem[1] - nelem[0] == 2 * T * D, "a window bounds the memory of scores");
}

int main(void)
{
    run_attention();
    run_traits();
    nn_set_threads(3);
    run_attention();
    run_traits();
    test_threads();
    test_work();
    return tap_done();
}
