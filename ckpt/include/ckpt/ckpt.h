/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h: checkpoints. Saving and loading from a job, reading from tools.
 *
 * A checkpoint is a folder of immutable data files plus one manifest.json, written last; without
 * the manifest there is no checkpoint. docs/ckpt-format.md describes the bytes.
 *
 * The library knows slices (fsdp/base.h) and stores. It has no notion of GPU, launcher or model.
 */
#ifndef CKPT_H
#define CKPT_H

#include <stdio.h>

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* CRC-64/XZ and CRC-32C. Start with 0; feed pieces in order. */
uint64_t ckpt_crc64(uint64_t crc, const void *data, size_t nbytes);
uint32_t ckpt_crc32c(uint32_t crc, const void *data, size_t nbytes);
/* CRC of A followed by B from the CRCs of each and B's length. */
uint64_t ckpt_crc64_combine(uint64_t crc_a, uint64_t crc_b, uint64_t nbytes_b);
uint32_t ckpt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b);

/* ---- where checkpoints are ------------------------------------------------------------------- */

/* Is it an address, such as s3://bucket/run, and not a path of this machine? */
bool ckpt_path_is_url(const char *path);
/* FSDP_EUNSUPPORTED where this build has no store for the path or address. Local. */
int ckpt_path_check(const char *path, struct fsdp_err *err);
/* Makes a folder of checkpoints with all above it. Local, blocks. */
int ckpt_root_make(const char *root, struct fsdp_err *err);
/* Writes a file of nbytes there, waits until it is durable and removes it; seconds (NULL is
 * allowed): how long that took. Local, blocks. */
int ckpt_root_try(double *seconds, const char *root, size_t nbytes, struct fsdp_err *err);
/* A small text next to the checkpoints, replaced whole. *out is freed with fsdp_free;
 * FSDP_ENOTFOUND where there is none. Local, blocks. */
int ckpt_note_read(char **out, const char *root, const char *name, struct fsdp_err *err);
int ckpt_note_write(const char *root, const char *name, const char *text, struct fsdp_err *err);
int ckpt_note_remove(const char *root, const char *name, struct fsdp_err *err);
/* Sends a text of JSON to an address of http:// or https:// by POST. FSDP_EIO, which names the
 * host, unless the answer is a success; FSDP_ECANCELED once stop (NULL is allowed), which is asked
 * about once a second, says so; FSDP_EUNSUPPORTED in a build without libcurl. Local, blocks, for a
 * minute at most. */
int ckpt_post(const char *url, const char *json, bool (*stop)(void), struct fsdp_err *err);

/* ---- any file of a store --------------------------------------------------------------------- */

struct ckpt_blob;

/* Opens a file of any kind for reading, by path or address; *nbytes is its size. The caller closes
 * it. Local, blocks. */
int ckpt_blob_open(struct ckpt_blob **out, uint64_t *nbytes, const char *path,
                   struct fsdp_err *err);
/* Exactly nbytes from offset; FSDP_ECORRUPT if the file ends before. Thread safe. Blocks. */
int ckpt_blob_pread(struct ckpt_blob *blob, void *dst, size_t nbytes, uint64_t offset,
                    struct fsdp_err *err);
void ckpt_blob_close(struct ckpt_blob *blob);
/* Called per file. A nonzero return ends the walk and is passed on. */
typedef int ckpt_blob_f(void *ctx, const char *path, struct fsdp_err *err);
/* The file at path, or all files below it, sorted by name in each folder. FSDP_ENOTFOUND if there
 * is nothing. Local, blocks. */
int ckpt_blob_each(const char *path, ckpt_blob_f *fn, void *ctx, struct fsdp_err *err);

/* ---- saving from a job ----------------------------------------------------------------------- */

/* Gives every slice of this rank: fsdp_state_each with the engine bound. */
typedef int ckpt_slices_f(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err);

struct ckpt_alias {
    const char *name, *target; /* tied tensors: `name` is another name of stored tensor `target` */
};

/* Compressed files take two thirds of the room for bf16, five sixths for fp32, and 1 GB/s a core.
 */
enum ckpt_compress {
    CKPT_COMPRESS_NONE,
    CKPT_COMPRESS_ZSTD,
    CKPT_COMPRESS_AUTO, /* where the store is behind a network and this build has zstd */
};

struct ckpt_save_args {
    uint32_t version;
    const char *root; /* folder of checkpoints; the new one is root/step-%08d */
    int64_t step;     /* optimizer steps done */
    const struct fsdp_state_layout *layout;
    ckpt_slices_f *slices;
    void *slices_ctx;
    const struct ckpt_alias *aliases;
    int naliases;
    const char
        *state_json; /* training state that is not tensors: one JSON object; rank 0's is kept */
    int nextra;      /* small files kept next to the manifest under hf/ (config.json, tokenizer) */
    const char *const *extra; /* their paths; rank 0 copies them */
    bool fsync;
    enum ckpt_compress compress; /* rank 0's counts */
    /* The largest share of one processor's time that this rank's save takes while other work wants
     * the processor. Time in which it waits for the disk does not count. 0: no limit. */
    double share;
    /* A folder on this rank's node, used by this run alone. The checkpoint goes there instead of to
     * root: the files of the node's ranks, and the manifest of all. ckpt_flush copies it to root.
     * Nodes that see one folder share it. If it has no room or fails, the checkpoint goes to root
     * at once, and a warning says so. NULL: none. */
    const char *staging;
    int node; /* of this rank, 0...; with staging */
};
#define CKPT_SAVE_ARGS_VERSION 3
#define CKPT_SAVE_ARGS_INIT                                                                        \
    {                                                                                              \
        .version = CKPT_SAVE_ARGS_VERSION, .fsync = true                                           \
    }

struct ckpt_save_result {
    uint64_t nbytes; /* written by all ranks together, as stored */
    double seconds;
    char path[4096]; /* of the published checkpoint */
    bool staged;     /* it is in the staging folders, and not in root */
};
/* Saves a checkpoint and publishes it; *out (NULL is allowed) says where. Collective, blocks, ends
 * in one agreed status. On failure nothing is published and what was written is removed. The one
 * exception: where a rank is lost after the commit, so that the ranks can no longer agree, the
 * checkpoint is good and stays. FSDP_EEXIST if that step is already there. */
int ckpt_save(struct ckpt_save_result *out, const struct ckpt_save_args *args, struct fsdp_oob *oob,
              struct fsdp_err *err);

/* ckpt_save on a thread of its own, which keeps to args->share or, where that is 0, yields to other
 * threads. Borrowed until ckpt_saving_end: what args points to, the state that its slices read, and
 * oob, a channel that nobody else uses. finished (may be NULL) is called from that thread as soon
 * as the save reads none of these any more. Every rank must call it. Local. Blocks only if no
 * thread can be created. */
struct ckpt_saving;
int ckpt_saving_begin(struct ckpt_saving **out, const struct ckpt_save_args *args,
                      struct fsdp_oob *oob, void (*finished)(void *ctx), void *ctx,
                      struct fsdp_err *err);
/* Would ckpt_saving_end return at once? Local. */
bool ckpt_saving_is_done(const struct ckpt_saving *saving);
/* Waits for the save, frees its handle and returns what ckpt_save returned. Local, blocks. */
int ckpt_saving_end(struct ckpt_save_result *out, struct ckpt_saving *saving, struct fsdp_err *err);

/* ---- staged checkpoints: from the nodes' folders to the store -------------------------------- */

/* The newest staged checkpoint of a step after `after` whose files are all in the staging folders
 * of these ranks, whichever of them has which; -1 if there is none. report (NULL is allowed), on
 * rank 0, hears of those that are not whole. Collective, blocks, agreed. */
typedef void ckpt_staged_f(void *ctx, int64_t step, const char *why);
int ckpt_staged_latest(int64_t *step, const char *staging, int64_t after, ckpt_staged_f *report,
                       void *report_ctx, struct fsdp_oob *oob, struct fsdp_err *err);
/* Called for a checkpoint, or the leftovers of one, that is not removed: why names what in it does
 * not belong to a checkpoint. */
typedef void ckpt_stays_f(void *ctx, const char *path, const char *why);
/* Removes all from a staging folder but the staged checkpoints of these steps. Local, blocks. */
int ckpt_staged_retain(const char *staging, const int64_t *steps, int nsteps, ckpt_stays_f *stays,
                       void *ctx, struct fsdp_err *err);

struct ckpt_flush_args {
    uint32_t version;
    const char *staging, *root; /* the values of the save */
    int64_t step;
    bool fsync;
    double share; /* as in ckpt_save_args */
    /* Asked between blocks, on the thread that copies: true on any rank gives up, FSDP_ECANCELED on
     * all. NULL is allowed. */
    bool (*gives_up)(void *ctx);
    void *gives_up_ctx;
};
#define CKPT_FLUSH_ARGS_VERSION 1
#define CKPT_FLUSH_ARGS_INIT                                                                       \
    {                                                                                              \
        .version = CKPT_FLUSH_ARGS_VERSION, .fsync = true                                          \
    }
/* Copies a staged checkpoint to root, each file by a rank that sees it and against its checksum,
 * and publishes it there as ckpt_save does. A failure leaves nothing in root, and the staged one
 * stays. The number of ranks may differ from the save's. Collective, blocks, agreed. FSDP_ENOTFOUND
 * where files are missing; FSDP_EEXIST where root has that step. */
int ckpt_flush(struct ckpt_save_result *out, const struct ckpt_flush_args *args,
               struct fsdp_oob *oob, struct fsdp_err *err);
/* ckpt_flush on a thread of its own, as ckpt_saving_begin; gives_up is the handle's. */
int ckpt_flushing_begin(struct ckpt_saving **out, const struct ckpt_flush_args *args,
                        struct fsdp_oob *oob, struct fsdp_err *err);
/* This rank's part of the flush gives up after so many seconds. Local. */
void ckpt_flushing_limit(struct ckpt_saving *flushing, double seconds);

/* Removes all but the newest `keep` published checkpoints of root (0 keeps all) and those of the
 * steps spare[nspare], and leftovers of
 * saves that never finished: those untouched for an hour, since a younger one may still be written
 * by another job. Unpublishes first. A symbolic link in the place of a checkpoint is neither
 * counted nor removed. A checkpoint that holds a file that its manifest does not list stays and is
 * reported (NULL is allowed); the others go. Local: call on one rank. */
int ckpt_retain(const char *root, int keep, const int64_t *spare, int nspare, ckpt_stays_f *stays,
                void *ctx, struct fsdp_err *err);

/* A leftover of a save, a removal or a tool that did not end. */
struct ckpt_gc_item {
    const char *path, *what; /* what: "was never finished", ... */
    uint64_t nbytes;
    int64_t age_s; /* since anything in it was touched */
    bool
        is_old; /* removed, or in a dry run would be; a young one may still be written, and stays */
    const char *stays; /* why an old one is not removed; NULL: it is */
};
typedef void ckpt_gc_f(void *ctx, const struct ckpt_gc_item *item);
struct ckpt_gc_args {
    uint32_t version;
    /* Younger ones stay. -1: an hour; for uploads a day, since only their beginning is known. With
     * less than the time of a save, files that a running save writes can be removed. */
    int64_t older_s;
    bool dry_run;
    bool whole_bucket; /* root may be a bucket without a prefix: uploads of others are ended, too */
    ckpt_gc_f *report; /* called for each; NULL is allowed */
    void *report_ctx;
};
#define CKPT_GC_ARGS_VERSION 2
#define CKPT_GC_ARGS_INIT                                                                          \
    {                                                                                              \
        .version = CKPT_GC_ARGS_VERSION, .older_s = -1                                             \
    }
struct ckpt_gc_result {
    uint64_t nold, nyoung, nbytes; /* nbytes: of the old ones */
    uint64_t nstay;                /* old ones that hold what belongs to no checkpoint */
    uint64_t nuploads;             /* to an object store that were never finished, and are old */
};
/* Removes leftovers from a folder of checkpoints or below an address. What is published stays; so
 * does a leftover that holds a file that no writer of checkpoints makes, which is counted and
 * reported. Local, blocks. */
int ckpt_gc(struct ckpt_gc_result *out, const char *root, const struct ckpt_gc_args *args,
            struct fsdp_err *err);

/* ---- reading --------------------------------------------------------------------------------- */

enum ckpt_format {
    CKPT_NATIVE,
    CKPT_HF,        /* safetensors: a file or a folder, plain or torch's sharded ones */
    CKPT_DCP,       /* torch.distributed.checkpoint: .metadata and .distcp */
    CKPT_TORCH,     /* torch.save: a file, or a folder of pytorch_model*.bin */
    CKPT_DEEPSPEED, /* of ZeRO 1 to 3: a folder of *_model_states.pt and *_optim_states.pt */
    CKPT_MEGATRON,  /* a folder of mp_rank_*; newer ones are CKPT_DCP */
    CKPT_FSDP1,     /* LOCAL_STATE_DICT: flat parameters, a file a rank or in a CKPT_DCP */
};

/* What a tensor is for. */
enum ckpt_role {
    CKPT_ROLE_MODEL,
    CKPT_ROLE_OPTIM, /* `state.<parameter>.<name>`: what an optimizer keeps for a parameter */
    CKPT_ROLE_OTHER, /* anything else: counters, schedules */
};

/* A tensor of an opened checkpoint. */
struct ckpt_tensor {
    struct fsdp_tensor tensor;
    enum fsdp_slice_kind kind; /* MODEL for weights, OPTIM for all else */
    enum ckpt_role role;
    /* The name that the source uses, never NULL. It differs from tensor.name in torch's
     * checkpoints, where the containers `model` and `optim` are part of it. */
    const char *stored;
    /* Bytes of tensor.name that are containers: those around `model` (app.model.), or those that
     * tell tensors of equal names apart (optim_g., optim_d.). A job that trains does not know
     * them. */
    size_t outer_nbytes;
    uint64_t fingerprint; /* CRC-64/XZ over the row-major bytes */
    bool has_fingerprint;
};

struct ckpt_file_info {
    const char *path; /* relative to the checkpoint */
    uint64_t nbytes;
    uint32_t crc32c;
    bool has_crc;
};

struct ckpt;

/* Opens a native checkpoint folder (or a root of several: its newest), a folder that torch's
 * distributed checkpoint or DeepSpeed wrote, a Hugging Face folder, a .safetensors file, or a file
 * of torch.save; reads the manifest
 * and all headers, and proves that the stored boxes tile every tensor. Errors name file and tensor:
 * missing, truncated, stray, overlapping. Local, blocks.
 */
int ckpt_open(struct ckpt **out, const char *path, struct fsdp_err *err);
/* The same, of the model whose config.json is `config` or lies in that folder (NULL: next to the
 * checkpoint). It goes along with the weights, and gives flat parameters of FSDP1
 * (LOCAL_STATE_DICT) their names. Local, blocks. */
int ckpt_open_with(struct ckpt **out, const char *path, const char *config, struct fsdp_err *err);
/* NULL is allowed. */
void ckpt_close(struct ckpt *ckpt);

/* What was opened. Texts and tensors live until ckpt_close. An index is less than the count that is
 * declared next to it. Local, thread safe. */
const char *ckpt_path(const struct ckpt *ckpt);
enum ckpt_format ckpt_format(const struct ckpt *ckpt);
/* "native", "safetensors", "dcp", "torch.save", "deepspeed", "megatron",
 * "fsdp1". Static. */
const char *ckpt_format_name(enum ckpt_format format);
/* Do all its tensors lie in archives of torch.save that have checksums? */
bool ckpt_has_checksums(const struct ckpt *ckpt);
/* Does it say which files and tensors it must hold? False of torch's sharded safetensors and of
 * several files without an index: if some are missing, nothing tells. */
bool ckpt_says_whole(const struct ckpt *ckpt);
/* Logs each tensor that is there and cannot be read, with the reason, as the calls do that work on
 * all tensors. */
void ckpt_warn_unread(const struct ckpt *ckpt);
int64_t ckpt_step(const struct ckpt *ckpt);           /* -1 where not known */
const char *ckpt_state_json(const struct ckpt *ckpt); /* NULL where there is none */
/* The mesh that saved it, as in fsdp_state_layout; 1 x 1 where it is not known. */
void ckpt_mesh(const struct ckpt *ckpt, int *shard_size, int *replicate_size);
int ckpt_ntensors(const struct ckpt *ckpt);
const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *ckpt, int i);
/* By stored name or alias; NULL if absent. */
const struct ckpt_tensor *ckpt_tensor_find(const struct ckpt *ckpt, const char *name);
int ckpt_naliases(const struct ckpt *ckpt);
struct ckpt_alias ckpt_alias_at(const struct ckpt *ckpt, int i);
/* From now on, name is another name of the stored tensor `stored`; no tensor and no alias has it
 * yet. Not thread safe. */
int ckpt_alias_add(struct ckpt *ckpt, const char *name, const char *stored, struct fsdp_err *err);
int ckpt_nfiles(const struct ckpt *ckpt);
struct ckpt_file_info ckpt_file_at(const struct ckpt *ckpt, int i);
/* Small files kept next to the weights (config.json, tokenizer files); full path or NULL. */
const char *ckpt_extra_path(const struct ckpt *ckpt, const char *name);
int ckpt_nextra(const struct ckpt *ckpt);
const char *ckpt_extra_at(const struct ckpt *ckpt, int i);

/* The whole of such a file, by its path or address, with a 0 byte after it; freed with fsdp_free.
 * FSDP_ENOTFOUND; FSDP_EINVAL: it is larger than max_nbytes. Local, blocks. */
int ckpt_extra_read(char **out, size_t *nbytes, const char *path, size_t max_nbytes,
                    struct fsdp_err *err);

/* May a small file next to weights be copied with them? False for a symbolic link that leaves its
 * folder, or leads to nothing: nobody must get a file of this machine copied by a link. One into
 * the blobs of a Hugging Face cache is fine. Local. */
bool ckpt_extra_is_own(const char *path);

/* Reads the elements of `slice` (matched by name or alias; shape must be equal) into io->write, in
 * order, converting between floating dtypes. Missing name: FSDP_ENOTFOUND; shape: FSDP_EINVAL, both
 * named. A whole tensor is compared with its fingerprint (FSDP_ECORRUPT), a part is not.
 * Local, blocks, thread safe. */
int ckpt_read_slice(struct ckpt *ckpt, const struct fsdp_slice *slice,
                    const struct fsdp_slice_io *io, struct fsdp_err *err);

/* The same into dst, which has nbytes, exactly those of the slice's elements in its dtype (else
 * FSDP_EINVAL): row-major, aligned to an element. What is not converted goes from the file to dst
 * without another copy. On failure dst is undefined. Local, blocks, thread safe. */
int ckpt_read_into(void *dst, size_t nbytes, struct ckpt *ckpt, const struct fsdp_slice *slice,
                   struct fsdp_err *err);

/* Where a tensor lies as one row-major run of bytes, as it is in memory, for callers that map it.
 */
struct ckpt_file_range {
    char path[4096]; /* of a file of this machine */
    uint64_t pos, nbytes;
};
/* FSDP_ENOTFOUND; FSDP_EUNSUPPORTED says why it does not lie so: compressed, quantized, cut among
 * files, in a torch archive, or in a store. Whoever maps it sees what becomes of the file, and no
 * fingerprint is compared. Local, blocks, thread safe. */
int ckpt_tensor_range(struct ckpt_file_range *out, struct ckpt *ckpt, const char *name,
                      struct fsdp_err *err);

/* ---- matrices that bitsandbytes has quantized ---- */

/* Is the tensor stored so, with scales and code books next to it? Local. */
bool ckpt_is_quantized(const struct ckpt *ckpt, const char *name);
/* NF4 with double quantization: an element is values[code] * (map[scale] * nested + offset), with a
 * code of 4 bits for each, a scale of 8 bits for CKPT_NF4_BLOCK of them, and a nested number for
 * CKPT_NF4_SUPER blocks. */
enum { CKPT_NF4_BLOCK = 64, CKPT_NF4_SUPER = 256 };
struct ckpt_nf4 {
    struct fsdp_tensor tensor; /* as it was: type and shape; its name is the one asked for */
    float offset;
    float values[16], map[256];
};
/* FSDP_EUNSUPPORTED names the tensor, and what is quantized otherwise. Local, blocks. */
int ckpt_nf4_read(struct ckpt_nf4 *out, struct ckpt *ckpt, const char *name, struct fsdp_err *err);
/* Its nested numbers, exactly nelem. Local, blocks. */
int ckpt_nf4_nested(float *out, size_t nelem, struct ckpt *ckpt, const char *name,
                    struct fsdp_err *err);
/* From now on all such tensors, and those of compressed-tensors in 8-bit floats or integers of 8 or
 * 4 bits, have type, shape and values of what they were before, as these programs decode them, and
 * what was stored next to them is gone. Codes of compressed-tensors stay if there are others among
 * them. Call it before anything else asks for tensors. Local, blocks. */
int ckpt_unpack(struct ckpt *ckpt, struct fsdp_err *err);

/* FSDP_EINVAL, naming file and tensors, where two tensors are stored that differ: in their bits if
 * they have one type, else in their values. Names of one tensor, or of none, are fine. Memory does
 * not grow with their size. Local, blocks, thread safe. */
int ckpt_check_equal(struct ckpt *ckpt, const char *one, const char *other, struct fsdp_err *err);

struct ckpt_load_args {
    uint32_t version;
    ckpt_slices_f *slices;
    void *slices_ctx;
    bool optim;  /* also the optimizer's slices; else they are left as they are */
    int replica; /* only slices of this replica are read; -1: all */
    /* Tied tensors. A stored tensor of such a name need not be read; of others a warning says that
     * they are not used. */
    const struct ckpt_alias *aliases;
    int naliases;
    bool some; /* weights that no slice asks for are no reason for a warning */
    /* Called on every rank for each tensor that the ranks read whole: its name, and the CRC-64/XZ
     * over its row-major bytes as stored. NULL is allowed. */
    void (*whole)(void *ctx, const char *name, uint64_t fingerprint);
    void *whole_ctx;
};
#define CKPT_LOAD_ARGS_VERSION 2
#define CKPT_LOAD_ARGS_INIT                                                                        \
    {                                                                                              \
        .version = CKPT_LOAD_ARGS_VERSION, .optim = true, .replica = -1                            \
    }
/* Loads this rank's slices. What the ranks read together is compared with the tensors'
 * fingerprints; where they read only part of a tensor, with its files' checksums. Damage is
 * FSDP_ECORRUPT and names tensor and file. After a failure the slices' contents are undefined.
 * Collective, ends in one agreed status. */
int ckpt_load(struct ckpt *ckpt, const struct ckpt_load_args *args, struct fsdp_oob *oob,
              struct fsdp_err *err);

/* Newest published checkpoint of root into out; FSDP_ENOTFOUND if there is none. Local: ask one
 * rank and broadcast. */
int ckpt_latest(char *out, size_t out_nbytes, const char *root, struct fsdp_err *err);

/* The steps of which root has a folder, in ascending order; *out is freed with fsdp_free.
 * FSDP_ENOTFOUND: there is no root. Local, blocks. */
int ckpt_steps(int64_t **out, int *nsteps, const char *root, struct fsdp_err *err);
/* The path or address of a step's checkpoint, freed with fsdp_free, also after an error; and is it
 * finished? Local, blocks. */
int ckpt_step_path(char **out, bool *finished, const char *root, int64_t step,
                   struct fsdp_err *err);

/* ---- whole-checkpoint operations: what the tools call ---------------------------------------- */

/* Called often, from one thread at a time. A nonzero return ends the operation with FSDP_ECANCELED.
 */
typedef int ckpt_progress_f(void *ctx, uint64_t nbytes_done, uint64_t nbytes_total);

/* Which tensors of a checkpoint, and under which names. */
struct ckpt_select {
    int ninclude, nexclude, nmaps;
    const char *const *include; /* globs of stored names; none: all */
    const char *const *exclude; /* globs of stored names, stronger than include */
    /* What they are called in the output, applied in order: files of rules (FROM -> TO, a line
     * each), or torchtitan-to-hf, hf-to-torchtitan, fuse-qkv, split-qkv, fuse-gate-up,
     * split-gate-up. */
    const char *const *maps;
    int nheads, nkv_heads; /* for maps that need them; 0: as config.json has them */
};
#define CKPT_SELECT_INIT                                                                           \
    {                                                                                              \
        0                                                                                          \
    }

enum ckpt_output {
    CKPT_OUTPUT_WEIGHTS, /* whole tensors: a file if its name ends in .safetensors, else a Hugging
                            Face folder */
    CKPT_OUTPUT_NATIVE,
    CKPT_OUTPUT_DCP,    /* torch.distributed.checkpoint: .distcp files and .metadata */
    CKPT_OUTPUT_HF_DCP, /* its Hugging Face layout: a safetensors file of boxes per rank */
    CKPT_OUTPUT_GGUF,   /* one file for llama.cpp: whole tensors, with the model's configuration and
                           tokenizer, which the checkpoint must have next to it */
    CKPT_OUTPUT_TORCH,  /* whole tensors as torch.save writes them: a file if its name ends in .pt,
                           .pth or .bin, else a Hugging Face folder of pytorch_model*.bin */
};

struct ckpt_adapters; /* ckpt/adapter.h */
struct ckpt_average;  /* ckpt/average.h */

struct ckpt_reshard_args {
    uint32_t version;
    const char *out;
    enum ckpt_output output;
    int shard_size, replicate_size; /* of sharded output: world = their product */
    bool all;                       /* the optimizer's tensors too */
    bool ema; /* weights are their moving averages (optim.ema_decay) where there is one; not with
                 all. FSDP_ENOTFOUND where there is none at all */
    struct ckpt_select select;
    enum ckpt_compress compress; /* native output: ZSTD, else as NONE */
    const char *dtype;           /* floating tensors are cast to it; NULL: as stored. GGUF: the type
                                    of the file: "f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m",
                                    "q6_k" */
    /* Hugging Face folder: weights of linear layers are stored as compressed-tensors stores them:
     * "fp8_dynamic", "fp8_channel", "fp8_tensor", "w8a16", "w8a16_g64", "w8a16_g32",
     * "w8a16_channel"; computed from the values of type `dtype`. NULL: as they are. */
    const char *quantize;
    const char *const *quantize_ignore; /* globs of layers that are not; lm_head never is */
    int nquantize_ignore;
    uint64_t max_shard_nbytes; /* Hugging Face folder: a new file at this size; 0: one file */
    uint64_t mem_nbytes;       /* budget of buffers */
    int nthreads;              /* 0: as many as suit the stores, at most 8 */
    bool overwrite;
    bool card; /* a folder for transformers gets a model card, README.md; one that was changed since
                  is not overwritten */
    bool dry_run;                   /* plans and checks; writes nothing */
    struct ckpt_adapters *adapters; /* added to the weights; not with maps. NULL: none */
    /* Of several checkpoints, of which the opened one is the first; not with all. NULL: of one. */
    struct ckpt_average *average;
    ckpt_progress_f *progress;
    void *progress_ctx;
};
#define CKPT_RESHARD_ARGS_VERSION 3
#define CKPT_RESHARD_ARGS_INIT                                                                     \
    {                                                                                              \
        .version = CKPT_RESHARD_ARGS_VERSION, .shard_size = 1, .replicate_size = 1,                \
        .mem_nbytes = 256u << 20                                                                   \
    }
/* The same for languages without macros. A caller that declares the structure itself first compares
 * ckpt_struct_nbytes, because this writes all of it. */
void ckpt_reshard_args_init(struct ckpt_reshard_args *out);
/* "67108864", "64K", "256M", "5G", "5GB", "5GiB": K, M, G, T are powers of 1024, KB, MB, GB, TB
 * powers of 1000. FSDP_EINVAL for other text. */
int ckpt_nbytes_parse(uint64_t *out, const char *text, struct fsdp_err *err);

struct ckpt_reshard_result {
    uint64_t nbytes_read, nbytes_written; /* of tensors; of files (a dry run: uncompressed) */
    uint64_t nbytes_resumed;              /* of nbytes_written: found from an earlier run */
    uint64_t nbytes_memory;               /* of all buffers */
    int ntensors, nfiles, nthreads;
    double seconds;
    uint64_t nbytes_within; /* of nbytes_read: copied by the store itself, and not read here */
};
/* Writes the tensors of an opened checkpoint anew: whole (a merge), or cut for another number of
 * ranks. A native checkpoint cut for M ranks gives the data files that libfsdp itself saves at M;
 * tensors of which no unit is known are cut evenly along their first dimension. Coverage was proved
 * before a byte is written, fingerprints are checked as the bytes pass, and the output appears
 * complete or not at all.
 *
 * The work continues in a folder OUT.tmp.<key> next to the output. After FSDP_ECANCELED, FSDP_EIO
 * and FSDP_ENOSPC, and after SIGKILL, it stays, and the same call resumes where that one was. Other
 * failures leave nothing. Local, blocks. */
int ckpt_reshard(struct ckpt_reshard_result *out, struct ckpt *ckpt,
                 const struct ckpt_reshard_args *args, struct fsdp_err *err);

enum { CKPT_CHECK_WHY = 512 };
/* What does not fit config.json. */
struct ckpt_mismatch {
    const char *tensor, *file; /* NULL: of no single one */
    const char *text;          /* one sentence, which names both */
};
typedef void ckpt_mismatch_f(void *ctx, const struct ckpt_mismatch *mismatch);
struct ckpt_check_result {
    int nmismatches, ntensors;
    bool by_family;           /* names and shapes were compared with those of the model's family */
    char family[64];          /* model_type; "": config.json has none */
    char why[CKPT_CHECK_WHY]; /* why not by_family: one sentence */
    int ndecoded;             /* of ntensors: stored quantized, compared as they decode */
};
/* Compares the headers of an opened checkpoint with the config.json next to it: each tensor that
 * the model needs is there in its shape, no other is, types are those that it says, and an index
 * has the right size. Reads no weights. FSDP_OK also where there are mismatches. Local, blocks. */
int ckpt_check(struct ckpt_check_result *out, struct ckpt *ckpt, ckpt_mismatch_f *report, void *ctx,
               struct fsdp_err *err);

/* Logs one warning where tensors are missing that the model of the config.json next to them has. It
 * judges models of known families whose tensors have transformers' names. Local, blocks. */
int ckpt_warn_missing(struct ckpt *ckpt, struct fsdp_err *err);

struct ckpt_copy_args {
    uint32_t version;
    const char *out; /* the copy; with '/' at its end: a folder or address that it shall be in,
                        under its own name */
    bool verify;     /* read the copy again before it is published */
    bool dry_run;
    uint64_t mem_nbytes;
    int nthreads; /* 0: as many as suit the stores, at most 8 */
    ckpt_progress_f *progress;
    void *progress_ctx;
};
#define CKPT_COPY_ARGS_VERSION 1
#define CKPT_COPY_ARGS_INIT                                                                        \
    {                                                                                              \
        .version = CKPT_COPY_ARGS_VERSION, .mem_nbytes = 256u << 20                                \
    }
struct ckpt_copy_result {
    uint64_t nbytes, nbytes_resumed; /* of data files; of these, found from an earlier run */
    uint64_t nbytes_within;          /* moved by the store itself, which is both sides */
    int nfiles, nthreads;
    bool was_there; /* the same checkpoint is there already: nothing was copied */
    double seconds;
    char path[4096];
};
/* Copies an opened checkpoint of any format, byte for byte, to another folder or store. Every
 * file's checksum is compared as its bytes pass, or with what lies there where the store moved it
 * (plain safetensors have none), and the copy appears when it is complete. FSDP_EEXIST where
 * something else has the name. After FSDP_ECANCELED, FSDP_EIO, FSDP_ENOSPC and SIGKILL the same
 * call resumes where that one was. Local, blocks. */
int ckpt_copy(struct ckpt_copy_result *out, struct ckpt *ckpt, const struct ckpt_copy_args *args,
              struct fsdp_err *err);

enum ckpt_diff_result {
    CKPT_DIFF_SAME,             /* every byte, or every value: zeros of both signs, NaNs */
    CKPT_DIFF_SAME_FINGERPRINT, /* known without reading */
    CKPT_DIFF_NEAR,             /* within the tolerance */
    CKPT_DIFF_DATA,
    CKPT_DIFF_DTYPE,
    CKPT_DIFF_SHAPE,
    CKPT_DIFF_ONLY_A,
    CKPT_DIFF_ONLY_B,
    CKPT_DIFF_UNREAD, /* never reported */
};

struct ckpt_diff_tensor {
    const char *name;
    enum ckpt_diff_result result;
    const struct ckpt_tensor *a, *b; /* NULL where there is none */
    uint64_t nnear, ndiffer;         /* elements within and beyond the tolerance, not equal */
    uint64_t first;                  /* row-major index of the first of ndiffer */
    double max_abs;                  /* over all elements that are not equal */
    uint64_t max_ulp;                /* units in the last place, of finite floating elements */
};

struct ckpt_diff_args {
    uint32_t version;
    /* Its maps apply to the tensors of both: with them, include and exclude mean the names that
     * they make, and a ckpt_diff_tensor is what they make. */
    struct ckpt_select select;
    bool model;        /* weights alone */
    bool data;         /* read also where fingerprints are equal */
    bool any_dtype;    /* floating types may differ: compared in the narrower one */
    double atol, rtol; /* near: |a - b| <= atol + rtol * |b|, or at most ulp units apart */
    uint64_t ulp;
    uint64_t mem_nbytes;
    int nthreads;
};
#define CKPT_DIFF_ARGS_VERSION 1
#define CKPT_DIFF_ARGS_INIT                                                                        \
    {                                                                                              \
        .version = CKPT_DIFF_ARGS_VERSION, .mem_nbytes = 256u << 20                                \
    }
typedef void ckpt_diff_f(void *ctx, const struct ckpt_diff_tensor *tensor);
/* Compares two opened checkpoints by tensor, whatever their formats and sharding; reports every
 * tensor, in the order of a, then what only b has. Local, blocks. */
int ckpt_diff(bool *same, struct ckpt *a, struct ckpt *b, const struct ckpt_diff_args *args,
              ckpt_diff_f *report, void *ctx, struct fsdp_err *err);

/* Compares every file that was read so far with what lies at its path now. FSDP_ECORRUPT names one
 * that was written, replaced or removed since it was first opened, and what differs: size, inode,
 * modification time or ETag; for files without checksums also their status (ctime). For native
 * checkpoints only the size is compared, because fingerprints prove the bytes. ckpt_load,
 * ckpt_reshard, ckpt_copy, ckpt_diff and ckpt_verify end with it; a caller that reads slices calls
 * it after the last one.
 * Local, blocks. */
int ckpt_unchanged(struct ckpt *ckpt, struct fsdp_err *err);

/* Calls report (one line of text) per fault found in sizes, checksums, fingerprints; returns
 * FSDP_ECORRUPT if there was any, FSDP_EUNSUPPORTED if there are tensors that cannot be read.
 * Opening already proved coverage. Local, blocks. */
typedef void ckpt_fault_f(void *ctx, const char *text);
int ckpt_verify(struct ckpt *ckpt, ckpt_fault_f *report, void *ctx, struct fsdp_err *err);

struct ckpt_verify_args {
    uint32_t version;
    ckpt_fault_f *report; /* one thread at a time; NULL: nobody hears of single faults */
    void *report_ctx;
    ckpt_progress_f *progress; /* over the bytes of all files; NULL: none */
    void *progress_ctx;
};
#define CKPT_VERIFY_ARGS_VERSION 1
#define CKPT_VERIFY_ARGS_INIT                                                                      \
    {                                                                                              \
        .version = CKPT_VERIFY_ARGS_VERSION                                                        \
    }
/* The same, which can be watched and stopped: FSDP_ECANCELED. Local, blocks. */
int ckpt_verify_watched(struct ckpt *ckpt, const struct ckpt_verify_args *args,
                        struct fsdp_err *err);

/* ---- for other languages --------------------------------------------------------------------- */

/* Size of a structure of this library, by its name ("ckpt_reshard_args"): a program that declares
 * structures itself compares it with its own before it passes one. 0 where the name is not known:
 * the structures that Python's module has are. Local, thread safe. */
size_t ckpt_struct_nbytes(const char *name);

#ifdef __cplusplus
}
#endif
#endif
