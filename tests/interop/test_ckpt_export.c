/* SPDX-License-Identifier: Apache-2.0 */
/* Makes what ckpt_torch.py reads, below the folder given (or in a scratch folder): step-*: a
 * checkpoint of 5 ranks with ragged cuts; want/: what its tensors are; merges of it. */
#include <jansson.h>
#include <sys/stat.h>

#include "../ckpt/fake_state.h"

static bool put(const char *folder, const char *name, const void *data, size_t nbytes)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !ckpt_store_put(&ckpt_store_posix, path, data, nbytes, false, NULL);
}

static bool put_expected(const char *folder, uint64_t seed)
{
    struct fake *f = fake_create(0, 1, 1);
    json_t *list = json_array();
    bool good = mkdir(folder, 0777) == 0;
    fake_fill(f, seed);
    for (int i = 0; i < f->nslices; i++) {
        const struct fake_slice *s = &f->slices[i];
        const struct fsdp_tensor *t = &s->slice.tensor;
        json_t *shape = json_array();
        char name[16];
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name", s->name, "kind",
                                              s->kind == FSDP_SLICE_MODEL ? "model" : "optim",
                                              "dtype", fsdp_dtype_name(t->dtype), "shape", shape));
        snprintf(name, sizeof name, "%d", i);
        good &= put(folder, name, s->data, s->nbytes);
    }
    char *text = json_dumps(list, 0);
    good &= put(folder, "list", text, strlen(text));
    free(text);
    json_decref(list);
    fake_destroy(f);
    return good;
}

static bool merge(const char *from, const char *out, const char *dtype, uint64_t shard)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    args.out = out;
    args.dtype = dtype;
    args.max_shard_nbytes = shard;
    int rc = ckpt_open(&c, from, &err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(NULL, c, &args, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.text);
    ckpt_close(c);
    return rc == FSDP_OK;
}

static int export(const char *root)
{
    char want[400], file[400], bf16[400], folder[400];
    snprintf(want, sizeof want, "%s/want", root);
    snprintf(file, sizeof file, "%s/merged.safetensors", root);
    snprintf(bf16, sizeof bf16, "%s/bf16.safetensors", root);
    snprintf(folder, sizeof folder, "%s/hf", root);
    ok(fake_save(root, 7, 5, 1, 77) == 0, "a checkpoint of 5 ranks");
    ok(put_expected(want, 77), "what it holds");
    ok(merge(root, file, NULL, 0), "merged into a file");
    ok(merge(root, bf16, "bf16", 0), "cast");
    ok(merge(root, folder, NULL, 10000), "merged into a folder");
    return tap_done();
}

int main(int argc, char **argv)
{
    char root[300];
    if (argc > 1)
        return export(argv[1]);
    snprintf(root, sizeof root, "%s", scratch_create());
    int status = export(root);
    scratch_remove(root);
    return status;
}
