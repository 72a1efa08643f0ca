/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's state in memory, as the engine would describe it: units of tensors cut by fsdp_cut, model
 * slices and optimizer slices, replicas. Every element's value follows from its tensor's name, its
 * index and a seed, so any rank can check any box.
 */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../ckpt/store/store.h"
#include "ckpt/ckpt.h"
#include "ranks.h"
#include "remove_all.h"
#include "tap.h"

static const struct fsdp_tensor fake_root[] = {
    {"model.embed_tokens.weight", FSDP_F32, 2, {300, 16}},
    {"model.norm.weight", FSDP_F32, 1, {16}},
};
static const struct fsdp_tensor fake_block[] = {
    {"model.layers.0.w1", FSDP_F32, 2, {48, 32}},     {"model.layers.0.w2", FSDP_F32, 2, {32, 48}},
    {"model.layers.0.bias", FSDP_F32, 1, {701}},      {"model.layers.0.scale", FSDP_F32, 0, {0}},
    {"model.layers.0.conv", FSDP_F32, 3, {65, 3, 4}},
};
static const struct fsdp_tensor fake_frozen[] = {
    {"model.table", FSDP_BF16, 2, {99, 7}},
    {"model.ids \"\\\n\xc3\xa9", FSDP_F64, 1, {37}}, /* a name that must be escaped */
};
/* Row lengths without a small common multiple: this unit is cut in chunks. */
static const struct fsdp_tensor fake_odd[] = {
    {"model.odd.up", FSDP_F32, 2, {7, 1023}},
    {"model.odd.bias", FSDP_F32, 1, {37}},
    {"model.odd.down", FSDP_F32, 2, {4, 767}},
    {"model.odd.scale", FSDP_F32, 0, {0}},
};
static bool fake_with_odd; /* has the state this unit, too? */
static const struct fsdp_flat_desc fake_flats[] = {
    {"", true, 2, fake_root, NULL},
    {"model.layers.0", true, 5, fake_block, NULL},
    {"model.frozen", false, 2, fake_frozen, NULL},
    {"model.odd", true, 4, fake_odd, NULL},
};
enum { FAKE_NFLATS = sizeof fake_flats / sizeof fake_flats[0] };
static const struct fsdp_slot fake_slots[] = {{.name = "exp_avg"}, {.name = "exp_avg_sq"}};
static const struct ckpt_alias fake_aliases[] = {
    {"lm_head.weight", "model.embed_tokens.weight"},
};

enum { FAKE_MAX_SLICES = 64 };

struct fake_slice {
    enum fsdp_slice_kind kind;
    struct fsdp_slice slice;
    char name[96];
    unsigned char *data;
    size_t nbytes;
};

struct fake {
    struct fsdp_state_layout layout;
    int nslices;
    struct fake_slice slices[FAKE_MAX_SLICES];
};

static inline unsigned char fake_byte(const char *name, uint64_t at, uint64_t seed)
{
    uint64_t x = fsdp_hash(seed, name, strlen(name)) + at * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (unsigned char)(x >> 40);
}

static inline void fake_add(struct fake *f, enum fsdp_slice_kind kind,
                            const struct fsdp_tensor *tensor, const char *optim,
                            const struct fsdp_box *box, int replica, int nreplica)
{
    struct fake_slice *s = &f->slices[f->nslices++];
    s->kind = kind;
    s->slice = (struct fsdp_slice){*tensor, *box, replica, nreplica};
    snprintf(s->name, sizeof s->name, optim ? "state.%s.%s" : "%s%s", tensor->name,
             optim ? optim : "");
    s->slice.tensor.name = s->name;
    s->nbytes = (size_t)fsdp_box_nelem(box, tensor->ndim) * fsdp_dtype_nbytes(tensor->dtype);
    s->data = calloc(1, s->nbytes + 1);
}

/* State of one rank, all zero. */
static inline struct fake *fake_create(int rank, int shard_size, int replicate_size)
{
    struct fake *f = calloc(1, sizeof *f);
    int shard = rank % shard_size, replica = rank / shard_size;
    f->layout = (struct fsdp_state_layout){
        .shard_size = shard_size,
        .replicate_size = replicate_size,
        .nflats = fake_with_odd ? FAKE_NFLATS : FAKE_NFLATS - 1,
        .flats = fake_flats,
        .nslots = 2,
        .slots = fake_slots,
    };
    for (int u = 0; u < f->layout.nflats; u++) {
        const struct fsdp_flat_desc *flat = &fake_flats[u];
        struct fsdp_cut cut;
        if (fsdp_cut_create(&cut, flat->tensors, flat->ntensors, shard_size, NULL))
            abort();
        for (int i = 0; i < flat->ntensors; i++) {
            struct fsdp_box box;
            uint64_t pos;
            uint64_t nelem = fsdp_cut_box(&box, &pos, &cut, flat->tensors, i, shard);
            const struct fsdp_tensor *t = &flat->tensors[i];
            struct fsdp_tensor scalar = *t;
            /* A scalar that another shard owns has no box to say so; the engine leaves it out. */
            if (t->ndim == 0 && !nelem)
                continue;
            fake_add(f, FSDP_SLICE_MODEL, &scalar, NULL, &box, replica, replicate_size);
            for (int o = 0; flat->trainable && o < 2; o++)
                fake_add(f, FSDP_SLICE_OPTIM, &scalar, fake_slots[o].name, &box, replica,
                         replicate_size);
        }
        fsdp_cut_destroy(&cut);
    }
    return f;
}

static inline void fake_destroy(struct fake *f)
{
    for (int i = 0; i < f->nslices; i++)
        free(f->slices[i].data);
    free(f);
}

static inline uint64_t fake_begin(const struct fake_slice *s)
{
    const struct fsdp_tensor *t = &s->slice.tensor;
    return t->ndim ? s->slice.box.offset[0] * fsdp_tensor_row_nelem(t) * fsdp_dtype_nbytes(t->dtype)
                   : 0;
}

static inline void fake_fill(struct fake *f, uint64_t seed)
{
    for (int i = 0; i < f->nslices; i++)
        for (size_t b = 0; b < f->slices[i].nbytes; b++)
            f->slices[i].data[b] =
                fake_byte(f->slices[i].name, fake_begin(&f->slices[i]) + b, seed);
}

/* Is everything of the kinds asked for as fake_fill would make it? */
static inline bool fake_equal(const struct fake *f, uint64_t seed, bool optim)
{
    for (int i = 0; i < f->nslices; i++) {
        const struct fake_slice *s = &f->slices[i];
        for (size_t b = 0; (optim || s->kind == FSDP_SLICE_MODEL) && b < s->nbytes; b++)
            if (s->data[b] != fake_byte(s->name, fake_begin(s) + b, seed)) {
                diag("%s differs at byte %zu", s->name, b);
                return false;
            }
    }
    return true;
}

static inline int fake_read(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err)
{
    struct fake_slice *s = ctx;
    if (pos > s->nbytes || nbytes > s->nbytes - pos)
        return fsdp_err_set(err, FSDP_EINTERNAL, "read outside of %s", s->name);
    memcpy(dst, s->data + pos, nbytes);
    return FSDP_OK;
}

static inline int fake_write(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                             struct fsdp_err *err)
{
    struct fake_slice *s = ctx;
    if (pos > s->nbytes || nbytes > s->nbytes - pos)
        return fsdp_err_set(err, FSDP_EINTERNAL, "write outside of %s", s->name);
    memcpy(s->data + pos, src, nbytes);
    return FSDP_OK;
}

static inline int fake_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    struct fake *f = ctx;
    for (int i = 0; i < f->nslices; i++) {
        struct fsdp_slice_io io = {.ctx = &f->slices[i], .read = fake_read, .write = fake_write};
        FSDP_TRY(fn(fn_ctx, f->slices[i].kind, &f->slices[i].slice, &io, err));
    }
    return FSDP_OK;
}

static inline struct ckpt_save_args fake_save_args(struct fake *f, const char *root, int64_t step)
{
    struct ckpt_save_args args = CKPT_SAVE_ARGS_INIT;
    args.root = root;
    args.step = step;
    args.layout = &f->layout;
    args.slices = fake_each;
    args.slices_ctx = f;
    args.aliases = fake_aliases;
    args.naliases = 1;
    args.state_json = "{\"seed\": 7, \"lr\": 0.1}";
    args.fsync = false; /* nobody pulls the plug in a test */
    return args;
}

static inline struct ckpt_load_args fake_load_args(struct fake *f)
{
    struct ckpt_load_args args = CKPT_LOAD_ARGS_INIT;
    args.slices = fake_each;
    args.slices_ctx = f;
    return args;
}

/* A mesh of N ranks with replicas where N allows. */
static inline void fake_mesh(int nranks, bool hybrid, int *shard_size, int *replicate_size)
{
    *replicate_size = !hybrid ? 1 : nranks % 2 == 0 ? 2 : nranks % 3 == 0 ? 3 : 1;
    *shard_size = nranks / *replicate_size;
}

/* ---- saving from a test, with ranks as processes --------------------------------------------- */

struct fake_job {
    const char *root;
    int64_t step;
    int shard_size, replicate_size;
    uint64_t seed;
    bool quiet;
    enum ckpt_compress compress;
    int fault_rank, fault_nth;
    enum ckpt_store_fault fault;
};

static inline int fake_save_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct fake_job *job = arg;
    struct fake *f = fake_create(oob->rank, job->shard_size, job->replicate_size);
    struct ckpt_save_args args = fake_save_args(f, job->root, job->step);
    struct fsdp_err err = FSDP_ERR_INIT;
    (void)nodes;
    args.fsync = job->fault != CKPT_FAULT_NONE;
    args.compress = job->compress;
    fake_fill(f, job->seed);
    uint64_t before = ckpt_store_calls();
    if (job->fault && oob->rank == job->fault_rank)
        ckpt_store_fault_at((uint64_t)job->fault_nth, job->fault);
    int rc = ckpt_save(NULL, &args, oob, &err);
    if (rc && !job->quiet)
        diag("save: %s", err.text);
    fake_destroy(f);
    /* 99: the fault did not strike, there were fewer calls */
    if (job->fault && oob->rank == job->fault_rank && rc == FSDP_OK &&
        ckpt_store_calls() - before < (uint64_t)job->fault_nth)
        return 99;
    return -rc;
}

/* Returns how many ranks failed. */
static inline int fake_save(const char *root, int64_t step, int shard_size, int replicate_size,
                            uint64_t seed)
{
    struct fake_job job = {.root = root,
                           .step = step,
                           .shard_size = shard_size,
                           .replicate_size = replicate_size,
                           .seed = seed};
    return ranks_run(shard_size * replicate_size, 1, 60, fake_save_rank, &job, NULL);
}

/* The same as one rank, in this process. */
static inline int fake_save_here(const char *root, int64_t step, uint64_t seed)
{
    struct fake_job job = {
        .root = root, .step = step, .shard_size = 1, .replicate_size = 1, .seed = seed};
    struct fsdp_oob *oob;
    if (fsdp_oob_self_create(&oob, NULL))
        return FSDP_ENOMEM;
    int rc = fake_save_rank(oob, NULL, &job);
    oob->close(oob);
    return rc;
}

/* Opens and loads everything in this process; true if it is what fake_fill(seed) makes. */
static inline bool fake_holds(const char *path, uint64_t seed)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    struct fsdp_oob *oob = NULL;
    struct fake *f = fake_create(0, 1, 1);
    struct ckpt_load_args args = fake_load_args(f);
    bool good = !fsdp_oob_self_create(&oob, &err) && !ckpt_open(&ckpt, path, &err) &&
                !ckpt_load(ckpt, &args, oob, &err) && fake_equal(f, seed, true);
    if (!good)
        diag("%s", err.text);
    ckpt_close(ckpt);
    if (oob)
        oob->close(oob);
    fake_destroy(f);
    return good;
}

static inline char *scratch_create(void)
{
    static char path[256];
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/ckpt-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(path)) {
        perror(path);
        exit(1);
    }
    return path;
}

static inline void scratch_remove(const char *path)
{
    ckpt_store_fault_at(0, CKPT_FAULT_NONE);
    remove_all(&ckpt_store_posix, path, NULL);
}

/* How many entries of a folder contain `part`. */
static inline int count_entries(const char *folder, const char *part)
{
    struct ckpt_names names;
    int count = 0;
    if (ckpt_store_names(&names, &ckpt_store_posix, folder, NULL))
        return -1;
    for (int i = 0; i < names.nnames; i++)
        count += strstr(names.names[i], part) != NULL;
    ckpt_names_free(&names);
    return count;
}

static inline bool same_bytes(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t nx = 0, ny = 0;
    bool same = !ckpt_store_get(&x, &nx, &ckpt_store_posix, a, SIZE_MAX / 2, NULL) &&
                !ckpt_store_get(&y, &ny, &ckpt_store_posix, b, SIZE_MAX / 2, NULL) && nx == ny &&
                !memcmp(x, y, nx);
    fsdp_free(x);
    fsdp_free(y);
    return same;
}

static inline bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

#endif
