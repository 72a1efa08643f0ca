/* SPDX-License-Identifier: Apache-2.0 */
/* Data files as readers see them: safetensors, whether they are stored compressed or not. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "zst.h"

/* ---- what threads that read need ------------------------------------------------------------- */

enum { IN_NBYTES = CKPT_CODEC_POOL_NBYTES - 2 * CKPT_CODEC_CHUNK_NBYTES };

struct desk {
    struct desk *next;
    struct ckpt_codec_worker *worker;
    char *in;         /* [IN_NBYTES] stored bytes */
    char *chunk;      /* [CKPT_CODEC_CHUNK_NBYTES] the last chunk of which a part was wanted: */
    uint64_t data_id; /* of this file (0: none yet), */
    size_t index;     /* this one */
};

struct ckpt_codec_pool {
    pthread_mutex_t lock;
    struct desk *idle;
};

int ckpt_codec_pool_create(struct ckpt_codec_pool **out, struct fsdp_err *err)
{
    if (!(*out = fsdp_alloc(1, sizeof **out, "codec pool", err)))
        return FSDP_ENOMEM;
    pthread_mutex_init(&(*out)->lock, NULL);
    return FSDP_OK;
}

static void desk_destroy(struct desk *desk)
{
    ckpt_codec_worker_destroy(desk->worker);
    fsdp_free(desk->in);
    fsdp_free(desk->chunk);
    fsdp_free(desk);
}

void ckpt_codec_pool_destroy(struct ckpt_codec_pool *pool)
{
    if (!pool)
        return;
    for (struct desk *desk; (desk = pool->idle);) {
        pool->idle = desk->next;
        desk_destroy(desk);
    }
    pthread_mutex_destroy(&pool->lock);
    fsdp_free(pool);
}

static int desk_create(struct desk **out, struct fsdp_err *err)
{
    struct desk *desk = fsdp_alloc(1, sizeof *desk, "codec desk", err);
    if (!desk)
        return FSDP_ENOMEM;
    desk->in = fsdp_alloc(IN_NBYTES, 1, "codec input", err);
    desk->chunk = fsdp_alloc(CKPT_CODEC_CHUNK_NBYTES, 1, "codec chunk", err);
    int rc = desk->in && desk->chunk ? ckpt_codec_worker_create(&desk->worker, err) : FSDP_ENOMEM;
    if (rc)
        desk_destroy(desk);
    else
        *out = desk;
    return rc;
}

/* One that has chunk `index` of a file, if there is such a one; else the one idle for longest, so
 * that the others keep what they have. */
static int desk_take(struct desk **out, struct ckpt_codec_pool *pool, uint64_t data_id,
                     size_t index, struct fsdp_err *err)
{
    struct desk **best = NULL;

    pthread_mutex_lock(&pool->lock);
    for (struct desk **at = &pool->idle; *at; at = &(*at)->next) {
        best = at;
        if ((*at)->data_id == data_id && (*at)->index == index)
            break;
    }
    struct desk *desk = best ? *best : NULL;
    if (desk)
        *best = desk->next;
    pthread_mutex_unlock(&pool->lock);
    if (!desk)
        return desk_create(out, err);
    *out = desk;
    return FSDP_OK;
}

static void desk_give_back(struct ckpt_codec_pool *pool, struct desk *desk)
{
    pthread_mutex_lock(&pool->lock);
    desk->next = pool->idle;
    pool->idle = desk;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct ckpt_data {
    struct ckpt_store_file *file;
    struct ckpt_codec_pool *pool;
    uint64_t id; /* of this opening: an address could come again */
    uint64_t stored_nbytes;
    bool compressed;
    struct ckpt_codec_table table;
    char path[];
};

static int table_read(struct ckpt_data *data, struct fsdp_err *err)
{
    char tail[CKPT_CODEC_TAIL_NBYTES], *raw = NULL;
    uint64_t nbytes;

    if (data->stored_nbytes < sizeof tail)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s' has %llu bytes, too few for a compressed file: truncated?",
                            data->path, (unsigned long long)data->stored_nbytes);
    FSDP_TRY(
        ckpt_store_pread(data->file, tail, sizeof tail, data->stored_nbytes - sizeof tail, err));
    FSDP_TRY(ckpt_codec_tail_parse(&nbytes, tail, data->stored_nbytes, data->path, err));
    if (!(raw = fsdp_alloc((size_t)nbytes, 1, "frame table", err)))
        return FSDP_ENOMEM;
    int rc = ckpt_store_pread(data->file, raw, (size_t)nbytes, data->stored_nbytes - nbytes, err);
    if (rc == FSDP_OK)
        rc = ckpt_codec_table_parse(&data->table, raw, (size_t)nbytes, data->stored_nbytes,
                                    data->path, err);
    fsdp_free(raw);
    return rc;
}

int ckpt_data_open(struct ckpt_data **out, const struct ckpt_store_ops *ops, const char *path,
                   struct ckpt_codec_pool *pool, struct fsdp_err *err)
{
    static atomic_uint_fast64_t nopened;
    struct ckpt_store_stat st;
    bool compressed = ckpt_codec_is_name(path);

    FSDP_TRY(ckpt_store_stat(&st, ops, path, err));
    if (compressed)
        FSDP_TRY(ckpt_codec_check(path, err));
    struct ckpt_data *data = fsdp_alloc(1, sizeof *data + strlen(path) + 1, "data file", err);
    if (!data)
        return FSDP_ENOMEM;
    strcpy(data->path, path);
    data->pool = pool;
    data->id = atomic_fetch_add(&nopened, 1) + 1;
    data->compressed = compressed;
    int rc = ckpt_store_open(&data->file, ops, path, CKPT_STORE_READ, err);
    if (rc == FSDP_OK)
        rc = ckpt_data_stat(&st, data, err);
    data->stored_nbytes = st.nbytes;
    if (rc == FSDP_OK && compressed)
        rc = table_read(data, err);
    if (rc)
        ckpt_data_close(data);
    else
        *out = data;
    return rc;
}

int ckpt_data_stat(struct ckpt_store_stat *out, struct ckpt_data *data, struct fsdp_err *err)
{
    return ckpt_store_stat_open(out, data->file, err);
}

void ckpt_data_close(struct ckpt_data *data)
{
    if (!data)
        return;
    ckpt_store_close(data->file, NULL);
    ckpt_codec_table_free(&data->table);
    fsdp_free(data);
}

struct ckpt_store_file *ckpt_data_plain_file(struct ckpt_data *data)
{
    return data->compressed ? NULL : data->file;
}

uint64_t ckpt_data_nbytes(const struct ckpt_data *data)
{
    return data->compressed ? data->table.nbytes : data->stored_nbytes;
}

uint64_t ckpt_data_stored_nbytes(const struct ckpt_data *data)
{
    return data->stored_nbytes;
}

int ckpt_data_pread_stored(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err)
{
    return ckpt_store_pread(data->file, dst, nbytes, pos, err);
}

static uint64_t stored_end(const struct ckpt_codec_chunk *chunk)
{
    uint64_t end = chunk->stored_pos;
    for (uint32_t k = 0; k < chunk->planes; k++)
        end += chunk->stored[k];
    return end;
}

/* Stored bytes that are in desk->in. */
struct span {
    uint64_t begin, end;
};

/* Reads the frames of chunk `index` and as many after it that are wanted (those that begin before
 * `stop`) as fit. */
static int fetch(struct span *have, struct ckpt_data *data, struct desk *desk, size_t index,
                 uint64_t stop, struct fsdp_err *err)
{
    const struct ckpt_codec_table *table = &data->table;
    uint64_t begin = table->chunks[index].stored_pos, end = stored_end(&table->chunks[index]);

    if (begin >= have->begin && end <= have->end)
        return FSDP_OK;
    for (size_t i = index + 1; i < table->nchunks && table->chunks[i].pos < stop &&
                               stored_end(&table->chunks[i]) - begin <= IN_NBYTES;
         i++)
        end = stored_end(&table->chunks[i]);
    FSDP_TRY(ckpt_store_pread(data->file, desk->in, (size_t)(end - begin), begin, err));
    *have = (struct span){begin, end};
    return FSDP_OK;
}

/* crc32c (or NULL): the frames of chunks that begin in the range are added to it. */
static int read_range(struct ckpt_data *data, struct desk *desk, char *dst, uint64_t pos,
                      uint64_t stop, uint32_t *crc32c, struct fsdp_err *err)
{
    struct span have = {0, 0};
    uint64_t from = pos;

    for (size_t index = ckpt_codec_chunk_at(&data->table, pos); pos < stop; index++) {
        const struct ckpt_codec_chunk *chunk = &data->table.chunks[index];
        uint64_t end = chunk->pos + chunk->nbytes;
        size_t skip = (size_t)(pos - chunk->pos);
        size_t part = (size_t)((end < stop ? end : stop) - pos);
        bool summed = crc32c && chunk->pos >= from;
        bool cached = !summed && desk->data_id == data->id && desk->index == index;
        bool whole = part == chunk->nbytes;
        if (!cached) {
            FSDP_TRY(fetch(&have, data, desk, index, stop, err));
            const char *frames = desk->in + (chunk->stored_pos - have.begin);
            if (summed)
                *crc32c =
                    ckpt_crc32c(*crc32c, frames, (size_t)(stored_end(chunk) - chunk->stored_pos));
            if (!whole)
                desk->data_id = 0; /* until it is whole again */
            FSDP_TRY(ckpt_codec_decode(whole ? dst : desk->chunk, chunk, frames, data->path,
                                       desk->worker, err));
        }
        if (!cached && !whole) {
            desk->data_id = data->id;
            desk->index = index;
        }
        if (cached || !whole)
            memcpy(dst, desk->chunk + skip, part);
        dst += part;
        pos += part;
    }
    return FSDP_OK;
}

static int read_compressed(uint32_t *crc32c, struct ckpt_data *data, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err)
{
    struct desk *desk;

    if (pos > data->table.nbytes || nbytes > data->table.nbytes - pos)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' holds %llu bytes; %zu from %llu are missing",
                            data->path, (unsigned long long)data->table.nbytes, nbytes,
                            (unsigned long long)pos);
    if (!nbytes)
        return FSDP_OK;
    FSDP_TRY(desk_take(&desk, data->pool, data->id, ckpt_codec_chunk_at(&data->table, pos), err));
    int rc = read_range(data, desk, dst, pos, pos + nbytes, crc32c, err);
    desk_give_back(data->pool, desk);
    return rc;
}

int ckpt_data_pread(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                    struct fsdp_err *err)
{
    return data->compressed ? read_compressed(NULL, data, dst, nbytes, pos, err)
                            : ckpt_store_pread(data->file, dst, nbytes, pos, err);
}

int ckpt_data_pread_header(struct ckpt_data *data, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err)
{
    return data->compressed ? read_compressed(NULL, data, dst, nbytes, pos, err)
                            : ckpt_store_pread_cached(data->file, dst, nbytes, pos, err);
}

/* What lies behind the chunks. */
static int sum_table(uint32_t *crc32c, struct ckpt_data *data, struct fsdp_err *err)
{
    const struct ckpt_codec_table *table = &data->table;
    uint64_t begin = table->nchunks ? stored_end(&table->chunks[table->nchunks - 1]) : 0;
    size_t nbytes = (size_t)(data->stored_nbytes - begin);
    char *raw = fsdp_alloc(nbytes, 1, "frame table", err);
    int rc = raw ? ckpt_store_pread(data->file, raw, nbytes, begin, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        *crc32c = ckpt_crc32c(*crc32c, raw, nbytes);
    fsdp_free(raw);
    return rc;
}

int ckpt_data_pread_summed(uint32_t *crc32c, struct ckpt_data *data, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err)
{
    if (data->compressed) {
        FSDP_TRY(read_compressed(crc32c, data, dst, nbytes, pos, err));
        return pos + nbytes == data->table.nbytes ? sum_table(crc32c, data, err) : FSDP_OK;
    }
    FSDP_TRY(ckpt_store_pread(data->file, dst, nbytes, pos, err));
    *crc32c = ckpt_crc32c(*crc32c, dst, nbytes);
    return FSDP_OK;
}
