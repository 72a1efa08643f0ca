/* SPDX-License-Identifier: Apache-2.0 */
/* What ckpt_diff says of pairs of small files whose differences are known. */
#include <math.h>

#include "../../ckpt/file/safetensors.h"
#include "fake_state.h"

static char root[300];

struct answer {
    int ntensors;
    struct ckpt_diff_tensor tensors[64];
    char names[64][64];
};

static const char *in_root(const char *name)
{
    static char paths[16][600];
    static int turn;
    turn = (turn + 1) % 16;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

/* A safetensors file of one tensor. */
static const char *make(const char *file, const char *name, enum fsdp_dtype dtype, const void *data,
                        uint64_t nelem)
{
    const uint64_t shape[] = {2, nelem / 2};
    struct ckpt_st_entry entry = {.name = name, .dtype = (uint8_t)dtype, .ndim = 2, .shape = shape};
    const char *path = in_root(file);
    char *header = NULL;
    size_t header_nbytes = 0, nbytes = (size_t)nelem * fsdp_dtype_nbytes(dtype);
    ckpt_st_format(&header, &header_nbytes, &entry, 1, false, NULL);
    char *all = malloc(header_nbytes + nbytes);
    memcpy(all, header, header_nbytes);
    memcpy(all + header_nbytes, data, nbytes);
    ckpt_store_put(&ckpt_store_posix, path, all, header_nbytes + nbytes, false, NULL);
    free(all);
    fsdp_free(header);
    return path;
}

static void take(void *ctx, const struct ckpt_diff_tensor *t)
{
    struct answer *answer = ctx;
    snprintf(answer->names[answer->ntensors], sizeof answer->names[0], "%s", t->name);
    answer->tensors[answer->ntensors++] = *t;
}

/* 0 same, 1 different, negative: error. */
static int diff(struct answer *out, const char *a, const char *b, const struct ckpt_diff_args *args)
{
    struct ckpt *x = NULL, *y = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool same = false;
    memset(out, 0, sizeof *out);
    int rc = ckpt_open(&x, a, &err);
    if (!rc)
        rc = ckpt_open(&y, b, &err);
    if (!rc)
        rc = ckpt_diff(&same, x, y, args, take, out, &err);
    if (rc)
        diag("%s", err.text);
    ckpt_close(x);
    ckpt_close(y);
    return rc ? rc : !same;
}

static void test_values(void)
{
    const float a[6] = {1, 2, 3, 0.0f, NAN, 6};
    float b[6] = {1, 2, 3, -0.0f, NAN, 6};
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    const char *fa = make("a", "w", FSDP_F32, a, 6), *pa = in_root("a.safetensors");
    rename(fa, pa);
    const char *pb = in_root("b.safetensors");
    rename(make("b", "w", FSDP_F32, b, 6), pb);
    ok(diff(&answer, pa, pa, &args) == 0 && answer.tensors[0].result == CKPT_DIFF_SAME,
       "a file and itself");
    ok(diff(&answer, pa, pb, &args) == 0 && answer.ntensors == 1, "zeros of both signs, NaNs");
    unlink(pb);
    b[2] = nextafterf(3, 4);
    b[5] = 8;
    rename(make("b", "w", FSDP_F32, b, 6), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].result == CKPT_DIFF_DATA &&
           answer.tensors[0].ndiffer == 2 && answer.tensors[0].first == 2 &&
           answer.tensors[0].max_abs == 2 && answer.tensors[0].max_ulp == 1 << 22,
       "two elements: first %llu, at most %g, %llu ulp",
       (unsigned long long)answer.tensors[0].first, answer.tensors[0].max_abs,
       (unsigned long long)answer.tensors[0].max_ulp);
    args.ulp = 1;
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].ndiffer == 1 &&
           answer.tensors[0].nnear == 1 && answer.tensors[0].first == 5,
       "one of them is near by ulp");
    args.ulp = 0;
    args.rtol = 0.25;
    ok(diff(&answer, pa, pb, &args) == 0 && answer.tensors[0].result == CKPT_DIFF_NEAR,
       "both by rtol");
    args.rtol = 0.2;
    args.atol = 0.1;
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].ndiffer == 1, "not by less");
    unlink(pb);
    b[2] = 3;
    b[5] = INFINITY;
    rename(make("b", "w", FSDP_F32, b, 6), pb);
    args.atol = args.rtol = 1e30;
    ok(diff(&answer, pa, pb, &args) == 1 && isinf(answer.tensors[0].max_abs),
       "an infinity is near to nothing");
    unlink(pb);
}

static void test_types(void)
{
    const float a[4] = {1, 2.5f, -3, 1e-3f};
    const int64_t x[4] = {1, 2, 3, INT64_C(9007199254740993)};
    int64_t y[4] = {1, 2, 3, INT64_C(9007199254740992)};
    uint16_t half[4];
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    const char *pa = in_root("a.safetensors"), *pb = in_root("b.safetensors");
    for (int i = 0; i < 4; i++)
        half[i] = fsdp_f32_to_bf16(a[i]);
    unlink(pa);
    rename(make("a", "w", FSDP_F32, a, 4), pa);
    rename(make("b", "w", FSDP_BF16, half, 4), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].result == CKPT_DIFF_DTYPE, "dtypes");
    args.any_dtype = true;
    ok(diff(&answer, pa, pb, &args) == 0, "the same in the narrower one");
    half[1]++;
    unlink(pb);
    rename(make("b", "w", FSDP_BF16, half, 4), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].max_ulp == 1 &&
           answer.tensors[0].first == 1,
       "one unit of bf16 apart");
    unlink(pb);
    rename(make("b", "w", FSDP_F32, a, 2), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].result == CKPT_DIFF_SHAPE, "shapes");
    unlink(pb);
    rename(make("b", "v", FSDP_F32, a, 4), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.ntensors == 2 &&
           answer.tensors[0].result == CKPT_DIFF_ONLY_A &&
           answer.tensors[1].result == CKPT_DIFF_ONLY_B,
       "names");
    unlink(pa);
    unlink(pb);
    rename(make("a", "w", FSDP_I64, x, 4), pa);
    rename(make("b", "w", FSDP_I64, y, 4), pb);
    ok(diff(&answer, pa, pb, &args) == 1 && answer.tensors[0].first == 3,
       "integers that are one double");
}

static void test_meshes(void)
{
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    bool unread = true;
    fake_save(in_root("two"), 1, 2, 1, 5);
    fake_save(in_root("three"), 1, 3, 1, 5);
    fake_save(in_root("other"), 1, 3, 1, 6);
    int rc = diff(&answer, in_root("two"), in_root("three"), &args);
    for (int i = 0; i < answer.ntensors; i++)
        unread &= answer.tensors[i].result == CKPT_DIFF_SAME_FINGERPRINT;
    ok(rc == 0 && unread && answer.ntensors == 23, "two and three ranks: by fingerprint alone");
    args.data = true;
    args.mem_nbytes = 1 << 20;
    ok(diff(&answer, in_root("two"), in_root("three"), &args) == 0 &&
           answer.tensors[0].result == CKPT_DIFF_SAME,
       "and by data");
    args.model = true;
    ok(diff(&answer, in_root("two"), in_root("other"), &args) == 1 && answer.ntensors == 9 &&
           answer.tensors[0].ndiffer > 1000,
       "weights alone, of another seed");
    args.mem_nbytes = 1000;
    ok(diff(&answer, in_root("two"), in_root("other"), &args) == FSDP_EINVAL, "no memory");
}

/* Into torch's form, which keeps the step next to every parameter. */
static const char *to_torch(const char *from)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct ckpt *ckpt = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    args.out = in_root("torch");
    args.output = CKPT_OUTPUT_DCP;
    args.shard_size = 2;
    args.all = true;
    if (ckpt_open(&ckpt, from, &err) || ckpt_reshard(NULL, ckpt, &args, &err))
        diag("%s", err.text);
    ckpt_close(ckpt);
    return args.out;
}

static void test_steps(void)
{
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    const char *torch = to_torch(in_root("two"));
    int nsteps = 0, nothers = 0;

    ok(diff(&answer, in_root("two"), torch, &args) == 0 && answer.ntensors > 23 &&
           diff(&answer, torch, in_root("three"), &args) == 0,
       "the step of each parameter, which torch keeps, is no difference");
    fake_save(in_root("later"), 2, 2, 1, 5);
    int rc = diff(&answer, in_root("later"), torch, &args);
    for (int i = 0; i < answer.ntensors; i++) {
        bool step = strstr(answer.names[i], ".step");
        nsteps += step && answer.tensors[i].result == CKPT_DIFF_ONLY_B;
        nothers += !step && answer.tensors[i].result > CKPT_DIFF_NEAR;
    }
    /* torch's form has the tied tensor twice, and both are compared. */
    ok(rc == 1 && nsteps == answer.ntensors - 24 && nothers == 0,
       "unless it is another step: %d, and %d others", nsteps, nothers);
}

static const char *rules(const char *text)
{
    const char *path = in_root("rules");
    unlink(path);
    ckpt_store_put(&ckpt_store_posix, path, text, strlen(text), false, NULL);
    return path;
}

static void test_maps(void)
{
    const float a[4] = {1, 2, 3, 4};
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    const char *pa = in_root("a.safetensors"), *pb = in_root("b.safetensors");
    const char *map = rules("old.* -> new.$1\n");
    args.select.maps = &map;
    args.select.nmaps = 1;
    unlink(pa);
    unlink(pb);
    rename(make("a", "old.w", FSDP_F32, a, 4), pa);
    rename(make("b", "new.w", FSDP_F32, a, 4), pb);
    ok(diff(&answer, pa, pb, &args) == 0 && answer.ntensors == 1 &&
           !strcmp(answer.names[0], "new.w") && diff(&answer, pb, pa, &args) == 0,
       "the same under other names, whichever comes first");
    args.select.nmaps = 0;
    ok(diff(&answer, pa, pb, &args) == 1 && answer.ntensors == 2, "without the map they are two");
    args.select.nmaps = 1;
    rules("model.** -> one\n");
    ok(diff(&answer, in_root("two"), in_root("three"), &args) == FSDP_EINVAL,
       "a map that makes two tensors one");
    map = "split-qkv";
    ok(diff(&answer, pa, pa, &args) == 0 && answer.ntensors == 1, "a map that has nothing to do");
}

/* Types that are carried and compared, but not computed with. */
static void test_carried(void)
{
    const float x[4] = {1, 2, 3, 4}, y[4] = {1, 2, 3.3f, 3.6f}; /* (1 + 2i, 3 + 4i) */
    const uint8_t e[4] = {127, 128, 129, 0xff}, f[4] = {127, 128, 130, 0xff};
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct answer answer;
    const char *px = in_root("x.safetensors"), *py = in_root("y.safetensors");
    rename(make("x", "w", FSDP_C64, x, 2), px);
    rename(make("y", "w", FSDP_C64, y, 2), py);
    ok(diff(&answer, px, py, &args) == 1 && answer.tensors[0].ndiffer == 1 &&
           fabs(answer.tensors[0].max_abs - 0.5) < 1e-6,
       "complex numbers differ by a distance");
    unlink(px);
    unlink(py);
    rename(make("x", "w", FSDP_F8_E8M0, e, 4), px);
    rename(make("y", "w", FSDP_F8_E8M0, f, 4), py);
    ok(diff(&answer, px, py, &args) == 1 && answer.tensors[0].first == 2 &&
           answer.tensors[0].max_abs == 4,
       "scales are powers of two");
    struct ckpt_reshard_args merge = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    merge.out = in_root("cast.safetensors");
    merge.dtype = "bf16";
    ok(!ckpt_open(&c, px, &err) && !ckpt_reshard(NULL, c, &merge, &err) &&
           diff(&answer, px, merge.out, &args) == 0,
       "a cast leaves them as they are: %s", err.text);
    ckpt_close(c);
}

int main(void)
{
    snprintf(root, sizeof root, "%s", scratch_create());
    test_values();
    test_types();
    test_meshes();
    test_steps();
    test_maps();
    test_carried();
    scratch_remove(root);
    return tap_done();
}
