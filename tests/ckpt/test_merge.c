/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merged output equals the state; it appears whole or not at all; memory stays within the budget.
 */
#include <malloc.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../../ckpt/util/convert.h"
#include "fake_state.h"

enum { SEED = 21 };
static char root[300], saved[400];

static const char *in_root(const char *name)
{
    static char paths[64][600]; /* enough that none is reused while it is needed */
    static int turn;
    turn = (turn + 1) % 64;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", root, name);
    return paths[turn];
}

/* Does the output hold exactly the model's tensors (or all), with the state's bytes cast to dtype?
 */
static bool holds(const char *path, bool all, int dtype, int *nfiles)
{
    struct ckpt *c = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fake *f = fake_create(0, 1, 1);
    int expected = 0;
    bool good = ckpt_open(&c, path, &err) == FSDP_OK && ckpt_format(c) == CKPT_HF;
    fake_fill(f, SEED);
    for (int i = 0; good && i < f->nslices; i++) {
        struct fake_slice *s = &f->slices[i], got = *s;
        struct fsdp_slice_io io = {.ctx = &got, .read = fake_read, .write = fake_write};
        if (s->kind != FSDP_SLICE_MODEL && !all)
            continue;
        expected++;
        size_t nelem = s->nbytes / fsdp_dtype_nbytes(s->slice.tensor.dtype);
        enum fsdp_dtype to = dtype < 0 ? s->slice.tensor.dtype : (enum fsdp_dtype)dtype;
        unsigned char *want = malloc(nelem * 8);
        ckpt_convert(want, to, s->data, s->slice.tensor.dtype, nelem);
        got.nbytes = nelem * fsdp_dtype_nbytes(to);
        got.data = calloc(nelem, 8);
        got.slice.tensor.dtype = to;
        const struct ckpt_tensor *t = ckpt_tensor_find(c, s->name);
        good = t && t->tensor.dtype == to && !ckpt_read_slice(c, &got.slice, &io, &err) &&
               !memcmp(want, got.data, got.nbytes);
        if (!good)
            diag("%s: %s", s->name, err.text);
        free(want);
        free(got.data);
    }
    good = good && ckpt_ntensors(c) == expected;
    if (good && nfiles)
        *nfiles = ckpt_nfiles(c);
    if (!good)
        diag("%s: %s", path, err.text);
    ckpt_close(c);
    fake_destroy(f);
    return good;
}

static int merge(const char *from, const struct ckpt_reshard_args *args, struct fsdp_err *err)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, from, err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(NULL, c, args, err);
    ckpt_close(c);
    return rc;
}

static void test_outputs(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    int nfiles = 0;

    args.out = in_root("one.safetensors");
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, -1, &nfiles) && nfiles == 1,
       "one file: %s", err.text);
    ok(merge(saved, &args, &err) == FSDP_EEXIST && strstr(err.text, "one.safetensors"),
       "it is not overwritten: %s", err.text);
    args.overwrite = true;
    args.all = true;
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, true, -1, NULL),
       "unless asked to; with the optimizer: %s", err.text);
    args.all = false;
    args.dtype = "bfloat16";
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, FSDP_BF16, NULL),
       "cast to bfloat16: %s", err.text);
    args.dtype = "F64";
    args.mem_nbytes = 1 << 20;
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, FSDP_F64, NULL),
       "to F64, in 1 MiB: %s", err.text);

    args = (struct ckpt_reshard_args)CKPT_RESHARD_ARGS_INIT;
    args.out = in_root("again.safetensors");
    ok(merge(in_root("one.safetensors"), &args, &err) == FSDP_OK &&
           holds(args.out, false, FSDP_F64, NULL),
       "a merged file merges: %s", err.text);
}

static void test_folders(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    int nfiles = 0;
    args.out = in_root("hf");
    args.max_shard_nbytes = 9000;
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, -1, &nfiles) && nfiles > 2,
       "a folder of %d files: %s", nfiles, err.text);
    ok(exists(in_root("hf/model.safetensors.index.json")) && exists(in_root("hf/config.json")) &&
           exists(in_root("hf/tokenizer.json")),
       "index, configuration, tokenizer");
    char *config = NULL;
    ckpt_store_get(&config, NULL, &ckpt_store_posix, in_root("hf/config.json"), 1 << 20, NULL);
    ok(config && strstr(config, "\"bfloat16\""), "weights of several types: config.json stays");
    fsdp_free(config);
    ok(merge(saved, &args, &err) == FSDP_EEXIST, "it is not overwritten: %s", err.text);
    args.overwrite = true;
    args.max_shard_nbytes = 0;
    args.dtype = "F32";
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, FSDP_F32, &nfiles) &&
           nfiles == 1 && !exists(in_root("hf/model.safetensors.index.json")),
       "replaced by one of a single file: %s", err.text);
    config = NULL;
    ckpt_store_get(&config, NULL, &ckpt_store_posix, in_root("hf/config.json"), 1 << 20, NULL);
    ok(config && strstr(config, "\"float32\"") && !strstr(config, "bfloat16"),
       "config.json names the type of the weights");
    fsdp_free(config);
    args.out = in_root("again/");
    ok(merge(in_root("hf"), &args, &err) == FSDP_OK && exists(in_root("again/tokenizer.json")),
       "a Hugging Face folder merges, tokenizer along: %s", err.text);
    args.out = in_root("deep/er/folder");
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, FSDP_F32, NULL),
       "missing parents are made: %s", err.text);
    args.out = in_root("empty");
    mkdir(args.out, 0777);
    args.overwrite = false;
    ok(merge(saved, &args, &err) == FSDP_OK, "an empty folder is as good as none: %s", err.text);
    ok(count_entries(root, ".tmp.") + count_entries(root, ".old.") == 0, "nothing is left behind");
}

static void test_refusals(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char inside[700];
    args.out = in_root("no.safetensors");
    args.dtype = "int32";
    ok(merge(saved, &args, &err) == FSDP_EINVAL && strstr(err.text, "I32"), "integers: %s",
       err.text);
    args.dtype = "float13";
    ok(merge(saved, &args, &err) == FSDP_EINVAL && strstr(err.text, "float13"), "no type: %s",
       err.text);
    args.dtype = NULL;
    args.mem_nbytes = 1000;
    ok(merge(saved, &args, &err) == FSDP_EINVAL && !strcmp(err.setting, "mem_nbytes"),
       "no memory: %s", err.text);
    args = (struct ckpt_reshard_args)CKPT_RESHARD_ARGS_INIT;
    args.overwrite = true;
    args.out = saved;
    ok(merge(saved, &args, &err) != FSDP_OK && fake_holds(saved, SEED), "over its input's root: %s",
       err.text);
    snprintf(inside, sizeof inside, "%s/step-00000001/model/out", saved);
    args.out = inside;
    ok(merge(saved, &args, &err) == FSDP_EINVAL, "inside its input: %s", err.text);
    args.out = in_root("precious");
    mkdir(args.out, 0777);
    ckpt_store_put(&ckpt_store_posix, in_root("precious/thesis.tex"), "x", 1, false, NULL);
    ok(merge(saved, &args, &err) == FSDP_EEXIST && strstr(err.text, "thesis.tex") &&
           exists(in_root("precious/thesis.tex")),
       "over a folder of other things: %s", err.text);
    args.out = "/proc/x.safetensors";
    ok(merge(saved, &args, &err) != FSDP_OK && strstr(err.text, "/proc/x"), "unwritable: %s",
       err.text);
    args.out = in_root("one.safetensors/x.safetensors");
    ok(merge(saved, &args, &err) != FSDP_OK, "below a file: %s", err.text);
    ok(count_entries(root, "no.safetensors") == 0, "nothing was written");
}

static void test_no_space(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char small[400];
    snprintf(small, sizeof small, "%s/small", root);
    mkdir(small, 0777);
    if (geteuid() != 0 || mount("ckpt-test", small, "tmpfs", 0, "size=16k")) {
        tap_skip("short disk: cannot mount a small tmpfs here");
        return;
    }
    args.out = in_root("small/out.safetensors");
    ok(merge(saved, &args, &err) == FSDP_ENOSPC && strstr(err.text, "room for") &&
           count_entries(small, "") == 0,
       "too little room is noticed before starting: %s", err.text);
    umount(small);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static int stop_at(void *ctx, uint64_t done, uint64_t total)
{
    (void)total;
    return done >= *(uint64_t *)ctx;
}

static void test_faults(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    bool clean = true, whole = false;
    int nth = 1;
    args.out = in_root("faulty");
    args.max_shard_nbytes = 9000;
    for (; !whole && nth < 400; nth++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        uint64_t before = ckpt_store_calls();
        ckpt_store_fault_at((uint64_t)nth, nth % 2 ? CKPT_FAULT_FAIL : CKPT_FAULT_NOSPACE);
        int rc = merge(saved, &args, &err);
        uint64_t calls = ckpt_store_calls() - before;
        ckpt_store_fault_at(0, CKPT_FAULT_NONE);
        whole = rc == FSDP_OK && calls < (uint64_t)nth;
        /* Published or not, never in part; and the same call completes it. */
        clean &= exists(args.out) ? holds(args.out, false, -1, NULL) : rc != FSDP_OK;
        if ((rc || count_entries(root, "faulty.")) && merge(saved, &args, &err))
            clean &= err.status == FSDP_EEXIST;
        clean &= holds(args.out, false, -1, NULL) && count_entries(root, "faulty.") == 0;
        remove_all(&ckpt_store_posix, args.out, NULL);
        if (!clean) {
            diag("call %d: %s", nth, err.text);
            break;
        }
    }
    ok(clean && whole && nth > 60, "a failure at each of %d store calls leaves all or nothing",
       nth - 2);

    bool memory = true;
    whole = false;
    for (nth = 1; !whole && nth < 2000; nth++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        fsdp_alloc_fail_at((uint64_t)nth);
        int rc = merge(saved, &args, &err);
        fsdp_alloc_fail_at(0);
        whole = rc == FSDP_OK && count_entries(root, "faulty.") == 0;
        /* The last allocations are those of clearing up after the output was published. */
        if (rc == FSDP_OK && !whole)
            memory &= merge(saved, &args, &err) == FSDP_OK || err.status == FSDP_EEXIST;
        memory &= (rc == FSDP_OK || rc == FSDP_ENOMEM) && count_entries(root, "faulty.") == 0;
        if (rc && rc != FSDP_ENOMEM)
            diag("allocation %d: %s", nth, err.text);
        remove_all(&ckpt_store_posix, args.out, NULL);
    }
    ok(memory && whole && nth > 100, "out of memory at each of %d allocations", nth - 2);

    uint64_t at = 20000;
    struct fsdp_err err = FSDP_ERR_INIT;
    args.progress = stop_at;
    args.progress_ctx = &at;
    ok(merge(saved, &args, &err) == FSDP_ECANCELED && !exists(args.out) &&
           count_entries(root, "faulty.tmp.") == 1,
       "stopped half-way: %s", err.text);
    args.progress = NULL;
    ok(merge(saved, &args, &err) == FSDP_OK && holds(args.out, false, -1, NULL) &&
           count_entries(root, "faulty.") == 0,
       "the same call resumes: %s", err.text);
}

/* In a process of its own, which may have 40 files open: merging what 96 ranks wrote, and writing
 * for 96. */
static int few_files(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct rlimit limit = {40, 40};
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)oob, (void)nodes;
    args.out = in_root("few.safetensors");
    args.nthreads = 4;
    int rc = setrlimit(RLIMIT_NOFILE, &limit) ? FSDP_EIO : merge(arg, &args, &err);
    args.out = in_root("few");
    args.output = CKPT_OUTPUT_NATIVE;
    args.all = true;
    args.shard_size = 96;
    if (rc == FSDP_OK)
        rc = merge(arg, &args, &err);
    if (rc)
        diag("%s", err.text);
    return rc != FSDP_OK;
}

static void test_open_files(void)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *many = strdup(in_root("many"));
    struct ckpt *c = NULL;
    args.out = many;
    args.output = CKPT_OUTPUT_NATIVE;
    args.all = true;
    args.shard_size = 96;
    ok(!merge(saved, &args, &err) && !ckpt_open(&c, many, &err) && ckpt_nfiles(c) > 64,
       "the files of 96 ranks: %d %s", c ? ckpt_nfiles(c) : 0, err.text);
    ckpt_close(c);
    ok(ranks_run(1, 1, 120, few_files, many, NULL) == 0 &&
           holds(in_root("few.safetensors"), false, -1, NULL) && exists(in_root("few")),
       "are read, and written, with 40 open");
    free(many);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { BIG_ROWS = 64 * 1024, BIG_COLS = 1024 }; /* 256 MiB of F32 */
static const struct fsdp_tensor big_tensors[] = {
    {"big.0", FSDP_F32, 2, {BIG_ROWS / 2, BIG_COLS}},
    {"big.1", FSDP_F32, 2, {BIG_ROWS / 2, BIG_COLS}},
};

static int big_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx, (void)err;
    memset(dst, (int)(pos >> 20 & 0x3f), nbytes);
    return FSDP_OK;
}

static int big_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    const struct fsdp_oob *oob = ctx;
    struct fsdp_cut cut;
    FSDP_TRY(fsdp_cut_create(&cut, big_tensors, 2, oob->size, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < 2; i++) {
        struct fsdp_slice slice = {.tensor = big_tensors[i], .nreplica = 1};
        struct fsdp_slice_io io = {.ctx = NULL, .read = big_read};
        uint64_t pos;
        fsdp_cut_box(&slice.box, &pos, &cut, big_tensors, i, oob->rank);
        rc = fn(fn_ctx, FSDP_SLICE_MODEL, &slice, &io, err);
    }
    fsdp_cut_destroy(&cut);
    return rc;
}

/* A sanitizer's own memory would be counted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool can_measure = false;
#else
static const bool can_measure = true;
#endif

static long peak_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static int big_save(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct fsdp_flat_desc flat = {"", true, 2, big_tensors, NULL};
    const struct fsdp_state_layout layout = {
        .shard_size = oob->size, .replicate_size = 1, .nflats = 1, .flats = &flat};
    struct ckpt_save_args args = CKPT_SAVE_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    args.root = arg;
    args.layout = &layout;
    args.slices = big_each;
    args.slices_ctx = oob;
    args.fsync = false;
    int rc = ckpt_save(NULL, &args, oob, &err);
    if (rc)
        diag("%s", err.text);
    if (peak_kib() > 40 << 10) {
        diag("saving took %ld KiB", peak_kib());
        rc = 1;
    }
    return rc != FSDP_OK;
}

/* A fresh process, so that its peak is its own. */
static int big_merge(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char out[600];
    (void)oob, (void)nodes;
    snprintf(out, sizeof out, "%s/merged.safetensors", (char *)arg);
    args.out = out;
    args.mem_nbytes = 32 << 20;
    args.dtype = "bf16";
    int rc = merge(arg, &args, &err);
    diag("merging %d MiB under 32 MiB peaked at %ld MiB", BIG_ROWS / 256, peak_kib() >> 10);
    if (rc)
        diag("%s", err.text);
    return rc != FSDP_OK || peak_kib() > (32 + 16) << 10;
}

/* The same for 64 ranks, compressed where that can be. */
static int big_reshard(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char out[600];
    (void)oob, (void)nodes;
    snprintf(out, sizeof out, "%s/resharded", (char *)arg);
    args.out = out;
    args.output = CKPT_OUTPUT_NATIVE;
    args.all = true;
    args.shard_size = 64;
    args.mem_nbytes = 32 << 20;
    args.compress = CKPT_COMPRESS_ZSTD;
    int rc = merge(arg, &args, &err);
    if (rc == FSDP_EUNSUPPORTED) {
        args.compress = CKPT_COMPRESS_NONE;
        rc = merge(arg, &args, &err);
    }
    diag("resharding it for 64 ranks peaked at %ld MiB", peak_kib() >> 10);
    if (rc)
        diag("%s", err.text);
    return rc != FSDP_OK || peak_kib() > (32 + 32) << 10;
}

static void test_memory(void)
{
    char big[400];
    if (!can_measure) {
        tap_skip("peak memory: not under a sanitizer");
        return;
    }
    if (tap_emulated()) {
        tap_skip("peak memory: not under an emulator, which has memory of its own");
        return;
    }
    malloc_trim(0); /* a child's peak begins with what this process holds */
    snprintf(big, sizeof big, "%s/big", root);
    ok(ranks_run(3, 1, 120, big_save, big, NULL) == 0, "256 MiB saved by 3 ranks, each in 40 MiB");
    ok(ranks_run(1, 1, 120, big_merge, big, NULL) == 0, "and merged in 32 MiB and headers");
    ok(ranks_run(1, 1, 120, big_reshard, big, NULL) == 0, "and resharded");
}

static int save_model(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fake *f = fake_create(oob->rank, 2, 2);
    struct ckpt_save_args args = fake_save_args(f, saved, 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    args.extra = arg;
    args.nextra = 3;
    fake_fill(f, SEED);
    int rc = ckpt_save(NULL, &args, oob, &err);
    if (rc)
        diag("%s", err.text);
    fake_destroy(f);
    return rc != FSDP_OK;
}

static void test_sizes(void)
{
    static const struct {
        const char *text;
        uint64_t nbytes;
    } good[] = {
        {"0", 0},           {"1048576", 1048576}, {"64K", 65536},         {"5GB", 5000000000},
        {"5g", 5368709120}, {"1.5MiB", 1572864},  {"2TB", 2000000000000}, {"7B", 7}};
    static const char *const bad[] = {"",     "x",     "-1",       "5X", "5GG",
                                      "5GBs", "1e400", "9999999T", " 5"};
    bool same = true, refused = true;
    uint64_t nbytes;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        same &= !ckpt_nbytes_parse(&nbytes, good[i].text, NULL) && nbytes == good[i].nbytes;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused &= ckpt_nbytes_parse(&nbytes, bad[i], NULL) == FSDP_EINVAL;
    ok(same, "sizes");
    ok(refused, "what are none");
}

/* ---- two at once ----------------------------------------------------------------------------- */

/* Another process is done first. */
static int overtake(void *ctx, uint64_t done, uint64_t total)
{
    const struct ckpt_reshard_args *args = ctx;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_reshard_args other = CKPT_RESHARD_ARGS_INIT;
    other.out = args->out;
    other.max_shard_nbytes = args->max_shard_nbytes;
    other.all = true; /* so that it is another job */
    if (done == total && !exists(args->out) && merge(saved, &other, &err))
        diag("the other: %s", err.text);
    return 0;
}

static void test_overtaken(void)
{
    static const char *const names[] = {"race.safetensors", "race"};
    for (int i = 0; i < 2; i++) {
        struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
        struct fsdp_err err = FSDP_ERR_INIT;
        args.out = in_root(names[i]);
        args.max_shard_nbytes = i ? 9000 : 0;
        args.nthreads = 1;
        args.progress = overtake;
        args.progress_ctx = &args;
        ok(merge(saved, &args, &err) == FSDP_EEXIST && strstr(err.text, "another process wrote") &&
               exists(args.out) && count_entries(root, "race") == 1 + i,
           "overtaken, the output is the other's, and nothing is left: %s", err.text);
    }
}

int main(void)
{
    static const char config[] = "{\"hidden_size\": 16, \"torch_dtype\": \"bfloat16\"}";
    char paths[3][400];
    const char *extras[3] = {paths[0], paths[1], paths[2]};
    snprintf(root, sizeof root, "%s", scratch_create());
    snprintf(saved, sizeof saved, "%s/saved", root);
    snprintf(paths[0], sizeof paths[0], "%s/config.json", root);
    snprintf(paths[1], sizeof paths[1], "%s/tokenizer.json", root);
    snprintf(paths[2], sizeof paths[2], "%s/model.safetensors.index.json", root);
    for (int i = 0; i < 3; i++)
        ckpt_store_put(&ckpt_store_posix, paths[i], config, sizeof config - 1, false, NULL);
    ok(ranks_run(4, 2, 30, save_model, extras, NULL) == 0, "a checkpoint of 2 x 2 ranks");
    for (int i = 0; i < 3; i++)
        unlink(paths[i]);
    test_sizes();
    test_outputs();
    test_folders();
    test_refusals();
    test_no_space();
    test_faults();
    test_overtaken();
    test_open_files();
    test_memory();
    scratch_remove(root);
    return tap_done();
}
