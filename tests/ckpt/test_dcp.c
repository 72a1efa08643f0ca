/* SPDX-License-Identifier: Apache-2.0 */
/* torch's distributed checkpoints, as torch wrote them and as damage leaves them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../ckpt/store/store.h"
#include "ckpt/ckpt.h"
#include "tap.h"

static char data_root[1000], scratch[1000];

struct bytes {
    char *data;
    size_t nbytes;
};

static int take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct bytes *b = ctx;
    (void)err;
    memcpy(b->data + pos, src, nbytes);
    return FSDP_OK;
}

/* A whole tensor; data is NULL if it cannot be read. */
static struct bytes read_tensor(struct ckpt *c, const struct fsdp_tensor *t, struct fsdp_err *err)
{
    struct bytes b = {.nbytes = fsdp_tensor_nelem(t) * fsdp_dtype_nbytes(t->dtype)};
    struct fsdp_slice slice = {.tensor = *t, .nreplica = 1};
    struct fsdp_slice_io io = {.ctx = &b, .write = take};
    memcpy(slice.box.length, t->shape, sizeof t->shape);
    b.data = calloc(b.nbytes + 1, 1);
    if (ckpt_read_slice(c, &slice, &io, err)) {
        free(b.data);
        b.data = NULL;
    }
    return b;
}

static const struct ckpt_tensor *find_stored(const struct ckpt *c, const char *stored)
{
    for (int i = 0; i < ckpt_ntensors(c); i++)
        if (!strcmp(ckpt_tensor_at(c, i)->stored, stored))
            return ckpt_tensor_at(c, i);
    return NULL;
}

/* Every tensor of expected.safetensors is in the checkpoint under its stored name, equal. */
static bool equal(struct ckpt *have, struct ckpt *want)
{
    bool same = ckpt_ntensors(have) == ckpt_ntensors(want);
    for (int i = 0; same && i < ckpt_ntensors(want); i++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        const struct ckpt_tensor *w = ckpt_tensor_at(want, i);
        const struct ckpt_tensor *h = find_stored(have, w->tensor.name);
        struct bytes a = {0}, b = {0};
        same = h && h->tensor.dtype == w->tensor.dtype && h->tensor.ndim == w->tensor.ndim;
        if (same) {
            a = read_tensor(have, &h->tensor, &err);
            b = read_tensor(want, &w->tensor, &err);
        }
        same =
            same && a.data && b.data && a.nbytes == b.nbytes && !memcmp(a.data, b.data, a.nbytes);
        if (!same)
            diag("%s: %s", w->tensor.name, h ? err.text : "not there");
        free(a.data);
        free(b.data);
    }
    return same;
}

static void test_sample(const char *name, int nweights, int64_t step)
{
    char path[1200];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *have = NULL, *want = NULL;
    int found = 0;
    snprintf(path, sizeof path, "%s/%s/ckpt", data_root, name);
    ok(ckpt_open(&have, path, &err) == FSDP_OK, "%s opens %s", name, err.text);
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", data_root, name);
    if (!have || ckpt_open(&want, path, &err)) {
        ok(false, "%s", err.text);
        ckpt_close(have);
        return;
    }
    ok(equal(have, want), "%s: every tensor is equal", name);
    for (int i = 0; i < ckpt_ntensors(have); i++)
        found += ckpt_tensor_at(have, i)->role == CKPT_ROLE_MODEL;
    ok(found == nweights, "%s: %d of them are weights", name, found);
    ok(ckpt_step(have) == step, "%s: step %lld", name, (long long)ckpt_step(have));
    ok(ckpt_verify(have, NULL, NULL, &err) == FSDP_OK, "%s verifies %s", name, err.text);
    ckpt_close(have);
    ckpt_close(want);
}

static void test_names(void)
{
    char path[1200];
    struct ckpt *c = NULL;
    snprintf(path, sizeof path, "%s/dcp-fsdp2-2r/ckpt", data_root);
    if (!ok(ckpt_open(&c, path, NULL) == FSDP_OK, "a checkpoint with an optimizer"))
        return;
    const struct ckpt_tensor *t = ckpt_tensor_find(c, "model.norm.weight");
    ok(t && t->role == CKPT_ROLE_MODEL && !strcmp(t->stored, "model.model.norm.weight"),
       "the container goes, the name's own `model.` stays");
    t = ckpt_tensor_find(c, "state.model.norm.weight.exp_avg");
    ok(t && t->role == CKPT_ROLE_OPTIM && t->kind == FSDP_SLICE_OPTIM, "a moment");
    t = ckpt_tensor_find(c, "state.model.norm.weight.step");
    ok(t && t->role == CKPT_ROLE_OTHER, "an optimizer's counter is not of a parameter's shape");
    t = ckpt_tensor_find(c, "step");
    ok(t && t->role == CKPT_ROLE_OTHER, "what lies next to the container is no weight");
    const char *state = ckpt_state_json(c);
    ok(state && strstr(state, "\"optim.param_groups.0.betas\":[0.9"), "Python values as JSON");
    ckpt_close(c);
}

/* A job that loads weights gets the model's, also where another tensor has the name. */
static void test_same_name(void)
{
    char path[1200];
    struct ckpt *c = NULL;
    snprintf(path, sizeof path, "%s/dcp-names/buffer-named-step", data_root);
    if (!ok(ckpt_open(&c, path, NULL) == FSDP_OK, "a buffer called as a tensor next to the model"))
        return;
    const struct ckpt_tensor *t = ckpt_tensor_find(c, "step");
    ok(t && t->role == CKPT_ROLE_MODEL && !strcmp(t->stored, "model.step"),
       "its name finds the buffer");
    t = ckpt_tensor_find(c, "model.step");
    ok(t && t->role == CKPT_ROLE_MODEL, "so does its full name");
    ckpt_close(c);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* A copy of dcp-mixed-2r in which the first `from` in `file` is `to`. */
static const char *damaged(const char *file, const char *from, const char *to, size_t nbytes)
{
    static const char *const files[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
    static char folder[1200];
    static int turn;
    snprintf(folder, sizeof folder, "%s/damaged-%d", scratch, turn++);
    mkdir(folder, 0777);
    for (int i = 0; i < 3; i++) {
        char path[2400], *data;
        size_t size;
        snprintf(path, sizeof path, "%s/dcp-mixed-2r/ckpt/%s", data_root, files[i]);
        if (ckpt_store_get(&data, &size, &ckpt_store_posix, path, 1 << 20, NULL))
            return "unreadable";
        char *at = memmem(data, size, from, nbytes);
        if (at && !strcmp(file, files[i]))
            memcpy(at, to, nbytes);
        else if (!strcmp(file, files[i]))
            diag("nothing to damage in %s", file);
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        ckpt_store_put(&ckpt_store_posix, path, data, size, false, NULL);
        fsdp_free(data);
    }
    return folder;
}

static bool refused(const char *path, const char *says)
{
    struct ckpt *c = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ckpt_open(&c, path, &err);
    diag("%s", rc ? err.text : "opened");
    ckpt_close(c);
    return rc != FSDP_OK && strstr(err.text, says);
}

/* Opening does not see it; reading and verifying name the tensor. */
static bool unreadable(const char *path, const char *name, const char *says)
{
    struct ckpt *c = NULL;
    struct fsdp_err err = FSDP_ERR_INIT, why = FSDP_ERR_INIT;
    if (ckpt_open(&c, path, &err)) {
        diag("%s", err.text);
        return false;
    }
    const struct ckpt_tensor *t = ckpt_tensor_find(c, name);
    struct bytes b = t ? read_tensor(c, &t->tensor, &err) : (struct bytes){NULL, 0};
    bool good = t && !b.data && strstr(err.text, says) && strstr(err.text, name);
    diag("%s", err.text);
    good &= ckpt_verify(c, NULL, NULL, &why) == FSDP_ECORRUPT;
    free(b.data);
    ckpt_close(c);
    return good;
}

static void test_types(void)
{
    char path[1200];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    snprintf(path, sizeof path, "%s/dcp-mixed-2r/ckpt", data_root);
    if (!ok(ckpt_open(&c, path, &err) == FSDP_OK, "a checkpoint of many types"))
        return;
    struct fsdp_tensor want = ckpt_tensor_find(c, "w.fp32_5x3")->tensor;
    want.dtype = FSDP_I64;
    struct bytes b = read_tensor(c, &want, &err);
    ok(!b.data && strstr(err.text, "F32") && strstr(err.text, "I64"), "%s", err.text);
    want = ckpt_tensor_find(c, "w.bf16_4x6")->tensor;
    want.dtype = FSDP_F32;
    b = read_tensor(c, &want, &err);
    ok(b.data != NULL, "floating types convert");
    free(b.data);
    ckpt_close(c);
}

/* A dtype that has no name here keeps nobody from the other tensors. */
static void test_unread(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    const char *path = damaged(".metadata", "\x8c\x05uint8", "\x8c\x05qint8", 7);
    if (!ok(ckpt_open(&c, path, &err) == FSDP_OK, "a tensor of torch.qint8 %s", err.text))
        return;
    struct fsdp_tensor t = {.name = "b.uint8_6", .dtype = FSDP_U8, .ndim = 1, .shape = {6}};
    struct bytes b = read_tensor(c, &t, &err);
    ok(!b.data && strstr(err.text, "torch.qint8"), "asked for: %s", err.text);
    ok(ckpt_ntensors(c) == 14 && ckpt_verify(c, NULL, NULL, &err) == FSDP_EUNSUPPORTED &&
           strstr(err.text, "all else is sound"),
       "the others are there: %s", err.text);
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    char out[1100];
    snprintf(out, sizeof out, "%s/unread.safetensors", scratch);
    args.out = out;
    args.output = CKPT_OUTPUT_WEIGHTS;
    ok(ckpt_reshard(NULL, c, &args, &err) == FSDP_EUNSUPPORTED && strstr(err.text, "--exclude"),
       "a merge that wants it says how to go without");
    ckpt_close(c);
}

static void test_damage(void)
{
    char path[2400];
    /* -7.453125, -6.875: the first two elements of w.fp32_5x3; a bit of the second's exponent */
    ok(unreadable(damaged("__0_0.distcp", "\x00\x80\xee\xc0\x00\x00\xdc\xc0",
                          "\x00\x80\xee\xc0\x00\x00\xdc\x80", 8),
                  "w.fp32_5x3", "are damaged"),
       "a flipped bit");
    ok(unreadable(damaged("__0_0.distcp", "FloatStorage", "LongStorage\n", 12), "w.fp32_5x3",
                  "checksum of its pickle"),
       "a changed pickle");
    ok(refused(damaged(".metadata", "__0_0.distcp", "../0_0.distc", 12), "could leave"),
       "a path that climbs out");
    ok(refused(damaged(".metadata", "__0_0.distcp", "/etc/passwd\1", 12), "could leave"),
       "an absolute path");
    ok(refused(damaged(".metadata", "__0_0.distcp", "__7_0.distcp", 12),
               "__7_0.distcp' is missing"),
       "a missing file");
    ok(refused(damaged(".metadata", "\x8c\x07pathlib\x94", "\x8c\x07os.path\x94", 10),
               "'os.path.PosixPath'"),
       "a global that is not in the table");
    ok(refused(damaged(".metadata", "\x8c\x0b_get_layout", "\x8c\x0b_get_leyout", 13),
               "'torch.serialization._get_leyout'"),
       "a function of a known module that is not in the table");
    ok(refused(damaged(".metadata", "\x8c\x0drelative", "\x84\x0drelative", 10), "opcode 0x84"),
       "an opcode that is not in the table");
    ok(refused(damaged(".metadata", "Metadata\x94\x93", "Metadata\x94.", 10), "one value"),
       "cut short");
    snprintf(path, sizeof path, "%s", damaged(".metadata", "1.0.0", "1.0.0", 5));
    strcat(path, "/__1_0.distcp");
    ok(truncate(path, 30000) == 0 && refused(path, "name its folder"),
       "a .distcp file is no checkpoint itself");
    *strrchr(path, '/') = 0;
    ok(refused(path, "truncated"), "a truncated file");
    snprintf(path, sizeof path, "%s", damaged(".metadata", "1.0.0", "1.0.0", 5));
    strcat(path, "/.metadata");
    remove(path);
    *strrchr(path, '/') = 0;
    ok(refused(path, "no .metadata"), "data without .metadata");
}

int main(void)
{
    snprintf(data_root, sizeof data_root, "%s/tests/data", getenv("TOP") ? getenv("TOP") : ".");
    snprintf(scratch, sizeof scratch, "%s", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp");
    test_sample("dcp-mixed-2r", 15, -1);
    test_sample("dcp-fsdp2-2r", 12, 3);
    test_sample("dcp-hf-sharded-2r", 8, -1);
    test_sample("dcp-hf-consolidated-2r-scalar", 9, -1);
    test_names();
    test_types();
    test_same_name();
    test_damage();
    test_unread();
    return tap_done();
}
