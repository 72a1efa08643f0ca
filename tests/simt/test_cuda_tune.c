/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm a product takes: the stand-in's second proposal is its fastest one. */
#include <stdint.h>
#include <string.h>

#include "cublasLt.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "nn/nn.h"
#include "tap.h"

extern const struct nn_ops nn_cuda_ops;

enum { ROWS = 24, NIN = 16, NOUT = 40 };

static struct fsdp_err err = FSDP_ERR_INIT;
static struct fsdp_device *device;
static struct fsdp_lane *lane;
static float *x, *w, *y;

/* y = x wᵀ of the first `rows` rows, which are ones: all of y are NIN. */
static int product(int rows)
{
    const struct nn_linear a = {.out = y, .x = x, .w = w, .rows = rows, .nin = NIN, .nout = NOUT};
    int rc = nn_cuda_ops.linear_forward(lane, &a, &err);
    return rc ? rc : fsdp_lane_sync(lane, &err);
}

static bool product_is(float value)
{
    static float host[ROWS * NOUT];
    if (fsdp_copy(lane, host, y, sizeof host, &err) || fsdp_lane_sync(lane, &err))
        return false;
    for (int i = 0; i < ROWS * NOUT; i++)
        if (host[i] != value)
            return false;
    return true;
}

static float *ones(size_t nelem)
{
    float *at = fsdp_device_alloc(device, nelem * sizeof *at, "ones", &err);
    fsdp_init_fill(lane, at, 0, nelem, (struct fsdp_init){FSDP_INIT_ONES, 0}, 1, 1, &err);
    return at;
}

static void test_timed(struct nn_tuning *t)
{
    ok(product(ROWS) == FSDP_OK && simt_lt_last() == 0, "the library's first choice, before");
    ok(nn_cuda_ops.tune(lane, t, false, &err) == FSDP_OK && t->ntimed == 0 && t->nbytes == 0 &&
           strstr(t->who, "emulated, 4 processors"),
       "who it is for: %s", t->who);
    ok(nn_cuda_ops.tune(lane, t, true, &err) == FSDP_OK && t->ntimed == 1 && t->nknown == 0 &&
           t->nbytes > 0,
       "one product is timed: %s", err.text);
    ok(product(ROWS) == FSDP_OK && simt_lt_last() == 1 && product_is(NIN),
       "then the fastest of them, to the same result");
}

static void test_known(struct nn_tuning *t)
{
    const size_t nbytes = t->nbytes;

    ok(nn_cuda_ops.tune(lane, t, true, &err) == FSDP_OK && t->ntimed == 0 && t->nknown == 1 &&
           t->nbytes == nbytes,
       "what the table has is not timed again");
    ok(product(ROWS / 2) == FSDP_OK && simt_lt_last() == 0, "another shape is another product");
    ok(nn_cuda_ops.tune(lane, t, false, &err) == FSDP_OK && t->ntimed == 0 && t->nknown == 1 &&
           product(ROWS / 2) == FSDP_OK && simt_lt_last() == 0,
       "which stays as it is where nothing may be timed");
    ok(nn_cuda_ops.tune(lane, t, true, &err) == FSDP_OK && t->ntimed == 1 && t->nknown == 1 &&
           t->nbytes == 2 * nbytes && product(ROWS / 2) == FSDP_OK && simt_lt_last() == 1,
       "else it is added");
}

/* What a file or another rank may hand over. */
static void test_nonsense(struct nn_tuning *t)
{
    unsigned char *bytes = t->table;
    const size_t each = t->nbytes / 2;

    for (size_t i = each / 2; i < each; i++) /* the algorithms; keys come first */
        bytes[i] = bytes[each + i] = 0xee;
    ok(nn_cuda_ops.tune(lane, t, false, &err) == FSDP_OK && t->nknown == 0 &&
           product(ROWS) == FSDP_OK && simt_lt_last() == 1 && product_is(NIN),
       "algorithms that the library does not accept are not taken");
    t->nbytes--;
    ok(nn_cuda_ops.tune(lane, t, true, &err) == FSDP_OK && t->nknown == 0 && t->ntimed == 2,
       "a table of a strange length is as none");
}

/* dw = dyᵀ x and db in bf16, all of ones; *at_once: the product had the epilogue. */
static bool gradients(int nout, bool *at_once)
{
    const struct nn_linear a = {.out = y,
                                .db = w,
                                .x = x,
                                .dy = x,
                                .rows = 4,
                                .nin = 8,
                                .nout = nout,
                                .dtype = FSDP_BF16,
                                .y_dtype = FSDP_BF16,
                                .dw_dtype = FSDP_F32};
    const int before = simt_lt_epilogues(CUBLASLT_EPILOGUE_BGRADB);
    float db[16] = {0};

    int rc = nn_cuda_ops.linear_backward_weight(lane, &a, &err);
    rc = rc ? rc : fsdp_copy(lane, db, w, (size_t)nout * sizeof *db, &err);
    rc = rc ? rc : fsdp_lane_sync(lane, &err);
    *at_once = simt_lt_epilogues(CUBLASLT_EPILOGUE_BGRADB) > before;
    for (int i = 0; i < nout; i++)
        rc |= db[i] != 4;
    return !rc;
}

/* An epilogue that is slower than a kernel behind the product is left to the kernel, in later runs
 * with the table, too. */
static void test_epilogue(void)
{
    struct nn_tuning t = {.who = ""};
    bool first, slow, fast;

    static const uint16_t one[64] = {[0 ... 63] = 0x3f80};
    int rc = fsdp_copy(lane, x, one, sizeof one, &err);
    ok(!rc && gradients(8, &first) && first, "a product with an epilogue, before: %s", err.text);
    simt_lt_slow_epilogues(1);
    rc = nn_cuda_ops.tune(lane, &t, true, &err);
    ok(!rc && gradients(8, &slow) && !slow, "one that is slower is not taken: %s", err.text);
    simt_lt_slow_epilogues(0);
    rc = nn_cuda_ops.tune(lane, &t, true, &err);
    ok(!rc && t.ntimed == 0 && gradients(8, &slow) && !slow, "as the table says");
    ok(gradients(16, &first) && first, "another shape is another product");
    rc = nn_cuda_ops.tune(lane, &t, true, &err);
    ok(!rc && t.ntimed == 2 && gradients(16, &fast) && fast, "one that is faster is taken");
    fsdp_free(t.table);
}

static struct nn_linear map_of(int rows)
{
    return (struct nn_linear){.out = y,
                              .x = x,
                              .w = x,
                              .rows = rows,
                              .nin = 8,
                              .nout = 8,
                              .dtype = FSDP_BF16,
                              .y_dtype = FSDP_BF16,
                              .w_dtype = FSDP_BF16};
}

/* Two maps of x, with the same w. */
static bool maps(int rows, bool *at_once)
{
    const struct nn_maps a = {.first = map_of(rows), .count = 2, .y_step = (size_t)rows * 8};
    int rc = nn_cuda_ops.maps_forward(lane, &a, at_once, &err);
    rc = rc ? rc : fsdp_lane_sync(lane, &err);
    return !rc;
}

/* So is a batch that is slower than its products one after the other. */
static void test_batch(void)
{
    struct nn_tuning t = {.who = ""};
    bool at_once, slow;

    ok(maps(4, &at_once) && at_once, "two products in one, before: %s", err.text);
    simt_lt_slow_epilogues(1);
    int rc = nn_cuda_ops.tune(lane, &t, true, &err);
    simt_lt_slow_epilogues(0);
    ok(!rc && maps(4, &slow) && !slow, "a batch that is slower is not taken: %s", err.text);
    fsdp_free(t.table);
}

static bool runs_choice(int choice)
{
    const struct nn_linear a = map_of(8);
    int rc = nn_cuda_ops.linear_forward(lane, &a, &err);
    rc = rc ? rc : fsdp_lane_sync(lane, &err);
    return !rc && simt_lt_last() == choice;
}

/* A product that the table has keeps its algorithm where it is timed again, next to a batch: ranks
 * that take the table have that one. */
static void test_compared(void)
{
    struct nn_tuning t = {.who = ""};
    bool at_once;

    int rc = nn_cuda_ops.tune(lane, &t, true, &err);
    const size_t before = t.nbytes;
    rc = rc || !maps(8, &at_once) || !runs_choice(0); /* the batch is the older one */
    rc = rc ? rc : nn_cuda_ops.tune(lane, &t, true, &err);
    ok(!rc && at_once && t.ntimed == 2 && runs_choice(1), "a batch and one of it: %s", err.text);
    t.nbytes -= (t.nbytes - before) / 2; /* a table of another run, without the batch, */
    ((uint64_t *)((char *)t.table + t.nbytes))[-2] = 0; /* and with another choice */
    rc = nn_cuda_ops.tune(lane, &t, false, &err);
    ok(!rc && runs_choice(0), "the table has another choice for the one");
    rc = nn_cuda_ops.tune(lane, &t, true, &err);
    ok(!rc && t.ntimed == 1 && runs_choice(0), "the batch is timed, and the choice stays");
    fsdp_free(t.table);
}

int main(void)
{
    struct nn_tuning t = {.who = ""};

    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err) ||
        fsdp_lane_create(&lane, device, "test", &err))
        return 1;
    x = ones((size_t)ROWS * NIN);
    w = ones((size_t)NOUT * NIN);
    y = fsdp_device_alloc(device, sizeof(float) * ROWS * NOUT, "y", &err);
    test_timed(&t);
    test_known(&t);
    test_nonsense(&t);
    test_epilogue();
    test_batch();
    test_compared();
    fsdp_free(t.table);
    fsdp_device_free(device, x);
    fsdp_device_free(device, w);
    fsdp_device_free(device, y);
    fsdp_lane_destroy(lane);
    fsdp_device_close(device);
    return tap_done();
}
