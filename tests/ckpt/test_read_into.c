/* SPDX-License-Identifier: Apache-2.0 */
/* What callers of other languages use: tensors into memory of theirs, tensors to map, a
 * verification that can be watched and stopped, defaults without macros, a log that survives a
 * fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "fake_state.h"

static const char *root; /* scratch */
static struct fsdp_err err;

static void path_of(char out[500], const char *name)
{
    snprintf(out, 500, "%s/%s", root, name);
}

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

static struct ckpt *opened(const char *name)
{
    char path[500];
    struct ckpt *ckpt = NULL;
    path_of(path, name);
    if (ckpt_open(&ckpt, path, &err))
        diag("%s", err.text);
    return ckpt;
}

/* The first weight of two dimensions and at least three rows. */
static const struct ckpt_tensor *some_matrix(const struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        if (t->role == CKPT_ROLE_MODEL && t->tensor.ndim == 2 && t->tensor.shape[0] >= 3)
            return t;
    }
    return NULL;
}

static struct fsdp_slice whole(const struct ckpt_tensor *t)
{
    struct fsdp_slice slice = {.tensor = t->tensor, .nreplica = 1};
    memcpy(slice.box.length, t->tensor.shape, sizeof slice.box.length);
    return slice;
}

static int append(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *e)
{
    (void)e;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool reads_equal(struct ckpt *ckpt, const struct fsdp_slice *slice)
{
    const size_t nbytes =
        fsdp_box_nelem(&slice->box, slice->tensor.ndim) * fsdp_dtype_nbytes(slice->tensor.dtype);
    char *a = fsdp_alloc(nbytes, 1, "a", NULL), *b = fsdp_alloc(nbytes, 1, "b", NULL);
    const struct fsdp_slice_io io = {.ctx = a, .write = append};
    bool same = !ckpt_read_slice(ckpt, slice, &io, &err) &&
                !ckpt_read_into(b, nbytes, ckpt, slice, &err) && !memcmp(a, b, nbytes);
    bool zero = true;
    for (size_t i = 0; i < nbytes; i++)
        zero &= b[i] == 0;
    fsdp_free(a);
    fsdp_free(b);
    return same && !zero;
}

static void test_read(const char *name)
{
    struct ckpt *ckpt = opened(name);
    const struct ckpt_tensor *t = ckpt ? some_matrix(ckpt) : NULL;
    float some[2];
    if (!ok(t != NULL, "%s has a matrix", name))
        return;
    struct fsdp_slice slice = whole(t);
    const uint64_t rows = t->tensor.shape[0];
    ok(reads_equal(ckpt, &slice), "%s: a whole tensor into memory, as by a callback", name);
    slice.tensor.dtype = FSDP_BF16;
    ok(reads_equal(ckpt, &slice), "%s: converted", name);
    slice.tensor.dtype = t->tensor.dtype;
    slice.box.offset[0] = 1, slice.box.length[0] = rows - 2;
    slice.box.offset[1] = 1, slice.box.length[1] = t->tensor.shape[1] - 1;
    ok(reads_equal(ckpt, &slice), "%s: a box", name);
    int rc = ckpt_read_into(some, sizeof some, ckpt, &slice, &err);
    ok(rc == FSDP_EINVAL && strstr(err.text, t->tensor.name) && strstr(err.text, "8 bytes"),
       "%s: memory of another size is refused: %s", name, err.text);
    slice.tensor.name = "absent";
    rc = ckpt_read_into(some, sizeof some, ckpt, &slice, &err);
    ok(rc == FSDP_ENOTFOUND && strstr(err.text, "'absent'"), "%s: an absent tensor: %s", name,
       err.text);
    ckpt_close(ckpt);
}

/* ---- mapping --------------------------------------------------------------------------------- */

static void test_range(void)
{
    struct ckpt *ckpt = opened("one");
    const struct ckpt_tensor *t = ckpt ? some_matrix(ckpt) : NULL;
    struct ckpt_file_range range;
    if (!ok(t && !ckpt_tensor_range(&range, ckpt, t->tensor.name, &err),
            "a tensor of one rank's file"))
        return;
    char *read = fsdp_alloc(range.nbytes, 1, "a", NULL),
         *file = fsdp_alloc(range.nbytes, 1, "b", NULL);
    const struct fsdp_slice slice = whole(t);
    FILE *f = fopen(range.path, "rb");
    bool same = f && !ckpt_read_into(read, range.nbytes, ckpt, &slice, &err) &&
                !fseek(f, (long)range.pos, SEEK_SET) &&
                fread(file, 1, range.nbytes, f) == range.nbytes &&
                !memcmp(read, file, range.nbytes);
    ok(same && range.pos % 4 == 0, "lies where it is said to");
    if (f)
        fclose(f);
    fsdp_free(read);
    fsdp_free(file);
    ok(ckpt_tensor_range(&range, ckpt, "absent", &err) == FSDP_ENOTFOUND, "none: %s", err.text);
    ckpt_close(ckpt);

    ckpt = opened("three");
    t = ckpt ? some_matrix(ckpt) : NULL;
    ok(t && ckpt_tensor_range(&range, ckpt, t->tensor.name, &err) == FSDP_EUNSUPPORTED &&
           strstr(err.text, t->tensor.name) && strstr(err.text, "cut among files"),
       "a cut one: %s", err.text);
    ckpt_close(ckpt);
}

static void test_range_compressed(void)
{
#if HAVE_ZSTD
    struct ckpt_file_range range;
    struct ckpt *ckpt = opened("packed");
    const struct ckpt_tensor *t = ckpt ? some_matrix(ckpt) : NULL;
    ok(t && ckpt_tensor_range(&range, ckpt, t->tensor.name, &err) == FSDP_EUNSUPPORTED &&
           strstr(err.text, "compressed"),
       "a compressed one: %s", err.text);
    ckpt_close(ckpt);
#else
    tap_skip("no zstd");
#endif
}

/* ---- verifying ------------------------------------------------------------------------------- */

struct watch {
    int ncalls, stop_at;
    uint64_t done, total;
    bool ordered;
};

static int on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct watch *w = ctx;
    w->ordered &= done >= w->done && (!w->ncalls || total == w->total);
    w->done = done, w->total = total;
    return ++w->ncalls == w->stop_at;
}

static void test_verify(void)
{
    struct ckpt *ckpt = opened("three");
    struct ckpt_verify_args args = CKPT_VERIFY_ARGS_INIT;
    struct watch w = {.ordered = true};
    uint64_t nbytes = 0;
    args.progress = on_progress;
    args.progress_ctx = &w;
    for (int i = 0; ckpt && i < ckpt_nfiles(ckpt); i++)
        nbytes += ckpt_file_at(ckpt, i).nbytes;
    ok(ckpt && !ckpt_verify_watched(ckpt, &args, &err) && w.ordered && w.ncalls > 3 &&
           w.done == nbytes && w.total == nbytes,
       "watched up to the last of %llu bytes", (unsigned long long)nbytes);
    w = (struct watch){.stop_at = 2, .ordered = true};
    ok(ckpt && ckpt_verify_watched(ckpt, &args, &err) == FSDP_ECANCELED &&
           strstr(err.text, "stopped"),
       "stopped: %s", err.text);
    args.version = 0;
    ok(ckpt && ckpt_verify_watched(ckpt, &args, &err) == FSDP_EINVAL, "another version: %s",
       err.text);
    ckpt_close(ckpt);
}

static void test_defaults(void)
{
    const struct ckpt_reshard_args by_macro = CKPT_RESHARD_ARGS_INIT;
    struct ckpt_reshard_args by_call;
    memset(&by_call, 0xff, sizeof by_call);
    ckpt_reshard_args_init(&by_call);
    ok(by_call.version == by_macro.version && by_call.mem_nbytes == by_macro.mem_nbytes &&
           by_call.shard_size == 1 && by_call.replicate_size == 1 && !by_call.out &&
           !by_call.progress && !by_call.adapters && !by_call.overwrite,
       "defaults of a merge without its macro");
    ok(!strcmp(ckpt_format_name(CKPT_NATIVE), "native") &&
           !strcmp(ckpt_format_name(CKPT_MEGATRON), "megatron") &&
           !strcmp(ckpt_format_name((enum ckpt_format)99), "unknown"),
       "names of formats");
}

/* ---- fork ------------------------------------------------------------------------------------ */

static atomic_int inside, leave;

static void wait_inside(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level, (void)text;
    atomic_store(&inside, 1);
    while (!atomic_load(&leave))
        usleep(1000);
}

static void *say(void *ctx)
{
    fsdp_log(FSDP_LOG_WARN, "a thread says this while another forks");
    return ctx;
}

static void test_fork(void)
{
    pthread_t thread;
    int status = 1;
    fsdp_log_set(wait_inside, NULL, FSDP_LOG_WARN);
    pthread_create(&thread, NULL, say, NULL);
    while (!atomic_load(&inside))
        usleep(1000);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        atomic_store(&leave, 1);
        fsdp_log(FSDP_LOG_WARN, "the child says this");
        _exit(0);
    }
    waitpid(pid, &status, 0);
    atomic_store(&leave, 1);
    pthread_join(thread, NULL);
    fsdp_log_set(NULL, NULL, FSDP_LOG_WARN);
    ok(status == 0, "a child logs, whose parent was logging when it forked");
}

int main(void)
{
    root = getenv("TEST_TMP");
    ok(save("one", 1, CKPT_COMPRESS_NONE) == 0 && save("three", 3, CKPT_COMPRESS_NONE) == 0,
       "checkpoints of one rank and of three");
    test_read("one");
    test_read("three");
    test_range();
#if HAVE_ZSTD
    ok(save("packed", 1, CKPT_COMPRESS_ZSTD) == 0, "a compressed one");
    test_read("packed");
#endif
    test_range_compressed();
    test_verify();
    test_defaults();
    test_fork();
    return tap_done();
}
