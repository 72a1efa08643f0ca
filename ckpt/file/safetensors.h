/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors container: an unsigned 64-bit little-endian length, a JSON header of that length
 * (padded with spaces), and the tensors' bytes back to back.
 *
 * Files of a sharded checkpoint hold boxes. Their place is in __metadata__.DCP_SHARDING_INFO, a
 * string holding JSON: {"<name>": {"saved_offsets": [...], "global_shape": [...]}}. torch's newer
 * files may also have "logical_fqn": the tensor's name, where the file calls the box otherwise.
 */
#ifndef CKPT_SAFETENSORS_H
#define CKPT_SAFETENSORS_H

#include "util/pool.h"
#include "zst.h"

struct ckpt_st_entry {
    const char *name; /* the tensor this is (part of) */
    /* [ndim] each, of the header or of the caller; offset and global_shape NULL: not known. */
    const uint64_t *shape;  /* of what the file holds */
    const uint64_t *offset; /* in the whole tensor; zero in a plain file */
    const uint64_t *global_shape;
    uint64_t pos; /* first byte, from the start of the file */
    uint64_t nbytes;
    uint8_t dtype; /* enum fsdp_dtype */
    uint8_t ndim;
    uint32_t why; /* 0: it can be read; else ckpt_st_why has the reason, and ndim is 0 */
};

struct ckpt_st_header {
    uint64_t header_nbytes; /* the length field, the JSON and its padding: where data starts */
    bool sharded;           /* has DCP_SHARDING_INFO */
    int nentries;
    struct ckpt_st_entry *entries; /* in the order of their bytes */
    char *names;                   /* what entries' names point into */
    char *logical_names;           /* or this, where they have a logical_fqn */
    char *whys;                    /* why some cannot be read; NULL: all can */
    struct ckpt_pool dims;         /* what entries' shapes point into */
};
/* Why the tensor cannot be read: its dtype, its number of dimensions or its name is not supported.
 * NULL if it can. */
static inline const char *ckpt_st_why(const struct ckpt_st_header *header,
                                      const struct ckpt_st_entry *entry)
{
    return entry->why ? header->whys + entry->why - 1 : NULL;
}

/* Proves what it returns: data ranges tile the rest of the file, sizes fit dtypes and shapes, boxes
 * lie inside their tensors. Of a tensor that cannot be read (ckpt_st_why) only the range is proved.
 * `path` is for error texts. */
int ckpt_st_parse(struct ckpt_st_header *out, const char *json, size_t json_nbytes,
                  uint64_t file_nbytes, const char *path, struct fsdp_err *err);
/* Also of a compressed file, by its name. *seen: what the file was. */
int ckpt_st_read(struct ckpt_st_header *out, struct ckpt_store_stat *seen,
                 const struct ckpt_store_ops *ops, const char *path, struct ckpt_codec_pool *pool,
                 struct fsdp_err *err);
void ckpt_st_header_free(struct ckpt_st_header *header);

/* The header of a file that holds these entries in this order; sets each entry's pos and nbytes.
 * Data starts at a multiple of CKPT_HEADER_ALIGN. *out is freed with fsdp_free. */
int ckpt_st_format(char **out, size_t *out_nbytes, struct ckpt_st_entry *entries, int nentries,
                   bool sharded, struct fsdp_err *err);

#endif
