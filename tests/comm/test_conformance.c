/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suite for every communication backend: each collective, in place and not, plain and
 * registered memory, odd sizes, all dtypes, 1 to 6 ranks on 1 to 3 nodes, on lanes with and without
 * threads, against a reference computed here. Expected values are compared byte by byte, so
 * equality of all ranks' results follows. On a GPU (FSDP_TEST_GPU=1) values are small integers,
 * whose sums are exact in any order; else nccl is the stand-in (tests/simt/nccl), which sums in
 * rank order.
 *
 * run: long
 * run: timeout=400
 */
#include "boot.h"
#include "comm_test.h"

enum { GUARD = 64, BIG = 300007 };
static const size_t sizes[] = {0, 1, 3, 127, 128, 129, 5000, 65537, BIG};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

enum mode { PLAIN, PLAIN_IN_PLACE, REGISTERED, REGISTERED_IN_PLACE, MIXED, NMODES };
static const char *const mode_names[NMODES] = {"plain", "plain in place", "registered",
                                               "registered in place", "mixed"};

struct plan {
    const char *backend;
    int nranks, nnodes;
    bool threaded;
    struct board *board;
};

struct suite {
    struct env env;
    struct fsdp_comm *comm;
    struct board *board;
    int me, size;
    bool threaded, nccl;
    uint64_t salt;
    char *registered; /* two halves: send, recv */
    char *plain;      /* the same */
    char *mirror;     /* the same, where the host does not see the device's memory; else NULL */
    char *expected;   /* [size][BIG] of the largest dtype tested at that size */
    size_t half;
};

/* ---- values --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Floats of both signs over eight binades, so that the order of a sum shows in its last bits. */
static void fill(void *dst, uint64_t salt, int rank, int part, size_t nelem, enum fsdp_dtype dtype)
{
    uint64_t base = mix(salt * 1000003 + (uint64_t)rank * 1009 + (uint64_t)part);

    for (size_t i = 0; i < nelem; i++) {
        uint64_t x = mix(base + i);
        float value = (float)((int64_t)(x >> 40) - (1 << 23)) * 0x1p-23f * (float)(1 << (x & 7));
        if (on_gpu())
            value = (float)((int)(x >> 40) % 17 - 8);
        switch (dtype) {
        case FSDP_F32:
            ((float *)dst)[i] = value;
            break;
        case FSDP_F64:
            ((double *)dst)[i] =
                (double)value * (on_gpu() ? 1.0 : 1.0 + (double)(x & 0xffff) * 0x1p-48);
            break;
        case FSDP_BF16:
            ((uint16_t *)dst)[i] = fsdp_f32_to_bf16(value);
            break;
        case FSDP_F16:
            ((uint16_t *)dst)[i] = fsdp_f32_to_f16(value);
            break;
        default:
            memcpy((char *)dst + i * fsdp_dtype_nbytes(dtype), &x, fsdp_dtype_nbytes(dtype));
        }
    }
}

/* acc op= x over raw elements; 16-bit floats through acc32. */
static void add(void *acc, float *acc32, const void *x, size_t nelem, enum fsdp_dtype dtype)
{
    for (size_t i = 0; i < nelem; i++) {
        switch (fsdp_dtype_nbytes(dtype)) {
        case 8:
            if (dtype == FSDP_F64)
                ((double *)acc)[i] += ((const double *)x)[i];
            else
                ((uint64_t *)acc)[i] += ((const uint64_t *)x)[i];
            break;
        case 4:
            if (dtype == FSDP_F32)
                ((float *)acc)[i] += ((const float *)x)[i];
            else
                ((uint32_t *)acc)[i] += ((const uint32_t *)x)[i];
            break;
        case 2:
            if (dtype == FSDP_BF16)
                acc32[i] += fsdp_bf16_to_f32(((const uint16_t *)x)[i]);
            else if (dtype == FSDP_F16)
                acc32[i] += fsdp_f16_to_f32(((const uint16_t *)x)[i]);
            else
                ((uint16_t *)acc)[i] = (uint16_t)(((uint16_t *)acc)[i] + ((const uint16_t *)x)[i]);
            break;
        default:
            ((uint8_t *)acc)[i] = (uint8_t)(((uint8_t *)acc)[i] + ((const uint8_t *)x)[i]);
        }
    }
}

/* The sum in rank order of everyone's `part`, into dst. */
static void reference_sum(struct suite *s, void *dst, int part, size_t nelem, enum fsdp_dtype dtype)
{
    bool half = dtype == FSDP_BF16 || dtype == FSDP_F16;
    void *x = malloc(nelem * 8 + 8);
    float *acc32 = calloc(nelem + 1, sizeof *acc32);

    fill(dst, s->salt, 0, part, nelem, dtype);
    if (half)
        for (size_t i = 0; i < nelem; i++)
            acc32[i] = dtype == FSDP_BF16 ? fsdp_bf16_to_f32(((uint16_t *)dst)[i])
                                          : fsdp_f16_to_f32(((uint16_t *)dst)[i]);
    for (int r = 1; r < s->size; r++) {
        fill(x, s->salt, r, part, nelem, dtype);
        add(dst, acc32, x, nelem, dtype);
    }
    for (size_t i = 0; half && i < nelem; i++)
        ((uint16_t *)dst)[i] =
            dtype == FSDP_BF16 ? fsdp_f32_to_bf16(acc32[i]) : fsdp_f32_to_f16(acc32[i]);
    free(x);
    free(acc32);
}

/* ---- one collective ------------------------------------------------------------------------- */

struct run {
    char *send, *recv;           /* the device's */
    char *send_seen, *recv_seen; /* where the host writes and reads them */
    size_t nelem, part_nbytes;
    enum fsdp_dtype dtype;
    enum mode mode;
    const char *op;
};

/* In the mixed mode every other rank has registered memory. */
static struct run run_make(struct suite *s, const char *op, size_t nelem, enum fsdp_dtype dtype,
                           enum mode mode)
{
    bool registered =
        mode == REGISTERED || mode == REGISTERED_IN_PLACE || (mode == MIXED && s->me % 2 == 0);
    char *base = registered ? s->registered : s->plain;
    char *seen = s->mirror ? s->mirror : base;
    struct run run = {.send = base,
                      .recv = base + s->half,
                      .send_seen = seen,
                      .recv_seen = seen + s->half,
                      .nelem = nelem,
                      .part_nbytes = nelem * fsdp_dtype_nbytes(dtype),
                      .dtype = dtype,
                      .mode = mode,
                      .op = op};
    s->salt++;
    memset(run.send_seen, 0xa5, run.part_nbytes * (size_t)s->size + GUARD);
    memset(run.recv_seen, 0x5a, run.part_nbytes * (size_t)s->size + GUARD);
    return run;
}

/* What the host wrote goes to the device. */
static void upload(struct suite *s, const struct run *run)
{
    size_t nbytes = run->part_nbytes * (size_t)s->size + GUARD;

    if (!s->mirror)
        return;
    fsdp_copy(s->env.lane, run->send, run->send_seen, nbytes, NULL);
    fsdp_copy(s->env.lane, run->recv, run->recv_seen, nbytes, NULL);
}

/* The collective's outcome, once the device is done and the host sees it. */
static int finish(struct suite *s, const struct run *run, int rc, struct fsdp_err *err)
{
    size_t nbytes = run->part_nbytes * (size_t)s->size + GUARD;

    if (rc == FSDP_OK && s->mirror) {
        fsdp_copy(s->env.lane, run->send_seen, run->send, nbytes, err);
        rc = fsdp_copy(s->env.lane, run->recv_seen, run->recv, nbytes, err);
    }
    return rc ? rc : fsdp_lane_sync(s->env.lane, err);
}

/* The place in the host's sight of a place on the device. */
static char *seen(const struct run *run, const char *at)
{
    return at >= run->recv ? run->recv_seen + (at - run->recv) : run->send_seen + (at - run->send);
}

static bool in_place(const struct run *run)
{
    return run->mode == PLAIN_IN_PLACE || run->mode == REGISTERED_IN_PLACE;
}

static bool untouched(const char *at, char byte)
{
    for (int i = 0; i < GUARD; i++)
        if (at[i] != byte)
            return false;
    return true;
}

static void verify(struct suite *s, const struct run *run, int rc, const struct fsdp_err *err,
                   const char *got, size_t nbytes)
{
    size_t at = 0;

    if (!check(s->board, rc == FSDP_OK, "%s %s nelem %zu %s: rank %d: %s", run->op,
               fsdp_dtype_name(run->dtype), run->nelem, mode_names[run->mode], s->me, err->text))
        return;
    while (at < nbytes && got[at] == s->expected[at])
        at++;
    check(s->board, at == nbytes, "%s %s nelem %zu %s: rank %d of %d: byte %zu of %zu differs",
          run->op, fsdp_dtype_name(run->dtype), run->nelem, mode_names[run->mode], s->me, s->size,
          at, nbytes);
}

static int sync_lane(struct suite *s, int rc, struct fsdp_err *err)
{
    return rc ? rc : fsdp_lane_sync(s->env.lane, err);
}

static void test_all_gather(struct suite *s, size_t nelem, enum fsdp_dtype dtype, enum mode mode)
{
    struct run run = run_make(s, "all_gather", nelem, dtype, mode);
    struct fsdp_err err = FSDP_ERR_INIT;
    char *send = in_place(&run) ? run.recv + (size_t)s->me * run.part_nbytes : run.send;

    for (int r = 0; r < s->size; r++)
        fill(s->expected + (size_t)r * run.part_nbytes, s->salt, r, 0, nelem, dtype);
    fill(seen(&run, send), s->salt, s->me, 0, nelem, dtype);
    upload(s, &run);
    int rc = fsdp_comm_all_gather(s->comm, run.recv, send, nelem, dtype, s->env.lane, &err);
    rc = finish(s, &run, rc, &err);
    verify(s, &run, rc, &err, run.recv_seen, run.part_nbytes * (size_t)s->size);
    check(s->board, untouched(run.recv_seen + run.part_nbytes * (size_t)s->size, 0x5a),
          "all_gather wrote behind recv (nelem %zu)", nelem);
    if (!in_place(&run))
        check(
            s->board,
            !memcmp(run.send_seen, s->expected + (size_t)s->me * run.part_nbytes, run.part_nbytes),
            "all_gather changed send (nelem %zu)", nelem);
}

static void test_reduce_scatter(struct suite *s, size_t nelem, enum fsdp_dtype dtype,
                                enum mode mode)
{
    struct run run = run_make(s, "reduce_scatter", nelem, dtype, mode);
    struct fsdp_err err = FSDP_ERR_INIT;
    char *recv = in_place(&run) ? run.send + (size_t)s->me * run.part_nbytes : run.recv;

    reference_sum(s, s->expected, s->me, nelem, dtype);
    for (int p = 0; p < s->size; p++)
        fill(run.send_seen + (size_t)p * run.part_nbytes, s->salt, s->me, p, nelem, dtype);
    upload(s, &run);
    int rc = fsdp_comm_reduce_scatter(s->comm, recv, run.send, nelem, dtype, s->env.lane, &err);
    rc = finish(s, &run, rc, &err);
    verify(s, &run, rc, &err, seen(&run, recv), run.part_nbytes);
    if (in_place(&run))
        return;
    check(s->board, untouched(run.recv_seen + run.part_nbytes, 0x5a),
          "reduce_scatter wrote behind recv (nelem %zu)", nelem);
    for (int p = 0; p < s->size; p++) {
        fill(s->expected, s->salt, s->me, p, nelem, dtype);
        check(s->board,
              !memcmp(run.send_seen + (size_t)p * run.part_nbytes, s->expected, run.part_nbytes),
              "reduce_scatter changed send (nelem %zu)", nelem);
    }
}

static void test_all_reduce(struct suite *s, size_t nelem, enum fsdp_dtype dtype, enum mode mode)
{
    struct run run = run_make(s, "all_reduce", nelem, dtype, mode);
    struct fsdp_err err = FSDP_ERR_INIT;
    char *send = in_place(&run) ? run.recv : run.send;

    reference_sum(s, s->expected, 0, nelem, dtype);
    fill(seen(&run, send), s->salt, s->me, 0, nelem, dtype);
    upload(s, &run);
    int rc = fsdp_comm_all_reduce(s->comm, run.recv, send, nelem, dtype, s->env.lane, &err);
    rc = finish(s, &run, rc, &err);
    verify(s, &run, rc, &err, run.recv_seen, run.part_nbytes);
    check(s->board, untouched(run.recv_seen + run.part_nbytes, 0x5a),
          "all_reduce wrote behind recv (nelem %zu)", nelem);
    if (!in_place(&run)) {
        fill(s->expected, s->salt, s->me, 0, nelem, dtype);
        check(s->board, !memcmp(run.send_seen, s->expected, run.part_nbytes),
              "all_reduce changed send (nelem %zu)", nelem);
    }
}

static void test_broadcast(struct suite *s, size_t nelem, enum fsdp_dtype dtype, enum mode mode,
                           int root)
{
    struct run run = run_make(s, "broadcast", nelem, dtype, mode);
    struct fsdp_err err = FSDP_ERR_INIT;

    fill(s->expected, s->salt, root, 0, nelem, dtype);
    if (s->me == root)
        memcpy(run.recv_seen, s->expected, run.part_nbytes);
    upload(s, &run);
    int rc = fsdp_comm_broadcast(s->comm, run.recv, nelem, dtype, root, s->env.lane, &err);
    rc = finish(s, &run, rc, &err);
    verify(s, &run, rc, &err, run.recv_seen, run.part_nbytes);
    check(s->board, untouched(run.recv_seen + run.part_nbytes, 0x5a),
          "broadcast wrote behind buf (nelem %zu)", nelem);
}

/* Are these summed? NCCL has no 16-bit integers. */
static bool sums(const struct suite *s, enum fsdp_dtype dtype)
{
    if (s->nccl && (dtype == FSDP_I16 || dtype == FSDP_U16))
        return false;
    return dtype != FSDP_BOOL && dtype != FSDP_F8_E4M3 && dtype != FSDP_F8_E5M2;
}

/* All modes at small sizes; large sizes for the dtypes that training moves, in turns for the
 * others. A threaded lane runs the same code, so it repeats less. */
static bool chosen(size_t nelem, int dtype, int mode, bool threaded)
{
    bool turn = dtype % NMODES == mode;

    if (threaded)
        return nelem < 5000 ? turn : dtype == FSDP_F32 && (nelem < BIG || mode == REGISTERED);
    if (nelem < 1000)
        return true;
    if (nelem == BIG)
        return dtype == FSDP_F32 || ((dtype == FSDP_BF16 || dtype == FSDP_F16) && turn);
    return dtype == FSDP_F32 || turn;
}

static void collectives(struct suite *s)
{
    for (int z = 0; z < NSIZES; z++) {
        for (int d = 0; d < FSDP_C64; d++) { /* the rest is only carried by checkpoints */
            for (int m = 0; m < NMODES; m++) {
                enum fsdp_dtype dtype = (enum fsdp_dtype)d;
                enum mode mode = (enum mode)m;
                if (!chosen(sizes[z], d, m, s->threaded))
                    continue;
                test_all_gather(s, sizes[z], dtype, mode);
                test_broadcast(s, sizes[z], dtype, mode, (z + d) % s->size);
                if (!sums(s, dtype))
                    continue;
                test_reduce_scatter(s, sizes[z], dtype, mode);
                test_all_reduce(s, sizes[z], dtype, mode);
            }
        }
    }
}

/* ---- the rest of the contract --------------------------------------------------------------- */

/* Nobody leaves a barrier before everyone has come. */
static void barriers(struct suite *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    for (int i = 1; i <= 20; i++) {
        atomic_fetch_add(&s->board->counter[0], 1);
        int rc = fsdp_comm_barrier(s->comm, s->env.lane, &err);
        rc = sync_lane(s, rc, &err);
        check(s->board, rc == FSDP_OK, "barrier: %s", err.text);
        check(s->board, atomic_load(&s->board->counter[0]) >= i * s->size,
              "rank %d left barrier %d early", s->me, i);
    }
}

/* Many operations enqueued without a wait between them: results feed the next. */
static void pipelined(struct suite *s)
{
    enum { NELEM = 9000, ROUNDS = 30 };
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = FSDP_OK;
    struct run run = run_make(s, "pipelined", NELEM, FSDP_U64, PLAIN);
    uint64_t *x = (uint64_t *)(void *)run.send, *got = (uint64_t *)(void *)run.send_seen;
    uint64_t expected = 1;

    for (size_t i = 0; i < NELEM; i++)
        got[i] = 1;
    upload(s, &run);
    for (int i = 0; i < ROUNDS && rc == FSDP_OK; i++) {
        rc = fsdp_comm_all_reduce(s->comm, x, x, i % 2 ? NELEM : 100, FSDP_U64, s->env.lane, &err);
        expected *= (uint64_t)s->size;
    }
    rc = finish(s, &run, rc, &err);
    check(s->board, rc == FSDP_OK && got[0] == expected && got[99] == expected,
          "rank %d: %d all_reduce in a row give %llu, not %llu: %s", s->me, ROUNDS,
          (unsigned long long)got[0], (unsigned long long)expected, err.text);
}

/* Infinities and NaN pass through sums of 16-bit floats. */
static void specials(struct suite *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    uint16_t inf[2] = {fsdp_f32_to_bf16(1.0f / 0.0f), fsdp_f32_to_f16(1.0f / 0.0f)};
    uint16_t nan[2] = {fsdp_f32_to_bf16(0.0f / 0.0f), fsdp_f32_to_f16(0.0f / 0.0f)};

    for (int k = 0; k < 2; k++) {
        enum fsdp_dtype dtype = k ? FSDP_F16 : FSDP_BF16;
        struct run run = run_make(s, "specials", 40, dtype, PLAIN);
        uint16_t *x = (uint16_t *)(void *)run.send_seen;
        for (int i = 0; i < 40; i++)
            x[i] = s->me ? 0 : i % 2 ? inf[k] : nan[k];
        upload(s, &run);
        int rc = fsdp_comm_all_reduce(s->comm, run.send, run.send, 40, dtype, s->env.lane, &err);
        rc = finish(s, &run, rc, &err);
        for (int i = 0; i < 40; i++) {
            float got = k ? fsdp_f16_to_f32(x[i]) : fsdp_bf16_to_f32(x[i]);
            check(s->board, rc == FSDP_OK && (i % 2 ? got > 1e30f : got != got),
                  "%s special %d became %g", fsdp_dtype_name(dtype), i, (double)got);
        }
    }
}

/* Every bad argument is refused, at once, on every rank, and the communicator continues working. */
static void bad_arguments(struct suite *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *lane = s->env.lane, *foreign = NULL;
    struct fsdp_device *other = NULL;
    char *p = s->plain;
    const struct {
        const char *what;
        int rc;
    } calls[] = {
        {"NULL communicator", fsdp_comm_barrier(NULL, lane, &err)},
        {"NULL lane", fsdp_comm_barrier(s->comm, NULL, &err)},
        {"NULL recv", fsdp_comm_all_gather(s->comm, NULL, p, 1, FSDP_F32, lane, &err)},
        {"NULL send", fsdp_comm_all_reduce(s->comm, p, NULL, 1, FSDP_F32, lane, &err)},
        {"sum of BOOL", fsdp_comm_all_reduce(s->comm, p, p, 1, FSDP_BOOL, lane, &err)},
        {"sum of F8", fsdp_comm_reduce_scatter(s->comm, p, p + 512, 1, FSDP_F8_E4M3, lane, &err)},
        {"dtype", fsdp_comm_all_reduce(s->comm, p, p, 1, FSDP_NDTYPES, lane, &err)},
        {"root", fsdp_comm_broadcast(s->comm, p, 1, FSDP_F32, s->size, lane, &err)},
        {"negative root", fsdp_comm_broadcast(s->comm, p, 1, FSDP_F32, -1, lane, &err)},
        {"misaligned", fsdp_comm_all_reduce(s->comm, p + 2, p + 2, 1, FSDP_F32, lane, &err)},
        {"overlap", fsdp_comm_all_reduce(s->comm, p + 4, p, 2, FSDP_F32, lane, &err)},
        {"gather overlap", fsdp_comm_all_gather(s->comm, p, p + 4 * (2 * (size_t)s->me + 1), 2,
                                                FSDP_F32, lane, &err)},
        {"overflow", fsdp_comm_all_gather(s->comm, p, p, SIZE_MAX / 4, FSDP_F32, lane, &err)},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        check(s->board, calls[i].rc == FSDP_EINVAL, "%s was not refused (%d)", calls[i].what,
              calls[i].rc);
    if (fsdp_device_open(&other, "cpu", 0, &err) == FSDP_OK &&
        fsdp_lane_create(&foreign, other, "foreign", &err) == FSDP_OK)
        check(s->board, fsdp_comm_barrier(s->comm, foreign, &err) == FSDP_EINVAL,
              "a lane of another device was not refused");
    fsdp_lane_destroy(foreign);
    fsdp_device_close(other);
    if (s->nccl)
        check(s->board,
              fsdp_comm_all_reduce(s->comm, p, p, 1, FSDP_I16, lane, &err) == FSDP_EUNSUPPORTED &&
                  strstr(err.text, "NCCL cannot sum I16"),
              "a sum of I16: %s", err.text);
    check(s->board, fsdp_comm_status(s->comm, &err) == FSDP_OK,
          "a refused call ended the communicator: %s", err.text);
}

/* Registered memory is zeroed, aligned, distinct; a freed block makes room for another. */
static void registered_memory(struct suite *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    for (int round = 0; round < 20; round++) {
        size_t nbytes = (size_t)round * 3001;
        unsigned char *a = fsdp_comm_mem_alloc(s->comm, nbytes, &err);
        unsigned char *b = fsdp_comm_mem_alloc(s->comm, 100, &err);
        unsigned char *seen_a = s->mirror ? (unsigned char *)s->mirror : a;
        bool zero = true;
        if (!check(s->board, a && b, "mem_alloc: %s", err.text))
            return;
        if (s->mirror)
            fsdp_copy(s->env.lane, seen_a, a, nbytes, &err);
        fsdp_lane_sync(s->env.lane, &err);
        for (size_t i = 0; i < nbytes; i++)
            zero &= seen_a[i] == 0;
        check(s->board, zero, "mem_alloc gave memory that is not zeroed");
        check(s->board, (uintptr_t)a % 64 == 0 && a != b, "mem_alloc: alignment or overlap");
        memset(seen_a, 0xff, nbytes);
        if (s->mirror)
            fsdp_copy(s->env.lane, a, seen_a, nbytes, &err);
        fsdp_lane_sync(s->env.lane, &err);
        fsdp_comm_mem_free(s->comm, round % 2 ? a : b);
        fsdp_comm_mem_free(s->comm, round % 2 ? b : a);
    }
    fsdp_comm_mem_free(s->comm, NULL);
}

static bool all_are(const float *x, size_t nelem, float value)
{
    bool good = true;
    for (size_t i = 0; i < nelem; i++)
        good &= x[i] == value;
    return good;
}

/* One block for all ranks: what a rank writes into its part is there for all after a gather, which
 * may also copy it elsewhere. */
static void common_memory(struct suite *s)
{
    static const size_t counts[] = {1, 100, 70001};
    struct fsdp_lane *lane = s->env.lane;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!fsdp_comm_has_common(s->comm)) {
        check(s->board, !fsdp_comm_mem_common(s->comm, 64, &err) && err.status == FSDP_EUNSUPPORTED,
              "memory in common where there is none: %s", err.text);
        return;
    }
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        const size_t n = counts[k], size = (size_t)s->size;
        float *all = fsdp_comm_mem_common(s->comm, size * n * sizeof *all, &err);
        if (!check(s->board, all != NULL, "mem_common: %s", err.text))
            return;
        check(s->board, all_are(all, size * n, 0), "mem_common gave memory that is not zeroed");
        fsdp_comm_barrier(s->comm, lane, &err); /* before the others write theirs */
        fsdp_lane_sync(lane, &err);
        for (int round = 1; round < 4; round++) {
            float *mine = all + (size_t)s->me * n, *copies = (float *)s->plain;
            for (size_t i = 0; i < n; i++)
                mine[i] = (float)(100 * round + s->me);
            check(s->board,
                  !fsdp_comm_all_gather(s->comm, all, mine, n, FSDP_F32, lane, &err) &&
                      !fsdp_comm_all_gather(s->comm, copies, mine, n, FSDP_F32, lane, &err) &&
                      !fsdp_lane_sync(lane, &err),
                  "a gather in place: %s", err.text);
            for (int r = 0; r < s->size; r++)
                check(s->board,
                      all_are(all + (size_t)r * n, n, (float)(100 * round + r)) &&
                          all_are(copies + (size_t)r * n, n, (float)(100 * round + r)),
                      "%zu elements of rank %d, round %d", n, r, round);
            fsdp_comm_barrier(s->comm, lane, &err);
            fsdp_lane_sync(lane, &err);
        }
        fsdp_comm_mem_free(s->comm, all);
    }
}

static bool suite_open(struct suite *s, const struct plan *plan, struct fsdp_oob *oob,
                       const struct fsdp_node_map *nodes)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    size_t widest = (size_t)plan->nranks * BIG * 4, other = (size_t)plan->nranks * 65537 * 8;

    *s = (struct suite){.board = plan->board, .threaded = plan->threaded};
    s->nccl = !strcmp(plan->backend, "nccl");
    if (!(s->nccl ? env_open_cuda(&s->env, oob, nodes)
                  : env_open(&s->env, oob, nodes, plan->threaded)))
        return check(s->board, false, "cannot open a device");
    struct fsdp_comm_opts opts = comm_opts(&s->env, plan->backend, 60);
    if (!check(s->board, fsdp_comm_create(&s->comm, &opts, oob, s->env.device, &err) == FSDP_OK,
               "create: %s", err.text))
        return false;
    s->me = fsdp_comm_rank(s->comm);
    s->size = fsdp_comm_size(s->comm);
    s->half = ((widest > other ? widest : other) + GUARD + 4095) / 4096 * 4096;
    s->registered = fsdp_comm_mem_alloc(s->comm, 2 * s->half, &err);
    s->plain = fsdp_device_alloc(s->env.device, 2 * s->half, "plain", &err);
    if (!fsdp_device_is_host(s->env.device))
        s->mirror = fsdp_alloc(2 * s->half, 1, "mirror", &err);
    s->expected = fsdp_alloc(s->half, 1, "expected", &err);
    return check(s->board, s->registered && s->plain && s->expected, "memory: %s", err.text);
}

static int suite_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct plan *plan = arg;
    struct suite s;

    if (!suite_open(&s, plan, oob, nodes))
        return 1;
    check(s.board, s.me == oob->rank && s.size == oob->size, "rank %d of %d became %d of %d",
          oob->rank, oob->size, s.me, s.size);
    check(s.board, !strcmp(fsdp_comm_name(s.comm), "gather"), "name %s", fsdp_comm_name(s.comm));
    check(s.board, named_segments(getpid()) == 0, "a segment still has a name");
    registered_memory(&s);
    common_memory(&s);
    bad_arguments(&s);
    collectives(&s);
    barriers(&s);
    pipelined(&s);
    specials(&s);
    fsdp_comm_mem_free(s.comm, s.registered);
    fsdp_device_free(s.env.device, s.plain);
    fsdp_free(s.mirror);
    fsdp_free(s.expected);
    fsdp_comm_destroy(s.comm);
    fsdp_comm_destroy(NULL);
    env_close(&s.env);
    return 0;
}

static void suite_run(const char *backend, int nranks, int nnodes, bool threaded)
{
    struct plan plan = {backend, nranks, nnodes, threaded, board_make()};

    int bad = ranks_run(nranks, nnodes, 120, suite_main, &plan, NULL);
    ok(bad == 0 && atomic_load(&plan.board->nbad) == 0 &&
           atomic_load(&plan.board->nchecks) > (threaded ? 500 : 4000) * nranks,
       "%s, %d ranks on %d nodes, %s lanes: %d checks, %d bad%s%s", backend, nranks, nnodes,
       threaded ? "threaded" : "plain", atomic_load(&plan.board->nchecks),
       atomic_load(&plan.board->nbad), plan.board->first_bad[0] ? ": " : "", plan.board->first_bad);
    munmap(plan.board, sizeof *plan.board);
}

/* A rank that mpirun started (mpi.sh): the board is a file that all of them map. */
static int mpi_rank_main(const char *path, bool threaded)
{
    struct boot_opts opts = BOOT_OPTS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct plan plan = {.backend = "mpi", .threaded = threaded, .board = board_map(path)};
    struct boot *boot;

    opts.keep = true;
    if (!plan.board || fsdp_comm_begin_mpi(&err) || boot_open(&boot, &opts, &err)) {
        fprintf(stderr, "%s: %s\n", path, err.text);
        return 1;
    }
    plan.nranks = boot_info(boot)->size;
    plan.nnodes = boot_info(boot)->nnodes;
    int rc = suite_main(boot_oob(boot), boot_nodes(boot), &plan);
    fsdp_oob_agree(boot_oob(boot), FSDP_OK, NULL); /* all have written */
    if (boot_info(boot)->rank == 0)
        printf("%d checks, %d bad%s%s\n", atomic_load(&plan.board->nchecks),
               atomic_load(&plan.board->nbad), plan.board->first_bad[0] ? ": " : "",
               plan.board->first_bad);
    boot_close(boot);
    return rc;
}

#ifndef CONFORMANCE_OF_NCCL
/* Ranks that share a processor take minutes under an emulator. Of three, a node has 1, 2 or 3. */
static int most_ranks(void)
{
    if (!tap_emulated() || getenv("AARCH64_LONG"))
        return 6;
    tap_skip("4 to 6 ranks: minutes under an emulator; AARCH64_LONG=1 runs them");
    return 3;
}
#endif

int main(int argc, char **argv)
{
    if (argc == 3)
        return mpi_rank_main(argv[1], !strcmp(argv[2], "threaded"));
#ifdef CONFORMANCE_OF_NCCL /* test_conformance_nccl.c */
    for (int nranks = 1; nranks <= 4; nranks++)
        suite_run("nccl", nranks, nranks > 2 ? 2 : 1, true);
    /* The stand-in as versions whose calls return something else. */
    static const char *const versions[] = {"21904", "22707", "22907"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        setenv("NCCL_STANDIN_VERSION", versions[i], 1);
        suite_run("nccl", 2, 1, true);
        unsetenv("NCCL_STANDIN_VERSION");
    }
#else
    suite_run("self", 1, 1, false);
    suite_run("self", 1, 1, true);
    const int most = most_ranks();
    for (int nranks = 1; nranks <= most; nranks++)
        for (int nnodes = 1; nnodes <= 3 && nnodes <= nranks; nnodes++)
            for (int threaded = 0; threaded < 2; threaded++)
                suite_run("host", nranks, nnodes, threaded);
#endif
    return tap_done();
}
