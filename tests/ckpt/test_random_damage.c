/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random damage to a checkpoint: merge refuses it, or writes the tensors of the undamaged one. It
 * never crashes or hangs. Torch's format has no checksum for two things, which are counted on their
 * own and are in docs/damage.md: names in .metadata, and which of two data files with the same
 * layout is which. Tensors are compared; Python values of torch checkpoints are not.
 *
 * DAMAGE_SEED (1) chooses the damages, DAMAGE_DCP and DAMAGE_NATIVE (60 each) set their number,
 * DAMAGE_SHOW=1 prints each. A case depends only on the seed and its number:
 *
 *     DAMAGE_SEED=1 build/bin/tests/ckpt/test_random_damage dcp 17
 *
 * run: timeout=1200
 */
#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "fake_state.h"

enum { MAX_FILES = 32, MAX_FIXTURES = 4, FAKE_SEED = 31, DEADLINE_S = 120 };

struct file {
    char name[200]; /* relative to the checkpoint */
    char *data;
    size_t nbytes;
    bool is_head; /* .metadata or manifest.json */
};

struct fixture {
    char name[40];
    char work[400];   /* a copy, which is damaged and restored */
    char merged[400]; /* what the undamaged one is merged to */
    int nfiles;
    struct file files[MAX_FILES];
};

struct kind {
    const char *name, *count;
    int nfixtures;
    struct fixture fixtures[MAX_FIXTURES];
};

static char root[300];
static uint64_t seed;

/* ---- random numbers (splitmix64) ------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_next(void)
{
    uint64_t x = random_state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Below limit, which is not 0. */
static size_t random_below(size_t limit)
{
    return (size_t)(random_next() % limit);
}

/* From 1 to most; short lengths are as frequent as long ones. */
static size_t random_length(size_t most)
{
    size_t scale = 1;
    while (scale < most && random_below(4))
        scale *= 4;
    return 1 + random_below(scale < most ? scale : most);
}

/* ---- damages --------------------------------------------------------------------------------- */

struct damage {
    struct file *file;
    struct file *other; /* of a swap of two files */
    char *data;         /* what the file holds afterwards */
    size_t nbytes;
    char text[300];
};

static void flip_bits(struct damage *d)
{
    size_t nbits = random_length(16);
    size_t first = random_below(d->nbytes);
    for (size_t i = 0; i < nbits; i++) {
        size_t at = i ? random_below(d->nbytes) : first;
        d->data[at] ^= (char)(1 << random_below(8));
    }
    snprintf(d->text, sizeof d->text, "%zu flipped bits, the first in byte %zu", nbits, first);
}

static void zero_range(struct damage *d)
{
    size_t at = random_below(d->nbytes), nbytes = random_length(d->nbytes - at);
    memset(d->data + at, 0, nbytes);
    snprintf(d->text, sizeof d->text, "%zu zeros from byte %zu", nbytes, at);
}

static void overwrite_range(struct damage *d)
{
    size_t at = random_below(d->nbytes), nbytes = random_length(d->nbytes - at);
    for (size_t i = 0; i < nbytes; i++)
        d->data[at + i] = (char)random_next();
    snprintf(d->text, sizeof d->text, "%zu random bytes from byte %zu", nbytes, at);
}

static void cut_end(struct damage *d)
{
    size_t nbytes = random_length(d->nbytes);
    d->nbytes -= nbytes;
    snprintf(d->text, sizeof d->text, "the last %zu bytes are cut off", nbytes);
}

static void cut_range(struct damage *d)
{
    size_t at = random_below(d->nbytes), nbytes = random_length(d->nbytes - at);
    memmove(d->data + at, d->data + at + nbytes, d->nbytes - at - nbytes);
    d->nbytes -= nbytes;
    snprintf(d->text, sizeof d->text, "%zu bytes are cut out from byte %zu", nbytes, at);
}

/* Random bytes, or bytes of the file. */
static void insert_range(struct damage *d)
{
    size_t at = random_below(d->nbytes + 1), nbytes = random_length(d->nbytes);
    size_t from = random_below(d->nbytes - nbytes + 1);
    bool own = random_below(2);
    char *data = malloc(d->nbytes + nbytes);
    memcpy(data, d->data, at);
    for (size_t i = 0; i < nbytes; i++)
        data[at + i] = own ? d->data[from + i] : (char)random_next();
    memcpy(data + at + nbytes, d->data + at, d->nbytes - at);
    free(d->data);
    d->data = data;
    d->nbytes += nbytes;
    snprintf(d->text, sizeof d->text, "%zu bytes are inserted at byte %zu", nbytes, at);
}

static void swap_ranges(struct damage *d)
{
    size_t nbytes = random_length(d->nbytes / 2);
    size_t a = random_below(d->nbytes - 2 * nbytes + 1);
    size_t b = a + nbytes + random_below(d->nbytes - a - 2 * nbytes + 1);
    for (size_t i = 0; i < nbytes; i++) {
        char byte = d->data[a + i];
        d->data[a + i] = d->data[b + i];
        d->data[b + i] = byte;
    }
    snprintf(d->text, sizeof d->text, "%zu bytes at %zu and at %zu are swapped", nbytes, a, b);
}

typedef void damage_f(struct damage *d);
static damage_f *const damages[] = {flip_bits, flip_bits, zero_range,   overwrite_range,
                                    cut_end,   cut_range, insert_range, swap_ranges};
enum { NDAMAGES = sizeof damages / sizeof damages[0] };

static struct file *data_file(struct fixture *f)
{
    struct file *file;
    do
        file = &f->files[random_below((size_t)f->nfiles)];
    while (file->is_head);
    return file;
}

/* One case in 16 swaps two data files, every third of the others damages the head. */
static void damage_draw(struct damage *d, struct fixture *f)
{
    *d = (struct damage){0};
    if (!random_below(16)) {
        d->file = data_file(f);
        do
            d->other = data_file(f);
        while (d->other == d->file);
        snprintf(d->text, sizeof d->text, "it is swapped with %s", d->other->name);
        return;
    }
    do
        d->file = random_below(3) ? data_file(f) : &f->files[random_below((size_t)f->nfiles)];
    while (d->file->nbytes < 2);
    if (random_below(3) == 0)
        for (int i = 0; i < f->nfiles; i++)
            if (f->files[i].is_head)
                d->file = &f->files[i];
    do { /* until it makes a difference */
        free(d->data);
        d->nbytes = d->file->nbytes;
        d->data = malloc(d->nbytes);
        memcpy(d->data, d->file->data, d->nbytes);
        damages[random_below(NDAMAGES)](d);
    } while (d->nbytes == d->file->nbytes && !memcmp(d->data, d->file->data, d->nbytes));
}

static void put(const struct fixture *f, const struct file *file, const char *data, size_t nbytes)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", f->work, file->name);
    for (char *p = path + strlen(f->work) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0777);
    }
    FILE *out = fopen(path, "w");
    if (!out || fwrite(data, 1, nbytes, out) != nbytes || fclose(out)) {
        perror(path);
        exit(1);
    }
}

static void damage_apply(const struct damage *d, const struct fixture *f)
{
    if (d->other) {
        put(f, d->file, d->other->data, d->other->nbytes);
        put(f, d->other, d->file->data, d->file->nbytes);
    } else {
        put(f, d->file, d->data, d->nbytes);
    }
}

static void damage_undo(struct damage *d, const struct fixture *f)
{
    put(f, d->file, d->file->data, d->file->nbytes);
    if (d->other)
        put(f, d->other, d->other->data, d->other->nbytes);
    free(d->data);
}

/* ---- one case -------------------------------------------------------------------------------- */

enum { FIRST_STATUS = 100 }; /* of a process that did not crash; a sanitizer's are lower */
/* BY_MERGE: verify finds nothing, merge refuses. SWAPPED: see cannot_be_told. */
enum result { REFUSED, BY_MERGE, EQUAL, RENAMED, SWAPPED, SILENT, CRASHED, HUNG, NRESULTS };
static const char *const result_names[] = {"refused",
                                           "refused by merge alone",
                                           "equal",
                                           "equal under other names",
                                           "WRONG, files of one layout are swapped",
                                           "SILENT",
                                           "CRASHED",
                                           "HUNG"};

static int merge(struct ckpt *c, const char *out, struct fsdp_err *err)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    args.out = out;
    args.all = true;
    args.mem_nbytes = 1 << 20;
    args.nthreads = 1;
    args.overwrite = true;
    return ckpt_reshard(NULL, c, &args, err);
}

static int hash_take(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    uint64_t *hash = ctx;
    (void)pos, (void)err;
    *hash = fsdp_hash(*hash, src, nbytes);
    return FSDP_OK;
}

/* The sum over all tensors of the hash of dtype, shape, bytes and, if asked for, name. */
static bool sum_tensors(uint64_t *sum, struct ckpt *c, bool names, struct fsdp_err *err)
{
    *sum = (uint64_t)ckpt_ntensors(c);
    for (int i = 0; i < ckpt_ntensors(c); i++) {
        const struct fsdp_tensor *t = &ckpt_tensor_at(c, i)->tensor;
        struct fsdp_slice slice = {.tensor = *t, .nreplica = 1};
        uint64_t hash = fsdp_hash(FSDP_HASH_SEED, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
        struct fsdp_slice_io io = {.ctx = &hash, .write = hash_take};
        memcpy(slice.box.length, t->shape, sizeof slice.box.length);
        hash = fsdp_hash(hash, &t->dtype, sizeof t->dtype);
        if (names)
            hash = fsdp_hash(hash, t->name, strlen(t->name));
        if (ckpt_read_slice(c, &slice, &io, err))
            return false;
        *sum += hash;
    }
    return true;
}

static enum result compare(const char *a, const char *b, struct fsdp_err *err)
{
    struct ckpt *x = NULL, *y = NULL;
    uint64_t sums[4] = {0};
    enum result result = SILENT;
    if (same_bytes(a, b))
        return EQUAL;
    if (!ckpt_open(&x, a, err) && !ckpt_open(&y, b, err) && sum_tensors(&sums[0], x, true, err) &&
        sum_tensors(&sums[1], y, true, err) && sum_tensors(&sums[2], x, false, err) &&
        sum_tensors(&sums[3], y, false, err))
        result = sums[0] == sums[1] ? EQUAL : sums[2] == sums[3] ? RENAMED : SILENT;
    ckpt_close(x);
    ckpt_close(y);
    return result;
}

static enum result try_case(const struct fixture *f, const char *out, struct fsdp_err *err)
{
    struct ckpt *c = NULL;
    struct fsdp_err why = FSDP_ERR_INIT;
    if (ckpt_open(&c, f->work, err))
        return REFUSED;
    bool whole = ckpt_verify(c, NULL, NULL, &why) == FSDP_OK;
    int rc = merge(c, out, err);
    ckpt_close(c);
    if (rc)
        return exists(out) ? SILENT : whole ? BY_MERGE : REFUSED;
    enum result result = compare(out, f->merged, err);
    unlink(out);
    return result;
}

/* In a process of its own, which may crash or hang. text gets the error. */
static enum result run_case(const struct fixture *f, char text[FSDP_ERR_TEXT_NBYTES])
{
    char out[400];
    int fds[2], status;
    snprintf(out, sizeof out, "%s/out.safetensors", root);
    fflush(stdout);
    if (pipe(fds)) {
        perror("pipe");
        exit(1);
    }
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        struct fsdp_err err = FSDP_ERR_INIT;
        alarm(DEADLINE_S);
        enum result result = try_case(f, out, &err);
        if (write(fds[1], err.text, strlen(err.text)) < 0)
            _exit(0);
        _exit(FIRST_STATUS + (int)result);
    }
    close(fds[1]);
    ssize_t nread = read(fds[0], text, FSDP_ERR_TEXT_NBYTES - 1);
    text[nread > 0 ? nread : 0] = 0;
    close(fds[0]);
    while (waitpid(pid, &status, 0) < 0)
        ;
    int result = WIFEXITED(status) ? WEXITSTATUS(status) - FIRST_STATUS : -1;
    if (result >= 0 && result < CRASHED)
        return (enum result)result;
    unlink(out);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? HUNG : CRASHED;
}

/* The archives that torch wrote hold neither their tensor's name nor their file's: two files of
 * equal size, whose archives have the same shapes at the same places, can take each other's place
 * unnoticed. */
static bool cannot_be_told(const struct fixture *f, const struct damage *d)
{
    return !strncmp(f->name, "torch-", 6) && d->other && d->file->nbytes == d->other->nbytes;
}

/* ---- fixtures -------------------------------------------------------------------------------- */

static struct fixture *adding; /* nftw has no argument for its callback */
static const char *adding_from;

static int add_file(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    struct fixture *f = adding;
    struct file *file = &f->files[f->nfiles];
    (void)walk;
    if (type != FTW_F)
        return 0;
    if (f->nfiles == MAX_FILES || !(file->data = malloc((size_t)st->st_size + 1)))
        return 1;
    snprintf(file->name, sizeof file->name, "%s", path + strlen(adding_from) + 1);
    file->is_head = !strcmp(file->name, ".metadata") || !strcmp(file->name, "manifest.json");
    file->nbytes = (size_t)st->st_size;
    FILE *in = fopen(path, "r");
    size_t nread = in ? fread(file->data, 1, file->nbytes, in) : 0;
    if (in)
        fclose(in);
    f->nfiles++;
    return nread != file->nbytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static void fixture_add(struct kind *kind, const char *name, const char *from)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    struct fixture *f = &kind->fixtures[kind->nfixtures++];
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->work, sizeof f->work, "%s/damaged-%s", root, name);
    snprintf(f->merged, sizeof f->merged, "%s/merged-%s.safetensors", root, name);
    adding = f;
    adding_from = from;
    bool read = nftw(from, add_file, 8, FTW_PHYS) == 0;
    qsort(f->files, (size_t)f->nfiles, sizeof f->files[0], by_name);
    mkdir(f->work, 0777);
    for (int i = 0; read && i < f->nfiles; i++)
        put(f, &f->files[i], f->files[i].data, f->files[i].nbytes);
    bool good = read && !ckpt_open(&c, f->work, &err) && !ckpt_verify(c, NULL, NULL, &err) &&
                !merge(c, f->merged, &err);
    ckpt_close(c);
    if (!ok(good && f->nfiles > 2, "%s, undamaged: %d files, merged %s", name, f->nfiles, err.text))
        exit(tap_done());
}

static void reshard(const char *from, const char *out, enum ckpt_output output, int shard_size)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct ckpt *c = NULL;
    args.out = out;
    args.output = output;
    args.all = true;
    args.shard_size = shard_size;
    if (ckpt_open(&c, from, &err) || ckpt_reshard(NULL, c, &args, &err)) {
        diag("%s", err.text);
        exit(1);
    }
    ckpt_close(c);
}

static void save(const char *folder, int nranks, enum ckpt_compress compress)
{
    struct fake_job job = {.root = folder,
                           .step = 1,
                           .shard_size = nranks,
                           .replicate_size = 1,
                           .seed = FAKE_SEED,
                           .compress = compress};
    if (ranks_run(nranks, 1, 60, fake_save_rank, &job, NULL))
        exit(1);
}

/* Two tensors that two ranks divide evenly, so that the ranks' files have the same layout. */
static void put_even(const char *path)
{
    enum { NBYTES = 16 * 8 * 4 };
    char header[300], data[2 * NBYTES];
    snprintf(header, sizeof header,
             "{\"model.a\":{\"dtype\":\"F32\",\"shape\":[16,8],\"data_offsets\":[0,%d]},"
             "\"model.b\":{\"dtype\":\"F32\",\"shape\":[16,8],\"data_offsets\":[%d,%d]}}",
             NBYTES, NBYTES, 2 * NBYTES);
    while (strlen(header) % 8)
        strcat(header, " ");
    uint64_t length = strlen(header);
    for (int i = 0; i < 2 * NBYTES; i++)
        data[i] = (char)fake_byte("even", (uint64_t)i, FAKE_SEED);
    FILE *out = fopen(path, "w");
    if (!out || fwrite(&length, 1, 8, out) != 8 || fwrite(header, 1, length, out) != length ||
        fwrite(data, 1, sizeof data, out) != sizeof data || fclose(out)) {
        perror(path);
        exit(1);
    }
}

static void make_fixtures(struct kind *dcp, struct kind *native)
{
    char plain[400], path[600], step[500];
    const char *top = getenv("TOP") ? getenv("TOP") : ".";

    snprintf(path, sizeof path, "%s/plain", root);
    save(path, 3, CKPT_COMPRESS_NONE);
    snprintf(plain, sizeof plain, "%s/plain/step-00000001", root);
    fixture_add(native, "saved-by-3", plain);
#if HAVE_ZSTD
    snprintf(path, sizeof path, "%s/compressed", root);
    save(path, 2, CKPT_COMPRESS_ZSTD);
    snprintf(step, sizeof step, "%s/compressed/step-00000001", root);
    fixture_add(native, "compressed-by-2", step);
#endif
    snprintf(path, sizeof path, "%s/tests/data/dcp-fsdp2-2r/ckpt", top);
    fixture_add(dcp, "torch-fsdp2", path);
    snprintf(path, sizeof path, "%s/tests/data/dcp-mixed-2r/ckpt", top);
    fixture_add(dcp, "torch-mixed", path);
    snprintf(step, sizeof step, "%s/dcp", root);
    reshard(plain, step, CKPT_OUTPUT_DCP, 3);
    fixture_add(dcp, "ours-for-3", step);
    snprintf(path, sizeof path, "%s/even.safetensors", root);
    put_even(path);
    snprintf(step, sizeof step, "%s/even", root);
    reshard(path, step, CKPT_OUTPUT_DCP, 2);
    fixture_add(dcp, "ours-even", step);
    snprintf(step, sizeof step, "%s/native", root);
    reshard(dcp->fixtures[0].work, step, CKPT_OUTPUT_NATIVE, 2);
    fixture_add(native, "resharded-for-2", step);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static enum result run_one(struct kind *kind, int number, bool show)
{
    struct damage d;
    char text[FSDP_ERR_TEXT_NBYTES];
    random_state = seed * UINT64_C(1000003) + (uint64_t)number + fsdp_hash(0, kind->name, 3);
    struct fixture *f = &kind->fixtures[random_below((size_t)kind->nfixtures)];
    damage_draw(&d, f);
    damage_apply(&d, f);
    enum result result = run_case(f, text);
    if (result == SILENT && cannot_be_told(f, &d))
        result = SWAPPED;
    if (show || result > SWAPPED)
        diag("DAMAGE_SEED=%llu %s %d, %s, %s: %s: %s; %s", (unsigned long long)seed, kind->name,
             number, f->name, d.file->name, d.text, result_names[result], text);
    damage_undo(&d, f);
    return result;
}

static int count_of(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* Undamaged again, each merges as before: no case was refused for what another one left. */
static void check_undone(const struct kind *kind)
{
    char text[FSDP_ERR_TEXT_NBYTES];
    for (int i = 0; i < kind->nfixtures; i++)
        ok(run_case(&kind->fixtures[i], text) == EQUAL, "%s is undamaged in the end: %s",
           kind->fixtures[i].name, text);
}

static void run_round(struct kind *kind)
{
    int counts[NRESULTS] = {0}, ncases = count_of(kind->count, 60), nbad = 0;
    bool show = getenv("DAMAGE_SHOW") != NULL, native = !strcmp(kind->name, "native");
    for (int i = 0; i < ncases; i++)
        counts[run_one(kind, i, show)]++;
    for (int i = SILENT; i < NRESULTS; i++)
        nbad += counts[i];
    if (native) /* the manifest's checksums and fingerprints prove names and files, too */
        nbad += counts[BY_MERGE] + counts[RENAMED];
    ok(nbad == 0 && counts[REFUSED] > ncases / 2, "%s, DAMAGE_SEED=%llu: %d damages", kind->name,
       (unsigned long long)seed, ncases);
    for (int i = 0; i < NRESULTS; i++)
        if (counts[i])
            diag("%d %s", counts[i], result_names[i]);
    check_undone(kind);
}

static void test_compare(const struct kind *kind)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(compare(kind->fixtures[0].merged, kind->fixtures[1].merged, &err) == SILENT,
       "other tensors are noticed");
}

int main(int argc, char **argv)
{
    static struct kind kinds[2] = {{.name = "dcp", .count = "DAMAGE_DCP"},
                                   {.name = "native", .count = "DAMAGE_NATIVE"}};
    snprintf(root, sizeof root, "%s", scratch_create());
    seed = (uint64_t)count_of("DAMAGE_SEED", 1);
    make_fixtures(&kinds[0], &kinds[1]);
    test_compare(&kinds[0]);
    for (int i = 0; i < 2; i++) {
        if (argc == 3 && !strcmp(argv[1], kinds[i].name))
            ok(run_one(&kinds[i], atoi(argv[2]), true) <= SWAPPED, "%s %s", argv[1], argv[2]);
        else if (argc == 1)
            run_round(&kinds[i]);
    }
    scratch_remove(root);
    return tap_done();
}
