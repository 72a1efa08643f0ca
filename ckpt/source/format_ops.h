/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format_ops.h: what a checkpoint format implements. The rows are in format/format.c; nothing
 * outside format/ asks which format a checkpoint has, but for what it shows to a person.
 *
 * A format fills in ckpt->m (contents.h) from the files at ckpt->path and seals its layout. From
 * then on all formats are read alike: by the layout's pieces, through read_extent where a piece's
 * bytes do not lie bare in its file.
 */
#ifndef CKPT_FORMAT_OPS_H
#define CKPT_FORMAT_OPS_H

#include <jansson.h>

#include "source.h"

/* What shows that a file is no longer the one that was opened. */
enum ckpt_identity {
    CKPT_IDENTITY_SIZE,  /* fingerprints prove the bytes: files may be replaced by equal ones */
    CKPT_IDENTITY_MTIME, /* checksums prove them, but not which save they are of */
    CKPT_IDENTITY_CTIME, /* nothing does */
};

/* A read of blocks: where its elements go, and room on the way. */
struct ckpt_scatter {
    struct ckpt *ckpt;
    int file;
    size_t elem_nbytes;
    char *dst, *scratch;
    size_t scratch_nbytes;
    struct fsdp_err *err;
};
/* Reads the elements of an extent that begins at byte `pos` of the file to dst. */
int ckpt_runs_read(const struct ckpt_scatter *s, const struct ckpt_extent *extent, uint64_t pos,
                   char *dst);

struct ckpt_format_ops {
    enum ckpt_format id;
    enum ckpt_identity identity;
    bool keeps_names;  /* tensors have names of their own in it (struct ckpt_tensor.stored) */
    bool has_manifest; /* which save it is (uuid), its step, and checksums of its small files */
    /* (optional) Names that a reader of the format looks for first, so that a copy writes them
     * last; ends with NULL. */
    const char *const *heads;

    /* (optional) Is ckpt->path one? st: what lies there. Sets ckpt->folder for a single file.
     * Refuses what is one that cannot be read, saying why. */
    int (*recognize)(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                     struct fsdp_err *err);
    /* (optional) The same of a folder that no format recognizes, by weaker signs; ckpt->path may
     * become that of a checkpoint in it. */
    int (*recognize_within)(bool *out, struct ckpt *ckpt, struct fsdp_err *err);
    /* (optional) Of a folder that is none: an error that says what its entries `names` may be;
     * FSDP_OK where they are nothing of this format. */
    int (*explain)(const struct ckpt *ckpt, const struct ckpt_names *names, struct fsdp_err *err);
    int (*open)(struct ckpt *ckpt, struct fsdp_err *err);
    /* (optional) Frees what ckpt->format_state holds. */
    void (*close)(struct ckpt *ckpt);

    /* (optional) Reads an extent of a piece into s->dst; absent: its bytes lie bare in the file,
     * row-major. Thread safe. */
    int (*read_extent)(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                       const struct ckpt_block *block, const struct fsdp_tensor *tensor);
    /* (optional, with read_extent) Do two tensors whose pieces lie at the same places have the same
     * elements? */
    bool (*same_view)(const struct ckpt *ckpt, int a, int b);
    /* (optional) Pieces have checksums of their own: reads all that one covers. FSDP_ECORRUPT names
     * tensor, file and bytes. Thread safe. */
    int (*check_piece)(struct ckpt *ckpt, size_t piece, struct fsdp_err *err);
    /* (optional) Checks the pieces of which only a part was read. */
    int (*check_rest)(struct ckpt *ckpt, struct fsdp_err *err);
};

extern const struct ckpt_format_ops ckpt_native_ops, ckpt_hf_ops, ckpt_dcp_ops, ckpt_torch_ops,
    ckpt_deepspeed_ops, ckpt_megatron_ops, ckpt_fsdp1_ops;

/* The format of what lies at ckpt->path, in *out. FSDP_ENOTFOUND says what is there instead. */
int ckpt_format_find(const struct ckpt_format_ops **out, struct ckpt *ckpt, struct fsdp_err *err);
/* Of an opened one with flat parameters (ckpt->has_flat): from now on it has the tensors that the
 * config.json next to it describes. FSDP_ENOTFOUND: there is none. */
int ckpt_flat_name(struct ckpt *ckpt, struct fsdp_err *err);
/* From now on, the small files next to the checkpoint are those of `config`: a model's folder, or
 * its config.json alone. */
int ckpt_extras_replace(struct ckpt *ckpt, const char *config, struct fsdp_err *err);
/* Of an opened checkpoint that is no adapter: forgets, and logs, the small files that belong to an
 * adapter in its folder. With whole weights they would be read as a model's. */
void ckpt_extras_drop_adapter(struct ckpt *ckpt);
/* One of them, by its name: its bytes, owned by the caller, or what it holds as JSON. *out is NULL
 * where there is none. Errors name the file. Block. */
int ckpt_extra_load(char **out, size_t *nbytes, const struct ckpt *ckpt, const char *name,
                    struct fsdp_err *err);
int ckpt_extra_json(json_t **out, const struct ckpt *ckpt, const char *name, struct fsdp_err *err);
/* One more format, asked before the others; lives as long as the process. For programs that bring
 * their own. Not thread safe. */
enum { CKPT_MAX_FORMATS_ADDED = 4 };
int ckpt_format_add(const struct ckpt_format_ops *ops, struct fsdp_err *err);

#endif
