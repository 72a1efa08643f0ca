/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies go byte for byte, in blocks from several threads, and each file's checksum is compared
 * when its last block has passed. How the copy gets its name is its commit's (keep/commit.h); its
 * attempt is the checkpoint's own uuid, not a random one, which lets a killed copy resume.
 */
#include <string.h>

#include "copy.h"
#include "keep/target.h"
#include "keep/tree.h"
#include "util/workers.h"
#include "source/format_ops.h"

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
    c->commit.final =
        below ? fsdp_sprintf(err, "%.*s/%s", (int)len, out, ckpt_path_base(c->ckpt->path))
              : fsdp_strdup(out, err);
    if (!c->commit.final)
        return FSDP_ENOMEM;
    const char *base = ckpt_path_base(c->commit.final);
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s': name the copy, or end the name of a folder "
                            "that it shall be in with '/'",
                            out);
    c->folder = !strcmp(c->ckpt->path, c->ckpt->folder);
    FSDP_TRY(ckpt_target_resolve(&c->commit.final, c->store, err));
    return ckpt_target_refuse_input(c->ckpt, c->commit.final, c->store, err);
}

/* The same copy has the same name while it grows, so that a killed one resumes. */
static int name_out(struct ckpt_copy *c, struct fsdp_err *err)
{
    struct ckpt_commit *commit = &c->commit;
    commit->store = c->store;
    commit->attempt = c->ckpt->m.uuid;
    commit->folder = c->folder;
    commit->has_manifest = c->ckpt->format->has_manifest;
    commit->sync = true;
    commit->key = FSDP_HASH_SEED;
    if (ckpt_store_can_append(c->store)) /* to a journal, which is of this source */
        FSDP_TRY(ckpt_source_hash(&commit->key, c->ckpt, err));
    return ckpt_commit_begin(commit, err);
}

/* Is the checkpoint in `final` this very one? */
static bool is_same(const struct ckpt_copy *c)
{
    struct ckpt_manifest m;
    char *path = ckpt_path_join(c->commit.final, CKPT_MANIFEST_NAME, NULL), *data = NULL;
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
                              .final = c->commit.final,
                              .folder = c->commit.temp,
                              .out = c->commit.out,
                              .job = c->commit.key,
                              .extras = &c->ckpt->m};
}

/* Refuses an existing target; *done: it is this checkpoint. */
static int refuse_target(bool *done, struct ckpt_copy *c, struct fsdp_err *err)
{
    bool exists = false;

    *done = false;
    FSDP_TRY(ckpt_target_refuse_special(c->store, c->commit.final, err));
    /* What shows file by file is judged so: what is there and has another size is refused. */
    if (ckpt_commit_is_hidden(&c->commit))
        FSDP_TRY(ckpt_commit_is_taken(&exists, &c->commit, err));
    struct ckpt_temp temp = temp_of(c);
    *done = exists && is_same(c);
    if (exists && !*done && c->commit.temp)
        FSDP_TRY(ckpt_temp_was_published(done, &temp, err));
    if (!exists || *done)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST, "'%s' already exists: name another, or remove it",
                        c->commit.final);
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
    FSDP_TRY(ckpt_store_space(&space, c->store, c->commit.temp, err));
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
                        c->commit.final, (unsigned long long)(c->total - have),
                        (unsigned long long)space);
}

static int begin_copy(struct ckpt_copy *c, struct fsdp_err *err)
{
    c->made = true;
    if (!c->commit.temp)
        return FSDP_OK;
    FSDP_TRY(ckpt_temp_mkdir(c->store, c->commit.temp, err));
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
    bool far = ckpt_store_is_far(c->store) || ckpt_is_far(c->ckpt);
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

static int run_copy(bool *done, struct ckpt_copy *c, struct fsdp_err *err)
{
    ckpt_warn_lacks(c->ckpt);
    ckpt_warn_unread(c->ckpt);
    FSDP_TRY(ckpt_store_of(&c->store, c->args->out, err));
    FSDP_TRY(check_args(c, err));
    FSDP_TRY(name_final(c, err));
    FSDP_TRY(name_out(c, err));
    FSDP_TRY(refuse_target(done, c, err));
    if (*done) {
        struct ckpt_temp temp = temp_of(c);
        if (c->commit.temp)
            ckpt_temp_remove_left(&temp, c->commit.temp);
        return FSDP_OK;
    }
    FSDP_TRY(list_files(c, err));
    if (c->args->dry_run)
        return FSDP_OK;
    FSDP_TRY(begin_copy(c, err));
    FSDP_TRY(ckpt_copy_move(c, err));
    if (c->args->verify)
        FSDP_TRY(ckpt_copy_verify(c, err));
    FSDP_TRY(ckpt_unchanged(c->ckpt, err));
    return ckpt_copy_publish(c, err);
}

/* What a stopped copy leaves: all of it, so that the same command can resume, or nothing. Without a
 * temporary folder whole files are enough to resume from, and those that show are not taken back.
 */
static void leave_stopped(struct ckpt_copy *c, int rc)
{
    const char *temp_folder = c->commit.temp, *place = temp_folder ? temp_folder : c->commit.out;
    bool goes_on =
        (!temp_folder || c->began) && (rc == FSDP_ECANCELED || rc == FSDP_EIO || rc == FSDP_ENOSPC);
    bool shows = !ckpt_commit_is_hidden(&c->commit);
    struct ckpt_temp temp = temp_of(c);

    if (rc && (goes_on || (shows && rc != FSDP_EEXIST)))
        fsdp_log(FSDP_LOG_INFO,
                 "what was copied is kept in '%s'; the same command resumes from there", place);
    else if (rc && !temp_folder && rc != FSDP_EEXIST)
        ckpt_store_drop_tree(c->store, place);
    else if (temp_folder && rc && ckpt_temp_is_plain(&temp))
        ckpt_temp_drop(&temp, temp_folder);
    else if (temp_folder && !rc)
        ckpt_temp_remove(&temp);
}

int ckpt_copy(struct ckpt_copy_result *out, struct ckpt *ckpt, const struct ckpt_copy_args *args,
              struct fsdp_err *err)
{
    struct ckpt_copy c = {.ckpt = ckpt, .args = args};
    double begun = fsdp_time_now();
    bool done = false;

    pthread_mutex_init(&c.lock, NULL);
    int rc = run_copy(&done, &c, err);
    if (rc == FSDP_OK && out) {
        *out = (struct ckpt_copy_result){.nbytes = c.total,
                                         .nbytes_resumed = c.resumed,
                                         .nbytes_within = c.within,
                                         .nfiles = c.nfiles,
                                         .nthreads = c.nthreads,
                                         .was_there = done,
                                         .seconds = fsdp_time_now() - begun};
        snprintf(out->path, sizeof out->path, "%s", c.commit.final);
    }
    c.began = c.journal.file != NULL;
    ckpt_journal_close(&c.journal);
    if (c.made)
        leave_stopped(&c, rc);
    for (int i = 0; i < c.nfiles; i++) {
        pthread_mutex_destroy(&c.files[i].lock);
        fsdp_free(c.files[i].to);
    }
    pthread_mutex_destroy(&c.lock);
    fsdp_free(c.files);
    ckpt_commit_end(&c.commit);
    return rc;
}
