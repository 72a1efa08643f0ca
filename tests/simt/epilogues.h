/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epilogues.h: products with epilogues: activations and bias gradients that the library computes on
 * its way are those of the operators that follow a product, and where the library, the GPU, the
 * sizes or the types have none, those operators are called.
 */
#ifndef SIMT_EPILOGUES_H
#define SIMT_EPILOGUES_H

#include <cublasLt.h>

#include "../models/suite_activated.h"
#include "nn/product.h"

extern const struct nn_ops nn_cuda_ops;

/* ---- gradients of biases --------------------------------------------------------------------- */

/* From a product where nothing is added to, else apart. */
static void test_bias_gradient(bool transposed, enum fsdp_dtype dw_dtype, float beta, bool at_once)
{
    struct pair x = pair(LT_ROWS * LT_NIN, 1), dy = pair(LT_ROWS * LT_NOUT, 1);
    const size_t ndw = LT_NIN * LT_NOUT;
    float *dw = ref_output(ndw, 1), *db = ref_output(LT_NOUT, 1), *work;
    double *rdw = ref_wide(ndw), *rdb = ref_wide(LT_NOUT);
    struct nn_linear a = lt_map(LT_ROWS, LT_NIN, LT_NOUT, transposed ? LT_NOUT : 0, type);
    const cublasLtEpilogue_t epilogue =
        transposed ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    const int before = simt_lt_epilogues(epilogue);
    int rc;

    for (size_t i = 0; i < ndw; i++)
        rdw[i] = beta != 0.0f ? (double)beta * dw[i] : 0;
    for (size_t i = 0; i < LT_NOUT; i++)
        rdb[i] = beta != 0.0f ? (double)beta * db[i] : 0;
    for (int r = 0; r < LT_ROWS; r++)
        for (int o = 0; o < LT_NOUT; o++) {
            const double d = dy.wide[r * LT_NOUT + o];
            rdb[o] += d;
            for (int i = 0; i < LT_NIN; i++)
                rdw[transposed ? i * LT_NOUT + o : o * LT_NIN + i] += d * x.wide[r * LT_NIN + i];
        }
    a.dw_dtype = dw_dtype, a.beta = beta;
    work = room(nn->linear_work_nelem(&a));
    a.x = x.narrow, a.dy = dy.narrow, a.out = dw, a.db = db, a.work = work;
    rc = nn->linear_backward_weight(ref_lane(), &a, &err);
    ok(!rc && ref_error(dw, rdw, ndw) < 1e-6 && ref_error(db, rdb, LT_NOUT) < 1e-6 &&
           simt_lt_epilogues(epilogue) == before + at_once,
       "%s %s: gradients of weight and bias, beta %g, %s: %.1e %.1e", fsdp_dtype_name(type),
       transposed ? "transposed" : "linear", (double)beta, at_once ? "at once" : "apart",
       ref_error(dw, rdw, ndw), ref_error(db, rdb, LT_NOUT));
    drop(x), drop(dy), free(dw), free(db), free(work), free(rdw), free(rdb);
}

/* ---- several products in one ----------------------------------------------------------------- */

enum { MAPS_ROWS = 24, MAPS_NIN = 16, MAPS_NOUT = 40, MAPS_GAP = 8, MAPS_MOST = 3 };

/* The device's memory for so many elements, with random ones of this type. */
static void *upload(size_t nelem, enum fsdp_dtype dtype)
{
    float *wide = ref_values(nelem, 1);
    const size_t nbytes = nelem * fsdp_dtype_nbytes(dtype);
    void *narrow = malloc(nbytes), *at = fsdp_device_alloc(mirror.device, nbytes, "maps", &err);

    fsdp_cpu_convert(narrow, dtype, wide, FSDP_F32, nelem);
    mirror_must(fsdp_copy(mirror.lane, at, narrow, nbytes, &err));
    mirror_must(fsdp_lane_sync(mirror.lane, &err));
    free(wide), free(narrow);
    return at;
}

static bool same_bits(const void *a, const void *b, size_t nbytes)
{
    char *host[2] = {malloc(nbytes), malloc(nbytes)};
    int rc = fsdp_copy(mirror.lane, host[0], a, nbytes, &err);
    rc = rc ? rc : fsdp_copy(mirror.lane, host[1], b, nbytes, &err);
    rc = rc ? rc : fsdp_lane_sync(mirror.lane, &err);
    const bool same = !rc && !memcmp(host[0], host[1], nbytes);
    free(host[0]), free(host[1]);
    return same;
}

/* One map of several, alone: what it writes lies in `out` and `db`. */
static int run_alone(const struct nn_maps *a, bool weight, int i)
{
    const size_t at = (size_t)i;
    struct nn_linear one = a->first;

    one.out = weight ? nn_at(one.out, one.dw_dtype, at * a->w_step)
                     : nn_at(one.out, type, at * a->y_step);
    one.db = nn_at(one.db, one.dw_dtype, at * a->b_step);
    one.w = nn_at(one.w, type, at * a->w_step);
    one.b = nn_at(one.b, type, at * a->b_step);
    one.dy = nn_at(one.dy, type, at * a->y_step);
    return weight ? nn_cuda_ops.linear_backward_weight(mirror.lane, &one, &err)
                  : nn_cuda_ops.linear_forward(mirror.lane, &one, &err);
}

/* Maps that lie MAPS_GAP elements apart, against each of them alone: the same bits, and what lies
 * between them stays. transposed: they are columns of one matrix. */
static void test_maps(int count, bool transposed, bool biased, bool weight, float beta,
                      bool at_once)
{
    const size_t nw = MAPS_NIN * MAPS_NOUT, ny = MAPS_ROWS * MAPS_NOUT;
    const int ldw = transposed ? MAPS_MOST * MAPS_NOUT + MAPS_GAP : 0;
    struct nn_maps a = {.count = count,
                        .w_step = transposed ? MAPS_NOUT : nw + MAPS_GAP,
                        .b_step = MAPS_NOUT + MAPS_GAP,
                        .y_step = ny + MAPS_GAP};
    const size_t nws = transposed ? (size_t)ldw * MAPS_NIN : MAPS_MOST * a.w_step;
    const size_t nys = MAPS_MOST * a.y_step, nbs = MAPS_MOST * a.b_step, nx = MAPS_ROWS * MAPS_NIN;
    const size_t nout = weight ? nws : nys;
    const enum fsdp_dtype out_dtype = weight ? FSDP_F32 : type;
    void *const x = upload(nx, type), *const w = upload(nws, type), *const b = upload(nbs, type);
    void *const dy = upload(nys, type), *out[2], *db[2];
    const int before = simt_lt_batched();
    bool done = false;
    int rc = 0;

    for (int i = 0; i < 2; i++) {
        out[i] = fsdp_device_alloc(mirror.device, nout * fsdp_dtype_nbytes(out_dtype), "out", &err);
        db[i] = fsdp_device_alloc(mirror.device, nbs * sizeof(float), "db", &err);
        mirror_must(fsdp_zero(mirror.lane, out[i], nout * fsdp_dtype_nbytes(out_dtype), &err));
        mirror_must(fsdp_zero(mirror.lane, db[i], nbs * sizeof(float), &err));
    }
    a.first = (struct nn_linear){.out = out[0],
                                 .db = weight && biased ? db[0] : NULL,
                                 .b = biased && !weight ? b : NULL,
                                 .x = x,
                                 .w = w,
                                 .dy = dy,
                                 .rows = MAPS_ROWS,
                                 .nin = MAPS_NIN,
                                 .nout = MAPS_NOUT,
                                 .ldw = ldw,
                                 .beta = beta,
                                 .dtype = type,
                                 .y_dtype = type,
                                 .w_dtype = type,
                                 .dw_dtype = FSDP_F32};
    rc = (weight ? nn_cuda_ops.maps_backward_weight : nn_cuda_ops.maps_forward)(mirror.lane, &a,
                                                                                &done, &err);
    a.first.out = out[1];
    a.first.db = weight && biased ? db[1] : NULL;
    for (int i = 0; i < count && !rc && done; i++)
        rc = run_alone(&a, weight, i);
    ok(!rc && done == at_once && simt_lt_batched() == before + (at_once ? count : 0) &&
           same_bits(out[0], out[1], nout * fsdp_dtype_nbytes(out_dtype)) &&
           same_bits(db[0], db[1], nbs * sizeof(float)),
       "%s %s maps%s, %s, beta %g: %s", count == 2 ? "two" : "three",
       transposed ? "transposed" : "linear", biased ? " with bias" : "",
       weight ? "gradients" : "forward", (double)beta, at_once ? "at once" : "apart");
    for (int i = 0; i < 2; i++) {
        fsdp_device_free(mirror.device, out[i]);
        fsdp_device_free(mirror.device, db[i]);
    }
    void *const all[] = {x, w, b, dy};
    for (int i = 0; i < 4; i++)
        fsdp_device_free(mirror.device, all[i]);
}

/* ---- what has none --------------------------------------------------------------------------- */

static bool is_done(struct nn_linear map, enum nn_act act)
{
    const size_t npre = area(map.rows, map.nout), nbytes = fsdp_dtype_nbytes(map.dtype);
    struct nn_activated a = {map, calloc(npre, nbytes), act};
    void *const x = calloc(area(map.rows, map.nin), nbytes), *const w =
                                                                 calloc(w_nelem(&map), nbytes);
    void *const y = calloc(npre, nbytes);
    bool done = true;

    a.map.x = x, a.map.w = w, a.map.out = y;
    const int rc = run_activated(nn_cuda_ops.activated_forward, a, true, &done);
    free(a.pre), free(x), free(w), free(y);
    return rc || done;
}

static void test_without(void)
{
    ok(is_done(lt_map(8, 16, 24, 24, FSDP_BF16), NN_GELU_TANH), "bf16 has an epilogue");
    ok(!is_done(lt_map(8, 16, 24, 24, FSDP_F32), NN_GELU_TANH), "fp32 has none");
    ok(!is_done(lt_map(8, 16, 24, 24, FSDP_BF16), NN_GELU), "exact GELU has none");
    ok(!is_done(lt_map(8, 16, 20, 24, FSDP_BF16), NN_GELU_TANH), "rows of 20 elements have none");
    struct nn_linear in_8_bits = lt_map(16, 16, 32, 32, FSDP_BF16);
    in_8_bits.f8.dtype = FSDP_F8_E4M3;
    ok(!is_done(in_8_bits, NN_GELU_TANH), "products in 8 bits have none");
    simt_set_capability(80);
    ok(!is_done(lt_map(8, 16, 24, 24, FSDP_BF16), NN_GELU_TANH), "capability 8.0 has none");
    simt_set_capability(90);
    simt_lt_refuse_epilogues(1);
    for (int i = 0; i < 2; i++)
        ok(!is_done(lt_map(8, 16, 40, 40, FSDP_BF16), NN_GELU_TANH), "a library that has none");
    test_bias_gradient(true, FSDP_F32, 0, false);
    simt_lt_refuse_epilogues(0);
}

static void run_epilogues(void)
{
    static const enum fsdp_dtype types[] = {FSDP_BF16, FSDP_F16};
    for (int t = 0; t < 2; t++) {
        type = types[t];
        run_activations();
    }
    test_without();
    type = FSDP_BF16;
    test_bias_gradient(true, FSDP_F32, 0, true);
    test_bias_gradient(false, FSDP_F32, 0, true);
    test_bias_gradient(true, FSDP_F32, 1, false);
    test_bias_gradient(false, FSDP_F32, 1, false);
    for (int transposed = 0; transposed < 2; transposed++)
        for (int biased = 0; biased < 2; biased++) {
            test_maps(2, transposed, biased, false, 0, true);
            test_maps(3, transposed, biased, true, 0, true);
        }
    test_maps(2, false, false, true, 1, true);
    test_maps(2, false, true, true, 1, false); /* sums that would be added to */
    simt_lt_refuse_epilogues(1);
    test_maps(3, false, false, false, 0, false);
    simt_lt_refuse_epilogues(0);
}

#endif
