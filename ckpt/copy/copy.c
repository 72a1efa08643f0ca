/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies go byte for byte, in blocks from several threads, and each file's checksum is compared
 * when its last block has passed. On a file system they grow in FINAL.tmp.<key> and appear by one
 * rename. In a flat store native ones grow below FINAL/<uuid of the checkpoint>/, which nobody
 * reads before there is a manifest; that name, not a random one, is what lets a killed copy resume.
 */
#include <string.h>

#include "copy.h"
#include "keep/target.h"
#include "keep/tree.h"
#include "util/workers.h"
#include "source/format_ops.h"
#include "format/native/native.h"

enum { MAX_THREADS = 8 };

/* ---- names ----------------------------------------------------------------------------------- */

/* "to/" means below `to`, under the same name. */
static int name_final(struct ckpt_copy *c, struct fsdp_err *err)
{
    const char *out = c->args->out;
    size_t len = strlen(out);
    bool below = len && out[len - 1] == '/';

    while (len > 1 && out[len - 1] == '/')
        len--;
    c->final = below ? fsdp_sprintf(err, "%.*s/%s", (int)len, out, ckpt_path_base(c->ckpt->path))
                     : fsdp_strdup(out, err);
    if (!c->final)
        return FSDP_ENOMEM;
    const char *base = ckpt_path_base(c->final);
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s': name the copy, or end the name of a folder "
                            "that it shall be in with '/'",
                            out);
    c->folder = !strcmp(c->ckpt->path, c->ckpt->folder);
    FSDP_TRY(ckpt_target_resolve(&c->final, c->store, err));
    return ckpt_target_refuse_input(c->ckpt, c->final, c->store, err);
}

static int name_out(struct ckpt_copy *c, struct fsdp_err *err)
{
    c->key = FSDP_HASH_SEED;
    if (c->store->flat) {
        bool native = c->ckpt->format->has_manifest;
        c->out =
            native ? ckpt_path_join(c->final, c->ckpt->m.uuid, err) : fsdp_strdup(c->final, err);
        return c->out ? FSDP_OK : FSDP_ENOMEM;
    }
    FSDP_TRY(ckpt_temp_check_name(c->final, err));
    FSDP_TRY(ckpt_source_hash(&c->key, c->ckpt, err));
    c->temp = ckpt_temp_name(c->final, c->key ^ ckpt_lock_domain(c->final), err);
    c->out = c->temp ? ckpt_path_join(c->temp, c->folder ? "out" : "out.safetensors", err) : NULL;
    return c->out ? FSDP_OK : FSDP_ENOMEM;
}

/* Is the checkpoint in `final` this very one? */
static bool is_same(const struct ckpt_copy *c)
{
    struct ckpt_manifest m;
    char *path = ckpt_path_join(c->final, CKPT_MANIFEST_NAME, NULL), *data = NULL;
    size_t nbytes;

    memset(&m, 0, sizeof m);
    bool same =
        c->ckpt->format->has_manifest && path &&
        ckpt_store_get(&data, &nbytes, c->store, path, CKPT_MAX_MANIFEST_NBYTES, NULL) == FSDP_OK &&
        ckpt_manifest_parse(&m, data, nbytes, path, NULL) == FSDP_OK &&
        !strcmp(m.uuid, c->ckpt->m.uuid);
    ckpt_manifest_free(&m);
    fsdp_free(data);
    fsdp_free(path);
    return same;
}

static struct ckpt_temp temp_of(const struct ckpt_copy *c)
{
    return (struct ckpt_temp){.store = c->store,
                              .final = c->final,
                              .folder = c->temp,
                              .out = c->out,
                              .job = c->key,
                              .extras = &c->ckpt->m};
}

/* Refuses an existing target; *done: it is this checkpoint. */
static int refuse(bool *done, struct ckpt_copy *c, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    bool exists;

    *done = false;
    if (c->store->flat && c->ckpt->format->has_manifest) {
        FSDP_TRY(ckpt_is_published(&exists, c->store, c->final, err));
    } else if (c->store->flat) {
        exists = false; /* file by file: what is there and has another size is refused */
    } else {
        int rc = ckpt_store_stat(&st, c->store, c->final, &why);
        if (rc && rc != FSDP_ENOTFOUND)
            return fsdp_err_pass(err, rc, &why);
        exists = rc == FSDP_OK;
    }
    struct ckpt_temp temp = temp_of(c);
    *done = exists && is_same(c);
    if (exists && !*done && c->temp)
        FSDP_TRY(ckpt_temp_was_published(done, &temp, err));
    if (!exists || *done)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST,
                        "'%s' exists and is not overwritten: name another, or remove it", c->final);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static int list_files(struct ckpt_copy *c, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    c->files = fsdp_alloc((size_t)layout->nfiles, sizeof *c->files, "files", err);
    if (!c->files)
        return FSDP_ENOMEM;
    for (; c->nfiles < layout->nfiles; c->nfiles++) {
        struct ckpt_copy_file *f = &c->files[c->nfiles];
        f->nbytes = layout->files[c->nfiles].nbytes;
        if (!(f->to = ckpt_copy_to(c, layout->files[c->nfiles].path, err)))
            return FSDP_ENOMEM;
        pthread_mutex_init(&f->lock, NULL);
        atomic_init(&f->left, f->nbytes);
        c->total += f->nbytes;
    }
    return FSDP_OK;
}

static int make_parent(const struct ckpt_copy *c, const char *path, struct fsdp_err *err)
{
    char *parent = ckpt_path_parent(path, err);
    int rc = parent ? ckpt_temp_mkdir(c->store, parent, err) : FSDP_ENOMEM;
    fsdp_free(parent);
    return rc;
}

static int check_space(const struct ckpt_copy *c, struct fsdp_err *err)
{
    uint64_t space, have = 0;
    FSDP_TRY(ckpt_store_space(&space, c->store, c->temp, err));
    for (int i = 0; i < c->nfiles; i++) {
        struct ckpt_store_stat st;
        if (ckpt_store_stat(&st, c->store, c->files[i].to, NULL) == FSDP_OK)
            have += st.nbytes;
    }
    if (have >= c->total || space >= c->total - have)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOSPC,
                        "'%s' needs %llu bytes; the file system has room for %llu: free some, or "
                        "copy to another",
                        c->final, (unsigned long long)(c->total - have), (unsigned long long)space);
}

static int begin(struct ckpt_copy *c, struct fsdp_err *err)
{
    c->made = true;
    if (c->store->flat)
        return FSDP_OK;
    FSDP_TRY(ckpt_temp_mkdir(c->store, c->temp, err));
    for (int i = 0; i < c->nfiles; i++)
        FSDP_TRY(make_parent(c, c->files[i].to, err));
    for (int i = 0; c->folder && i < c->ckpt->m.nextras; i++) {
        char *to = ckpt_copy_to(c, c->ckpt->m.extras[i].path, err);
        int rc = to ? make_parent(c, to, err) : FSDP_ENOMEM;
        fsdp_free(to);
        FSDP_TRY(rc);
    }
    FSDP_TRY(check_space(c, err));
    struct ckpt_temp temp = temp_of(c);
    return ckpt_temp_journal(&c->journal, &temp, err);
}

/* ---- the steps in order ---------------------------------------------------------------------- */

static int check_args(struct ckpt_copy *c, struct fsdp_err *err)
{
    const struct ckpt_copy_args *args = c->args;
    if (args->version != CKPT_COPY_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_copy: arguments of version %u", args->version);
    if (!args->out || !args->out[0])
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_copy: no target is named");
    if (args->nthreads < 0 || args->nthreads > CKPT_MAX_WORKERS)
        return fsdp_err_set(err, FSDP_EINVAL, "%d threads: 1 to %d are accepted", args->nthreads,
                            CKPT_MAX_WORKERS);
    FSDP_TRY(ckpt_mem_check(args->mem_nbytes, CKPT_MIN_BLOCK_NBYTES, err));
    /* A store far away takes its time for each block: more of them at once than processors. */
    bool far = c->store->flat || c->ckpt->store->flat;
    int nthreads = args->nthreads ? args->nthreads
                   : far          ? MAX_THREADS
                                  : ckpt_workers_default(MAX_THREADS);
    c->block_nbytes = CKPT_JOB_BLOCK_NBYTES;
    while (c->block_nbytes > args->mem_nbytes)
        c->block_nbytes /= 2;
    while (nthreads > 1 && (uint64_t)nthreads * c->block_nbytes > args->mem_nbytes)
        nthreads--;
    c->nthreads = nthreads;
    return FSDP_OK;
}

static int run(bool *done, struct ckpt_copy *c, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_of(&c->store, c->args->out, err));
    FSDP_TRY(check_args(c, err));
    FSDP_TRY(name_final(c, err));
    FSDP_TRY(name_out(c, err));
    FSDP_TRY(refuse(done, c, err));
    if (*done) {
        struct ckpt_temp temp = temp_of(c);
        if (c->temp)
            ckpt_temp_remove_left(&temp, c->temp);
        return FSDP_OK;
    }
    FSDP_TRY(list_files(c, err));
    if (c->args->dry_run)
        return FSDP_OK;
    FSDP_TRY(begin(c, err));
    FSDP_TRY(ckpt_copy_move(c, err));
    if (c->args->verify)
        FSDP_TRY(ckpt_copy_verify(c, err));
    FSDP_TRY(ckpt_unchanged(c->ckpt, err));
    return ckpt_copy_publish(c, err);
}

/* What a stopped copy leaves: all of it, so that the same command can resume, or nothing. */
static void leave(struct ckpt_copy *c, int rc)
{
    bool goes_on = (c->store->flat || c->began) &&
                   (rc == FSDP_ECANCELED || rc == FSDP_EIO || rc == FSDP_ENOSPC);
    bool native = c->ckpt->format->has_manifest;
    const char *place = c->temp ? c->temp : c->out;
    struct ckpt_temp temp = temp_of(c);

    if (rc && (goes_on || (c->store->flat && !native && rc != FSDP_EEXIST)))
        fsdp_log(FSDP_LOG_INFO,
                 "what was copied is kept in '%s'; the same command resumes from there", place);
    else if (rc && c->store->flat && rc != FSDP_EEXIST)
        ckpt_store_drop_tree(c->store, place);
    else if (c->temp && rc && ckpt_temp_is_plain(&temp))
        ckpt_temp_drop(&temp, c->temp);
    else if (c->temp && !rc)
        ckpt_temp_remove(&temp);
}

int ckpt_copy(struct ckpt_copy_result *out, struct ckpt *ckpt, const struct ckpt_copy_args *args,
              struct fsdp_err *err)
{
    struct ckpt_copy c = {.ckpt = ckpt, .args = args};
    double begun = fsdp_time_now();
    bool done = false;

    pthread_mutex_init(&c.lock, NULL);
    int rc = run(&done, &c, err);
    if (rc == FSDP_OK && out) {
        *out = (struct ckpt_copy_result){.nbytes = c.total,
                                         .nbytes_resumed = c.resumed,
                                         .nbytes_within = c.within,
                                         .nfiles = c.nfiles,
                                         .nthreads = c.nthreads,
                                         .was_there = done,
                                         .seconds = fsdp_time_now() - begun};
        snprintf(out->path, sizeof out->path, "%s", c.final);
    }
    c.began = c.journal.file != NULL;
    ckpt_journal_close(&c.journal);
    if (c.made)
        leave(&c, rc);
    for (int i = 0; i < c.nfiles; i++) {
        pthread_mutex_destroy(&c.files[i].lock);
        fsdp_free(c.files[i].to);
    }
    pthread_mutex_destroy(&c.lock);
    fsdp_free(c.files);
    fsdp_free(c.final);
    fsdp_free(c.temp);
    fsdp_free(c.out);
    return rc;
}
