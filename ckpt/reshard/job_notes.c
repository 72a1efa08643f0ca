/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal of a job that writes several files to an object store, where nothing can be added to
 * a file: objects below job->notes.folder. `job` is put before the first file, says whose the work
 * is, and goes with the folder when the output is published. A file that is done gets `done-N`: its
 * size and checksum, what it added to the fingerprints, and the store's tag for what lies there.
 * Another run believes it while the store still has that tag, and then neither reads nor sends
 * anything of the file.
 *
 *   shared   in the case of one object: another run found `job`, and continues the upload
 *   done-N   struct head | struct ckpt_job_share shares[nshares] | u32 CRC-32C of all before
 *
 * in the machine's byte order: another kind of machine finds no sound notes and writes the file
 * again.
 */
#include <inttypes.h>
#include <string.h>

#include "job.h"

enum { MAX_NOTE_NBYTES = 1 << 28, MAX_HEAD_NBYTES = 256 };

struct head {
    char magic[8];
    uint64_t key, tag, nbytes;
    uint32_t file, crc32c;
    uint64_t nshares;
};
static const char magic[8] = "ckptnot1";

/* ---- whose it is ----------------------------------------------------------------------------- */

int ckpt_job_notes_find(struct ckpt_job *job, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = ckpt_path_join(job->notes.folder, "job", err), *text = NULL;
    uint64_t key = 0;
    if (!path)
        return FSDP_ENOMEM;
    int rc = ckpt_store_get(&text, NULL, job->store, path, MAX_HEAD_NBYTES, &why);
    fsdp_free(path);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    if (sscanf(text, "fsdp-job %16" SCNx64 " %36s", &key, job->notes.attempt) != 2 ||
        strlen(job->notes.attempt) != 36)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s/job' is damaged: remove that folder",
                          job->notes.folder);
    else if (key != job->key)
        rc = fsdp_err_set(err, FSDP_EEXIST,
                          "'%s' was begun by another command, or with other options, and is not "
                          "finished: give that command again, or remove '%s' and '%s'",
                          job->commit.final, job->commit.final, job->notes.folder);
    job->notes.found = rc == FSDP_OK;
    fsdp_free(text);
    return rc;
}

int ckpt_job_notes_begin(const struct ckpt_job *job, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char text[MAX_HEAD_NBYTES];
    snprintf(text, sizeof text, "fsdp-job %016" PRIx64 " %s\n", job->key, job->notes.attempt);
    char *path = ckpt_path_join(job->notes.folder, "job", err);
    int rc = path ? ckpt_store_put(job->store, path, text, strlen(text), true, &why) : FSDP_ENOMEM;
    if (path && rc == FSDP_EEXIST)
        fsdp_err_set(err, rc, "'%s' is being written by another process", job->commit.final);
    else if (path && rc)
        fsdp_err_pass(err, rc, &why);
    fsdp_free(path);
    return rc;
}

int ckpt_job_notes_share(const struct ckpt_job *job, struct fsdp_err *err)
{
    static const char text[] = "another run continues\n";
    char *path = ckpt_path_join(job->notes.folder, "shared", err);
    int rc = path ? ckpt_store_replace(job->store, path, text, sizeof text - 1, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

bool ckpt_job_notes_are_shared(const struct ckpt_job *job)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = ckpt_path_join(job->notes.folder, "shared", NULL);
    const int rc = path ? ckpt_store_stat(&st, job->store, path, &why) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc != FSDP_ENOTFOUND;
}

/* ---- files that are done --------------------------------------------------------------------- */

int ckpt_job_shares_add(struct ckpt_job_shares *shares, const struct ckpt_job_share *share,
                        struct fsdp_err *err)
{
    enum { BACK = 16 }; /* threads are so far apart */
    size_t first = shares->nshares > BACK ? shares->nshares - BACK : 0;
    for (size_t i = shares->nshares; i > first; i--) {
        struct ckpt_job_share *same = &shares->shares[i - 1];
        if (same->tensor != share->tensor || same->stored != share->stored)
            continue;
        same->nelem += share->nelem;
        same->read ^= share->read;
        same->written ^= share->written;
        return FSDP_OK;
    }
    struct ckpt_job_share *grown = fsdp_alloc_grow(shares->shares, shares->nshares, &shares->max,
                                                   sizeof *grown, "notes of a file", err);
    if (!grown)
        return FSDP_ENOMEM;
    shares->shares = grown;
    shares->shares[shares->nshares++] = *share;
    return FSDP_OK;
}

void ckpt_job_shares_free(struct ckpt_job_shares *shares)
{
    fsdp_free(shares->shares);
    memset(shares, 0, sizeof *shares);
}

static char *note_path(const struct ckpt_job *job, int file, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s/done-%05d", job->notes.folder, file);
}

/* What lies in the store under a file's name; tag 0: nothing that could be known again. */
static int look_at_file(struct ckpt_store_stat *st, const struct ckpt_job *job, int file,
                        struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const char *name = job->files[file].name; /* "" where the output is one file */
    char *path =
        *name ? ckpt_path_join(job->commit.out, name, err) : fsdp_strdup(job->commit.out, err);
    int rc = path ? ckpt_store_stat(st, job->store, path, &why) : FSDP_ENOMEM;
    if (path && rc == FSDP_ENOTFOUND) {
        *st = (struct ckpt_store_stat){.tag = 0};
        rc = FSDP_OK;
    } else if (path && rc) {
        fsdp_err_pass(err, rc, &why);
    }
    fsdp_free(path);
    return rc;
}

int ckpt_job_note_add(const struct ckpt_job *job, int file, const struct ckpt_job_shares *shares,
                      struct fsdp_err *err)
{
    struct head head = {.key = job->key,
                        .nbytes = job->files[file].stored_nbytes,
                        .file = (uint32_t)file,
                        .crc32c = job->files[file].crc32c,
                        .nshares = shares->nshares};
    size_t body = shares->nshares * sizeof *shares->shares, nbytes = sizeof head + body;
    struct ckpt_store_stat st;
    uint32_t crc;
    FSDP_TRY(look_at_file(&st, job, file, err));
    if (!st.tag || st.nbytes != head.nbytes) /* it could not be known again */
        return FSDP_OK;
    char *text = fsdp_alloc(nbytes + sizeof crc, 1, "notes of a file", err);
    char *path = text ? note_path(job, file, err) : NULL;
    int rc = FSDP_ENOMEM;
    if (path) {
        head.tag = st.tag;
        memcpy(head.magic, magic, sizeof magic);
        memcpy(text, &head, sizeof head);
        if (body)
            memcpy(text + sizeof head, shares->shares, body);
        crc = ckpt_crc32c(0, text, nbytes);
        memcpy(text + nbytes, &crc, sizeof crc);
        rc = ckpt_store_replace(job->store, path, text, nbytes + sizeof crc, err);
    }
    fsdp_free(path);
    fsdp_free(text);
    return rc;
}

/* Is this a sound note of the job's file? */
static bool is_sound(struct head *head, const struct ckpt_job *job, int file, const char *text,
                     size_t nbytes)
{
    struct ckpt_job_share share;
    uint32_t crc;
    if (nbytes < sizeof *head + sizeof crc)
        return false;
    memcpy(head, text, sizeof *head);
    memcpy(&crc, text + nbytes - sizeof crc, sizeof crc);
    size_t body = nbytes - sizeof *head - sizeof crc;
    if (memcmp(head->magic, magic, sizeof magic) || head->key != job->key ||
        head->file != (uint32_t)file || body % sizeof share ||
        head->nshares != body / sizeof share || crc != ckpt_crc32c(0, text, nbytes - sizeof crc))
        return false;
    for (size_t i = 0; i < head->nshares; i++) {
        memcpy(&share, text + sizeof *head + i * sizeof share, sizeof share);
        const bool of_file = share.tensor == CKPT_SHARE_PASSED || share.tensor == CKPT_SHARE_COPIED;
        const int count = of_file ? job->ckpt->m.layout.nfiles : job->ckpt->m.layout.ntensors;
        if ((share.tensor < 0 && !of_file) || share.tensor >= job->ntensors || share.stored < 0 ||
            share.stored >= count)
            return false;
        if (of_file && !job->copies.sources) /* it could not be proved */
            return false;
    }
    return true;
}

int ckpt_job_note_recall(bool *there, struct ckpt_job_shares *out, struct ckpt_job *job, int file,
                         struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct ckpt_store_stat st;
    struct head head;
    char *path = note_path(job, file, err), *text = NULL;
    size_t nbytes;
    int rc = path ? ckpt_store_get(&text, &nbytes, job->store, path, MAX_NOTE_NBYTES, &why)
                  : FSDP_ENOMEM;
    *there = false;
    if (rc && path)
        rc = rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    if (text && is_sound(&head, job, file, text, nbytes)) {
        rc = look_at_file(&st, job, file, err);
        *there = rc == FSDP_OK && st.tag == head.tag && st.nbytes == head.nbytes;
    }
    for (size_t i = 0; rc == FSDP_OK && *there && i < head.nshares; i++) {
        struct ckpt_job_share share;
        memcpy(&share, text + sizeof head + i * sizeof share, sizeof share);
        rc = ckpt_job_shares_add(out, &share, err);
    }
    if (*there) {
        job->files[file].stored_nbytes = head.nbytes;
        job->files[file].crc32c = head.crc32c;
    }
    fsdp_free(text);
    fsdp_free(path);
    return rc;
}

/* One object has one upload, which the same command, elsewhere, may be writing: a failure here is
 * none of it. */
bool ckpt_job_keeps(const struct ckpt_job *job, int rc)
{
    const bool lasts = job->refused || rc == FSDP_ECANCELED || rc == FSDP_EIO || rc == FSDP_ENOSPC;
    if (!job->journal.file && !job->notes.folder)
        return false;
    return lasts || (job->notes.folder && !job->folder && rc != FSDP_EEXIST &&
                     (job->notes.found || ckpt_job_notes_are_shared(job)));
}
