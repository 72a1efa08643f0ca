/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.h: what a format of output implements, one file writer_*.c for each; the rows are in
 * writers.c. Nothing else in this folder asks which output a job has.
 */
#ifndef CKPT_WRITER_H
#define CKPT_WRITER_H

#include "job.h"
#include "keep/belongs.h"

struct ckpt_writer_ops {
    enum ckpt_output id;
    enum ckpt_place place; /* what --overwrite may replace at the output's name */
    bool sharded;     /* a file for each rank, or two (by_kind), of boxes; else whole tensors */
    bool by_kind;     /* weights and optimizer state in files of their own */
    bool lists_empty; /* tensors without elements are named in rank 0's file */
    bool single_file; /* the output may be one file, if its name says so (names_file) */
    bool own_folder;  /* readers find its files by a manifest alone */
    bool compresses;  /* files may be compressed */
    bool containers;  /* has names of torch, containers and all, besides the weights' own */
    bool any_name;    /* even one that a safetensors header uses itself */
    bool outer_names; /* weights within a container keep its name, unless there is just one */
    bool file_only;   /* the output is one file, whatever its name */
    bool quantizes;   /* weights of linear layers, if args->quantize says how */
    bool own_types;   /* `plan` chooses the types of tensors by args->dtype: nothing is cast */
    bool in_order;    /* tensors lie in the order of the list; else largest elements first */
    bool as_stored;   /* small files are copied as they are; else config.json gets the dtype */
    const char *const *folders; /* (optional) below the output; ends with NULL */
    const char *extras_folder;  /* (optional) below the output, of small files */
    bool has_card;              /* a folder gets a model card, if args->card says so */
    const char *index_name;     /* (optional) of what `finish` writes into the folder */
    const char *stem, *ext; /* of whole tensors in a folder: STEM.EXT, STEM-00001-of-00002.EXT */
    const char *file_ends;  /* (with names_file) as a text */

    /* (optional) Is a single file meant by an output of this name? */
    bool (*names_file)(const char *name);

    /* (optional) Makes the job's list of tensors, under Hugging Face's names, that of the output:
     * its names, types and order. */
    int (*plan)(struct ckpt_job *job, struct fsdp_err *err);
    void (*end)(struct ckpt_job *job); /* (with plan) frees job->plan */
    /* (optional) What a file begins with; the size is that of its file->header_nbytes. A copy,
     * freed with fsdp_free. */
    char *(*header)(const struct ckpt_job *job, int file, struct fsdp_err *err);
    /* (optional) Of a sharded output: a file's name, owned by the caller. kind: FSDP_SLICE_*, or -1
     * where a file holds all. */
    char *(*file_name)(const struct ckpt_job *job, int rank, int kind, struct fsdp_err *err);
    /* (optional) Places the pieces of a file and sets its size; absent: a safetensors file. */
    int (*place_pieces)(struct ckpt_job_piece *pieces, int npieces, struct ckpt_job *job, int file,
                        struct fsdp_err *err);
    /* (optional) What is around a piece's elements, once they are written. */
    int (*wrap)(struct ckpt_job *job, int file, const struct ckpt_job_piece *piece, uint32_t crc32,
                struct fsdp_err *err);
    /* (optional) When all files of a folder are written: what a reader looks for first. extras: the
     * small files that were copied. */
    int (*finish)(struct ckpt_job *job, const struct ckpt_extra *extras, int nextras,
                  struct fsdp_err *err);
};

extern const struct ckpt_writer_ops ckpt_writer_native, ckpt_writer_hf, ckpt_writer_dcp,
    ckpt_writer_hf_dcp, ckpt_writer_gguf, ckpt_writer_torch;

/* NULL: there is none such. */
const struct ckpt_writer_ops *ckpt_writer_of(enum ckpt_output output);

/* card.c: README.md, where it is wanted. */
int ckpt_job_write_card(struct ckpt_job *job, struct fsdp_err *err);

/* folder.c: the end of a folder of whole tensors for transformers: the index, where there are
 * several files, and a word where there is no config.json. more: names besides those of the
 * tensors, with their files. */
int ckpt_job_finish_folder(struct ckpt_job *job, const struct ckpt_alias *more, int nmore,
                           struct fsdp_err *err);

#endif
