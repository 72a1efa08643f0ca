/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed checkpoints through the calls that know nothing of compression: saved by N ranks,
 * loaded by M, verified, merged; the same fingerprints as without; damage named. */
#include <sys/stat.h>

#include "fake_state.h"

static const char *root; /* scratch */
static struct fsdp_err err;

static void path_of(char out[500], const char *name)
{
    snprintf(out, 500, "%s/%s", root, name);
}

#if HAVE_ZSTD

static int save(const char *name, int nranks, enum ckpt_compress compress)
{
    char path[500];
    struct fake_job job = {.root = path,
                           .step = 1,
                           .shard_size = nranks,
                           .replicate_size = 1,
                           .seed = 5,
                           .compress = compress};
    path_of(path, name);
    return ranks_run(nranks, 1, 60, fake_save_rank, &job, NULL);
}

static bool same_fingerprints(const char *a, const char *b)
{
    struct ckpt *x = NULL, *y = NULL;
    bool same = !ckpt_open(&x, a, &err) && !ckpt_open(&y, b, &err);
    for (int i = 0; same && i < ckpt_ntensors(x); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(x, i);
        const struct ckpt_tensor *u = ckpt_tensor_find(y, t->tensor.name);
        same = u && u->fingerprint == t->fingerprint;
    }
    same = same && ckpt_ntensors(x) == ckpt_ntensors(y) && ckpt_ntensors(x) > 0;
    ckpt_close(x);
    ckpt_close(y);
    return same;
}

static void test_round_trip(void)
{
    char plain[500], packed[500], local[500], path[600];
    ok(save("plain", 3, CKPT_COMPRESS_NONE) == 0 && save("packed", 2, CKPT_COMPRESS_ZSTD) == 0 &&
           save("local", 1, CKPT_COMPRESS_AUTO) == 0,
       "saved plain, compressed, and as the store asks");
    path_of(plain, "plain");
    path_of(packed, "packed");
    path_of(local, "local");
    snprintf(path, sizeof path, "%s/step-00000001/%s", packed,
             "optim/shard-00002-model-00001-of-00001.safetensors.zst");
    ok(exists(path), "compressed files have their suffix");
    snprintf(path, sizeof path, "%s/step-00000001/%s", local,
             "model/shard-00001-model-00001-of-00001.safetensors");
    ok(exists(path), "a local disk asks for none");
    ok(fake_holds(packed, 5), "loaded by another number of ranks, all values are right");
    ok(same_fingerprints(plain, packed), "with the fingerprints of the plain one");

    struct ckpt *ckpt = NULL;
    int rc = ckpt_open(&ckpt, packed, &err);
    if (rc == FSDP_OK)
        rc = ckpt_verify(ckpt, NULL, NULL, &err);
    ok(rc == FSDP_OK, "verified: %s", rc ? err.text : "good");
    ckpt_close(ckpt);
}

/* ---- damage ---------------------------------------------------------------------------------- */

struct faults {
    int count;
    bool named;
};

static void take_fault(void *ctx, const char *text)
{
    struct faults *faults = ctx;
    faults->count++;
    faults->named |= strstr(text, "shard-00001-model-00001-of-00001.safetensors.zst") != NULL;
    diag("%s", text);
}

static void test_damage(void)
{
    char packed[500], path[600];
    struct faults faults = {0};
    struct ckpt *ckpt = NULL;
    struct stat st;

    path_of(packed, "packed");
    snprintf(path, sizeof path, "%s/step-00000001/%s", packed,
             "model/shard-00001-model-00001-of-00001.safetensors.zst");
    FILE *f = fopen(path, "r+b");
    bool done = f && !fstat(fileno(f), &st) && !fseek(f, st.st_size / 2, SEEK_SET);
    int was = done ? fgetc(f) : EOF;
    done = done && !fseek(f, st.st_size / 2, SEEK_SET) && fputc(was ^ 1, f) != EOF;
    ok(f && !fclose(f) && done, "a bit is flipped in a frame");

    int rc = ckpt_open(&ckpt, packed, &err);
    ok(rc == FSDP_OK && ckpt_verify(ckpt, take_fault, &faults, &err) == FSDP_ECORRUPT &&
           faults.named,
       "ckpt_verify finds it in its file (%d faults): %s", faults.count, err.text);
    ckpt_close(ckpt);
    ok(!fake_holds(packed, 5), "it is not loaded");

    ok(truncate(path, st.st_size - 1) == 0 && ckpt_open(&ckpt, packed, &err) == FSDP_ECORRUPT,
       "truncated: %s", err.text);
    snprintf(path, sizeof path, "%s/step-00000001/%s", packed,
             "optim/shard-00001-model-00001-of-00001.safetensors.zst");
    ok(unlink(path) == 0 && ckpt_open(&ckpt, packed, &err) != FSDP_OK, "and missing: %s", err.text);
}

#else

static void test_refusals(void)
{
    char path[500];
    struct fake_job job = {.root = path,
                           .step = 1,
                           .shard_size = 1,
                           .replicate_size = 1,
                           .compress = CKPT_COMPRESS_ZSTD};
    struct ckpt *ckpt;
    path_of(path, "no-zstd");
    ok(ranks_run(1, 1, 60, fake_save_rank, &job, NULL) == 1 && !exists(path),
       "a compressed checkpoint is not saved without zstd");
    job.compress = CKPT_COMPRESS_AUTO;
    ok(ranks_run(1, 1, 60, fake_save_rank, &job, NULL) == 0, "auto continues without");
    path_of(path, "x.safetensors.zst");
    FILE *f = fopen(path, "w");
    ok(f && !fclose(f) && ckpt_open(&ckpt, path, &err) == FSDP_EUNSUPPORTED, "nor read: %s",
       err.text);
}

#endif

int main(void)
{
    root = scratch_create();
#if HAVE_ZSTD
    test_round_trip();
    test_damage();
#else
    test_refusals();
#endif
    scratch_remove(root);
    return tap_done();
}
