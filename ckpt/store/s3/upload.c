/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>

#include "put.h"
#include "s3_copy.h"
#include "unfinished.h"
#include "upload.h"
#include "upload_memory.h"
#include "store/store.h"

enum { GROW_EVERY = 500 };

struct part {
    struct part *next;
    struct ckpt_s3_upload *upload;
    uint32_t number; /* from 0 */
    char *data;
    uint64_t begin, nbytes; /* of the object; when it is full */
    size_t filled, room;
    bool probes;  /* its answer tells what the store's ETags are */
    int nfillers; /* threads that copy into data, without the lock */
    struct ckpt_s3_call call;
    char number_text[16];
};

struct ckpt_s3_upload {
    struct ckpt_s3_bucket *bucket;
    char *key;
    bool replace, finished;
    char id[37];     /* ours, in the object's metadata: known again after a lost answer */
    char *upload_id; /* the store's; NULL: nothing was sent */
    bool starting;
    bool stays; /* what was sent is kept for another run when this one gives up */
    bool other; /* another run began it, and may be writing it now */
    bool gone;  /* the store does not know it any more */
    bool there; /* then: the object is, which another run has finished */
    struct ckpt_s3_unfinished found; /* an earlier run's; its upload_id is NULL where it is taken */
    enum { TAGS_UNTRIED, TAGS_PROBED, TAGS_MD5, TAGS_OTHER } tags;
    uint32_t nfound; /* parts that were proved */
    uint64_t first_nbytes, end;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct part *open; /* that are being filled */
    int nflying;
    struct ckpt_s3_sent *sent; /* [max_sent] */
    uint32_t nsent, max_sent;
    atomic_bool failed;
    int rc;
    struct fsdp_err err;
};

uint32_t ckpt_s3_part_of(uint64_t *begin, uint64_t *nbytes, uint64_t first_nbytes, uint64_t offset)
{
    uint64_t at = 0, size = first_nbytes;
    uint32_t number = 0;
    while (offset - at >= size * GROW_EVERY) {
        at += size * GROW_EVERY;
        size += first_nbytes;
        number += GROW_EVERY;
    }
    uint64_t index = (offset - at) / size;
    *begin = at + index * size;
    *nbytes = size;
    return number + (uint32_t)index;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void fail_upload(struct ckpt_s3_upload *u, int rc, const struct fsdp_err *err)
{
    if (!u->rc) {
        u->rc = rc;
        u->err = *err;
        atomic_store(&u->failed, true);
    }
}

static void part_free(struct part *part, int nflying)
{
    ckpt_s3_buffer_give(part->data, part->room, part->room == part->nbytes);
    ckpt_s3_memory_give(part->nbytes, nflying);
    fsdp_free(part);
}

/* The lock is held, and let go while others fill the part. Space for `more` bytes in it: a small
 * object needs no large part. */
static int part_grow(struct part *part, size_t more, struct fsdp_err *err)
{
    while (more > part->room && part->nfillers)
        pthread_cond_wait(&part->upload->cond, &part->upload->lock);
    if (more <= part->room)
        return FSDP_OK;
    size_t room = more <= CKPT_S3_SMALL_NBYTES / 4 ? CKPT_S3_SMALL_NBYTES / 4
                  : more <= CKPT_S3_SMALL_NBYTES   ? CKPT_S3_SMALL_NBYTES
                                                   : (size_t)part->nbytes;
    room = room > part->nbytes ? (size_t)part->nbytes : room;
    char *data = ckpt_s3_buffer_take(room, err);
    if (!data)
        return FSDP_ENOMEM;
    if (part->room)
        memcpy(data, part->data, part->room);
    fsdp_free(part->data);
    part->data = data;
    part->room = room;
    return FSDP_OK;
}

static struct part *part_find(struct ckpt_s3_upload *u, uint32_t number)
{
    struct part *part = u->open;
    while (part && part->number != number)
        part = part->next;
    return part;
}

/* The lock is held, and let go while memory is waited for. */
static int part_open(struct part **out, struct ckpt_s3_upload *u, uint64_t offset,
                     struct fsdp_err *err)
{
    uint64_t begin, nbytes;
    uint32_t number = ckpt_s3_part_of(&begin, &nbytes, u->first_nbytes, offset);
    if (number >= CKPT_S3_MAX_PARTS)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'s3://%s/%s' is too large for one object: write several smaller files",
                            u->bucket->name, u->key);
    if ((*out = part_find(u, number)))
        return FSDP_OK;
    pthread_mutex_unlock(&u->lock);
    ckpt_s3_memory_take(nbytes);
    pthread_mutex_lock(&u->lock);
    if ((*out = part_find(u, number))) { /* another thread was as fast */
        ckpt_s3_memory_give(nbytes, 0);
        return FSDP_OK;
    }
    struct part *part = fsdp_alloc(1, sizeof *part, "part of an upload", err);
    if (!part) {
        ckpt_s3_memory_give(nbytes, 0);
        return FSDP_ENOMEM;
    }
    part->upload = u;
    part->number = number;
    part->begin = begin;
    part->nbytes = nbytes;
    part->next = u->open;
    u->open = part;
    *out = part;
    return FSDP_OK;
}

static void part_unlink(struct part *part)
{
    struct part **at = &part->upload->open;
    while (*at != part)
        at = &(*at)->next;
    *at = part->next;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The lock is held. The store's name for the upload: one thread asks for it, others wait. */
static int start_upload(struct ckpt_s3_upload *u, struct fsdp_err *err)
{
    while (u->starting)
        pthread_cond_wait(&u->cond, &u->lock);
    if (u->rc)
        return fsdp_err_pass(err, u->rc, &u->err);
    if (u->upload_id)
        return FSDP_OK;
    u->starting = true;
    pthread_mutex_unlock(&u->lock);
    int rc = ckpt_s3_multipart_begin(&u->upload_id, u->bucket, u->key, u->id, err);
    pthread_mutex_lock(&u->lock);
    u->starting = false;
    if (rc)
        fail_upload(u, rc, err ? err : &(struct fsdp_err)FSDP_ERR_INIT);
    pthread_cond_broadcast(&u->cond);
    return rc;
}

static int sent_reserve(struct ckpt_s3_upload *u, uint32_t number, struct fsdp_err *err)
{
    if (number < u->max_sent)
        return FSDP_OK;
    uint32_t max = number * 2 + 16;
    struct ckpt_s3_sent *grown = fsdp_alloc(max, sizeof *grown, "parts of an upload", err);
    if (!grown)
        return FSDP_ENOMEM;
    if (u->max_sent)
        memcpy(grown, u->sent, u->max_sent * sizeof *grown);
    fsdp_free(u->sent);
    u->sent = grown;
    u->max_sent = max;
    return FSDP_OK;
}

/* The lock is held. */
static void probe_end(struct part *part, bool is_md5)
{
    if (!part->probes)
        return;
    part->upload->tags = is_md5 ? TAGS_MD5 : TAGS_OTHER;
    pthread_cond_broadcast(&part->upload->cond);
}

/* The lock is held, and let go meanwhile. Has the store these bytes of an earlier run? Where it
 * tells no checksum, the first part that it may have is sent again, to see whether its ETag is an
 * MD5. */
static bool part_is_there(struct part *part)
{
    struct ckpt_s3_upload *u = part->upload;
    if (part->number >= u->found.nparts || u->found.parts[part->number].nbytes != part->filled)
        return false;
    const struct ckpt_s3_sent *there = &u->found.parts[part->number];
    while (!*there->checksum && u->tags == TAGS_PROBED)
        pthread_cond_wait(&u->cond, &u->lock);
    if (!*there->checksum && u->tags != TAGS_MD5) {
        part->probes = u->tags == TAGS_UNTRIED;
        u->tags = part->probes ? TAGS_PROBED : u->tags;
        return false;
    }
    pthread_mutex_unlock(&u->lock);
    const bool same = *there->checksum
                          ? ckpt_s3_is_crc32c(there->checksum, part->data, part->filled)
                          : ckpt_s3_is_md5(there->etag, part->data, part->filled);
    pthread_mutex_lock(&u->lock);
    return same;
}

static void part_done(struct ckpt_s3_call *call)
{
    struct part *part = call->ctx;
    struct ckpt_s3_upload *u = part->upload;
    pthread_mutex_lock(&u->lock);
    if (call->job.rc && u->stays && ckpt_s3_is_gone(call)) {
        u->gone = true; /* others ask what became of it: this thread may not wait */
    } else if (call->job.rc) {
        fail_upload(u, call->job.rc, &call->job.err);
    } else {
        struct ckpt_s3_sent *sent = &u->sent[part->number];
        snprintf(sent->etag, sizeof sent->etag, "%s", call->etag);
        snprintf(sent->checksum, sizeof sent->checksum, "%s", call->checksum);
        sent->nbytes = part->filled;
    }
    probe_end(part, part->probes && !call->job.rc &&
                        ckpt_s3_is_md5(call->etag, part->data, part->filled));
    ckpt_text_free(&call->text);
    part_free(part, -1);
    u->nflying--;
    pthread_cond_broadcast(&u->cond); /* with the lock held: u may be freed behind it */
    pthread_mutex_unlock(&u->lock);
}

/* The lock is held, and let go meanwhile. An upload that vanished was finished by another run of
 * the job, or has to be begun anew by whoever has its bytes. */
static int ask_where(struct ckpt_s3_upload *u, struct fsdp_err *err)
{
    if (!u->gone || u->there)
        return FSDP_OK;
    pthread_mutex_unlock(&u->lock);
    const bool there = ckpt_s3_multipart_is_complete(u->bucket, u->key, u->id);
    pthread_mutex_lock(&u->lock);
    u->there |= there;
    if (u->there)
        return FSDP_OK;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = fsdp_err_set(&why, FSDP_ENOTFOUND,
                          "'s3://%s/%s': another process ended its upload, and no object of this "
                          "job is there",
                          u->bucket->name, u->key);
    fail_upload(u, rc, &why);
    return fsdp_err_pass(err, rc, &why);
}

/* The lock is held, and let go meanwhile. The part is gone in any case. */
static int part_send(struct part *part, struct fsdp_err *err)
{
    struct ckpt_s3_upload *u = part->upload;
    part_unlink(part);
    int rc = ask_where(u, err);
    if (rc || u->there) {
        part_free(part, 0);
        return rc;
    }
    rc = start_upload(u, err);
    if (rc == FSDP_OK)
        rc = sent_reserve(u, part->number, err);
    if (rc) {
        part_free(part, 0);
        return rc;
    }
    u->nsent = part->number >= u->nsent ? part->number + 1 : u->nsent;
    if (part_is_there(part)) {
        u->sent[part->number] = u->found.parts[part->number];
        u->nfound++;
        part_free(part, 0);
        return FSDP_OK;
    }
    u->nflying++;
    pthread_mutex_unlock(&u->lock);
    ckpt_s3_memory_give(0, 1);
    snprintf(part->number_text, sizeof part->number_text, "%u", part->number + 1);
    ckpt_s3_call_init(&part->call, u->bucket, "write", "PUT", u->key);
    ckpt_s3_call_query(&part->call, "partNumber", part->number_text);
    ckpt_s3_call_query(&part->call, "uploadId", u->upload_id);
    part->call.body = part->data;
    part->call.body_nbytes = part->filled;
    part->call.done = part_done;
    part->call.ctx = part;
    part->call.job.large = true;
    part->call.job.given_up = &u->failed;
    rc = ckpt_s3_call_begin(&part->call, err);
    pthread_mutex_lock(&u->lock);
    if (rc) {
        u->nflying--;
        probe_end(part, false);
        part_free(part, -1);
    }
    return rc;
}

/* ---- the interface --------------------------------------------------------------------------- */

int ckpt_s3_upload_create(struct ckpt_s3_upload **out, struct ckpt_s3_bucket *bucket,
                          const char *key, bool replace, struct fsdp_err *err)
{
    struct ckpt_s3_upload *u = fsdp_alloc(1, sizeof *u, "upload", err);
    if (!u || !(u->key = fsdp_strdup(key, err)) || ckpt_uuid_make(u->id, err)) {
        if (u)
            fsdp_free(u->key);
        fsdp_free(u);
        return FSDP_ENOMEM;
    }
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->cond, NULL);
    u->bucket = bucket;
    u->replace = replace;
    u->first_nbytes = ckpt_s3_first_part_nbytes();
    ckpt_s3_uploads_add(1);
    *out = u;
    return FSDP_OK;
}

void ckpt_s3_upload_keep(struct ckpt_s3_upload *u, const char *id, bool search)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    u->stays = true;
    snprintf(u->id, sizeof u->id, "%s", id);
    if (!search)
        return;
    if (ckpt_s3_unfinished_find(&u->found, u->bucket, u->key, &why)) {
        fsdp_log(FSDP_LOG_INFO, "%s; all is sent again", why.text);
        ckpt_s3_unfinished_free(&u->found);
    }
    u->upload_id = u->found.upload_id;
    u->found.upload_id = NULL;
    u->other = u->upload_id != NULL;
}

void ckpt_s3_upload_drop(struct ckpt_s3_upload *u)
{
    u->stays = false;
}

/* The lock is held, and let go meanwhile. */
static int put_locked(struct ckpt_s3_upload *u, const char *data, size_t nbytes, uint64_t offset,
                      struct fsdp_err *err)
{
    while (nbytes) {
        struct part *part = NULL;
        if (u->rc)
            return fsdp_err_pass(err, u->rc, &u->err);
        FSDP_TRY(part_open(&part, u, offset, err));
        size_t at = (size_t)(offset - part->begin), left = (size_t)part->nbytes - at;
        size_t some = nbytes < left ? nbytes : left;
        FSDP_TRY(part_grow(part, at + some, err));
        part->nfillers++;
        pthread_mutex_unlock(&u->lock);
        memcpy(part->data + at, data, some);
        pthread_mutex_lock(&u->lock);
        if (!--part->nfillers)
            pthread_cond_broadcast(&u->cond);
        part->filled += some;
        data += some;
        offset += some;
        nbytes -= some;
        u->end = offset > u->end ? offset : u->end;
        if (part->filled == part->nbytes)
            FSDP_TRY(part_send(part, err));
    }
    return FSDP_OK;
}

int ckpt_s3_upload_put(struct ckpt_s3_upload *u, const void *data, size_t nbytes, uint64_t offset,
                       struct fsdp_err *err)
{
    pthread_mutex_lock(&u->lock);
    int rc = put_locked(u, data, nbytes, offset, err);
    pthread_mutex_unlock(&u->lock);
    return rc;
}

int ckpt_s3_upload_append(struct ckpt_s3_upload *u, const void *data, size_t nbytes,
                          struct fsdp_err *err)
{
    pthread_mutex_lock(&u->lock);
    int rc = put_locked(u, data, nbytes, u->end, err);
    pthread_mutex_unlock(&u->lock);
    return rc;
}

void ckpt_s3_upload_part_at(uint64_t *begin, uint64_t *nbytes, const struct ckpt_s3_upload *u,
                            uint64_t offset)
{
    ckpt_s3_part_of(begin, nbytes, u->first_nbytes, offset);
}

/* The lock is held, and let go meanwhile. *sent: of the part that the store has now. */
static int copy_locked(struct ckpt_s3_sent *sent, struct ckpt_s3_upload *u, uint32_t number,
                       const struct ckpt_s3_copy_args *args, uint64_t begin, struct fsdp_err *err)
{
    uint32_t crc32c;
    if (u->rc)
        return fsdp_err_pass(err, u->rc, &u->err);
    FSDP_TRY(ask_where(u, err));
    if (u->there)
        return FSDP_EUNSUPPORTED;
    FSDP_TRY(start_upload(u, err));
    FSDP_TRY(sent_reserve(u, number, err));
    if (number < u->found.nparts && u->found.parts[number].nbytes == args->nbytes &&
        ckpt_s3_crc32c_decode(&crc32c, u->found.parts[number].checksum)) {
        *sent = u->found.parts[number]; /* the checksum is proved with that of all of the source */
        u->nfound++;
        return FSDP_OK;
    }
    pthread_mutex_unlock(&u->lock);
    const int rc = ckpt_s3_copy_range(sent, args, u->upload_id, number, begin, &u->failed, err);
    pthread_mutex_lock(&u->lock);
    u->gone |= rc == FSDP_ENOTFOUND && u->stays;
    return rc == FSDP_ENOTFOUND ? FSDP_EUNSUPPORTED : rc; /* who sends the bytes asks where it is */
}

int ckpt_s3_upload_copy(uint32_t *crc32c, struct ckpt_s3_upload *u, uint64_t offset,
                        const struct ckpt_s3_copy_args *from, uint64_t begin, struct fsdp_err *err)
{
    struct ckpt_s3_copy_args args = *from;
    struct ckpt_s3_sent sent = {.nbytes = 0};
    uint64_t at, nbytes;
    const uint32_t number = ckpt_s3_part_of(&at, &nbytes, u->first_nbytes, offset);
    if (at != offset || nbytes != args.nbytes || number >= CKPT_S3_MAX_PARTS ||
        !ckpt_s3_copy_is_near(args.from, u->bucket))
        return FSDP_EUNSUPPORTED;
    args.to = u->bucket;
    args.to_key = u->key;
    pthread_mutex_lock(&u->lock);
    int rc = copy_locked(&sent, u, number, &args, begin, err);
    if (rc == FSDP_OK && !ckpt_s3_crc32c_decode(crc32c, sent.checksum))
        rc = FSDP_EUNSUPPORTED; /* the bytes replace what is there of the part */
    if (rc == FSDP_OK) {
        u->sent[number] = sent;
        u->nsent = number >= u->nsent ? number + 1 : u->nsent;
        u->end = offset + nbytes > u->end ? offset + nbytes : u->end;
    }
    pthread_mutex_unlock(&u->lock);
    return rc;
}

static int complete(struct ckpt_s3_upload *u, struct fsdp_err *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < u->nsent; i++)
        total += u->sent[i].nbytes;
    if (total != u->end)
        return fsdp_err_set(err, FSDP_EINTERNAL, "'s3://%s/%s': %llu of %llu bytes were written",
                            u->bucket->name, u->key, (unsigned long long)total,
                            (unsigned long long)u->end);
    return ckpt_s3_multipart_complete(u->bucket, u->key, u->upload_id, u->id, u->sent, u->nsent,
                                      err);
}

/* The lock is held: sends what is left, and waits for all. */
static int flush(struct ckpt_s3_upload *u, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    while (rc == FSDP_OK && u->open)
        rc = part_send(u->open, err);
    while (u->nflying)
        pthread_cond_wait(&u->cond, &u->lock);
    if (rc == FSDP_OK && u->rc)
        rc = fsdp_err_pass(err, u->rc, &u->err);
    return rc ? rc : ask_where(u, err);
}

int ckpt_s3_upload_finish(struct ckpt_s3_upload *u, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc;
    pthread_mutex_lock(&u->lock);
    if (u->upload_id || (u->open && u->open->filled != u->end)) {
        rc = flush(u, &why);
        pthread_mutex_unlock(&u->lock);
        if (rc == FSDP_OK && !u->there)
            rc = complete(u, &why);
    } else {
        struct part *part = u->open;
        pthread_mutex_unlock(&u->lock);
        rc = ckpt_s3_put_whole(u->bucket, u->key, part ? part->data : "", part ? part->filled : 0,
                               u->replace, &why);
        if (part) {
            part_unlink(part);
            part_free(part, 0);
        }
    }
    u->finished = rc == FSDP_OK;
    if (u->finished && u->there)
        fsdp_log(FSDP_LOG_INFO, "'s3://%s/%s' was finished by another process of the same command",
                 u->bucket->name, u->key);
    else if (u->finished && u->nfound)
        fsdp_log(FSDP_LOG_INFO, "'s3://%s/%s': %u of %u parts were there from an earlier run",
                 u->bucket->name, u->key, u->nfound, u->nsent);
    return fsdp_err_pass(err, rc, &why);
}

bool ckpt_s3_upload_is_finished(const struct ckpt_s3_upload *u)
{
    return u->finished;
}

void ckpt_s3_upload_destroy(struct ckpt_s3_upload *u)
{
    if (!u)
        return;
    pthread_mutex_lock(&u->lock);
    atomic_store(&u->failed, true); /* what is under way is not tried again */
    while (u->nflying)
        pthread_cond_wait(&u->cond, &u->lock);
    pthread_mutex_unlock(&u->lock);
    while (u->open) {
        struct part *part = u->open;
        part_unlink(part);
        part_free(part, 0);
    }
    if (u->upload_id && !u->finished && !u->stays && !u->other)
        ckpt_s3_multipart_abort(u->bucket, u->key, u->upload_id);
    ckpt_s3_uploads_add(-1);
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->cond);
    fsdp_free(u->sent);
    ckpt_s3_unfinished_free(&u->found);
    fsdp_free(u->upload_id);
    fsdp_free(u->key);
    fsdp_free(u);
}
