/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h: rows of tokens for training and evaluation. Row number -> tokens is a pure function of
 * the files, the settings and the seed, so that the position in the data is one number, a run
 * resumes exactly, and every world size sees the same rows.
 *
 *   stream  the tokens of all files, one after the other, cut into windows of seq_len+1 tokens that
 *           begin every seq_len tokens (the last token of one is the first of the next); each pass
 *           over the data (epoch) visits them in its own order, which the seed decides
 *   rows    each file is rows of seq_len+1 tokens, taken in order, again from the start at the end
 *
 * Files are read with pread as rows are asked for; memory is O(files).
 */
#ifndef DATA_H
#define DATA_H

#include "fsdp/base.h"

enum data_format { DATA_TEXT, DATA_U16, DATA_U32, DATA_LLMC };
enum data_layout { DATA_STREAM, DATA_ROWS };

struct data_opts {
    uint32_t version;
    int npaths;
    const char *const *paths; /* files or folders; borrowed during data_open */
    enum data_format format;
    enum data_layout layout;
    int seq_len;
    int vocab_size; /* tokens must be below it; 0: not checked */
    bool shuffle;   /* stream: the seeded order; else as they stand */
    uint64_t seed;
    uint64_t max_rows; /* without shuffle: only so many rows, spread evenly; 0: all */
};
#define DATA_OPTS_VERSION 1
#define DATA_OPTS_INIT                                                                             \
    {                                                                                              \
        .version = DATA_OPTS_VERSION, .shuffle = true                                              \
    }

struct data;

/* Lists the files and checks their sizes and headers. FSDP_ENOTFOUND, FSDP_ECORRUPT (truncated),
 * FSDP_EINVAL (empty, or smaller than a row) name the file. Local, blocks. */
int data_open(struct data **out, const struct data_opts *opts, struct fsdp_err *err);
void data_close(struct data *data);

uint64_t data_nrows(const struct data *data);   /* of one pass */
uint64_t data_ntokens(const struct data *data); /* in the files */
int data_nfiles(const struct data *data);
/* Number and sizes of the files and how they are cut: equal on all ranks, and before and after a
 * resume, unless the data changed. */
uint64_t data_hash(const struct data *data);

/* Tokens of a row, seq_len + 1 of them, into out. Rows count on over the passes: row r is row
 * r % data_nrows of pass r / data_nrows. Errors name file and position. Local, blocks. */
int data_row(struct data *data, uint64_t row, int32_t *out, struct fsdp_err *err);

/* A permutation of 0 .. nelem-1 that needs no memory: the image of `index` under key. Pure. */
uint64_t data_permute(uint64_t index, uint64_t nelem, uint64_t key);

/* ---- private: data_files.c ---------------------------------------------------------------------
 */

struct data_file {
    char *path;
    uint64_t first; /* of its tokens among those of all files */
    uint64_t ntokens;
    uint64_t offset;  /* of its first token, in bytes */
    int token_nbytes; /* 1, 2 or 4 */
};

enum { DATA_OPEN_FILES = 16 };

struct data_files {
    int nfiles, room;
    struct data_file *files;
    uint64_t ntokens;
    unsigned char *buffer; /* of buffer_ntokens * 4 bytes */
    size_t buffer_ntokens;
    struct {
        int file, fd; /* fd -1: not open; the slot of file i is i % DATA_OPEN_FILES */
    } open[DATA_OPEN_FILES];
};

/* read_ntokens: the most that one data_files_read asks for. */
int data_files_open(struct data_files *out, const char *const *paths, int npaths,
                    enum data_format format, size_t read_ntokens, struct fsdp_err *err);
void data_files_close(struct data_files *files);
/* Tokens [first, first + ntokens) of all files. vocab_size as in data_opts. */
int data_files_read(struct data_files *files, uint64_t first, size_t ntokens, int32_t *out,
                    int vocab_size, struct fsdp_err *err);

#endif
