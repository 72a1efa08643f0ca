/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's gradients where the rotation reads them (nn_attention_left), in 16 bits. */
#include "suite_nn_dtypes.h"

/* Gradients of queries and keys that may stay in work memory are those that else replace both.
 * Whether they stayed. */
static bool left_in_work(struct nn_attention a)
{
    const size_t nq = (size_t)a.B * a.Tq * a.NH * a.D, nk = (size_t)a.B * a.Tk * a.NKV * a.D;
    struct pair x[3] = {pair(nq, 1), pair(nk, 1), pair(nk, 1)}, o = pair(nq, 1), d_o = pair(nq, 1);
    struct pair again[3];
    struct nn_attention_left left;
    float *lse = room((size_t)a.B * a.NH * a.Tq);

    for (int i = 0; i < 3; i++) {
        again[i] = pair(x[i].nelem, 1);
        memcpy(again[i].narrow, x[i].narrow, x[i].nelem * 2);
    }
    a.dtype = a.w_dtype = a.dw_dtype = type;
    float *work = room(nn->attention_work_nelem(&a));
    a.o = o.narrow, a.d_o = d_o.narrow, a.lse = lse, a.work = work, a.scale = 0.3f;
    a.q = x[0].narrow, a.k = x[1].narrow, a.v = x[2].narrow;
    int rc = nn->attention_forward(ref_lane(), &a, &err);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    a.q = again[0].narrow, a.k = again[1].narrow, a.v = again[2].narrow;
    left = (struct nn_attention_left){a.q, a.k};
    a.left = &left;
    rc |= nn->attention_forward(ref_lane(), &a, &err);
    rc |= nn->attention_backward(ref_lane(), &a, &err);
    const bool stayed = left.dq != a.q;
    ok(!rc && (left.dk != a.k) == stayed, "gradients of %d x %d, %d heads of %d %s", a.B, a.Tq,
       a.NH, a.D, stayed ? "stay in work memory" : "replace queries and keys");
    void *const got[3] = {left.dq, left.dk, a.v};
    for (int i = 0; i < 3; i++) {
        fsdp_cpu_convert(again[i].wide, FSDP_F32, x[i].narrow, type, x[i].nelem);
        const struct pair second = {.narrow = got[i], .wide = again[i].wide, .nelem = x[i].nelem};
        ok(error_of(&second) < 1e-3, "d%c as without it: %.1e", "qkv"[i], error_of(&second));
    }
    for (int i = 0; i < 3; i++)
        drop(x[i]), drop(again[i]);
    drop(o), drop(d_o), free(lse), free(work);
    return stayed;
}
