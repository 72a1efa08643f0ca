/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h: rows of tokens for training and evaluation. Row number -> tokens is a pure function of
 * the files, the settings and the seed. The position in the data is therefore one number, a run
 * resumes exactly, and every world size sees the same rows.
 *
 *   stream  the tokens of all files, one after the other, cut into windows of seq_len+1 tokens that
 *           begin every seq_len tokens (the last token of one is the first of the next); each pass
 *           over the data (epoch) visits them in its own order, which the seed decides
 *   rows    each file is rows of seq_len+1 tokens, taken in order, again from the start at the end
 *
 * Format jsonl holds one document per line instead: {"text"}, {"prompt", "completion"} of which
 * only the completion is learned, a chat {"messages"}, or {"input_ids"} with the "labels" of
 * transformers. Rows are then whole documents and padding (documents.c), in seeded order (stream)
 * or in file order (rows).
 *
 * Files are read with pread when rows are requested. Memory is O(files), with jsonl O(documents).
 * Compressed files (.gz, .zst) are first decompressed into a temporary file.
 */
#ifndef DATA_H
#define DATA_H

#include <stdio.h>

#include "data/line/line.h"
#include "data/source/remote.h"
#include "data/source/far.h"
#include "data/source/unpack.h"
#include "data/tokens/tokens.h"
#include "fsdp/base.h"

enum data_format { DATA_TEXT, DATA_U16, DATA_U32, DATA_LLMC, DATA_JSONL, DATA_MEGATRON };
enum data_layout { DATA_STREAM, DATA_ROWS };
/* How to handle a jsonl document that is longer than a row: split it, report an error, keep its
 * first row, or drop it. */
enum data_too_long { DATA_SPLIT, DATA_REFUSE, DATA_TRUNCATE, DATA_DROP };
enum { DATA_MAX_ENDS = 8 };

struct data_opts {
    uint32_t version;
    int npaths;
    const char *const *paths; /* files, folders, patterns; borrowed during data_open */
    enum data_format format;
    enum data_layout layout;
    /* How formats text and jsonl are tokenized byte by byte; borrowed until data_close. NULL:
     * any bytes. Text for other tokenizers is written to token files first (tokens/encode.h). */
    const struct data_text *text;
    int seq_len;
    int vocab_size; /* tokens must be below it; 0: not checked */
    bool shuffle;   /* stream: seeded order; false: file order */
    uint64_t seed;
    uint64_t max_rows; /* without shuffle: use so many rows, evenly spaced; 0: all */
    /* A row holds several documents; labels, positions and attention stay inside each. A document
     * ends where an index says, else with one of the tokens `ends`. In format text it also ends
     * with its file. With whole documents, false puts one document in a row. */
    bool documents;
    /* Rows of token files with an index are whole documents, as with jsonl. Token files with a
     * .learned file always give such rows. */
    bool whole_documents;
    const char *tokens_of; /* source text of the token file, for errors; NULL: not known */
    /* Hash of the model's tokenizer, which indexed token files must have; 0: not checked. */
    uint64_t tokenizer_hash;
    int nends, ends[DATA_MAX_ENDS];
    /* Of jsonl. */
    const char *text_key; /* the field that holds a text, until data_close; NULL: "text" */
    /* Lines of jsonl are pairs, and a row is the two of one: tokens (2, seq_len + 1), labels and
     * starts (2, seq_len), first the chosen one. too_long must not split or drop. */
    bool pairs;
    /* The field that holds a document's weight, until data_close; NULL: none. Its lines are then
     * tokenized at each read. */
    const char *weight_key;
    enum data_too_long too_long;
    const struct data_remote *remote; /* reads addresses; until data_close; NULL: none are read */
    uint64_t remote_nbytes;           /* size limit of the temporary file for their data */
    bool skip_bad_lines; /* skip and count lines that are not documents; else they are errors */
};
#define DATA_OPTS_VERSION 1
#define DATA_OPTS_INIT                                                                             \
    {                                                                                              \
        .version = DATA_OPTS_VERSION, .shuffle = true                                              \
    }

struct data;

/* Lists the files and checks their sizes and headers. FSDP_ENOTFOUND, FSDP_ECORRUPT (truncated),
 * FSDP_EINVAL (empty, or smaller than a row) name the file; FSDP_EUNSUPPORTED: text for a model
 * with another vocabulary. Local, blocks. */
int data_open(struct data **out, const struct data_opts *opts, struct fsdp_err *err);
void data_close(struct data *data);

/* Logs the lines that were left out. Warns if data.format seems wrong: NUL bytes or token files
 * read as text, tokens far below the vocabulary, 32-bit tokens read as 16-bit ones. Reads a few
 * pages of each file. Local, blocks. */
void data_warn(struct data *data);

uint64_t data_nrows(const struct data *data);   /* of one pass */
uint64_t data_ntokens(const struct data *data); /* in the files */
int data_nfiles(const struct data *data);
int data_seq_len(const struct data *data);
/* Hash of the number and sizes of the files, and of how they are cut. Equal on all ranks, and
 * before and after a resume, unless the data changed. */
uint64_t data_hash(const struct data *data);

/* Do rows have labels and documents of their own? */
bool data_has_labels(const struct data *data);
/* Which of the rows of a pass a row is: 0 to data_nrows - 1, the same in every pass. */
uint64_t data_row_id(const struct data *data, uint64_t row);
/* Have its documents weights? */
bool data_has_weights(const struct data *data);
/* Documents and tokens of rows of whole documents, and how many are longer than a row; 0 otherwise.
 */
uint64_t data_ndocuments(const struct data *data, uint64_t *ntokens, uint64_t *ncut);

/* One row: seq_len + 1 tokens; per position of the first seq_len what it predicts (or DATA_IGNORE)
 * and where in the row its document begins. Of jsonl the last token has no meaning. labels and
 * starts may be NULL where data_has_labels is false. */
struct data_row {
    int32_t *tokens, *labels, *starts;
    float *weights; /* of the positions' losses; NULL: not wanted */
};
/* Rows count on over the passes: row r is row r % data_nrows of pass r / data_nrows. Errors name
 * file and position. Local, blocks. */
int data_row(struct data *data, uint64_t row, const struct data_row *out, struct fsdp_err *err);

/* Announces a later read of a row; data at addresses is then fetched ahead. Local, never blocks. */
void data_ahead(struct data *data, uint64_t row);

/* A permutation of 0 .. nelem-1 that needs no memory: the image of `index` under key. Pure. */
uint64_t data_permute(uint64_t index, uint64_t nelem, uint64_t key);

/* ---- private: files.c ------------------------------------------------------------------- */

struct data_file {
    char *path;
    uint64_t first; /* of its tokens among those of all files */
    uint64_t ntokens;
    uint64_t offset;  /* of its first token, in bytes */
    int token_nbytes; /* 1, 2 or 4 */
    bool unpacked;    /* its bytes lie in data_files' temporary file */
    int far;          /* its number there; -1: a file on this machine */
    /* Megatron only: number of documents, and where the .idx lists them. */
    uint64_t ndocuments, places_at, documents_at;
    struct tokens *index; /* of token files that have one, else NULL */
};

enum { DATA_OPEN_FILES = 16 };

struct data_files {
    const struct data_remote *remote;
    uint64_t remote_nbytes;
    int nfiles;
    struct data_file *files;
    uint64_t ntokens;
    unsigned char *buffer; /* of buffer_ntokens * 4 bytes */
    size_t buffer_ntokens;
    struct {
        int file, fd; /* fd -1: not open; the slot of file i is i % DATA_OPEN_FILES */
    } open[DATA_OPEN_FILES];
    struct data_unpacked unpacked;
    struct data_far *far;     /* of files at addresses that are read in place, else NULL */
    int index_file, index_fd; /* the .idx that is open; fd -1: none */
};

/* One data_files_read asks for at most a row. */
int data_files_open(struct data_files *out, const struct data_opts *opts, struct fsdp_err *err);
void data_files_close(struct data_files *files);
/* Tokens [first, first + ntokens) of all files. vocab_size as in data_opts. */
int data_files_read(struct data_files *files, uint64_t first, size_t ntokens, int32_t *out,
                    int vocab_size, struct fsdp_err *err);
/* The same as bytes, of one file whose tokens are bytes. */
int data_files_bytes(struct data_files *files, uint64_t first, size_t nbytes, char *out,
                     struct fsdp_err *err);
/* A stream of file i's bytes, which bytes of other files may follow. The caller closes it. */
int data_files_stream(FILE **out, struct data_files *files, int i, struct fsdp_err *err);
/* The part of data_warn that checks the files; warn.c. */
void data_files_warn(struct data_files *files, const struct data_opts *opts);
/* Announces a later read of tokens at addresses. Never blocks. */
void data_files_ahead(struct data_files *files, uint64_t first, size_t ntokens);
/* The file of a token, as a number and as a path; and is it the file's first token? */
int data_files_find(const struct data_files *files, uint64_t token);
const char *data_files_path(const struct data_files *files, uint64_t token);
bool data_files_begins(const struct data_files *files, uint64_t token);

/* ---- private: windows.c ----------------------------------------------------------------- */

/* Fills labels and starts of a window whose tokens are those from `first` on of all files. */
int data_documents_of_window(const struct data_row *row, const struct data_opts *opts,
                             struct data_files *files, uint64_t first, struct fsdp_err *err);

/* ---- private: documents.c --------------------------------------------------------------- */

/* The documents of jsonl and of token files with an index, cut into rows. */
struct data_documents;
int data_documents_open(struct data_documents **out, const struct data_opts *opts,
                        struct data_files *files, struct fsdp_err *err);
void data_documents_close(struct data_documents *documents);
uint64_t data_documents_nrows(const struct data_documents *documents);
int32_t data_documents_highest(const struct data_documents *documents); /* input id; -1: none */
const struct data_bad *data_documents_bad(const struct data_documents *documents);
const struct data_crossed *data_documents_crossed(const struct data_documents *documents);
/* The part of data_warn that checks the tokens of jsonl; warn.c. */
void data_documents_warn(const struct data_documents *documents, const struct data_opts *opts);
uint64_t data_documents_count(const struct data_documents *documents, uint64_t *ntokens,
                              uint64_t *ncut);
void data_documents_ahead(const struct data_documents *documents, struct data_files *files,
                          uint64_t row);
int data_documents_row(struct data_documents *documents, struct data_files *files, uint64_t row,
                       int seq_len, const struct data_row *out, struct fsdp_err *err);

#endif
