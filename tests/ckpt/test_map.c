/* SPDX-License-Identifier: Apache-2.0 */
/* Rules, ready maps, and what they make of a small Llama's tensors. */
#include "../../ckpt/reshard/map.h"
#include "../../ckpt/file/safetensors.h"
#include "fake_state.h"

static char root[300];

static const char *in_root(const char *name)
{
    static char paths[16][600];
    static int turn;
    turn = (turn + 1) % 16;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

static bool maps_to(const struct ckpt_map *map, const char *from, const char *to)
{
    char *got = ckpt_map_name(map, from, NULL, NULL);
    bool same = got && !strcmp(got, to);
    if (!same)
        diag("%s became %s, not %s", from, got ? got : "nothing", to);
    fsdp_free(got);
    return same;
}

static void test_rules(void)
{
    static const char text[] = "# comment\n"
                               "blocks.*.attn.* -> layers.$1.attention.$2\n"
                               "\n"
                               "/(enc|dec)_([0-9]+)[.]w/ -> $2.$1.weight\n"
                               "old.** -> new.$1\n"
                               "plain.name->other\n";
    struct ckpt_map map;
    struct fsdp_err err = FSDP_ERR_INIT;
    ckpt_store_put(&ckpt_store_posix, in_root("rules"), text, sizeof text - 1, false, NULL);
    ok(!ckpt_map_create(&map, in_root("rules"), &err) && map.nrules == 4, "a file of rules: %s",
       err.text);
    ok(maps_to(&map, "blocks.12.attn.q", "layers.12.attention.q") &&
           maps_to(&map, "blocks.12.attn.q.w", "blocks.12.attn.q.w"),
       "a star stops at dots");
    ok(maps_to(&map, "enc_7.w", "7.enc.weight") && maps_to(&map, "xenc_7.w", "xenc_7.w"),
       "an expression, of the whole name");
    ok(maps_to(&map, "old.a.b.c", "new.a.b.c") && maps_to(&map, "plain.name", "other") &&
           maps_to(&map, "plainxname", "plainxname"),
       "two stars, plain names");
    ckpt_map_destroy(&map);
    static const char *const bad[] = {"no arrow\n", "-> x\n", "x ->\n", "/(/ -> x\n"};
    for (int i = 0; i < 4; i++) {
        ckpt_store_put(&ckpt_store_posix, in_root("bad"), bad[i], strlen(bad[i]), false, NULL);
        ok(ckpt_map_create(&map, in_root("bad"), &err) == FSDP_EINVAL && strstr(err.text, "bad:1"),
           "refused: %s", err.text);
        unlink(in_root("bad"));
    }
    ok(ckpt_map_create(&map, in_root("missing"), &err) == FSDP_ENOTFOUND &&
           strstr(err.text, "torchtitan-to-hf"),
       "neither file nor ready map: %s", err.text);
    ok(!ckpt_map_create(&map, "torchtitan-to-hf", &err) &&
           maps_to(&map, "layers.3.attention.wq.weight",
                   "model.layers.3.self_attn.q_proj.weight") &&
           maps_to(&map, "layers.3.attention.qkv_linear.wk.weight",
                   "model.layers.3.self_attn.k_proj.weight") &&
           maps_to(&map, "output.weight", "lm_head.weight") &&
           maps_to(&map, "model.norm.weight", "model.norm.weight"),
       "torchtitan's names");
    ckpt_map_destroy(&map);
}

#define SHAPE(...)                                                                                 \
    (const uint64_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* A Llama's layer in torchtitan's names: 2 heads of queries, 1 of keys, 4 rows each. Every row of a
 * tensor holds its own number. */
static void make_titan(const char *path)
{
    struct ckpt_st_entry entries[] = {
        {.name = "layers.0.attention.wq.weight", .ndim = 2, .shape = SHAPE(8, 3)},
        {.name = "layers.0.attention.wk.weight", .ndim = 2, .shape = SHAPE(4, 3)},
        {.name = "layers.0.attention.wv.weight", .ndim = 2, .shape = SHAPE(4, 3)},
        {.name = "layers.0.feed_forward.w1.weight", .ndim = 2, .shape = SHAPE(5, 3)},
        {.name = "layers.0.feed_forward.w3.weight", .ndim = 2, .shape = SHAPE(5, 3)},
        {.name = "norm.weight", .ndim = 1, .shape = SHAPE(3)},
    };
    enum { N = sizeof entries / sizeof entries[0] };
    char *header = NULL;
    size_t nbytes = 0, at = 0;
    float data[256] = {0};
    for (int i = 0; i < N; i++)
        for (uint64_t r = 0; r < entries[i].shape[0]; r++)
            for (uint64_t c = 0; c < (entries[i].ndim == 2 ? entries[i].shape[1] : 1); c++)
                data[at++] = (float)(100 * i + (int)r) + 0.25f * (float)c;
    ckpt_st_format(&header, &nbytes, entries, N, false, NULL);
    char *all = malloc(nbytes + at * sizeof *data);
    memcpy(all, header, nbytes);
    memcpy(all + nbytes, data, at * sizeof *data);
    ckpt_store_put(&ckpt_store_posix, path, all, nbytes + at * sizeof *data, false, NULL);
    free(all);
    fsdp_free(header);
}

static int merge(const char *from, const char *to, const char *const *maps, int nmaps, int nheads,
                 struct fsdp_err *err)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct ckpt *c = NULL;
    args.out = to;
    args.select.maps = maps;
    args.select.nmaps = nmaps;
    args.select.nheads = nheads;
    args.select.nkv_heads = nheads ? 1 : 0;
    int rc = ckpt_open(&c, from, err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(NULL, c, &args, err);
    ckpt_close(c);
    return rc;
}

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

/* Do the rows of a tensor begin with these numbers? */
static bool rows_are(const char *path, const char *name, const float *want, int nrows)
{
    struct ckpt *c = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    float data[256] = {0};
    struct fsdp_slice_io io = {.ctx = data, .write = take};
    bool good = !ckpt_open(&c, path, &err);
    const struct ckpt_tensor *t = good ? ckpt_tensor_find(c, name) : NULL;
    good = t && t->tensor.shape[0] == (uint64_t)nrows;
    if (good) {
        struct fsdp_slice slice = {.tensor = t->tensor, .nreplica = 1};
        memcpy(slice.box.length, t->tensor.shape, sizeof t->tensor.shape);
        good = !ckpt_read_slice(c, &slice, &io, &err);
    }
    for (int r = 0; good && r < nrows; r++) {
        good = data[3 * r] == want[r];
        if (!good)
            diag("%s: row %d is %g, not %g", name, r, (double)data[3 * r], (double)want[r]);
    }
    ckpt_close(c);
    return good;
}

static void test_llama(void)
{
    static const char *const to_hf[] = {"torchtitan-to-hf"};
    static const char *const fused[] = {"torchtitan-to-hf", "fuse-qkv", "fuse-gate-up"};
    static const char *const back[] = {"split-gate-up", "split-qkv", "hf-to-torchtitan"};
    /* Of each head the even rows, then the odd ones. */
    static const float q[] = {0, 2, 1, 3, 4, 6, 5, 7};
    static const float qkv[] = {0, 2, 1, 3, 4, 6, 5, 7, 100, 102, 101, 103, 200, 201, 202, 203};
    static const float gate_up[] = {300, 301, 302, 303, 304, 400, 401, 402, 403, 404};
    struct fsdp_err err = FSDP_ERR_INIT;
    const char *titan = in_root("titan.safetensors"), *hf = in_root("hf.safetensors");
    make_titan(titan);
    ok(merge(titan, hf, to_hf, 1, 0, &err) == FSDP_EINVAL && strstr(err.text, "--heads"),
       "nobody knows the heads: %s", err.text);
    ok(merge(titan, hf, to_hf, 1, 3, &err) == FSDP_EINVAL && strstr(err.text, "8 rows"),
       "wrong heads: %s", err.text);
    ok(!merge(titan, hf, to_hf, 1, 2, &err) &&
           rows_are(hf, "model.layers.0.self_attn.q_proj.weight", q, 8) &&
           rows_are(hf, "model.layers.0.self_attn.v_proj.weight", qkv + 12, 4),
       "to Hugging Face: rows of queries in halves: %s", err.text);
    const char *whole = in_root("fused.safetensors");
    ok(!merge(titan, whole, fused, 3, 2, &err) &&
           rows_are(whole, "model.layers.0.self_attn.qkv_proj.weight", qkv, 16) &&
           rows_are(whole, "model.layers.0.mlp.gate_up_proj.weight", gate_up, 10),
       "joined: %s", err.text);
    ok(!merge(whole, in_root("again.safetensors"), back, 3, 2, &err) &&
           !merge(titan, in_root("sorted.safetensors"), NULL, 0, 0, &err) &&
           !merge(in_root("again.safetensors"), in_root("again2.safetensors"), NULL, 0, 0, &err) &&
           same_bytes(in_root("again2.safetensors"), in_root("sorted.safetensors")),
       "split, and in torchtitan's names and order again: %s", err.text);
    ok(merge(in_root("sorted.safetensors"), in_root("x.safetensors"), fused, 1, 2, &err) == 0,
       "by name: %s", err.text);
    const char *rules = in_root("clash");
    ckpt_store_put(&ckpt_store_posix, rules, "layers.** -> same\n", 18, false, NULL);
    const char *const one[] = {rules};
    ok(merge(titan, in_root("y.safetensors"), one, 1, 0, &err) == FSDP_EINVAL &&
           strstr(err.text, "'same'"),
       "two of one name: %s", err.text);
}

/* The optimizer's tensors and other names follow; a fingerprint is still proved. */
static void test_native(void)
{
    static const char text[] = "model.layers.0.* -> blocks.0.$1\n"
                               "model.embed_tokens.weight -> wte\n"
                               "lm_head.weight -> head\n";
    const char *rules = in_root("native-rules");
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL, *out = NULL;
    ckpt_store_put(&ckpt_store_posix, rules, text, sizeof text - 1, false, NULL);
    fake_save(in_root("saved"), 1, 2, 1, 9);
    args.output = CKPT_OUTPUT_NATIVE;
    args.all = true;
    args.shard_size = 3;
    args.out = in_root("renamed");
    args.select.maps = &rules;
    args.select.nmaps = 1;
    ok(!ckpt_open(&c, in_root("saved"), &err) && !ckpt_reshard(NULL, c, &args, &err) &&
           !ckpt_open(&out, args.out, &err) && !ckpt_verify(out, NULL, NULL, &err) &&
           ckpt_tensor_find(out, "blocks.0.w1") &&
           ckpt_tensor_find(out, "state.blocks.0.w1.exp_avg") && ckpt_tensor_find(out, "head") &&
           ckpt_tensor_find(out, "head")->fingerprint == ckpt_tensor_find(out, "wte")->fingerprint,
       "a native checkpoint's tensors, optimizer and aliases: %s", err.text);
    ckpt_close(out);
    ckpt_close(c);
}

int main(void)
{
    snprintf(root, sizeof root, "%s", scratch_create());
    test_rules();
    test_llama();
    test_native();
    scratch_remove(root);
    return tap_done();
}
