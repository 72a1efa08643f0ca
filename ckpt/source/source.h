/* SPDX-License-Identifier: Apache-2.0 */
/* An opened checkpoint, and what the operations on it share. */
#ifndef CKPT_OPENED_H
#define CKPT_OPENED_H

#include <pthread.h>

#include "file/zst.h"
#include "util/limits.h"
#include "layout/contents.h"
#include "layout/plan.h"
#include "file/safetensors.h"

struct ckpt_packed;
struct ckpt_job_sink;

struct ckpt {
    char *path;
    char *folder; /* what files' paths are relative to: path, or the folder of a single file */
    const struct ckpt_store_ops *store;
    const struct ckpt_format_ops *format; /* format_ops.h; NULL until it is recognized */
    void *format_state;                   /* the format's own; NULL: none yet */
    bool has_flat; /* tensors are flat parameters of FSDP1, whose parts have no names yet */
    char *front;   /* of FSDP1's files of ranks, if one was named: their names before the rank */
    bool has_checksums; /* of all its tensors, in archives; set by the format's open */
    /* What says which data there is: a manifest, .metadata or an index. head_path NULL: none. */
    char *head_path;
    struct ckpt_store_stat head;
    /* A Hugging Face folder fills in what a manifest would have held, as far as it is known. */
    struct ckpt_manifest m;

    /* Tensors that are there but cannot be read: their dtype, name or number of dimensions is not
     * supported. Who asks for one gets the reason. */
    int nunread;
    size_t max_unread;
    struct ckpt_unread {
        struct ckpt_tensor tensor; /* texts owned; its dtype says nothing */
        char *why;
    } * unread;

    /* What the index counts and the tensors do not have, as a sentence; NULL: nothing. */
    char *lacks;
    bool is_guessed; /* nothing says which files there are: ckpt_says_whole */

    /* Those that are decoded as they are read, in order of their tensors (unpack.h). */
    int npacked;
    struct ckpt_packed *packed;

    /* Weights whose names have containers in them: indices of tensors, sorted by own name. */
    int ncontained, *contained;

    pthread_mutex_t lock; /* the open files, format_state */
    struct ckpt_reader {
        struct ckpt_data *data;
        int users;
        uint64_t used; /* when it was last asked for */
        bool is_seen;  /* it was opened */
        struct ckpt_store_stat seen;
    } * readers; /* [nreaders] */
    int nreaders, nopen, most_open;
    uint64_t clock;
    struct ckpt_codec_pool *pool; /* what reading compressed files needs */
};

/* The headers of all files, several at a time. headers[nfiles] is zeroed first; on failure all are
 * freed. A size that differs from the layout's is refused. */
int ckpt_headers_read(struct ckpt_st_header *headers, struct ckpt *ckpt, struct fsdp_err *err);

/* Readers for all files that the layout has by now: what ckpt_file_pread needs, and those that note
 * what a file is. Again after more files. */
int ckpt_readers_create(struct ckpt *ckpt, struct fsdp_err *err);

/* Bytes of a file of the layout, as they were before it was compressed. Files are opened when
 * needed and kept, at most CKPT_OPEN_FILES of them, fewer where a process may have few. Thread
 * safe.
 */
int ckpt_file_pread(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                    struct fsdp_err *err);

/* The same, as ckpt_data_pread_summed. */
int ckpt_file_pread_summed(uint32_t *crc32c, struct ckpt *ckpt, int file, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err);
/* How many there are, and bytes of the file as it is stored. Thread safe. */
int ckpt_file_nbytes(uint64_t *out, struct ckpt *ckpt, int file, struct fsdp_err *err);
int ckpt_file_pread_stored(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err);

/* The store copies bytes of a file of the layout to the part of a file that it stores, too
 * (ckpt_job_sink_copy). FSDP_EUNSUPPORTED, maybe without a text: it does not. Thread
 * safe. */
int ckpt_file_copy_part(uint32_t *crc32c, struct ckpt *ckpt, int file, uint64_t nbytes,
                        uint64_t pos, struct ckpt_job_sink *to, uint64_t to_pos,
                        struct fsdp_err *err);

/* Fills dst (block->nelem elements in stored dtype). scratch has room for scratch_nbytes, at least
 * one element. Thread safe. */
int ckpt_block_read(struct ckpt *ckpt, const struct ckpt_plan *plan, const struct ckpt_block *block,
                    void *dst, void *scratch, size_t scratch_nbytes, struct fsdp_err *err);

/* Buffers for one thread that moves blocks of at most nbytes in stored dtype. */
struct ckpt_buffers {
    char *data, *scratch, *converted; /* converted: made when first needed */
    size_t nbytes, converted_nbytes;
    char *into; /* where a slice goes at once that is not converted; NULL: through data */
};
int ckpt_buffers_create(struct ckpt_buffers *out, size_t nbytes, struct fsdp_err *err);
void ckpt_buffers_destroy(struct ckpt_buffers *buffers);

/* Streams a file and compares its checksum; *bad says whether it differed, *actual (may be NULL)
 * what it was. */
int ckpt_file_check(bool *bad, uint32_t *actual, struct ckpt *ckpt, int file, struct fsdp_err *err);
/* The error for a tensor whose bytes do not match its fingerprint: finds out which file is damaged.
 */
int ckpt_fingerprint_blame(struct ckpt *ckpt, int tensor, uint64_t actual, struct fsdp_err *err);

/* The index of a tensor by name or alias, -1 if there is none. In a torch checkpoint of nested
 * containers (app.model.x) also by the name within `model`; a weight of this name goes before
 * anything else. */
int ckpt_tensor_index(const struct ckpt *ckpt, const char *name);
/* A tensor's name without containers. In a torch checkpoint the end of `stored`. */
static inline const char *ckpt_own_name(const struct ckpt_tensor *tensor)
{
    return tensor->tensor.name + tensor->outer_nbytes;
}
/* Fills in ckpt->contained, after the layout is complete. */
int ckpt_contained_find(struct ckpt *ckpt, struct fsdp_err *err);
/* The number in a tensor of one element, rounded; -1 where it is negative or no number. */
int ckpt_scalar_read(int64_t *out, struct ckpt *ckpt, int tensor, struct fsdp_err *err);
/* Keeps that a tensor cannot be read. All texts are copied. ckpt_warn_unread logs it. */
int ckpt_unread_add(struct ckpt *ckpt, const char *name, const char *stored, enum ckpt_role role,
                    const char *why, struct fsdp_err *err);
/* Logs what it lacks, if that is known. */
void ckpt_warn_lacks(const struct ckpt *ckpt);
/* Why a tensor of this name cannot be read; NULL if there is none such. */
const char *ckpt_unread_why(const struct ckpt *ckpt, const char *name);
/* The stored tensor that a slice means; checks shape, box and convertible dtype. */
int ckpt_slice_match(int *tensor, const struct ckpt *ckpt, const struct fsdp_slice *slice,
                     struct fsdp_err *err);
/* Reads a slice into io, or what is not converted into buffers->into, where there is one; *part
 * (may be NULL) gets its contribution to the tensor's fingerprint. */
int ckpt_slice_read(struct ckpt *ckpt, int tensor, const struct fsdp_slice *slice,
                    const struct fsdp_slice_io *io, struct ckpt_buffers *buffers, uint64_t *part,
                    struct fsdp_err *err);

/* Do reads wait for a server, so that more threads than processors are worth it? */
bool ckpt_is_far(const struct ckpt *ckpt);

/* weighted.c: PATH or PATH=WEIGHT (default: 1), where WEIGHT is a number. *path is freed with
 * fsdp_free, also after an error. Where a path exists that ends so, it is that; where both do,
 * FSDP_EINVAL. what: the kind of thing at the path, for errors. */
int ckpt_weighted_parse(char **path, double *weight, const char *text, const char *what,
                        struct fsdp_err *err);

/* ---- identity.c: a checkpoint that changes while it is read ---- */

/* A file of the layout was opened. Notes what it is; FSDP_ECORRUPT where it was another one, or had
 * other bytes, when it was opened before. One thread at a time for a file. */
int ckpt_source_note(struct ckpt *ckpt, int file, const struct ckpt_store_stat *now,
                     struct fsdp_err *err);
/* ckpt_store_get of the file that says which data there is; ckpt_unchanged looks at it again. */
int ckpt_source_get_head(char **out, size_t *nbytes, struct ckpt *ckpt, const char *path,
                         size_t max_nbytes, struct fsdp_err *err);
/* Adds to a hash what the checkpoint is: its manifest's uuid; or names, sizes, inodes, times and
 * ETags of files. */
int ckpt_source_hash(uint64_t *hash, const struct ckpt *ckpt, struct fsdp_err *err);

#endif
