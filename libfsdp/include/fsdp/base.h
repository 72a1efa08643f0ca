/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h: what every part of the toolkit shares: status codes and error records, named
 * allocation, data types, logging, the out-of-band channel, and the description of
 * distributed tensors (tensor, box, slice, cut).
 *
 * Conventions used by all public headers
 * --------------------------------------
 * - A call that can fail returns an int: FSDP_OK (0) or a negative enum fsdp_status. Its outputs
 *   come first and its `struct fsdp_err *err`, owned by the caller and optional (NULL), last.
 *   The text in err is set once, where the failure happened, and names the object.
 * - On failure a call has no side effect unless its comment says otherwise.
 * - x_create makes an object owned by the caller, x_destroy frees it and accepts NULL.
 * - Counts are called nelem (elements) or nbytes.
 * - "Collective" calls are made by every rank of the group in the same order; "Local" ones are not.
 */
#ifndef FSDP_BASE_H
#define FSDP_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_VERSION_MAJOR 0
#define FSDP_VERSION_MINOR 2
#define FSDP_VERSION_PATCH 0
#define FSDP_VERSION_STRING "0.2.0"
/* Version of the library that is linked, which may differ from the headers' version. Static. */
const char *fsdp_version(void);
/* What this build has and lacks, its compiler and target, on one line: for reports. Static. */
const char *fsdp_build_text(void);
/* What --version of a program prints. */
void fsdp_version_print(FILE *to, const char *program);

#if defined(__GNUC__)
#define FSDP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FSDP_PRINTF(fmt, args)
#endif

/* ---- status and error records -------------------------------------------------------------- */

enum fsdp_status {
    FSDP_OK = 0,
    FSDP_EINTERNAL = -1, /* anything without a code of its own; the text says what */
    FSDP_EINVAL = -2,    /* bad argument, configuration or input file */
    FSDP_ENOMEM = -3,
    FSDP_EIO = -4,          /* the operating system or a store refused; the text has its reason */
    FSDP_ENOTFOUND = -5,    /* a file, tensor, key or checkpoint that is not there */
    FSDP_EEXIST = -6,       /* the target exists and is not overwritten */
    FSDP_ECORRUPT = -7,     /* data that contradicts itself: checksum, size, coverage, syntax */
    FSDP_EUNSUPPORTED = -8, /* well formed, but not something this build or version can do */
    FSDP_ENOSPC = -9,       /* no room: disk, quota, shared memory */
    FSDP_EPEER = -10,       /* another rank died or failed; the text names it */
    FSDP_ETIMEDOUT = -11,   /* a deadline passed; the text names who did not come */
    FSDP_EMISMATCH = -12,   /* ranks disagree about something that must be equal */
    FSDP_ECANCELED = -13,   /* stopped on request (signal) */
};

#define FSDP_ERR_TEXT_NBYTES 1024

/* What a program may need to know of a failure: it never reads the text. */
enum fsdp_err_kind {
    FSDP_ERR_PLAIN,
    FSDP_ERR_LOST,    /* the connection to `rank` ended without goodbye */
    FSDP_ERR_GAVE_UP, /* `rank` ended the job */
};

struct fsdp_err {
    int status;
    char text[FSDP_ERR_TEXT_NBYTES]; /* one line of printable text (fsdp_text_clean) */
    /* The setting at fault, as option structs and configurations name it; "" where it is none's. */
    char setting[40];
    bool of_other; /* another rank's failure, which that rank reports itself */
    enum fsdp_err_kind kind;
    int rank;    /* the world rank that kind or of_other is about, -1: none */
    int culprit; /* the world rank at fault, -1: not known */
    /* Where text holds the reason alone, without who passed it on and without hints: ncause bytes
     * from cause on; ncause 0: up to the end. */
    int cause, ncause;
};

#define FSDP_ERR_INIT                                                                              \
    {                                                                                              \
        0, "", "", false, FSDP_ERR_PLAIN, -1, -1, 0, 0                                             \
    }

/* Sets *err (if not NULL) and returns status, so that a failure is set and returned in one line. */
int fsdp_err_set(struct fsdp_err *err, int status, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* The same with ": <strerror(errnum)>" appended. ENOSPC and EDQUOT become FSDP_ENOSPC, ENOENT
 * becomes FSDP_ENOTFOUND, EEXIST and ENOTEMPTY FSDP_EEXIST, ENOMEM FSDP_ENOMEM, others FSDP_EIO. */
int fsdp_err_sys(struct fsdp_err *err, int errnum, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* Notes that `setting` is at fault, unless a setting is noted already. Returns status; FSDP_OK is
 * nobody's fault. */
int fsdp_err_blame(struct fsdp_err *err, int status, const char *setting);
/* fsdp_err_set and fsdp_err_blame at once. */
int fsdp_err_set_blame(struct fsdp_err *err, int status, const char *setting, const char *fmt, ...)
    FSDP_PRINTF(4, 5);
/* Puts text before the error's: where it happened, such as "run.yaml:7: ". The reason includes it.
 * Like the next two: returns status; FSDP_OK changes nothing; what does not fit is cut at the end.
 */
int fsdp_err_prefix(struct fsdp_err *err, int status, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* The same for who passed it on, such as "rank 2 aborted: ". The reason does not include it. */
int fsdp_err_relay(struct fsdp_err *err, int status, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* Puts text behind the error's: what to try, or what this rank did. The reason does not include it.
 */
int fsdp_err_hint(struct fsdp_err *err, int status, const char *fmt, ...) FSDP_PRINTF(3, 4);
/* The reason alone, into out, which is returned. */
const char *fsdp_err_reason(char out[FSDP_ERR_TEXT_NBYTES], const struct fsdp_err *err);
/* Notes that the failure is rank's and not this one's: "rank R: " goes before its text. Returns
 * status; FSDP_OK is nobody's failure. */
int fsdp_err_of_rank(struct fsdp_err *err, int status, int rank);
/* Passes on a failure that another record holds: *err (if not NULL) becomes *from, which keeps its
 * setting and whose failure it is, with this status. Returns status; FSDP_OK changes nothing. */
int fsdp_err_pass(struct fsdp_err *err, int status, const struct fsdp_err *from);
/* Name of a status code, such as "FSDP_EPEER". Static. */
const char *fsdp_status_name(int status);

/* Returns the status of a failed call to the caller, or goes to a cleanup label with it in `rc`. */
#define FSDP_TRY(call)                                                                             \
    do {                                                                                           \
        int fsdp_try_rc_ = (call);                                                                 \
        if (fsdp_try_rc_ != FSDP_OK)                                                               \
            return fsdp_try_rc_;                                                                   \
    } while (0)
#define FSDP_TRY_GOTO(call, label)                                                                 \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != FSDP_OK)                                                                         \
            goto label;                                                                            \
    } while (0)

/* ---- log ------------------------------------------------------------------------------------ */

enum fsdp_log_level { FSDP_LOG_ERROR, FSDP_LOG_WARN, FSDP_LOG_INFO, FSDP_LOG_DEBUG };

typedef void fsdp_log_f(void *ctx, enum fsdp_log_level level, const char *text);

/* Libraries never print. They log lines through this callback; NULL (the default) drops them. A
 * line is printable text (fsdp_text_clean).
 * Thread safe: it is called by one thread at a time, and must not log itself. */
void fsdp_log_set(fsdp_log_f *fn, void *ctx, enum fsdp_log_level max_level);
void fsdp_log(enum fsdp_log_level level, const char *fmt, ...) FSDP_PRINTF(2, 3);

/* ---- memory --------------------------------------------------------------------------------- */

/* Zeroed memory, aligned to 64 bytes; from 64 KiB on to 4096; from 2 MiB on to 2 MiB, in huge pages
 * where the system has some. `name` (static) appears in errors. Returns NULL with err set
 * (FSDP_ENOMEM), also where nelem * elem_nbytes overflows; an empty request gives a valid pointer.
 * Freed with fsdp_free (NULL is allowed). Thread safe. */
void *fsdp_alloc(size_t nelem, size_t elem_nbytes, const char *name, struct fsdp_err *err);
/* The same, not zeroed: for what is written before it is read. */
void *fsdp_alloc_unset(size_t nelem, size_t elem_nbytes, const char *name, struct fsdp_err *err);
/* Makes room for one more element in an array of nelem. Returns the array itself while nelem <
 * *max, else a copy with room for twice as many, and *max is then its size. The added elements are
 * not set. Returns NULL with err set (FSDP_ENOMEM) and leaves the array as it was. Begin with NULL
 * and *max = 0. */
void *fsdp_alloc_grow(void *array, size_t nelem, size_t *max, size_t elem_nbytes, const char *name,
                      struct fsdp_err *err);
/* The same for room for `want` elements in all. Returns NULL without an error if want is 0. */
void *fsdp_alloc_reserve(void *array, size_t nelem, size_t *max, size_t want, size_t elem_nbytes,
                         const char *name, struct fsdp_err *err);
void fsdp_free(void *ptr);
/* New texts, which the caller frees with fsdp_free; NULL with err set (FSDP_ENOMEM). */
char *fsdp_strdup(const char *text, struct fsdp_err *err);
char *fsdp_sprintf(struct fsdp_err *err, const char *fmt, ...) FSDP_PRINTF(2, 3);
/* Number of allocations so far. Tests see by it that the step loop allocates nothing. */
uint64_t fsdp_alloc_count(void);
/* Fault injection: the nth following allocation fails (1 = the next); 0 turns it off. */
void fsdp_alloc_fail_at(uint64_t nth);

/* ---- data types ----------------------------------------------------------------------------- */

/* Names and storage are those of safetensors. */
enum fsdp_dtype {
    FSDP_F32,
    FSDP_BF16,
    FSDP_F16,
    FSDP_F64,
    FSDP_I64,
    FSDP_I32,
    FSDP_I16,
    FSDP_I8,
    FSDP_U64,
    FSDP_U32,
    FSDP_U16,
    FSDP_U8,
    FSDP_BOOL,
    FSDP_F8_E4M3,
    FSDP_F8_E5M2,
    FSDP_C64,     /* two floats; this and the next are only stored, no operation takes them */
    FSDP_F8_E8M0, /* a power of two, as scales are */
    FSDP_NDTYPES
};

size_t fsdp_dtype_nbytes(enum fsdp_dtype dtype);
const char *fsdp_dtype_name(enum fsdp_dtype dtype); /* "F32", "BF16", ... */
bool fsdp_dtype_is_float(enum fsdp_dtype dtype);
/* Accepts the safetensors names and float32, bfloat16, fp16, ... in either case.
 * Returns FSDP_EINVAL for other text. */
int fsdp_dtype_parse(enum fsdp_dtype *out, const char *text, struct fsdp_err *err);

/* Scalar conversions, round to nearest even. */
float fsdp_bf16_to_f32(uint16_t x);
uint16_t fsdp_f32_to_bf16(float x);
float fsdp_f16_to_f32(uint16_t x);
uint16_t fsdp_f32_to_f16(float x);
/* 8-bit floats (Micikevicius et al., arXiv 2209.05433). E4M3 has no infinity: what rounds beyond
 * 448 becomes NaN, as in PyTorch. E5M2 is the upper half of an fp16; beyond 57344 lies infinity. */
float fsdp_f8_e4m3_to_f32(uint8_t x);
uint8_t fsdp_f32_to_f8_e4m3(float x);
float fsdp_f8_e5m2_to_f32(uint8_t x);
uint8_t fsdp_f32_to_f8_e5m2(float x);

/* ---- tensors, boxes, slices ----------------------------------------------------------------- */

#define FSDP_MAX_DIMS 8

/* A named global tensor. The name is borrowed. */
struct fsdp_tensor {
    const char *name;
    enum fsdp_dtype dtype;
    int ndim; /* 0 for a scalar */
    uint64_t shape[FSDP_MAX_DIMS];
};

/* A box of a tensor: [offset, offset + length) in every dimension. */
struct fsdp_box {
    uint64_t offset[FSDP_MAX_DIMS];
    uint64_t length[FSDP_MAX_DIMS];
};

/* A box that a rank holds. Identical boxes held by nreplica ranks carry replica 0..nreplica-1. */
struct fsdp_slice {
    struct fsdp_tensor tensor;
    struct fsdp_box box;
    int replica, nreplica;
};

/* Number of elements, 1 for a scalar. Not checked for overflow: call fsdp_tensor_check first. */
uint64_t fsdp_tensor_nelem(const struct fsdp_tensor *tensor);
uint64_t fsdp_box_nelem(const struct fsdp_box *box, int ndim);
/* Product of the dimensions after the first; 1 for 0-d and 1-d tensors. */
uint64_t fsdp_tensor_row_nelem(const struct fsdp_tensor *tensor);
/* FSDP_EINVAL for more than FSDP_MAX_DIMS dimensions, unknown dtypes, and sizes over 2^62 bytes. */
int fsdp_tensor_check(const struct fsdp_tensor *tensor, struct fsdp_err *err);
/* out = a ∩ b. Returns false (and an all-zero out) where they do not meet. A scalar meets itself.
 */
bool fsdp_box_intersect(struct fsdp_box *out, const struct fsdp_box *a, const struct fsdp_box *b,
                        int ndim);

/* Access to the bytes of a slice: little-endian, row-major over the slice's box.
 * `pos` and `nbytes` are within the box. Local, blocks.
 *   at   optional: the address of the bytes in host memory, so that the reader need not copy them.
 *        They do not change until the call that received this io returns. A result of NULL: the
 *        caller uses read.
 */
struct fsdp_slice_io {
    void *ctx;
    int (*read)(void *ctx, uint64_t pos, void *dst, size_t nbytes, struct fsdp_err *err);
    int (*write)(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err);
    const void *(*at)(void *ctx, uint64_t pos, size_t nbytes);
};

enum fsdp_slice_kind { FSDP_SLICE_MODEL, FSDP_SLICE_OPTIM };

/* Called once per slice; slice and io live only during the call. A nonzero return ends the
 * iteration and is passed on. */
typedef int fsdp_slice_f(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                         const struct fsdp_slice_io *io, struct fsdp_err *err);

/* ---- the cut: how one flat buffer is divided among ranks --------------------------------------
 *
 * The tensors of one communication group lie whole and in order in a flat buffer of
 * W * shard_nelem elements; rank r owns [r * shard_nelem, (r + 1) * shard_nelem).
 *
 *      |<------ shard_nelem ------>|<------ shard_nelem ------>|
 *      [ tensor 0 ......|pad][ tensor 1 ......|.....|pad][ pad ]
 *      ^start[0]             ^start[1]        ^ a cut always falls between two rows
 *
 * Tensor i starts at a multiple of lcm(FSDP_CUT_ALIGN, row_i), and shard_nelem is a multiple of
 * lcm(FSDP_CUT_ALIGN, all rows), so a rank's part of a tensor is one box of whole rows (of any
 * height, possibly none) and contiguous in memory.
 *
 * Where that would pad the buffer by more than both 3 % and 1 MiB (of fp32) a rank, because row
 * lengths have no small common multiple, and chunks would pad it less, the unit is chunked: every
 * rank owns ceil(rows / W) rows of each tensor (the last ones fewer, or none), and a copy converts
 * between the gathered shards and the whole tensors.
 *
 *      shards, gathered   [ 0: chunk of A |pad| chunk of B |pad][ 1: chunk of A |pad| chunk ...
 *      whole              [ A, chunk by chunk |pad........][ B, chunk by chunk |pad........]
 *
 * Both are W * shard_nelem elements long, and a tensor that starts at p in every shard starts at
 * W * p in the whole. The shards are ordered by rank, then tensor; the whole by tensor, then rank.
 * On one rank they are the same.
 *
 * Pure function of its arguments. */
#define FSDP_CUT_ALIGN 128

struct fsdp_cut {
    int ntensors, nranks;
    bool chunked;
    uint64_t shard_nelem;
    uint64_t *start; /* [ntensors] first element in the buffer of whole tensors; owned */
};

/* Local. FSDP_EINVAL if a size overflows. */
int fsdp_cut_create(struct fsdp_cut *out, const struct fsdp_tensor *tensors, int ntensors,
                    int nranks, struct fsdp_err *err);
void fsdp_cut_destroy(struct fsdp_cut *cut);
/* The box of tensors[i] that `rank` owns. Returns its number of elements (0: none, box all zero
 * lengths in dimension 0) and the position of its first element within the rank's shard. A
 * 0-d tensor is owned by the rank whose range holds its start; chunked, by rank 0. */
uint64_t fsdp_cut_box(struct fsdp_box *out, uint64_t *shard_pos, const struct fsdp_cut *cut,
                      const struct fsdp_tensor *tensors, int i, int rank);

/* Chunked: elements of `tensor` that a rank has room for, ceil(rows / W) rows. */
uint64_t fsdp_cut_chunk_nelem(const struct fsdp_cut *cut, const struct fsdp_tensor *tensor);

/* ---- slots: what is kept of a parameter besides its value --------------------------------------
 *
 * An optimizer keeps slots of each parameter; a slot is stored as state.<parameter>.<name>. The
 * kind says how its shape follows from the parameter's and which part of it belongs to a box:
 *
 *     kind             of a parameter [R, C]   of a box of rows [a, b)
 *     FSDP_PER_ELEMENT [R, C]                  rows [a, b)
 *     FSDP_PER_BLOCK   [ceil(R C / 128)]       blocks that begin in it: a cut never splits one
 *     FSDP_PER_ROW     [R, 1]                  rows [a, b)
 *     FSDP_PER_COLUMN  [1, C]                  all of it: every rank has it
 *
 * A block is FSDP_CUT_ALIGN elements of the flattened parameter, counted from its start. Of a
 * parameter of more than two dimensions each [.., R, C] is a matrix of its own, and its columns lie
 * in the box that holds it. Rows and columns are of parameters with at least two dimensions. */
enum fsdp_slot_kind { FSDP_PER_ELEMENT, FSDP_PER_BLOCK, FSDP_PER_ROW, FSDP_PER_COLUMN };

struct fsdp_slot {
    const char *name; /* "exp_avg"; borrowed */
    enum fsdp_dtype dtype;
    enum fsdp_slot_kind kind;
};
enum { FSDP_MAX_SLOTS = 32 }; /* of a layout: a parameter's are the bits of a number */

/* "element", "block", "row", "column". Static. */
const char *fsdp_slot_kind_name(enum fsdp_slot_kind kind);
/* FSDP_EINVAL lists the names. Local. */
int fsdp_slot_kind_parse(enum fsdp_slot_kind *out, const char *text, struct fsdp_err *err);
/* The slot of the parameter as a tensor, which has the parameter's name. Pure. */
struct fsdp_tensor fsdp_slot_tensor(const struct fsdp_slot *slot, const struct fsdp_tensor *param);
/* Has every rank all of it, wherever the parameter is cut? Pure. */
bool fsdp_slot_is_shared(const struct fsdp_slot *slot, const struct fsdp_tensor *param);
/* The part that belongs to a box of the parameter with `nelem` elements (fsdp_cut_box; none: 0).
 * Returns its number of elements. Pure. */
uint64_t fsdp_slot_box(struct fsdp_box *out, const struct fsdp_slot *slot,
                       const struct fsdp_tensor *param, const struct fsdp_box *box, uint64_t nelem);

/* One flat buffer of a unit; tensors are borrowed. */
struct fsdp_flat_desc {
    const char *unit; /* module name of the unit, "" for the root */
    bool trainable;
    int ntensors;
    const struct fsdp_tensor *tensors; /* as stored: name, dtype (of masters F32), global shape */
    const uint32_t *slots; /* [ntensors] which slots of the layout each has: bit i, slot i; NULL:
                              all, of trainable tensors */
};

/* Which shard the rank of this index in its group holds. On two levels (inner_size ranks a node;
 * 0: one level) the group's ranks of equal place in their nodes hold neighbouring shards: what they
 * gather from each other then lies in one piece, and the pieces of a node's ranks make the whole.
 *
 *     index  0 1 2 | 3 4 5     two nodes of three ranks
 *     shard  0 2 4 | 1 3 5                                                                    */
static inline int fsdp_shard_of_index(int index, int shard_size, int inner_size)
{
    if (inner_size == 0)
        return index;
    return index % inner_size * (shard_size / inner_size) + index / inner_size;
}

/* Everything that decides who owns which box: the same on every rank, stored in the manifest. */
struct fsdp_state_layout {
    int shard_size, replicate_size; /* world = shard_size * replicate_size; rank = replica *
                                       shard_size + index */
    int inner_size; /* rank to shard: fsdp_shard_of_index. Not in the manifest: files are numbered
                       by shard, and so the same on one level and on two */
    int nflats;
    const struct fsdp_flat_desc *flats;
    int nslots;
    const struct fsdp_slot *slots; /* each name once */
};
/* Has tensor i of the flat slot k? Pure. */
static inline bool fsdp_flat_has_slot(const struct fsdp_flat_desc *flat, int i, int k)
{
    return flat->trainable && (!flat->slots || flat->slots[i] >> k & 1);
}

/* ---- out-of-band channel ----------------------------------------------------------------------
 *
 * What a launcher gives to the libraries: a slow, reliable channel among all ranks of the job.
 * Every wait has a deadline, and a lost rank is named. */
#define FSDP_OOB_ABI 2

struct fsdp_oob {
    uint32_t abi;
    int rank, size;
    void *ctx;
    /* Collective, blocks. Every rank gives nbytes (the same everywhere); out has room for
     * size * nbytes and gets them in rank order. Errors: FSDP_EPEER, FSDP_ETIMEDOUT. */
    int (*allgather)(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                     struct fsdp_err *err);
    /* Collective. A channel of its own order, for another thread or library; tag: a short static
     * name, the same on every rank. The caller closes it. */
    int (*dup)(struct fsdp_oob *oob, const char *tag, struct fsdp_oob **out, struct fsdp_err *err);
    /* Local, never blocks: FSDP_OK, or FSDP_EPEER with the first rank known to be lost. May be
     * polled from any thread. */
    int (*health)(struct fsdp_oob *oob, struct fsdp_err *err);
    /* Local. Tells the others the exit code with which this rank gives up, and why: its reason and
     * culprit, which they see in health(). Returns. */
    void (*abort)(struct fsdp_oob *oob, int code, const struct fsdp_err *why);
    void (*close)(struct fsdp_oob *oob);
    /* (optional) Local. Deadline of this channel's later calls, in seconds. */
    void (*set_wait)(struct fsdp_oob *oob, double seconds);
};

/* The channel of a job of one rank. Owned by the caller, closed with oob->close(oob). */
int fsdp_oob_self_create(struct fsdp_oob **out, struct fsdp_err *err);
/* Collective. As allgather, for lengths that differ. *out holds the pieces back to back and is
 * freed by the caller; lens[size] gets their lengths. */
int fsdp_oob_allgatherv(struct fsdp_oob *oob, const void *in, size_t nbytes, void **out,
                        size_t *lens, struct fsdp_err *err);
/* Collective. Ends a blocking collective call in one agreed status: every rank gives its own
 * status and error, all return FSDP_OK only if all gave it, else the failure of the lowest rank
 * that has one, marked as its own (fsdp_err_of_rank) on the others. */
int fsdp_oob_agree(struct fsdp_oob *oob, int status, struct fsdp_err *err);
/* Collective. FSDP_EMISMATCH on every rank unless all give the same text; names `what` it is, the
 * first differing line, and the lowest rank that differs from rank 0. */
int fsdp_oob_agree_text(struct fsdp_oob *oob, const char *what, const char *text,
                        struct fsdp_err *err);
/* Collective. Root's nbytes to everyone. */
int fsdp_oob_broadcast(struct fsdp_oob *oob, void *data, size_t nbytes, int root,
                       struct fsdp_err *err);

/* ---- small shared helpers ------------------------------------------------------------------- */

/* An amount for people: "12.3 MiB"; into out, which is returned. */
enum { FSDP_NBYTES_TEXT = 24 };
const char *fsdp_nbytes_text(char out[FSDP_NBYTES_TEXT], uint64_t nbytes);
/* "1,234,567"; and a number per second, "10,750" or "3.7"; into out, which is returned. */
enum { FSDP_COUNT_TEXT = 32 };
const char *fsdp_count_text(char out[FSDP_COUNT_TEXT], uint64_t count);
const char *fsdp_rate_text(char out[FSDP_COUNT_TEXT], double rate);
/* Does the text end so? */
bool fsdp_text_ends(const char *text, const char *end);
/* Does the shell pattern (*, ?, [...]) match the whole name? A star takes dots too. */
bool fsdp_glob_match(const char *pattern, const char *name);

/* Decodes the UTF-8 sequence at `text`, which ends before `end`. Returns its length, with *code its
 * code point; 0 where no valid sequence begins. */
int fsdp_utf8_decode(uint32_t *code, const char *text, const char *end);
/* Makes a text safe to print: control characters, escape sequences, bytes that are not UTF-8 and
 * characters that reorder the line become '?'. In place; returns text, which never grows. */
char *fsdp_text_clean(char *text);
/* Edits (insert, delete, replace, swap of neighbours) from one short name to another, of whose
 * first 64 bytes. */
int fsdp_text_distance(const char *a, const char *b);

/* A program's first call: fills what is closed of descriptors 0 to 2, so that no file that is
 * opened later gets one of these numbers: it would be read as standard input, or an error would be
 * printed into it. Reading a closed standard input stays an error, and so does writing to a closed
 * standard output. */
void fsdp_std_fill(void);
/* Opens a regular file with open(2)'s flags (a new one gets mode 0666 & ~umask), close-on-exec. The
 * caller closes *fd. Never waits for another process: a pipe, socket, device or folder in the place
 * of the file is FSDP_EINVAL at once. Other errors: those of fsdp_err_sys. */
int fsdp_file_open(int *fd, const char *path, int flags, struct fsdp_err *err);
/* Reads a whole regular file of at most max_nbytes, with a 0 byte after it; freed with fsdp_free.
 * FSDP_EINVAL: it is larger; FSDP_EIO: it changed while it was read. */
int fsdp_file_read(char **out, size_t *nbytes, const char *path, size_t max_nbytes,
                   struct fsdp_err *err);
/* The same for reading, as a stream, which the caller closes with fclose. */
int fsdp_file_stream(FILE **out, const char *path, struct fsdp_err *err);
/* Do both paths lead to one file or folder, by links or other names? False where one is missing. */
bool fsdp_file_is_same(const char *a, const char *b);
/* Called with a stream to write to, which it does not close. */
typedef int fsdp_file_write_f(FILE *to, const void *ctx, struct fsdp_err *err);
/* Writes a file under another name next to it, PATH.tmpPID, and then gives it its own (rename): a
 * reader finds the old file or all of the new one. On failure the old one stays, and nothing is
 * left. A link in its place is replaced; the data is not synced to disk. Errors: write's, or those
 * of fsdp_err_sys. */
int fsdp_file_replace(const char *path, fsdp_file_write_f *write, const void *ctx,
                      struct fsdp_err *err);
/* Makes a folder and those above it, with mkdir(2)'s mode. Those that are there stay as they are.
 * Errors: those of fsdp_err_sys, with the folder. */
int fsdp_folder_make(const char *path, unsigned mode, struct fsdp_err *err);
/* The same with the folders that a file's path names. */
int fsdp_folder_make_above(const char *file, unsigned mode, struct fsdp_err *err);
/* Makes a new folder of this process's own, in $TMPDIR or /tmp, whose name begins with `name`.
 * *out: its path, freed with fsdp_free. Errors: those of fsdp_err_sys. */
int fsdp_folder_temporary(char **out, const char *name, struct fsdp_err *err);

/* Of this start of the machine, 36 characters; "" where the system has none. */
enum { FSDP_BOOT_ID_NBYTES = 37 };
void fsdp_boot_id(char out[FSDP_BOOT_ID_NBYTES]);
/* For qsort: doubles from the least on. */
int fsdp_compare_doubles(const void *a, const void *b);

/* Seconds on CLOCK_MONOTONIC. */
double fsdp_time_now(void);
/* FNV-1a, for comparing plans and configuration between ranks; not for data integrity. */
uint64_t fsdp_hash(uint64_t seed, const void *data, size_t nbytes);
#define FSDP_HASH_SEED UINT64_C(0xcbf29ce484222325)

#ifdef __cplusplus
}
#endif
#endif
