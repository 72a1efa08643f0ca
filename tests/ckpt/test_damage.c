/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint damaged in every way is refused by open, load, verify or merge, naming file and
 * tensor. */
#include <fcntl.h>

#include "fake_state.h"

enum { SEED = 11 };
#define SHARD(folder, n) folder "/shard-0000" #n "-model-00001-of-00001.safetensors"

static char root[300], step[400];

static const char *at(const char *name)
{
    static char paths[4][600];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", step, name);
    return path;
}

static void rewrite(const char *name, const char *data, size_t nbytes)
{
    unlink(at(name));
    if (ckpt_store_put(&ckpt_store_posix, at(name), data, nbytes, false, NULL))
        abort();
}

__attribute__((noinline)) static char *contents(const char *name, size_t *nbytes)
{
    char *data = NULL;
    if (ckpt_store_get(&data, nbytes, &ckpt_store_posix, at(name), 1 << 24, NULL))
        abort();
    return data;
}

/* ---- the damages ----------------------------------------------------------------------------- */

static void lose(void)
{
    unlink(at(SHARD("model", 2)));
}

static void truncate_file(void)
{
    size_t nbytes;
    char *data = contents(SHARD("model", 2), &nbytes);
    rewrite(SHARD("model", 2), data, nbytes - 8);
    fsdp_free(data);
}

static void truncate_to_nothing(void)
{
    rewrite(SHARD("optim", 1), "", 0);
}

static void flip_at(const char *name, double where, int bit)
{
    size_t nbytes;
    char *data = contents(name, &nbytes);
    size_t pos = where < 1 ? (size_t)((double)nbytes * where) : nbytes - 1;
    data[pos] ^= (char)(1 << bit);
    rewrite(name, data, nbytes);
    fsdp_free(data);
}

static void flip_data(void)
{
    flip_at(SHARD("model", 2), 0.9, 3);
}

static void flip_last_optim(void)
{
    flip_at(SHARD("optim", 3), 1, 7);
}

static void extra_shard(void)
{
    size_t nbytes;
    char *data = contents(SHARD("model", 2), &nbytes);
    rewrite(SHARD("model", 7), data, nbytes);
    fsdp_free(data);
}

/* The same file of another step: same size, same header, other data. */
static void stale_shard(void)
{
    char other[600];
    size_t nbytes;
    char *data;
    snprintf(other, sizeof other, "%s/step-00000001/" SHARD("model", 2), root);
    if (ckpt_store_get(&data, &nbytes, &ckpt_store_posix, other, 1 << 24, NULL))
        abort();
    rewrite(SHARD("model", 2), data, nbytes);
    fsdp_free(data);
}

static void swap_shards(void)
{
    size_t a, b;
    char *x = contents(SHARD("model", 2), &a), *y = contents(SHARD("model", 3), &b);
    rewrite(SHARD("model", 2), y, b);
    rewrite(SHARD("model", 3), x, a);
    fsdp_free(x);
    fsdp_free(y);
}

static void lose_manifest(void)
{
    unlink(at("manifest.json"));
}

static void truncate_manifest(void)
{
    size_t nbytes;
    char *data = contents("manifest.json", &nbytes);
    rewrite("manifest.json", data, nbytes / 2);
    fsdp_free(data);
}

/* Replaces text in the manifest; fixes the checksum if asked to. */
static void edit(const char *from, const char *to, bool fix)
{
    size_t nbytes;
    char *data = contents("manifest.json", &nbytes), *p = strstr(data, from);
    char *edited = malloc(nbytes + strlen(to) + 1);
    if (!p)
        abort();
    size_t before = (size_t)(p - data), len = before;
    memcpy(edited, data, before);
    len += (size_t)sprintf(edited + before, "%s%s", to, p + strlen(from));
    if (fix) {
        const size_t tail = strlen(",\n \"crc32c\": \"01234567\"\n}\n");
        char digits[9];
        snprintf(digits, sizeof digits, "%08x", ckpt_crc32c(0, edited, len - tail));
        memcpy(edited + len - 12, digits, 8);
    }
    rewrite("manifest.json", edited, len);
    free(edited);
    fsdp_free(data);
}

static void edit_shape(void)
{
    edit("\"shape\": [300,16]", "\"shape\": [301,16]", false);
}

static void edit_shape_and_mend(void)
{
    edit("\"shape\": [300,16]", "\"shape\": [301,16]", true);
}

static void edit_dtype(void)
{
    edit("\"dtype\": \"F32\", \"shape\": [300,16]", "\"dtype\": \"I32\", \"shape\": [300,16]",
         true);
}

static void edit_fingerprint(void)
{
    edit("\"shape\": [300,16], \"fingerprint\": \"", "\"shape\": [300,16], \"fingerprint\": \"0",
         true);
}

static void edit_name(void)
{
    edit("\"model.norm.weight\": {", "\"model.form.weight\": {", true);
}

static void edit_path(void)
{
    edit("\"path\": \"model/", "\"path\": \"../model/", true);
}

static void edit_version(void)
{
    edit("\"version\": 1", "\"version\": 2", true);
}

static void edit_alias(void)
{
    edit("\"lm_head.weight\": \"model.embed", "\"lm_head.weight\": \"model.absent", true);
}

static void edit_header(void)
{
    size_t nbytes;
    char *data = contents(SHARD("model", 2), &nbytes);
    for (size_t i = 0; i + 8 < nbytes; i++) /* saved_offsets\":[112, */
        if (!memcmp(data + i, "offsets\\\":[1", 12)) {
            data[i + 11] = '2';
            break;
        }
    rewrite(SHARD("model", 2), data, nbytes);
    fsdp_free(data);
}

static void lose_extra(void)
{
    unlink(at("hf/config.json"));
}

static void flip_extra(void)
{
    flip_at("hf/config.json", 0.5, 0);
}

/* ---- who notices ----------------------------------------------------------------------------- */

enum notice { OPEN = 1, LOAD = 2, VERIFY = 4, MERGE = 8, ALL = LOAD | VERIFY | MERGE };

struct damage {
    const char *what;
    void (*make)(void);
    int by; /* OPEN, or those that must notice; merge (of the model) cannot see the optimizer */
    const char *says, *and_says;
};

static const struct damage damages[] = {
    {"missing shard", lose, OPEN, SHARD("model", 2), "missing"},
    {"truncated shard", truncate_file, OPEN, SHARD("model", 2), "truncated"},
    {"emptied shard", truncate_to_nothing, OPEN, SHARD("optim", 1), "truncated"},
    {"flipped bit", flip_data, ALL, SHARD("model", 2), NULL},
    {"flipped last bit of the optimizer", flip_last_optim, LOAD | VERIFY, SHARD("optim", 3),
     "state."},
    {"extra shard", extra_shard, OPEN, SHARD("model", 7), "does not belong"},
    {"stale shard", stale_shard, ALL, SHARD("model", 2), NULL},
    {"swapped shards", swap_shards, OPEN, "model/shard-0000", NULL},
    {"no manifest", lose_manifest, OPEN, "step-00000002", "no checkpoint"},
    {"truncated manifest", truncate_manifest, OPEN, "manifest.json", "truncated"},
    {"edited shape", edit_shape, OPEN, "manifest.json", "edited"},
    {"edited shape and mended checksum", edit_shape_and_mend, OPEN, "model.embed_tokens.weight",
     "shape"},
    {"edited dtype", edit_dtype, OPEN, "model.embed_tokens.weight", "I32"},
    {"edited fingerprint", edit_fingerprint, OPEN, "model.embed_tokens.weight", "fingerprint"},
    {"edited name", edit_name, OPEN, "model.norm.weight", NULL},
    {"path that climbs out", edit_path, OPEN, "manifest.json", "path"},
    {"later version", edit_version, OPEN, "version 2", NULL},
    {"alias of nothing", edit_alias, OPEN, "lm_head.weight", NULL},
    {"edited offset in a header", edit_header, OPEN, SHARD("model", 2), NULL},
    {"missing kept file", lose_extra, OPEN, "hf/config.json", "missing"},
    {"flipped bit in a kept file", flip_extra, OPEN, "hf/config.json", "checksum"},
};

struct found {
    int nfaults;
    char text[4096];
};

static void note(void *ctx, const char *text)
{
    struct found *found = ctx;
    size_t len = strlen(found->text);
    found->nfaults++;
    snprintf(found->text + len, sizeof found->text - len, "%s; ", text);
}

static bool says(const struct damage *d, const char *text)
{
    return strstr(text, d->says) && (!d->and_says || strstr(text, d->and_says));
}

static void check_verify(const struct damage *d, struct ckpt *c)
{
    struct found found = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ckpt_verify(c, note, &found, &err);
    if (d->by & VERIFY)
        ok(rc == FSDP_ECORRUPT && found.nfaults > 0 && says(d, found.text), "%s: verify: %s",
           d->what, found.text);
    if (d->make == flip_data || d->make == flip_last_optim)
        ok(strstr(found.text, ": byte ") && strstr(found.text, " and was ") &&
               strstr(found.text, "; element ["),
           "%s: verify finds the byte", d->what);
    else if (!(d->by & VERIFY))
        ok(rc == FSDP_OK, "%s: does not concern verify", d->what);
}

static void check_load(const struct damage *d, struct ckpt *c)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_oob *oob;
    struct fake *f = fake_create(0, 1, 1);
    struct ckpt_load_args args = fake_load_args(f);
    fsdp_oob_self_create(&oob, NULL);
    int rc = ckpt_load(c, &args, oob, &err);
    if (d->by & LOAD)
        ok(rc == FSDP_ECORRUPT && says(d, err.text) && strstr(err.text, "tensor '"), "%s: load: %s",
           d->what, err.text);
    else
        ok(rc == FSDP_OK, "%s: does not concern load", d->what);
    oob->close(oob);
    fake_destroy(f);
}

static void check_merge(const struct damage *d, struct ckpt *c)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    char out[400];
    snprintf(out, sizeof out, "%s/merged.safetensors", root);
    args.out = out;
    int rc = ckpt_reshard(NULL, c, &args, &err);
    if (d->by & MERGE)
        ok(rc == FSDP_ECORRUPT && says(d, err.text) && strstr(err.text, "tensor '") &&
               !exists(out) && count_entries(root, "merged") == 0,
           "%s: merge: %s", d->what, err.text);
    else
        ok(rc == FSDP_OK, "%s: does not concern merge", d->what);
    unlink(out);
}

static void make_checkpoint(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    static char config[320];
    (void)err;
    snprintf(config, sizeof config, "%s/config.json", root);
    fake_save(root, 1, 3, 1, SEED - 1);
}

static int save_with_config(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 3, 1);
    struct ckpt_save_args args = fake_save_args(f, root, 2);
    const char *extras[] = {arg};
    (void)nodes;
    args.extra = extras;
    args.nextra = 1;
    fake_fill(f, SEED);
    int rc = ckpt_save(NULL, &args, oob, NULL);
    fake_destroy(f);
    return rc != FSDP_OK;
}

/* Each rank loads its own part, and replica 1 leaves its part alone: a flipped bit that only one
 * rank reads must fail all of them. */
static int load_damaged(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 2, 2);
    struct ckpt_load_args args = fake_load_args(f);
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    (void)nodes;
    args.replica = *(int *)arg;
    int rc = ckpt_open(&c, step, &err);
    if (rc == FSDP_OK)
        rc = ckpt_load(c, &args, oob, &err);
    bool good =
        rc == FSDP_ECORRUPT && strstr(err.text, SHARD("model", 2)) && strstr(err.text, "tensor '");
    if (!good)
        diag("rank %d: %s", oob->rank, rc ? err.text : "loaded");
    ckpt_close(c);
    fake_destroy(f);
    return !good;
}

/* Loads a part of one tensor only: its fingerprint cannot tell. */
static int part_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    struct fake_slice *s = ctx;
    struct fsdp_slice_io io = {.ctx = s, .read = fake_read, .write = fake_write};
    return fn(fn_ctx, FSDP_SLICE_MODEL, &s->slice, &io, err);
}

static void test_part(void)
{
    struct fake_slice s = {.name = "model.layers.0.bias"};
    struct ckpt_load_args args = CKPT_LOAD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_oob *oob;
    struct ckpt *c = NULL;
    s.slice = (struct fsdp_slice){{s.name, FSDP_F32, 1, {701}}, {{300}, {400}}, 0, 1};
    s.nbytes = 1600;
    s.data = malloc(1600);
    args.slices = part_each;
    args.slices_ctx = &s;
    fsdp_oob_self_create(&oob, NULL);
    ckpt_open(&c, step, &err);
    ok(ckpt_load(c, &args, oob, &err) == FSDP_OK, "a part of a tensor loads: %s", err.text);
    ckpt_close(c);
    c = NULL;
    for (int shard = 1; shard <= 3; shard++) { /* wherever the tensor lies */
        char name[100];
        snprintf(name, sizeof name, "model/shard-0000%d-model-00001-of-00001.safetensors", shard);
        if (exists(at(name)))
            flip_at(name, 1, 0);
    }
    ckpt_open(&c, step, &err);
    ok(ckpt_load(c, &args, oob, &err) == FSDP_ECORRUPT && strstr(err.text, s.name) &&
           strstr(err.text, "checksum"),
       "with a flipped bit it does not: %s", err.text);
    ckpt_close(c);
    oob->close(oob);
    free(s.data);
}

/* One flipped bit anywhere: verify or open always notices; load does, or loads the right values. */
static void test_random_flips(void)
{
    static const char *const files[] = {"manifest.json", SHARD("model", 1), SHARD("model", 2),
                                        SHARD("optim", 3), "hf/config.json"};
    bool noticed = true, right = true;
    unsigned seed = 5;
    for (int round = 0; round < 300; round++) {
        const char *name = files[round % 5];
        size_t nbytes;
        char *data = contents(name, &nbytes);
        /* Most of a shard is padding and data: every other time, aim at its header. */
        size_t pos = (size_t)rand_r(&seed) % (round / 5 % 2 && nbytes > 900 ? 900 : nbytes);
        int bit = rand_r(&seed) % 8;
        struct fsdp_err err = FSDP_ERR_INIT;
        struct fsdp_oob *oob;
        struct ckpt *c = NULL;
        struct fake *f = fake_create(0, 1, 1);
        struct ckpt_load_args args = fake_load_args(f);
        fsdp_oob_self_create(&oob, NULL);
        data[pos] ^= (char)(1 << bit);
        rewrite(name, data, nbytes);
        if (ckpt_open(&c, step, &err) == FSDP_OK) {
            noticed &= ckpt_verify(c, NULL, NULL, &err) == FSDP_ECORRUPT;
            right &= ckpt_load(c, &args, oob, &err) != FSDP_OK || fake_equal(f, SEED, true);
        }
        if (!noticed || !right)
            diag("%s, byte %zu, bit %d", name, pos, bit);
        data[pos] ^= (char)(1 << bit);
        rewrite(name, data, nbytes);
        fsdp_free(data);
        ckpt_close(c);
        oob->close(oob);
        fake_destroy(f);
    }
    ok(noticed, "open or verify notices any flipped bit in any file");
    ok(right, "no load gives wrong values");
}

static void restore(const char *backup)
{
    char command[1500];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", step, backup, step);
    if (system(command))
        abort();
}

int main(void)
{
    char config[320], backup[400];
    snprintf(root, sizeof root, "%s", scratch_create());
    snprintf(step, sizeof step, "%s/step-00000002", root);
    snprintf(config, sizeof config, "%s/config.json", root);
    snprintf(backup, sizeof backup, "%s/backup", root);
    make_checkpoint();
    ckpt_store_put(&ckpt_store_posix, config, "{\"a\": 1}", 8, false, NULL);
    ok(ranks_run(3, 1, 30, save_with_config, config, NULL) == 0, "a checkpoint of 3 ranks");
    if (rename(step, backup))
        abort();
    restore(backup);

    static const struct damage none = {"no damage", NULL, 0, "", NULL};
    for (size_t i = 0; i <= sizeof damages / sizeof damages[0]; i++) {
        const struct damage *d = i ? &damages[i - 1] : &none;
        struct ckpt *c = NULL;
        struct fsdp_err err = FSDP_ERR_INIT;
        if (d->make)
            d->make();
        int rc = ckpt_open(&c, step, &err);
        if (d->by == OPEN) {
            ok(rc != FSDP_OK && says(d, err.text), "%s: open: %s", d->what,
               rc ? err.text : "opened");
        } else if (ok(rc == FSDP_OK, "%s: opens: %s", d->what, err.text)) {
            check_load(d, c);
            check_verify(d, c);
            check_merge(d, c);
        }
        ckpt_close(c);
        restore(backup);
    }
    test_random_flips();
    flip_data();
    int replica = -1;
    ok(ranks_run(4, 1, 30, load_damaged, &replica, NULL) == 0,
       "a flipped bit fails the load on every rank");
    replica = 1;
    ok(ranks_run(4, 1, 30, load_damaged, &replica, NULL) == 0, "also where one replica reads");
    restore(backup);
    test_part();
    scratch_remove(root);
    return tap_done();
}
