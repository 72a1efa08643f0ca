/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint written anew for M ranks is the one that M ranks would have saved.
 */
#include <sys/stat.h>

#include "../../ckpt/file/safetensors.h"
#include "fake_state.h"

enum { SEED = 33 };
static char root[300];

static const char *in_root(const char *fmt, ...)
{
    static char paths[64][700]; /* enough that none is reused while it is needed */
    static int turn;
    va_list ap;
    turn = (turn + 1) % 64;
    int len = snprintf(paths[turn], sizeof paths[0], "%s/", root);
    va_start(ap, fmt);
    vsnprintf(paths[turn] + len, sizeof paths[0] - (size_t)len, fmt, ap);
    va_end(ap);
    return paths[turn];
}

static int reshard(const char *from, const struct ckpt_reshard_args *args, struct fsdp_err *err)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, from, err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(NULL, c, args, err);
    ckpt_close(c);
    return rc;
}

static struct ckpt_reshard_args native(const char *out, int shard_size, int replicate_size)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    args.output = CKPT_OUTPUT_NATIVE;
    args.all = true;
    args.out = out;
    args.shard_size = shard_size;
    args.replicate_size = replicate_size;
    return args;
}

/* The same data files with the same bytes, and nothing else. */
static bool same_files(const char *a, const char *b)
{
    static const char *const kinds[] = {"model", "optim"};
    for (int k = 0; k < 2; k++) {
        struct ckpt_names x = {0}, y = {0};
        char *fa = ckpt_path_join(a, kinds[k], NULL), *fb = ckpt_path_join(b, kinds[k], NULL);
        bool same = !ckpt_store_names(&x, &ckpt_store_posix, fa, NULL) &&
                    !ckpt_store_names(&y, &ckpt_store_posix, fb, NULL) && x.nnames == y.nnames;
        if (!same)
            diag("%s: %d files, %s: %d", fa, x.nnames, fb, y.nnames);
        for (int i = 0; same && i < x.nnames; i++) {
            char *pa = ckpt_path_join(fa, x.names[i], NULL);
            char *pb = ckpt_path_join(fb, x.names[i], NULL);
            same = same_bytes(pa, pb);
            if (!same)
                diag("%s and %s differ", pa, pb);
            fsdp_free(pa);
            fsdp_free(pb);
        }
        ckpt_names_free(&x);
        ckpt_names_free(&y);
        fsdp_free(fa);
        fsdp_free(fb);
        if (!same)
            return false;
    }
    return true;
}

/* Two folders hold the same. */
static bool same_tree(const char *a, const char *b)
{
    char command[1500];
    snprintf(command, sizeof command, "diff -r '%s' '%s' >&2", a, b);
    return system(command) == 0;
}

/* The manifests agree in all but uuid and their own checksum: the text of the state too. */
static bool same_manifests(const char *a, const char *b)
{
    char *texts[2] = {NULL, NULL};
    const char *const folders[2] = {a, b};
    bool same = true;
    for (int i = 0; same && i < 2; i++) {
        char *path = ckpt_path_join(folders[i], "manifest.json", NULL);
        size_t nbytes;
        same = !ckpt_store_get(&texts[i], &nbytes, &ckpt_store_posix, path, 1 << 24, NULL);
        char *uuid = same ? strstr(texts[i], "\"uuid\"") : NULL;
        char *state = same ? strstr(texts[i], "\"state\"") : NULL;
        char *crc = state ? strstr(state, "\"crc32c\"") : NULL;
        same = uuid && crc;
        if (same) {
            memset(uuid + strlen("\"uuid\": \""), 'u', 36);
            *crc = 0;
        }
        fsdp_free(path);
    }
    same = same && !strcmp(texts[0], texts[1]);
    if (!same)
        diag("manifests of %s:\n%s\nand %s:\n%s", a, texts[0] ? texts[0] : "", b,
             texts[1] ? texts[1] : "");
    fsdp_free(texts[0]);
    fsdp_free(texts[1]);
    return same;
}

static void test_meshes(const char *name)
{
    static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {5, 1}, {2, 2}, {1, 3}, {3, 2}};
    enum { NMESHES = sizeof meshes / sizeof meshes[0] };
    bool saved = true, equal = true;
    for (int i = 0; i < NMESHES; i++)
        saved &= !fake_save(in_root("%s-%d", name, i), 7, meshes[i][0], meshes[i][1], SEED);
    ok(saved, "a state saved on %d meshes: %s", NMESHES, name);
    for (int i = 0; i < NMESHES; i++) {
        for (int k = 0; k < NMESHES; k++) {
            const char *out = in_root("%s-from-%d-to-%d", name, i, k);
            const char *real = in_root("%s-%d/step-00000007", name, k);
            struct ckpt_reshard_args args = native(out, meshes[k][0], meshes[k][1]);
            struct fsdp_err err = FSDP_ERR_INIT;
            args.nthreads = 1 + (i + k) % 3;
            args.mem_nbytes = (i + k) % 2 ? 1 << 20 : 256 << 20;
            bool same = !reshard(in_root("%s-%d", name, i), &args, &err) && same_files(out, real) &&
                        same_manifests(out, real);
            if (!same)
                diag("from mesh %d to mesh %d: %s", i, k, err.text);
            equal &= same;
            if (k > 1) /* a few are kept for the tests below */
                remove_all(&ckpt_store_posix, out, NULL);
        }
    }
    ok(equal, "each resharded to each: the data files and manifest that a real save makes");
    ok(fake_holds(in_root("%s-from-4-to-1", name), SEED), "it loads");
}

/* A unit that is cut in chunks, which the tools know from its tensors alone. */
static void test_chunks(void)
{
    struct fsdp_cut cut;
    ok(!fsdp_cut_create(&cut, fake_odd, 4, 2, NULL) && cut.chunked, "odd row lengths");
    fsdp_cut_destroy(&cut);
    fake_with_odd = true;
    test_meshes("chunks");
    fake_with_odd = false;
}

static void test_options(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    const char *const only[] = {"model.layers.*"}, *const not [] = {"*.bias"};
    struct ckpt_reshard_args args = native(in_root("some"), 2, 1);
    struct ckpt *c = NULL;
    args.select.include = only;
    args.select.exclude = not ;
    args.select.ninclude = args.select.nexclude = 1;
    ok(!reshard(in_root("real-0"), &args, &err) && !ckpt_open(&c, args.out, &err) &&
           ckpt_ntensors(c) == 4 && !ckpt_tensor_find(c, "model.layers.0.bias") &&
           ckpt_tensor_find(c, "model.layers.0.w1"),
       "include and exclude: %s", err.text);
    ok(!ckpt_verify(c, NULL, NULL, &err), "it verifies: %s", err.text);
    ckpt_close(c);
    args = native(in_root("half"), 3, 1);
    args.dtype = "bf16";
    c = NULL;
    ok(!reshard(in_root("real-1"), &args, &err) && !ckpt_open(&c, args.out, &err) &&
           ckpt_tensor_find(c, "state.model.norm.weight.exp_avg")->tensor.dtype == FSDP_BF16 &&
           !ckpt_verify(c, NULL, NULL, &err),
       "cast, with fingerprints of its own: %s", err.text);
    ok(c && ckpt_step(c) == 7 && ckpt_state_json(c) && strstr(ckpt_state_json(c), "\"seed\": 7") &&
           ckpt_naliases(c) == 1,
       "step, training state and other names go along");
    ckpt_close(c);

    struct ckpt_reshard_args whole = CKPT_RESHARD_ARGS_INIT;
    whole.out = in_root("whole.safetensors");
    ok(!reshard(in_root("real-4"), &whole, &err), "merged: %s", err.text);
    args = native(in_root("foreign"), 3, 2);
    c = NULL;
    ok(!reshard(whole.out, &args, &err) && !ckpt_open(&c, args.out, &err) &&
           !ckpt_verify(c, NULL, NULL, &err),
       "a plain safetensors file for 2 x 3 ranks: %s", err.text);
    ckpt_close(c);
    struct ckpt_reshard_args back = CKPT_RESHARD_ARGS_INIT;
    back.out = in_root("back.safetensors");
    ok(!reshard(args.out, &back, &err), "merged again: %s", err.text);
    const char *from_ranks = back.out;
    back.out = in_root("again.safetensors");
    ok(!reshard(whole.out, &back, &err) && same_bytes(back.out, from_ranks),
       "the same file as without that detour: %s", err.text);
}

/* Every way a checkpoint can be written holds the same tensors as the one it was made of. */
static void test_formats(void)
{
    static const enum ckpt_output outputs[] = {CKPT_OUTPUT_NATIVE, CKPT_OUTPUT_DCP,
                                               CKPT_OUTPUT_HF_DCP};
    struct ckpt_reshard_args merge = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    merge.out = in_root("formats.safetensors");
    merge.max_shard_nbytes = 0;
    const char *const names[] = {"model.*"};
    merge.select.include = names;
    merge.select.ninclude = 1;
    ok(!reshard(in_root("back.safetensors"), &merge, &err), "what is expected: %s", err.text);
    for (int i = 0; i < 3; i++) {
        struct ckpt_reshard_args args = native(in_root("format-%d", i), 3, 2);
        args.output = outputs[i];
        args.mem_nbytes = i ? 1 << 20 : 256 << 20;
        struct ckpt_reshard_args again = merge;
        again.out = in_root("format-%d.safetensors", i);
        bool good = !reshard(in_root("real-3"), &args, &err);
        /* Through a plain file, which orders its tensors by name. */
        struct ckpt_reshard_args whole = CKPT_RESHARD_ARGS_INIT;
        whole.out = in_root("format-%d-whole.safetensors", i);
        whole.select = merge.select;
        good = good && !reshard(args.out, &whole, &err) && !reshard(whole.out, &again, &err);
        ok(good && same_bytes(again.out, merge.out), "through format %d: %s", i, err.text);
    }
    struct ckpt_reshard_args args = native(in_root("zst"), 2, 1);
    args.compress = CKPT_COMPRESS_ZSTD;
    if (reshard(in_root("real-3"), &args, &err) == FSDP_EUNSUPPORTED) {
        tap_skip("compression: %s", err.text);
        return;
    }
    struct ckpt *c = NULL;
    ok(!ckpt_open(&c, args.out, &err) && !ckpt_verify(c, NULL, NULL, &err) &&
           fake_holds(args.out, SEED) && strstr(ckpt_file_at(c, 0).path, ".safetensors.zst"),
       "compressed: %s", err.text);
    ckpt_close(c);
    struct ckpt_reshard_args plain = native(in_root("plain"), 1, 1);
    ok(!reshard(args.out, &plain, &err) && same_files(plain.out, in_root("real-0/step-00000007")),
       "and back: %s", err.text);
    args.output = CKPT_OUTPUT_DCP;
    args.out = in_root("zst-dcp");
    ok(reshard(in_root("real-3"), &args, &err) == FSDP_EUNSUPPORTED, "not for torch: %s", err.text);
}

/* ---- a run that was stopped ------------------------------------------------------------------ */

static int stop_at(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    return done >= *(uint64_t *)ctx;
}

static void test_resume(void)
{
    static const enum ckpt_output outputs[] = {CKPT_OUTPUT_NATIVE, CKPT_OUTPUT_DCP,
                                               CKPT_OUTPUT_NATIVE};
    for (int i = 0; i < 3; i++) {
        const char *real = in_root("undisturbed-%d", i), *torn = in_root("torn-%d", i);
        struct ckpt_reshard_args args = native(real, 4, 1);
        struct ckpt_reshard_result result = {.nbytes_resumed = 0};
        struct fsdp_err err = FSDP_ERR_INIT;
        struct ckpt *c = NULL;
        uint64_t at = 90000;
        args.output = outputs[i];
        args.nthreads = 1;
        args.mem_nbytes = 6 * 65536; /* small blocks */
        args.compress = i == 2 ? CKPT_COMPRESS_ZSTD : CKPT_COMPRESS_NONE;
        int rc = reshard(in_root("real-2"), &args, &err);
        if (rc == FSDP_EUNSUPPORTED)
            continue;
        args.out = torn;
        args.progress = stop_at;
        args.progress_ctx = &at;
        ok(!rc && reshard(in_root("real-2"), &args, &err) == FSDP_ECANCELED && !exists(torn),
           "stopped: %s", err.text);
        args.progress = NULL;
        ok(!ckpt_open(&c, in_root("real-2"), &err) && !ckpt_reshard(&result, c, &args, &err) &&
               result.nbytes_resumed > 10000 && result.nbytes_resumed < 118000,
           "resumed: %s", err.text);
        ckpt_close(c);
        ok(same_tree(real, torn), "the same as without a stop");
    }
}

/* A plain file of one tensor of 256 KiB: four of the smallest blocks. */
static bool write_large(const char *path)
{
    enum { NELEM = 65536 };
    const uint64_t shape[] = {NELEM};
    struct ckpt_st_entry entry = {.name = "large", .dtype = FSDP_F32, .ndim = 1, .shape = shape};
    static float data[NELEM];
    char *header;
    size_t nbytes;
    if (ckpt_st_format(&header, &nbytes, &entry, 1, false, NULL))
        return false;
    for (int i = 0; i < NELEM; i++)
        data[i] = (float)i;
    FILE *file = fopen(path, "w");
    bool good = file && fwrite(header, 1, nbytes, file) == nbytes &&
                fwrite(data, sizeof *data, NELEM, file) == NELEM;
    fsdp_free(header);
    return file && !fclose(file) && good;
}

/* A piece of torch's archives has one checksum for all of it: a run that continues in its middle
 * does not pass over what the run before it has read. */
static void test_resume_damaged(void)
{
    const char *plain = in_root("large.safetensors"), *source = in_root("archives");
    struct ckpt_reshard_args args = native(source, 1, 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t at = 1;

    args.output = CKPT_OUTPUT_DCP;
    ok(write_large(plain) && !reshard(plain, &args, &err), "one tensor as .distcp: %s", err.text);
    FILE *file = fopen(in_root("archives/__0_0.distcp"), "r+");
    ok(file && !fseek(file, 9000, SEEK_SET) && fputc('X', file) == 'X' && !fclose(file),
       "a byte of its first block is changed");
    args = native(in_root("from-archives"), 1, 1);
    args.nthreads = 1;
    args.mem_nbytes = 3 * 65536;
    args.progress = stop_at;
    args.progress_ctx = &at;
    ok(reshard(source, &args, &err) == FSDP_ECANCELED, "stopped behind it: %s", err.text);
    args.progress = NULL;
    ok(reshard(source, &args, &err) == FSDP_ECORRUPT && strstr(err.text, "__0_0.distcp") &&
           !exists(args.out),
       "going on finds it: %s", err.text);
}

static void test_dry_run(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_reshard_args args = native(in_root("nothing"), 4, 1);
    struct ckpt_reshard_result result;
    struct ckpt *c = NULL;
    args.dry_run = true;
    ok(!ckpt_open(&c, in_root("real-2"), &err) && !ckpt_reshard(&result, c, &args, &err) &&
           count_entries(root, "nothing") == 0 && result.nfiles > 4 && result.ntensors == 23 &&
           result.nbytes_written > result.nbytes_read,
       "a dry run counts and writes nothing: %s", err.text);
    args.dry_run = false;
    uint64_t files = result.nbytes_written, got = 0;
    ok(!ckpt_reshard(&result, c, &args, &err) && result.nbytes_written == files,
       "and the run writes just that: %s", err.text);
    ckpt_close(c);
    c = NULL;
    if (!ckpt_open(&c, args.out, &err))
        for (int i = 0; i < ckpt_nfiles(c); i++)
            got += ckpt_file_at(c, i).nbytes;
    ok(got == files, "%llu bytes in its files, %llu promised", (unsigned long long)got,
       (unsigned long long)files);
    ckpt_close(c);
}

static void test_refusals(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_reshard_args args = native(in_root("bad"), 0, 1);
    ok(reshard(in_root("real-0"), &args, &err) == FSDP_EINVAL, "no ranks: %s", err.text);
    args.shard_size = 1 << 20;
    args.replicate_size = 2;
    ok(reshard(in_root("real-0"), &args, &err) == FSDP_EINVAL, "too many: %s", err.text);
    args = native(in_root("some"), 1, 1);
    ok(reshard(in_root("real-0"), &args, &err) == FSDP_EEXIST && strstr(err.text, "overwrite"),
       "an output that exists: %s", err.text);
    args.overwrite = true;
    ok(!reshard(in_root("real-0"), &args, &err) &&
           same_files(args.out, in_root("real-0/step-00000007")) &&
           count_entries(root, "some.") == 0,
       "replaced when asked to: %s", err.text);
    const char *const none[] = {"nothing.*"};
    args = native(in_root("bad"), 1, 1);
    args.select.include = none;
    args.select.ninclude = 1;
    ok(reshard(in_root("real-0"), &args, &err) == FSDP_EINVAL && strstr(err.text, "asked for"),
       "nothing selected: %s", err.text);
    ok(count_entries(root, "bad") == 0, "nothing was written");
}

int main(void)
{
    snprintf(root, sizeof root, "%s", scratch_create());
    test_meshes("real");
    test_chunks();
    test_options();
    test_formats();
    test_resume();
    test_resume_damaged();
    test_dry_run();
    test_refusals();
    scratch_remove(root);
    return tap_done();
}
