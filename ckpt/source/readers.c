/* SPDX-License-Identifier: Apache-2.0 */
/* The open files of a checkpoint. */
#include <string.h>
#include <sys/resource.h>

#include "file/sink.h"
#include "source.h"

/* A file may take two descriptors, and others need some. */
static int most_open(void)
{
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    rlim_t most = known ? limit.rlim_cur / 4 : CKPT_OPEN_FILES;
    return most < CKPT_OPEN_FILES ? (int)most : CKPT_OPEN_FILES;
}

int ckpt_readers_create(struct ckpt *ckpt, struct fsdp_err *err)
{
    int nfiles = ckpt->m.layout.nfiles;
    if (nfiles == ckpt->nreaders)
        return FSDP_OK;
    struct ckpt_reader *readers = fsdp_alloc((size_t)nfiles, sizeof *readers, "readers", err);
    if (!readers)
        return FSDP_ENOMEM;
    if (ckpt->nreaders)
        memcpy(readers, ckpt->readers, (size_t)ckpt->nreaders * sizeof *readers);
    fsdp_free(ckpt->readers);
    ckpt->readers = readers;
    ckpt->nreaders = nfiles;
    ckpt->most_open = most_open();
    return FSDP_OK;
}

/* Closes the idle file that was not asked for the longest. */
static void close_oldest(struct ckpt *ckpt)
{
    struct ckpt_reader *oldest = NULL;
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        struct ckpt_reader *reader = &ckpt->readers[i];
        if (reader->data && !reader->users && (!oldest || reader->used < oldest->used))
            oldest = reader;
    }
    if (oldest) {
        ckpt_data_close(oldest->data);
        oldest->data = NULL;
        ckpt->nopen--;
    }
}

static int note_opened(struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_store_stat now;
    FSDP_TRY(ckpt_data_stat(&now, ckpt->readers[file].data, err));
    return ckpt_source_note(ckpt, file, &now, err);
}

static int reader_get(struct ckpt_data **out, struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_reader *reader = &ckpt->readers[file];
    int rc = FSDP_OK;

    pthread_mutex_lock(&ckpt->lock);
    if (!reader->data) {
        char *path = ckpt_path_join(ckpt->folder, ckpt->m.layout.files[file].path, err);
        if (ckpt->nopen >= ckpt->most_open)
            close_oldest(ckpt);
        rc = path ? ckpt_data_open(&reader->data, ckpt->store, path, ckpt->pool, err) : FSDP_ENOMEM;
        ckpt->nopen += rc == FSDP_OK;
        if (rc == FSDP_OK)
            rc = note_opened(ckpt, file, err);
        fsdp_free(path);
    }
    if (rc == FSDP_OK) {
        reader->users++;
        reader->used = ++ckpt->clock;
        *out = reader->data;
    }
    pthread_mutex_unlock(&ckpt->lock);
    return rc;
}

static void reader_put(struct ckpt *ckpt, int file)
{
    pthread_mutex_lock(&ckpt->lock);
    ckpt->readers[file].users--;
    pthread_mutex_unlock(&ckpt->lock);
}

int ckpt_file_pread(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                    struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread(data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_pread_summed(uint32_t *crc32c, struct ckpt *ckpt, int file, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread_summed(crc32c, data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_pread_stored(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread_stored(data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_copy_part(uint32_t *crc32c, struct ckpt *ckpt, int file, uint64_t nbytes,
                        uint64_t pos, struct ckpt_job_sink *to, uint64_t to_pos,
                        struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    struct ckpt_store_file *from = ckpt_data_plain_file(data);
    int rc =
        from ? ckpt_job_sink_copy(crc32c, to, nbytes, to_pos, from, pos, err) : FSDP_EUNSUPPORTED;
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_nbytes(uint64_t *out, struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    *out = ckpt_data_nbytes(data);
    reader_put(ckpt, file);
    return FSDP_OK;
}
