/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer under merge and reshard, in progress.
 *
 *   select.c      stored tensors -> output tensors: chosen, renamed, joined, cut, cast
 *   apply_map.c   the renaming, joining and cutting; map_megatron.c,
 *                 map_titan.c, heads.c
 *   quantize.c    weights of linear layers -> codes and scales; measure.c, quant_rows.c
 *   files.c       output tensors -> files, and which rows each holds
 *   name.c        what the output is called, what must not be overwritten, the temporary folder
 *   job_read.c    elements of output tensors, out of stored ones
 *   move.c        threads that read, convert, prove and write; move_tasks.c: in which ranges
 *   copies.c      in an object store: ranges of files that it copies itself
 *   job_notes.c   in an object store: which files are done
 *   writer_*.c    what each format of output has around the elements (writer.h)
 *   publish.c     what goes along, and the final name
 *   job.c         the steps in order
 *
 * Memory: the threads' buffers (args->mem_nbytes), the stored layout, and the pieces of the files
 * that are being written.
 */
#ifndef CKPT_JOB_H
#define CKPT_JOB_H

#include "keep/commit.h"
#include "keep/temp.h"
#include "source/source.h"
#include "util/encoding.h"
#include "util/pool.h"

struct ckpt_writer_ops;

/* In which order an output tensor takes the rows of a stored one. Groups (attention heads) of
 * `group` rows are permuted alike where the rotary embedding turns other pairs of them. */
enum ckpt_row_order {
    CKPT_ROWS_SAME,
    CKPT_ROWS_TO_HALVES, /* neighbours (Meta, torchtitan) -> halves of the head (Hugging Face) */
    CKPT_ROWS_TO_PAIRS,  /* and back */
    CKPT_ROWS_COLUMNS,   /* the stored columns are the rows */
};

/* Rows [row, row + nrows) of an output tensor are rows of one stored tensor. */
struct ckpt_job_part {
    int tensor; /* stored */
    uint64_t row, nrows, src_row;
    enum ckpt_row_order order;
    uint32_t group;
    uint32_t skip; /* stored rows (or columns) between two of the output's */
    bool in_slab;  /* of a stored tensor that has one dimension more: of its element `slab` */
    uint64_t slab;
};

/* What an output tensor is of a quantized weight. */
enum ckpt_job_form {
    CKPT_FORM_VALUES, /* nothing: its elements are the stored ones */
    CKPT_FORM_CODES,
    CKPT_FORM_SCALES, /* of its rows */
    CKPT_FORM_SCALE,  /* of all of it */
    CKPT_FORM_SHAPE,
};

struct ckpt_job_tensor {
    struct fsdp_tensor tensor; /* as written; its name is of the layout or of job->names */
    enum fsdp_slice_kind kind : 8;
    enum ckpt_role role : 8;
    enum ckpt_job_form form : 8;
    int weight;         /* unless CKPT_FORM_VALUES: of job->quant */
    const char *stored; /* the name that a torch source uses, borrowed; else NULL */
    const char *own;    /* the end of it, without containers */
    int first_part, nparts;
    int unit;  /* of the source's manifest; -1: none */
    int param; /* output tensor that this is the optimizer's state of, itself for a parameter; -1 */
    uint64_t fingerprint;                 /* of what was written so far */
    const struct ckpt_encoding *encoding; /* of the elements in the file; NULL: by their dtype */
    float offset;                         /* that is added to every element */
};

/* Weights of linear layers that are written quantized. */
struct ckpt_job_quant {
    const struct ckpt_ct_scheme *scheme;
    struct ckpt_job_weight {
        struct fsdp_tensor tensor; /* that is quantized: [out, in], a floating type */
        float largest;             /* magnitude, if the scheme has one scale for a tensor */
        int first_part, nparts;
    } * weights;
    int nweights;
    size_t max_weights;
    const char **ignored; /* layers that stay as they are; the names are the job's */
    int nignored;
    size_t max_ignored;
};

/* Rows of an output tensor as they lie in a file. */
struct ckpt_job_piece {
    int tensor; /* of the job */
    uint64_t row, nrows;
    uint64_t pos, nbytes; /* of its elements in the file */
};

struct ckpt_job_file {
    char *name;          /* below the output folder; "" where the output is one file */
    int rank, kind;      /* sharded output: whose, and of what; kind -1: of all */
    int first, ntensors; /* whole tensors: items of job->order */
    uint64_t nbytes, header_nbytes;
    struct ckpt_job_sink *sink; /* while it is written */
    uint64_t stored_nbytes;     /* when it is written: of the file on disk */
    uint32_t crc32c;            /* of the file on disk */
};

struct ckpt_job {
    struct ckpt *ckpt;
    const struct ckpt_reshard_args *args;
    const struct ckpt_writer_ops *writer; /* of args->output */
    const struct ckpt_store_ops *store;   /* of the output */
    struct ckpt_commit commit;            /* of the output */
    bool folder, cast, made_temp;
    bool refused;          /* what is at the output's name must stay: all else is done */
    bool one_container;    /* around all weights, and left out of their names */
    enum fsdp_dtype dtype; /* if cast */
    uint64_t key;          /* of source and options: the same job has the same temporary folder */
    struct ckpt_journal journal;
    struct ckpt_job_notes {
        char *folder;     /* where it is noted what is done; NULL: the journal has it */
        bool found;       /* an earlier run of this job left some */
        char attempt[37]; /* a uuid: of native files' folder */
    } notes;

    int ntensors;
    size_t max_tensors;
    struct ckpt_job_tensor *tensors;
    struct ckpt_pool names; /* those that maps changed */
    int nparts;
    size_t max_parts;
    struct ckpt_job_part *parts;
    int naliases;
    struct ckpt_job_alias { /* other names of stored tensors that are in the output, for tied ones
                             */
        char *name;
        int stored;
    } * aliases;
    int *order; /* [ntensors] as files of whole tensors hold them: largest elements first */
    int nfiles;
    struct ckpt_job_file *files;
    struct ckpt_job_cut { /* [nunits] */
        struct fsdp_cut cut;
        struct fsdp_tensor *tensors; /* in the order of the unit */
        int ntensors;
    } * cuts;
    int *cut_index; /* [ntensors] which member of its unit's cut */
    struct ckpt_job_nbytes {
        uint64_t total, written; /* of tensors to write; of files */
        uint64_t resumed;        /* of total: found from an earlier run */
    } nbytes;
    struct ckpt_job_budget {
        int nthreads;
        uint64_t memory;                    /* all buffers */
        int window;                         /* of compression: chunks in memory */
        size_t block_nbytes;                /* of each thread's buffer of output */
        size_t in_nbytes;                   /* and of what is stored, if it converts */
        size_t values_nbytes, spare_nbytes; /* and if it computes (ckpt_job_computes) */
    } budget;
    struct ckpt_job_quant *quant; /* NULL: nothing is quantized */
    void *plan;                   /* of the writer, which frees it */
    uint64_t plan_hash;           /* of what the writer adds to the tensors */
    struct ckpt_job_copies {
        struct ckpt_job_source { /* [stored files]; NULL: the store copies nothing */
            bool fits;           /* all its bytes go to the output unchanged, each once */
            bool copied;         /* some by the store */
            uint32_t crc32c;     /* what those seen contribute to its CRC-32C; without its header */
            uint64_t seen;
        } * sources;
        bool off;        /* the store does not copy, or tells no checksum: no more is asked for */
        bool never;      /* nothing is planned */
        bool wrong;      /* the proof failed */
        uint64_t nbytes; /* copied */
    } copies;
    struct ckpt_job_proof { /* [stored tensors]: fingerprint and elements of what was read */
        uint64_t *sums, *seen;
    } proof;
};

/* select.c */
bool ckpt_select_matches(const struct ckpt_select *select, const char *name);
int ckpt_job_select(struct ckpt_job *job, struct fsdp_err *err);
/* All that is stored, under the names that the maps make of tensor.name. */
int ckpt_job_select_all(struct ckpt_job *job, struct fsdp_err *err);
/* lists.c: adds a tensor without parts; then its parts in the order of its rows. The name is
 * borrowed: of the layout, or a copy in job->names, which ckpt_job_keep_name makes. */
int ckpt_job_add_tensor(struct ckpt_job *job, const struct fsdp_tensor *tensor,
                        enum fsdp_slice_kind kind, struct fsdp_err *err);
/* How the shape of an optimizer's tensor follows from its parameter's, as the source's manifest has
 * it of tensors of that name. */
enum fsdp_slot_kind ckpt_job_slot_kind(const struct ckpt_job *job,
                                       const struct ckpt_job_tensor *tensor);
const char *ckpt_job_keep_name(struct ckpt_job *job, const char *name, struct fsdp_err *err);
int ckpt_job_add_part(struct ckpt_job *job, const struct ckpt_job_part *part, struct fsdp_err *err);
/* The stored row that row `row` of the part's output is. */
uint64_t ckpt_job_src_row(const struct ckpt_job_part *part, uint64_t row);
/* The output tensor that is the whole stored tensor, -1: none. */
int ckpt_job_find_stored(const struct ckpt_job *job, int stored);
void ckpt_job_tensors_free(struct ckpt_job *job);

/* apply_map.c: renames, joins and splits what was selected; `tell`: a map that fits nothing is a
 * warning */
int ckpt_job_map(struct ckpt_job *job, bool tell, struct fsdp_err *err);

/* The widest form that an element has on its way to one that is computed. */
enum { CKPT_JOB_COMPUTED_NBYTES = 8 };

/* quantize.c: with args->quantize, the list of tensors becomes that of a quantized model. */
int ckpt_job_quantize(struct ckpt_job *job, struct fsdp_err *err);
/* Refuses to change what is quantized already, and was not decoded (ckpt_unpack). */
int ckpt_job_check_codes(const struct ckpt_job *job, struct fsdp_err *err);
void ckpt_job_quant_free(struct ckpt_job *job);

/* heads.c: attention heads, of queries, and of keys and values; from the options, else from the
 * config.json that goes along. `what` names the tensor that needs them in the error. */
struct ckpt_job_heads {
    uint64_t query, key;
};
int ckpt_job_heads(struct ckpt_job_heads *out, const struct ckpt_job *job, const char *what,
                   struct fsdp_err *err);
/* Are the heads of queries' and of keys' weights as long, as they are in all models? */
int ckpt_job_check_heads(const struct ckpt_job_heads *heads, const struct fsdp_tensor *query,
                         const struct fsdp_tensor *key, struct fsdp_err *err);
/* config.json's vocab_size; 0: not known. */
uint64_t ckpt_job_vocab(const struct ckpt_job *job);
/* map_titan.c: torchtitan's stacked experts, one tensor for each; the other way they are refused.
 */
int ckpt_job_map_experts(struct ckpt_job *job, bool to_titan, int *nchanged, struct fsdp_err *err);
/* Does the rotary embedding of the model turn halves of a head in torchtitan, too (Qwen3)? */
bool ckpt_job_turns_halves(const struct ckpt_job *job);
/* map_megatron.c: Megatron-Core's names and stacked layers to Hugging Face's. */
int ckpt_job_map_megatron(struct ckpt_job *job, struct fsdp_err *err);

/* files.c */
int ckpt_job_arrange(struct ckpt_job *job, struct fsdp_err *err);
/* The pieces of a file in the order of its bytes, and its header. Both are freed with fsdp_free;
 * header may be NULL. */
int ckpt_job_pieces(struct ckpt_job_piece **out, int *npieces, char **header, struct ckpt_job *job,
                    int file, struct fsdp_err *err);
void ckpt_job_files_free(struct ckpt_job *job);

/* name.c */
/* The final name; refuses one that would hurt the input. */
int ckpt_job_name(struct ckpt_job *job, struct fsdp_err *err);
/* When all is arranged: the job's key, which names the temporary folder. */
int ckpt_job_name_temp(struct ckpt_job *job, struct fsdp_err *err);
struct ckpt_temp ckpt_job_temp(const struct ckpt_job *job);
/* Refuses an existing output. *done: it is that of this very job, which was killed when it had
 * published it. */
int ckpt_job_refuse(bool *done, struct ckpt_job *job, struct fsdp_err *err);
/* Refuses to replace what has the output's name, unless it is such an output. */
int ckpt_job_prove_target(const struct ckpt_job *job, struct fsdp_err *err);
/* Room on the disk, the temporary folder (a new one or that of an earlier run), the journal. */
int ckpt_job_begin(struct ckpt_job *job, struct fsdp_err *err);

/* job_read.c: where a box goes, and what is learned of it on the way. */
struct ckpt_job_dst {
    void *dst;     /* row-major, in ckpt_job_dtype */
    void *scratch; /* for boxes that lie scattered */
    size_t scratch_nbytes;
    void *spare; /* (or NULL) for parts that take columns, or leave rows out: as many times dst's
                    bytes as the part has stored rows (or columns) for one */
    bool narrow; /* of an average: see struct ckpt_average_dst */
    struct ckpt_adapters *adapters; /* (or NULL) added to what was read and summed */
    uint64_t *sum;    /* (or NULL) gets what was read added, as parts of its fingerprint */
    uint32_t *crc32c; /* (or NULL, and without sum) continues over it */
};
/* The type in which a stored tensor is read: its own, that of the sums of an average. */
enum fsdp_dtype ckpt_job_dtype(const struct ckpt_job *job, int stored);
/* A box of an output tensor that lies in one part. */
int ckpt_job_read(const struct ckpt_job_dst *to, const struct ckpt_job *job,
                  const struct ckpt_job_part *part, const struct fsdp_box *box,
                  struct fsdp_err *err);

/* quant_rows.c */
/* Elements of a tensor that is not CKPT_FORM_VALUES for which one read of `most_nelem` elements of
 * the weight is enough, whole rows. */
uint64_t ckpt_job_quant_room(const struct ckpt_job *job, const struct ckpt_job_tensor *tensor,
                             uint64_t most_nelem);
/* Elements of the weight that a run of the tensor accounts for: each is read twice, and counts
 * where its code is made. */
uint64_t ckpt_job_quant_nelem(const struct ckpt_job *job, const struct ckpt_job_tensor *tensor,
                              uint64_t nelem);
/* The longest row of all weights. */
uint64_t ckpt_job_quant_row_nelem(const struct ckpt_job *job);
/* Buffers of a thread for what it computes. */
struct ckpt_job_buffers {
    void *in;      /* elements as stored */
    float *values; /* and as numbers */
    uint64_t most_nelem;
};
/* A box of whole rows of a tensor that is not CKPT_FORM_VALUES. read->dst is not looked at. */
int ckpt_job_quant_fill(void *dst, const struct ckpt_job_buffers *buffers,
                        const struct ckpt_job_dst *read, const struct ckpt_job *job, int tensor,
                        int part, const struct fsdp_box *box, struct fsdp_err *err);
/* Rows [row, row + nrows) of a part, in its weight's type, as numbers: buffers->values. */
int ckpt_job_quant_read(const struct ckpt_job_buffers *buffers, const struct ckpt_job_dst *read,
                        const struct ckpt_job *job, int weight, int part, uint64_t row,
                        uint64_t nrows, struct fsdp_err *err);
/* measure.c: the largest magnitudes, where the scheme needs them before the first code. */
int ckpt_job_measure(struct ckpt_job *job, struct fsdp_err *err);

/* job_notes.c. What an output file has of an output tensor, out of a stored one. */
struct ckpt_job_share {
    int32_t tensor, stored;
    uint64_t nelem, read, written; /* read, written: added to their fingerprints */
};
/* In place of a tensor: bytes (nelem) of the stored file `stored`, and what they contribute to its
 * CRC-32C (read). */
enum { CKPT_SHARE_PASSED = -1, CKPT_SHARE_COPIED = -2 };
struct ckpt_job_shares {
    struct ckpt_job_share *shares;
    size_t nshares, max;
};
int ckpt_job_shares_add(struct ckpt_job_shares *shares, const struct ckpt_job_share *share,
                        struct fsdp_err *err);
void ckpt_job_shares_free(struct ckpt_job_shares *shares);
/* Sets job->notes.found and job->notes.attempt if an earlier run of this job left notes;
 * FSDP_EEXIST if another job did, whose files have these names. */
int ckpt_job_notes_find(struct ckpt_job *job, struct fsdp_err *err);
/* FSDP_EEXIST if another process began at the same time. */
int ckpt_job_notes_begin(const struct ckpt_job *job, struct fsdp_err *err);
/* Of one object, before its upload is searched: this run continues what another may be writing. */
int ckpt_job_notes_share(const struct ckpt_job *job, struct fsdp_err *err);
/* Has a run done so? True also where that cannot be told. */
bool ckpt_job_notes_are_shared(const struct ckpt_job *job);
/* The file is done: it is in the store. Thread safe. */
int ckpt_job_note_add(const struct ckpt_job *job, int file, const struct ckpt_job_shares *shares,
                      struct fsdp_err *err);
/* *there: an earlier run has done the file, and it is still what that run sent. */
int ckpt_job_note_recall(bool *there, struct ckpt_job_shares *out, struct ckpt_job *job, int file,
                         struct fsdp_err *err);

/* job_notes.c: does what was written stay when the job fails with this status, so that the same
 * call resumes? */
bool ckpt_job_keeps(const struct ckpt_job *job, int rc);

/* copies.c. A range of an output file whose bytes are those of a source file, from `from`. */
struct ckpt_job_run {
    uint64_t pos, nbytes, from;
    int file;
};
struct ckpt_job_runs {
    struct ckpt_job_run *runs; /* in order of pos */
    size_t nruns, max;
};
/* Decides which source files take part; job->copies.sources stays NULL where none does. */
int ckpt_job_copies_plan(struct ckpt_job *job, struct fsdp_err *err);
void ckpt_job_copies_free(struct ckpt_job *job);
/* Of an output file: the ranges out of these source files, and those parts of it that the store can
 * copy. Both are freed with ckpt_job_runs_free, after an error, too. */
int ckpt_job_copies_of(struct ckpt_job_runs *runs, struct ckpt_job_runs *copies,
                       const struct ckpt_job *job, const struct ckpt_job_piece *pieces, int npieces,
                       struct ckpt_job_sink *sink, struct fsdp_err *err);
void ckpt_job_runs_free(struct ckpt_job_runs *runs);
/* What a range of a source file contributes; crc32c: of its bytes. */
struct ckpt_job_share ckpt_job_copies_share(const struct ckpt_job *job, int file, uint64_t from,
                                            uint64_t nbytes, uint32_t crc32c, bool copied);
void ckpt_job_copies_add(struct ckpt_job *job, const struct ckpt_job_share *share);
/* When all is moved: FSDP_ECORRUPT, and job->copies.wrong, where a source file of which the store
 * copied bytes has not the checksum of the manifest. */
int ckpt_job_copies_prove(struct ckpt_job *job, struct fsdp_err *err);

/* move.c */
int ckpt_job_move(struct ckpt_job *job, struct fsdp_err *err);

/* publish.c */
int ckpt_job_publish(struct ckpt_job *job, struct fsdp_err *err);

/* lists.c: bytes in a file of so many elements of an output tensor, and the other way round: as
 * many whole blocks as fit. */
uint64_t ckpt_job_nbytes(const struct ckpt_job_tensor *tensor, uint64_t nelem);
uint64_t ckpt_job_nelem(const struct ckpt_job_tensor *tensor, uint64_t nbytes);
/* Are its elements more than copied or cast? */
bool ckpt_job_computes(const struct ckpt_job *job, const struct ckpt_job_tensor *tensor);

/* lists.c: the name that config.json has for the weights' type; NULL where they have several. */
const char *ckpt_job_dtype_name(const struct ckpt_job *job);
/* lists.c: the box of a piece: whole rows of its tensor. */
struct fsdp_box ckpt_job_piece_box(const struct ckpt_job *job, const struct ckpt_job_piece *piece);

#endif
