/* SPDX-License-Identifier: Apache-2.0 */
/* Saved by N ranks, loaded by M, saved again, loaded by N: the same state, the same fingerprints.
 * Twice the same bytes. Refusals. Retention. */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>

#include "fake_state.h"

static const char *root; /* scratch */

/* Opens a root (its newest checkpoint), loads it, saves it elsewhere from there. */
struct pass_on {
    const char *from, *to;
    int shard_size, replicate_size, replica;
    uint64_t seed;
};

static int pass_on_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct pass_on *p = arg;
    struct fake *f = fake_create(oob->rank, p->shard_size, p->replicate_size);
    struct ckpt_save_args save = fake_save_args(f, p->to, 1);
    struct ckpt_load_args load = fake_load_args(f);
    struct ckpt_save_result result;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    int bad = 0;
    (void)nodes;
    load.replica = p->replica;
    if (ckpt_open(&ckpt, p->from, &err) || ckpt_load(ckpt, &load, oob, &err))
        bad = 1;
    bool mine = p->replica < 0 || oob->rank / p->shard_size == p->replica;
    if (!bad && mine && !fake_equal(f, p->seed, true))
        bad = 2;
    if (!bad && !mine)
        fake_fill(f, p->seed);
    if (!bad && ckpt_save(&result, &save, oob, &err))
        bad = 3;
    if (!bad && (result.nbytes == 0 || !exists(result.path)))
        bad = 4;
    if (bad)
        diag("rank %d, step %d: %s", oob->rank, bad, err.text);
    ckpt_close(ckpt);
    fake_destroy(f);
    return bad;
}

static bool fingerprints_equal(const char *a, const char *b)
{
    struct ckpt *x = NULL, *y = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool same = !ckpt_open(&x, a, &err) && !ckpt_open(&y, b, &err) &&
                ckpt_ntensors(x) == ckpt_ntensors(y) && ckpt_ntensors(x) == 23;
    for (int i = 0; same && i < ckpt_ntensors(x); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(x, i);
        const struct ckpt_tensor *u = ckpt_tensor_find(y, t->tensor.name);
        same = u && u->fingerprint == t->fingerprint && u->kind == t->kind && t->has_fingerprint;
    }
    if (!same)
        diag("%s", err.text);
    ckpt_close(x);
    ckpt_close(y);
    return same;
}

static void test_round_trips(void)
{
    int checked = 0;
    bool loads = true, prints = true, back = true;
    for (int n = 1; n <= 6; n++) {
        for (int m = 1; m <= 6; m++) {
            char a[300], b[300], c[300];
            int shard, replicate;
            snprintf(a, sizeof a, "%s/a%d%d", root, n, m);
            snprintf(b, sizeof b, "%s/b%d%d", root, n, m);
            snprintf(c, sizeof c, "%s/c%d%d", root, n, m);
            fake_mesh(n, m % 2 == 0, &shard, &replicate);
            loads &= fake_save(a, 1, shard, replicate, 100 + (uint64_t)n) == 0;
            struct pass_on p = {a, b, 0, 0, -1, 100 + (uint64_t)n};
            fake_mesh(m, n % 2 == 0, &p.shard_size, &p.replicate_size);
            p.replica = (n + m) % 3 == 0 ? 0 : -1;
            loads &= ranks_run(m, 1, 60, pass_on_rank, &p, NULL) == 0;
            struct pass_on q = {b, c, shard, replicate, -1, 100 + (uint64_t)n};
            back &= ranks_run(n, 1, 60, pass_on_rank, &q, NULL) == 0;
            prints &= fingerprints_equal(a, b) && fingerprints_equal(a, c);
            /* A to C went through another mesh; the files are the same bytes. */
            char x[400], y[400];
            for (int r = 1; r <= n; r++) {
                snprintf(x, sizeof x,
                         "%s/step-00000001/model/shard-%05d-model-00001-of-00001"
                         ".safetensors",
                         a, r);
                snprintf(y, sizeof y,
                         "%s/step-00000001/model/shard-%05d-model-00001-of-00001"
                         ".safetensors",
                         c, r);
                back &= exists(x) == exists(y) && (!exists(x) || same_bytes(x, y));
            }
            checked++;
        }
    }
    ok(loads, "state saved by N ranks and loaded by M is equal, %d pairs with and without replicas",
       checked);
    ok(prints, "fingerprints are equal after N to M to N");
    ok(back, "and so are the files");
}

static void test_same_bytes(void)
{
    static const char *const files[] = {
        "model/shard-00001-model-00001-of-00001.safetensors",
        "model/shard-00004-model-00001-of-00001.safetensors",
        "optim/shard-00003-model-00001-of-00001.safetensors",
    };
    char a[300], b[300], x[500], y[500];
    bool same = true;
    snprintf(a, sizeof a, "%s/twice-a", root);
    snprintf(b, sizeof b, "%s/twice-b", root);
    same &= fake_save(a, 3, 2, 2, 5) == 0 && fake_save(b, 3, 2, 2, 5) == 0;
    for (int i = 0; i < 3; i++) {
        snprintf(x, sizeof x, "%s/step-00000003/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/step-00000003/%s", b, files[i]);
        same &= same_bytes(x, y);
    }
    ok(same, "saving the same state twice gives the same data files");
    snprintf(x, sizeof x, "%s/step-00000003/manifest.json", a);
    snprintf(y, sizeof y, "%s/step-00000003/manifest.json", b);
    char *p = NULL, *q = NULL;
    size_t np, nq, differs = 0;
    ckpt_store_get(&p, &np, &ckpt_store_posix, x, 1 << 20, NULL);
    ckpt_store_get(&q, &nq, &ckpt_store_posix, y, 1 << 20, NULL);
    for (size_t i = 0; np == nq && i < np; i++)
        differs += p[i] != q[i];
    ok(np == nq && differs > 0 && differs <= 36 + 8,
       "the manifests differ in their uuid and checksum only (%zu bytes)", differs);
    fsdp_free(p);
    fsdp_free(q);
}

static void test_what_is_kept(void)
{
    char dir[300], extra[320], text[32] = "{\"hidden_size\": 16}";
    struct fsdp_oob *oob;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fake *f = fake_create(0, 1, 1);
    snprintf(dir, sizeof dir, "%s/kept", root);
    snprintf(extra, sizeof extra, "%s/config.json", root);
    ckpt_store_put(&ckpt_store_posix, extra, text, strlen(text), false, NULL);
    const char *extras[] = {extra};
    struct ckpt_save_args args = fake_save_args(f, dir, 42);
    args.extra = extras;
    args.nextra = 1;
    fake_fill(f, 1);
    fsdp_oob_self_create(&oob, NULL);
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_OK, "a save with a kept file: %s", err.text);
    struct ckpt *c = NULL;
    ok(ckpt_open(&c, dir, &err) == FSDP_OK, "a root opens as its newest checkpoint");
    int shard = 0, replicate = 0;
    ckpt_mesh(c, &shard, &replicate);
    ok(ckpt_step(c) == 42 && shard == 1 && replicate == 1 && ckpt_format(c) == CKPT_NATIVE,
       "step and mesh");
    ok(!strcmp(ckpt_state_json(c), "{\"seed\": 7, \"lr\": 0.1}"), "state: %s", ckpt_state_json(c));
    ok(ckpt_tensor_find(c, "lm_head.weight") == ckpt_tensor_find(c, "model.embed_tokens.weight") &&
           ckpt_naliases(c) == 1,
       "an alias finds its target");
    ok(!ckpt_tensor_find(c, "nothing"), "an unknown name finds nothing");
    ok(ckpt_extra_path(c, "config.json") && same_bytes(ckpt_extra_path(c, "config.json"), extra),
       "the kept file");
    ckpt_close(c);
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EEXIST && strstr(err.text, "step-00000042"),
       "a step is saved once: %s", err.text);
    ok(count_entries(dir, ".tmp.") == 0 && fake_holds(dir, 1), "which leaves it as it was");
    oob->close(oob);
    fake_destroy(f);
}

/* ---- reading parts --------------------------------------------------------------------------- */

static void test_read_slice(void)
{
    char dir[300];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    snprintf(dir, sizeof dir, "%s/parts", root);
    fake_save(dir, 1, 3, 1, 9);
    ckpt_open(&c, dir, &err);

    struct fake_slice s = {.name = "lm_head.weight", .nbytes = 50 * 16 * 4};
    struct fsdp_slice_io io = {.ctx = &s, .read = fake_read, .write = fake_write};
    s.data = calloc(1, 300 * 16 * 4);
    s.slice = (struct fsdp_slice){{s.name, FSDP_F32, 2, {300, 16}}, {{123, 0}, {50, 16}}, 0, 1};
    bool same = ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_OK;
    for (size_t b = 0; b < s.nbytes; b++)
        same &= s.data[b] == fake_byte("model.embed_tokens.weight", 123 * 64 + b, 9);
    ok(same, "some rows, by alias: %s", err.text);

    s.slice.box = (struct fsdp_box){{10, 5}, {200, 3}};
    s.nbytes = 200 * 3 * 4;
    same = ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_OK;
    for (size_t b = 0; b < s.nbytes; b++)
        same &= s.data[b] ==
                fake_byte("model.embed_tokens.weight", ((10 + b / 12) * 16 + 5) * 4 + b % 12, 9);
    ok(same, "some columns of some rows");

    s.slice.tensor.dtype = FSDP_F64;
    s.slice.box = (struct fsdp_box){{0, 0}, {300, 16}};
    s.nbytes = 300 * 16 * 8;
    s.data = realloc(s.data, s.nbytes);
    same = ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_OK;
    for (size_t i = 0; i < 300 * 16; i++) {
        float x;
        double y;
        unsigned char raw[4];
        for (int b = 0; b < 4; b++)
            raw[b] = fake_byte("model.embed_tokens.weight", i * 4 + (size_t)b, 9);
        memcpy(&x, raw, 4);
        memcpy(&y, s.data + i * 8, 8);
        same &= (double)x == y || x != x;
    }
    ok(same, "in another floating type");

    s.slice.tensor.dtype = FSDP_I32;
    ok(ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_EINVAL && strstr(err.text, "I32"),
       "not as integers: %s", err.text);
    s.slice.tensor.dtype = FSDP_F32;
    s.slice.tensor.shape[1] = 17;
    ok(ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_EINVAL &&
           strstr(err.text, "lm_head.weight") && strstr(err.text, "17"),
       "not in another shape: %s", err.text);
    s.slice.tensor.shape[1] = 16;
    s.slice.box.offset[0] = 1;
    ok(ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_EINVAL, "not beyond its end: %s", err.text);
    s.slice.tensor.name = "absent";
    ok(ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_ENOTFOUND && strstr(err.text, "absent"),
       "not an absent one: %s", err.text);
    ckpt_close(c);
    free(s.data);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int disagree_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 2, 1);
    struct ckpt_save_args args = fake_save_args(f, arg, 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    args.naliases = oob->rank;
    int rc = ckpt_save(NULL, &args, oob, &err);
    fake_destroy(f);
    return rc == FSDP_EMISMATCH && strstr(err.text, "ranks 0 and 1") ? 0 : 1;
}

/* Rank 1 cannot read its own state. */
static int broken_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx, (void)pos, (void)dst, (void)nbytes;
    return fsdp_err_set(err, FSDP_EIO, "the device is gone");
}

static int broken_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    struct fake *f = ctx;
    for (int i = 0; i < f->nslices; i++) {
        struct fsdp_slice_io io = {.ctx = &f->slices[i], .read = broken_read, .write = fake_write};
        FSDP_TRY(fn(fn_ctx, f->slices[i].kind, &f->slices[i].slice, &io, err));
    }
    return FSDP_OK;
}

static int broken_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 2, 1);
    struct ckpt_save_args args = fake_save_args(f, arg, 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    if (oob->rank == 1)
        args.slices = broken_each;
    int rc = ckpt_save(NULL, &args, oob, &err);
    fake_destroy(f);
    const char *expect = oob->rank ? "the device is gone" : "rank 1: the device is gone";
    return rc == FSDP_EIO && !strcmp(err.text, expect) && err.of_other == !oob->rank ? 0 : 1;
}

/* Rank 1 leaves out a slice: nothing but the coverage proof can notice. */
static int forgetful_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    struct fake *f = ctx;
    for (int i = 0; i < f->nslices; i++) {
        struct fsdp_slice_io io = {.ctx = &f->slices[i], .read = fake_read, .write = fake_write};
        if (!strcmp(f->slices[i].name, "model.layers.0.conv"))
            continue;
        FSDP_TRY(fn(fn_ctx, f->slices[i].kind, &f->slices[i].slice, &io, err));
    }
    return FSDP_OK;
}

static int forgetful_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 2, 1);
    struct ckpt_save_args args = fake_save_args(f, arg, 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    if (oob->rank == 1)
        args.slices = forgetful_each;
    int rc = ckpt_save(NULL, &args, oob, &err);
    fake_destroy(f);
    return rc == FSDP_ECORRUPT && strstr(err.text, "model.layers.0.conv") ? 0 : 1;
}

/* Names that no reader takes: of a tensor, and of what the optimizer keeps for it. */
static void test_names(void)
{
    enum { MOST = 1024 };
    char dir[300], longest[MOST + 1], longer[MOST + 2];
    memset(longest, 'n', MOST);
    longest[MOST] = 0;
    memset(longer, 'n', MOST + 1);
    longer[MOST + 1] = 0;
    const struct {
        const char *name, *says;
    } bads[] = {{"__metadata__", "reserves this name"},
                {"a\xed\xb2\x80"
                 "b",
                 "not valid UTF-8"},
                {"", "its name is empty"},
                {longer, "more than 1024 bytes"},
                {longest, "tensor 'state.nnn"}}; /* the weight's name fits, its moments' do not */
    struct fsdp_oob *oob;
    struct fake *f = fake_create(0, 1, 1);
    fsdp_oob_self_create(&oob, NULL);
    snprintf(dir, sizeof dir, "%s/names", root);
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct ckpt_save_args args = fake_save_args(f, dir, 1);
        struct fsdp_state_layout layout = *args.layout;
        struct fsdp_flat_desc flat = layout.flats[0];
        struct fsdp_tensor tensors[64];
        memcpy(tensors, flat.tensors, (size_t)flat.ntensors * sizeof *tensors);
        tensors[0].name = bads[i].name;
        flat.tensors = tensors;
        layout.flats = &flat;
        layout.nflats = 1;
        args.layout = &layout;
        ok(flat.trainable && ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL &&
               strstr(err.text, bads[i].says) && count_entries(dir, "") <= 0,
           "a name that cannot be stored: %.120s", err.text);
    }
    oob->close(oob);
    fake_destroy(f);
}

static void test_refusals(void)
{
    char dir[300], text[16] = "file";
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_oob *oob;
    struct fake *f = fake_create(0, 1, 1);
    fsdp_oob_self_create(&oob, NULL);

    snprintf(dir, sizeof dir, "%s/refused", root);
    ok(ranks_run(2, 1, 30, disagree_rank, dir, NULL) == 0, "ranks that mean different states");
    ok(ranks_run(2, 1, 30, broken_rank, dir, NULL) == 0, "a rank that cannot read its state");
    ok(ranks_run(2, 1, 30, forgetful_rank, dir, NULL) == 0,
       "a tensor with a hole is not published");
    ok(count_entries(dir, "") == 0, "nothing is left of these");

    struct ckpt_save_args args = fake_save_args(f, dir, 1);
    args.state_json = "{\"a\":";
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL && strstr(err.text, "training state"),
       "state that is no JSON: %s", err.text);
    args = fake_save_args(f, dir, 1);
    args.version = 99;
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL, "unknown version: %s", err.text);
    args = fake_save_args(f, dir, -1);
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL, "negative step: %s", err.text);
    args = fake_save_args(f, "gopher://bucket/run", 1);
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EUNSUPPORTED && strstr(err.text, "gopher"),
       "a store this build lacks: %s", err.text);
    args = fake_save_args(f, dir, 1);
    static const struct ckpt_alias wrong = {"x", "not there"};
    args.aliases = &wrong;
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL && strstr(err.text, "not there"),
       "alias of nothing: %s", err.text);
    const char *missing[] = {"/nonexistent/config.json"};
    args = fake_save_args(f, dir, 1);
    args.extra = missing;
    args.nextra = 1;
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_ENOTFOUND && strstr(err.text, missing[0]),
       "a file to keep that is missing: %s", err.text);
    ok(count_entries(dir, "") == 0, "nothing is left of these");

    snprintf(dir, sizeof dir, "%s/afile", root);
    ckpt_store_put(&ckpt_store_posix, dir, text, 4, false, NULL);
    args = fake_save_args(f, dir, 1);
    ok(ckpt_save(NULL, &args, oob, &err) == FSDP_EINVAL && strstr(err.text, "afile"),
       "a file as root: %s", err.text);
    args = fake_save_args(f, "/proc/ckpt-test", 1);
    ok(ckpt_save(NULL, &args, oob, &err) != FSDP_OK && strstr(err.text, "/proc/ckpt-test"),
       "an unwritable root: %s", err.text);
    oob->close(oob);
    fake_destroy(f);
}

static void test_full_disk(void)
{
    char dir[300];
    snprintf(dir, sizeof dir, "%s/small", root);
    mkdir(dir, 0777);
    if (geteuid() != 0 || mount("ckpt-test", dir, "tmpfs", 0, "size=48k")) {
        tap_skip("full disk: cannot mount a small tmpfs here");
        return;
    }
    struct fake_job job = {
        .root = dir, .step = 1, .shard_size = 2, .replicate_size = 1, .quiet = true};
    int status[2];
    ok(ranks_run(2, 1, 30, fake_save_rank, &job, status) == 2 && WIFEXITED(status[0]) &&
           WEXITSTATUS(status[0]) == -FSDP_ENOSPC && WEXITSTATUS(status[1]) == -FSDP_ENOSPC,
       "a full disk fails the save on all ranks, as such");
    ok(count_entries(dir, "") == 0, "and gives its room back");
    umount(dir);
}

/* ---- retention ------------------------------------------------------------------------------- */

static void make_old(const char *path)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - 7200}, {.tv_sec = time(NULL) - 7200}};
    utimensat(AT_FDCWD, path, times, 0);
}

#define OLD_UUID "01234567-89ab-4cde-8f01-23456789abcd"
#define NEW_UUID "89abcdef-0123-4567-89ab-cdef01234567"

static void test_retain(void)
{
    char dir[300], path[400], latest[500];
    struct fsdp_err err = FSDP_ERR_INIT;
    snprintf(dir, sizeof dir, "%s/retain", root);
    ok(ckpt_latest(latest, sizeof latest, dir, &err) == FSDP_ENOTFOUND, "no root: %s", err.text);
    mkdir(dir, 0777);
    ok(ckpt_latest(latest, sizeof latest, dir, &err) == FSDP_ENOTFOUND, "empty root: %s", err.text);
    static const int64_t steps[] = {5, 100, 30, 123456789};
    for (int i = 0; i < 4; i++)
        fake_save(dir, steps[i], 1, 1, (uint64_t)i);
    static const char *const others[] = {
        "step-00000777", /* unfinished, by an earlier version or by hand: no manifest */
        "step-00000031.tmp." OLD_UUID, /* of a dead save */
        "step-00000032.tmp." NEW_UUID, /* of a save in progress */
        "step-00000033.del." OLD_UUID, /* of an interrupted removal */
        "step-1",
        "notes",
        "step-00000005-copy",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        mkdir(path, 0777);
        snprintf(path, sizeof path, "%s/%s/model", dir, others[i]);
        mkdir(path, 0777);
        if (i == 1 || i == 3)
            make_old(path);
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        if (i == 1)
            make_old(path);
    }
    ok(!ckpt_latest(latest, sizeof latest, dir, &err) && strstr(latest, "/step-123456789"),
       "the latest: %s", latest);
    int rc = ckpt_retain(dir, 0, NULL, 0, NULL, NULL, &err);
    ok(rc == FSDP_OK && count_entries(dir, "step-") == 8,
       "keep 0 keeps all and sweeps what is dead: %d", count_entries(dir, "step-"));
    ok(ckpt_retain(dir, 2, NULL, 0, NULL, NULL, &err) == FSDP_OK, "keep 2");
    snprintf(path, sizeof path, "%s/step-00000100", dir);
    ok(exists(path) && fake_holds(path, 1), "the newest two stay");
    snprintf(path, sizeof path, "%s/step-00000030", dir);
    ok(!exists(path), "older ones go");
    snprintf(path, sizeof path, "%s/step-00000032.tmp." NEW_UUID, dir);
    ok(exists(path), "a save that may be in progress stays");
    ok(count_entries(dir, ".del.") == 0 && count_entries(dir, ".tmp." OLD_UUID) == 0,
       "remains are swept");
    snprintf(path, sizeof path, "%s/step-00000777", dir);
    ok(exists(path) && count_entries(dir, "notes") == 1, "what is not ours stays");
    ok(ckpt_retain(dir, -1, NULL, 0, NULL, NULL, &err) == FSDP_EINVAL, "keep -1: %s", err.text);
}

int main(void)
{
    char scratch[256];
    strcpy(scratch, scratch_create());
    root = scratch;
    test_round_trips();
    test_same_bytes();
    test_what_is_kept();
    test_read_slice();
    test_names();
    test_refusals();
    test_full_disk();
    test_retain();
    scratch_remove(scratch);
    return tap_done();
}
