/* SPDX-License-Identifier: Apache-2.0 */
/* Plain safetensors files and Hugging Face folders, good and bad. */
#include <sys/stat.h>

#include "../../ckpt/file/safetensors.h"
#include "fake_state.h"

static char root[300];

static const char *in_root(const char *name)
{
    static char paths[64][600]; /* enough that none is reused while it is needed */
    static int turn;
    turn = (turn + 1) % 64;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

/* A file of one tensor per given name: F32 [rows, 2] from row `from` of `of`; plain if of is 0. */
static void make(const char *path, const char *name, uint64_t from, uint64_t rows, uint64_t of,
                 bool global)
{
    char header[1000], info[500] = "", place[200] = "", data[4096] = {0};
    if (global)
        snprintf(place, sizeof place, ",\\\"global_shape\\\":[%d,2]", (int)of);
    if (of)
        snprintf(info, sizeof info,
                 "\"__metadata__\":{\"DCP_SHARDING_INFO\":"
                 "\"{\\\"%s\\\":{\\\"saved_offsets\\\":[%d,0]%s}}\"},",
                 name, (int)from, place);
    int len = snprintf(header, sizeof header,
                       "{%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,2],\"data_offsets\":[0,%d]}}",
                       info, name, (int)rows, (int)rows * 8);
    data[0] = (char)len;
    data[1] = (char)(len >> 8);
    memcpy(data + 8, header, (size_t)len);
    for (uint64_t i = 0; i < rows * 2; i++) {
        float x = (float)(from * 2 + i);
        memcpy(data + 8 + len + i * 4, &x, 4);
    }
    unlink(path);
    ckpt_store_put(&ckpt_store_posix, path, data, 8 + (size_t)len + rows * 8, false, NULL);
}

static void put_text(const char *path, const char *text)
{
    unlink(path);
    ckpt_store_put(&ckpt_store_posix, path, text, strlen(text), false, NULL);
}

static bool opens(const char *path, const char *tensor, uint64_t rows)
{
    struct ckpt *c = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    bool good = ckpt_open(&c, path, &err) == FSDP_OK;
    if (!good)
        diag("%s", err.text);
    const struct ckpt_tensor *t = good ? ckpt_tensor_find(c, tensor) : NULL;
    good = t && t->tensor.shape[0] == rows && !t->has_fingerprint && ckpt_step(c) == -1;
    if (good) {
        struct fake_slice s = {.name = "t", .nbytes = rows * 8, .data = malloc(rows * 8)};
        struct fsdp_slice_io io = {.ctx = &s, .read = fake_read, .write = fake_write};
        s.slice = (struct fsdp_slice){t->tensor, {{0, 0}, {rows, 2}}, 0, 1};
        good = ckpt_read_slice(c, &s.slice, &io, &err) == FSDP_OK;
        for (uint64_t i = 0; good && i < rows * 2; i++)
            good = ((float *)(void *)s.data)[i] == (float)i;
        good &= ckpt_verify(c, NULL, NULL, &err) == FSDP_OK;
        free(s.data);
    }
    ckpt_close(c);
    return good;
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

static void test_plain(void)
{
    mkdir(in_root("plain"), 0777);
    make(in_root("plain/model.safetensors"), "w", 0, 6, 0, false);
    put_text(in_root("plain/config.json"), "{}");
    ok(opens(in_root("plain/model.safetensors"), "w", 6), "a file");
    ok(opens(in_root("plain"), "w", 6), "a folder of one file");
    struct ckpt *c = NULL;
    ckpt_open(&c, in_root("plain"), NULL);
    ok(c && ckpt_nextra(c) == 1 && ckpt_extra_path(c, "config.json"), "its configuration");
    ckpt_close(c);
    ok(refused(in_root("nothing"), "nothing"), "no such path");
    put_text(in_root("text.safetensors"), "this is not one");
    ok(refused(in_root("text.safetensors"), "text.safetensors"), "a text file");
    put_text(in_root("short.safetensors"), "abc");
    ok(refused(in_root("short.safetensors"), "too few"), "a file of three bytes");
    mkdir(in_root("empty"), 0777);
    ok(refused(in_root("empty"), "no checkpoint"), "an empty folder");
}

static void test_index(void)
{
    const char *both =
        "{\"metadata\":{},\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
        "\"b\":\"model-00002-of-00002.safetensors\"}}";
    mkdir(in_root("hf"), 0777);
    make(in_root("hf/model-00001-of-00002.safetensors"), "a", 0, 3, 0, false);
    make(in_root("hf/model-00002-of-00002.safetensors"), "b", 0, 4, 0, false);
    ok(opens(in_root("hf"), "b", 4), "a folder without an index");
    put_text(in_root("hf/model.safetensors.index.json"), both);
    ok(opens(in_root("hf"), "a", 3), "and with one");
    make(in_root("hf/stray.safetensors"), "c", 0, 1, 0, false);
    struct ckpt *c = NULL;
    ok(opens(in_root("hf"), "b", 4) && ckpt_open(&c, in_root("hf"), NULL) == FSDP_OK &&
           ckpt_ntensors(c) == 2 && !ckpt_tensor_find(c, "c"),
       "a file that the index does not list is not read");
    ckpt_close(c);
    unlink(in_root("hf/stray.safetensors"));
    put_text(in_root("hf/model.safetensors.index.json"),
             "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
             "\"b\":\"model-00002-of-00002.safetensors\","
             "\"c\":\"model-00002-of-00002.safetensors\"}}");
    ok(refused(in_root("hf"), "'c'"), "a tensor that its file lacks");
    put_text(in_root("hf/model.safetensors.index.json"),
             "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
             "\"x\":\"model-00002-of-00002.safetensors\"}}");
    ok(refused(in_root("hf"), "'b'"), "a tensor that the index lacks");
    put_text(in_root("hf/model.safetensors.index.json"),
             "{\"weight_map\":{\"a\":\"../plain/model.safetensors\"}}");
    ok(refused(in_root("hf"), "plain file name"), "a path that climbs out");
    put_text(in_root("hf/model.safetensors.index.json"), "{\"weight_map\":3}");
    ok(refused(in_root("hf"), "weight_map"), "no map");
    put_text(in_root("hf/model.safetensors.index.json"), both);
    unlink(in_root("hf/model-00002-of-00002.safetensors"));
    ok(refused(in_root("hf"), "model-00002-of-00002.safetensors' is missing"), "a missing file");
    unlink(in_root("hf/model.safetensors.index.json"));
    ok(refused(in_root("hf"), "model-00002-of-00002.safetensors' is missing"),
       "also without an index");
    make(in_root("hf/model-00002-of-00002.safetensors"), "a", 0, 4, 0, false);
    ok(refused(in_root("hf"), "tensor 'a' is in"), "a tensor in two files");
}

static void test_sharded(void)
{
    mkdir(in_root("sh"), 0777);
    make(in_root("sh/shard-00001-model-00001-of-00001.safetensors"), "w", 0, 3, 8, true);
    make(in_root("sh/shard-00002-model-00001-of-00001.safetensors"), "w", 3, 5, 8, true);
    ok(opens(in_root("sh"), "w", 8), "boxes are assembled");
    unlink(in_root("sh/shard-00002-model-00001-of-00001.safetensors"));
    ok(refused(in_root("sh"), "[3:8, 0:2]"), "a missing tail is named");
    make(in_root("sh/shard-00002-model-00001-of-00001.safetensors"), "w", 3, 5, 9, true);
    ok(refused(in_root("sh"), "disagree"), "shards of different saves");
    make(in_root("sh/shard-00002-model-00001-of-00001.safetensors"), "w", 2, 6, 8, true);
    ok(refused(in_root("sh"), "both hold [2:3, 0:2]"), "shards that overlap");
    make(in_root("sh/shard-00001-model-00001-of-00001.safetensors"), "w", 0, 3, 8, false);
    make(in_root("sh/shard-00002-model-00001-of-00001.safetensors"), "w", 3, 5, 8, false);
    ok(opens(in_root("sh"), "w", 8), "as older torch wrote them, without global_shape");
    make(in_root("sh/shard-00002-model-00001-of-00001.safetensors"), "w", 4, 5, 8, false);
    ok(refused(in_root("sh"), "[3:4, 0:2]"), "with a hole between");
}

/* A file whose two boxes of `w` go by other names, as newer torch writes them. */
static void test_logical(void)
{
    static const char json[] =
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"k0\\\":{\\\"saved_offsets\\\":[0,0],"
        "\\\"logical_fqn\\\":\\\"w\\\"},\\\"k1\\\":{\\\"saved_offsets\\\":[2,0],"
        "\\\"logical_fqn\\\":\\\"w\\\"}}\"},"
        "\"k0\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
        "\"k1\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[16,24]}}";
    const size_t len = sizeof json - 1;
    char file[8 + sizeof json + 24] = {(char)(len & 0xff), (char)(len >> 8)};
    memcpy(file + 8, json, len);
    for (int i = 0; i < 6; i++) {
        float x = (float)i;
        memcpy(file + 8 + len + i * 4, &x, 4);
    }
    ckpt_store_put(&ckpt_store_posix, in_root("logical.safetensors"), file, 8 + len + 24, false,
                   NULL);
    ok(opens(in_root("logical.safetensors"), "w", 3), "boxes under a name of their own");
    put_text(in_root("zip.safetensors"), "PK\3\4 and so on, like an archive");
    ok(refused(in_root("zip.safetensors"), "Python value"), "a file that a Python value spoiled");
}

int main(void)
{
    snprintf(root, sizeof root, "%s", scratch_create());
    test_plain();
    test_index();
    test_sharded();
    test_logical();
    scratch_remove(root);
    return tap_done();
}
