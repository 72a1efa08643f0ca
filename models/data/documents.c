/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of documents: what a row's tokens predict, and where its documents begin.
 *
 * Of JSON Lines, a document of n tokens is n - 1 positions, each of which predicts the next token.
 * Rows are filled in the order of the files; what does not fit begins the next row, and a document
 * that is longer than a row is cut into pieces of a row and a rest (DATA_SPLIT). The end of a row
 * is padding, a document that predicts nothing:
 *
 *      inputs   a0 a1 a2 a3 | b0 b1 | c0 c1 c2 | 0 0
 *      labels   a1 a2 a3 a4 | b1 b2 | c1 c2 c3 | - -
 *      starts   0  0  0  0  | 4  4  | 6  6  6  | 9 9
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/line/bad.h"
#include "data/line/crossed.h"
#include "data.h"

/* ---- the list of documents ------------------------------------------------------------------ */

/* Document d, of which ntokens tokens are used, is nbytes bytes at `first` of all files, or those
 * tokens. Row r begins at position `position` of document `document`. */
struct document {
    uint64_t first;
    uint32_t nbytes, ntokens;
};
enum { WHERE_NBYTES = 600 };

struct row {
    uint32_t document, position;
};

struct data_documents {
    struct document *documents;
    struct row *rows; /* and one more: the end */
    uint64_t ndocuments, nrows, ntokens, ncut;
    size_t max_documents, max_rows;
    char *text;    /* of the longest document of lines */
    bool *learned; /* [seq_len] of token files, else NULL */
    int seq_len, vocab_size;
    enum data_too_long too_long;
    bool pairs;                    /* documents 2i and 2i + 1 are of one line */
    bool of_lines, skip_bad_lines; /* of_lines: else of token files */
    struct data_bad bad;
    struct data_crossed crossed;
    struct data_line line;
};

/* How many of a document's ntokens tokens are used; `where` is its place, for errors. */
static int judge_length(struct data_documents *d, size_t *used, size_t ntokens, const char *where,
                        struct fsdp_err *err)
{
    const size_t most = (size_t)d->seq_len + 1;

    *used = ntokens;
    if (ntokens <= most)
        return FSDP_OK;
    d->ncut++;
    if (d->too_long == DATA_TRUNCATE)
        *used = most;
    else if (d->too_long == DATA_DROP)
        *used = 0;
    else if (d->too_long == DATA_REFUSE)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: a document of %zu tokens, and a row has %zu (data.seq_len + 1); "
                            "data.too_long %s",
                            where, ntokens, most,
                            d->pairs ? "can truncate it; pairs are neither split nor dropped"
                                     : "can split, truncate or drop it");
    return FSDP_OK;
}

static int put_document(struct data_documents *d, struct document document, struct fsdp_err *err)
{
    if (document.ntokens < 2)
        return FSDP_OK; /* nothing to predict */
    struct document *documents = fsdp_alloc_grow(d->documents, d->ndocuments, &d->max_documents,
                                                 sizeof *documents, "list of documents", err);
    if (!documents)
        return FSDP_ENOMEM;
    d->documents = documents;
    d->documents[d->ndocuments++] = document;
    d->ntokens += document.ntokens;
    return FSDP_OK;
}

static int refuse_document(const char *where, bool too_long, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: %s", where,
                        too_long ? "longer than 2 GiB" : "too many documents");
}

/* ---- of token files ------------------------------------------------------------------------ */

static int add_tokens(struct data_documents *d, const struct data_file *file, const char *name,
                      struct fsdp_err *err)
{
    const uint64_t ndocuments = tokens_info(file->index)->ndocuments;
    char where[WHERE_NBYTES];
    size_t used;

    for (uint64_t i = 0; i < ndocuments; i++) {
        const uint64_t first = tokens_begin(file->index, i),
                       ntokens = tokens_begin(file->index, i + 1) - first;
        snprintf(where, sizeof where, "%s: document %" PRIu64, name ? name : file->path, i + 1);
        if (ntokens > INT32_MAX || d->ndocuments == UINT32_MAX)
            return refuse_document(where, ntokens > INT32_MAX, err);
        FSDP_TRY(judge_length(d, &used, (size_t)ntokens, where, err));
        const struct document document = {file->first + first, 0, (uint32_t)used};
        FSDP_TRY(put_document(d, document, err));
    }
    return FSDP_OK;
}

/* ---- of lines ------------------------------------------------------------------------------ */

/* A setting that is at fault is at fault for all lines. */
static int parse_line(struct data_documents *d, const char *text, size_t nbytes, bool *is_bad,
                      struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = data_line_parse(&d->line, text, nbytes, &why);

    *is_bad = rc == FSDP_EINVAL && !why.setting[0] && d->skip_bad_lines;
    if (*is_bad)
        return data_bad_add(&d->bad, d->line.path, &why, err);
    return rc ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

static int add_line(struct data_documents *d, const char *text, size_t nbytes, uint64_t first,
                    struct fsdp_err *err)
{
    char where[WHERE_NBYTES];
    bool is_bad;
    size_t ntokens;

    FSDP_TRY(parse_line(d, text, nbytes, &is_bad, err));
    if (is_bad)
        return FSDP_OK;
    data_crossed_add(&d->crossed, &d->line);
    snprintf(where, sizeof where, "%s:%" PRIu64 ":1", d->line.path, d->line.number);
    if (nbytes > INT32_MAX || d->ndocuments == UINT32_MAX)
        return refuse_document(where, nbytes > INT32_MAX, err);
    FSDP_TRY(judge_length(d, &ntokens, d->line.ntokens, where, err));
    return put_document(d, (struct document){first, (uint32_t)nbytes, (uint32_t)ntokens}, err);
}

/* An answer of which no token is in the row says nothing, and its pair would have a constant loss.
 */
static int check_answer(struct data_documents *d, bool *is_bad, struct fsdp_err *err)
{
    const char *answer = d->line.takes_rejected ? "rejected" : "chosen";
    const size_t most = (size_t)d->seq_len + 1;
    const bool cut = d->line.ntokens > most && d->too_long == DATA_TRUNCATE;
    struct fsdp_err why = FSDP_ERR_INIT;

    for (size_t i = 1; i < (cut ? most : d->line.ntokens); i++)
        if (d->line.labels[i] != DATA_IGNORE)
            return FSDP_OK;
    if (cut)
        fsdp_err_set(&why, FSDP_EINVAL,
                     "%s:%" PRIu64
                     ":1: truncated to a row of %zu tokens (data.seq_len + 1), %s has "
                     "no token left: raise data.seq_len, or leave such pairs out "
                     "(data.on_bad_line: skip)",
                     d->line.path, d->line.number, most, answer);
    else
        fsdp_err_set(&why, FSDP_EINVAL, "%s:%" PRIu64 ":1: %s has no token to learn%s",
                     d->line.path, d->line.number, answer,
                     d->line.ntokens == 1 ? " behind the first of prompt and answer" : "");
    *is_bad = d->skip_bad_lines;
    return *is_bad ? data_bad_add(&d->bad, d->line.path, &why, err)
                   : fsdp_err_pass(err, FSDP_EINVAL, &why);
}

/* Both documents of a line, or none of them. */
static int add_pair(struct data_documents *d, const char *text, size_t nbytes, uint64_t first,
                    struct fsdp_err *err)
{
    bool is_bad = false;

    for (int k = 0; k < 2 && !is_bad; k++) {
        d->line.takes_rejected = k;
        FSDP_TRY(parse_line(d, text, nbytes, &is_bad, err));
        if (!is_bad)
            FSDP_TRY(check_answer(d, &is_bad, err));
    }
    for (int k = 0; k < 2 && !is_bad; k++) {
        d->line.takes_rejected = k;
        FSDP_TRY(add_line(d, text, nbytes, first, err));
    }
    return FSDP_OK;
}

static bool is_blank(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!strchr(" \t\r\n", text[i]))
            return false;
    return true;
}

/* The line at `at` without what does not belong to the file. */
static size_t clip(const struct data_file *file, uint64_t at, ssize_t nbytes)
{
    const uint64_t left = file->ntokens - at;
    return (uint64_t)nbytes < left ? (size_t)nbytes : (size_t)left;
}

static int add_lines(struct data_documents *d, struct data_files *files, int i,
                     struct fsdp_err *err)
{
    const struct data_file *file = &files->files[i];
    FILE *in;
    char *text = NULL;
    size_t room = 0;
    uint64_t at = 0;
    ssize_t nbytes;
    int rc = FSDP_OK;

    FSDP_TRY(data_files_stream(&in, files, i, err));
    d->line.path = file->path;
    d->line.number = 0;
    errno = 0;
    while (rc == FSDP_OK && at < file->ntokens && (nbytes = getline(&text, &room, in)) > 0) {
        const size_t here = clip(file, at, nbytes);
        d->line.number++;
        if (!is_blank(text, here))
            rc = (d->pairs ? add_pair : add_line)(d, text, here, file->first + at, err);
        at += (uint64_t)nbytes;
        errno = 0;
    }
    if (rc == FSDP_OK && (ferror(in) || errno))
        rc = fsdp_err_sys(err, errno ? errno : EIO, "%s", file->path);
    data_bad_end(&d->bad, file->path, d->line.number);
    free(text);
    fclose(in);
    return rc;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* As row number d->nrows. */
static int put_row(struct data_documents *d, struct row row, struct fsdp_err *err)
{
    struct row *rows =
        fsdp_alloc_grow(d->rows, d->nrows, &d->max_rows, sizeof *rows, "list of rows", err);
    if (!rows)
        return FSDP_ENOMEM;
    d->rows = rows;
    d->rows[d->nrows] = row;
    return FSDP_OK;
}

static int end_row(struct data_documents *d, struct row next, int *used, struct fsdp_err *err)
{
    *used = 0;
    d->nrows++;
    return put_row(d, next, err);
}

/* A document begins a new row where the rest of this one is too short for it, or where rows hold
 * one document each. */
static int add_document(struct data_documents *d, uint32_t document, bool several, int *used,
                        struct fsdp_err *err)
{
    const uint32_t length = (uint32_t)d->seq_len, all = d->documents[document].ntokens - 1;

    if (*used && (!several || all > length - (uint32_t)*used))
        FSDP_TRY(end_row(d, (struct row){document, 0}, used, err));
    for (uint32_t at = 0; all - at > length; at += length)
        FSDP_TRY(end_row(d, (struct row){document, at + length}, used, err));
    *used += (int)((all - 1) % length + 1);
    return FSDP_OK;
}

static int make_rows(struct data_documents *d, bool several, struct fsdp_err *err)
{
    int used = 0;

    FSDP_TRY(put_row(d, (struct row){0, 0}, err));
    for (uint32_t i = 0; i < d->ndocuments; i++)
        FSDP_TRY(add_document(d, i, several, &used, err));
    return used ? end_row(d, (struct row){(uint32_t)d->ndocuments, 0}, &used, err) : FSDP_OK;
}

static int refuse_empty(const struct data_documents *d, const struct data_files *files,
                        struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL, "%s%s: no document of two tokens or more%s%s%s",
                        files->files[0].path, files->nfiles > 1 ? " and the others" : "",
                        d->ncut ? " that fits a row (data.too_long)" : "",
                        d->bad.nfiles ? "; the first line that is left out: " : "",
                        d->bad.nfiles ? d->bad.files[0].first : "");
}

/* Where documents are read into. */
static int alloc_document(struct data_documents *d, struct fsdp_err *err)
{
    size_t longest = 0;

    for (uint64_t i = 0; i < d->ndocuments; i++)
        longest = d->documents[i].nbytes > longest ? d->documents[i].nbytes : longest;
    d->text = fsdp_alloc(longest + 1, 1, "document", err);
    d->learned = fsdp_alloc((size_t)d->seq_len, sizeof *d->learned, "document", err);
    return d->text && d->learned ? FSDP_OK : FSDP_ENOMEM;
}

/* A file of tokens without an index among those with one has no documents. */
static int add_file(struct data_documents *d, const struct data_opts *opts,
                    struct data_files *files, int i, struct fsdp_err *err)
{
    if (opts->format == DATA_JSONL)
        return add_lines(d, files, i, err);
    if (files->files[i].index)
        return add_tokens(d, &files->files[i], opts->tokens_of, err);
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s: has no .index of its documents, which other files here have",
                        files->files[i].path);
}

int data_documents_open(struct data_documents **out, const struct data_opts *opts,
                        struct data_files *files, struct fsdp_err *err)
{
    struct data_documents *d = fsdp_alloc(1, sizeof *d, "documents", err);
    int rc = FSDP_OK;

    if (!d)
        return FSDP_ENOMEM;
    d->line.text = opts->text;
    d->line.highest = -1;
    d->line.text_key = opts->text_key;
    d->line.weight_key = opts->weight_key;
    d->seq_len = opts->seq_len;
    d->vocab_size = opts->vocab_size;
    d->pairs = d->line.is_pair = opts->pairs;
    d->of_lines = opts->format == DATA_JSONL;
    d->too_long = opts->too_long;
    d->skip_bad_lines = opts->skip_bad_lines;
    for (int i = 0; i < files->nfiles; i++)
        FSDP_TRY_GOTO(add_file(d, opts, files, i, err), out);
    if (!d->ndocuments) {
        rc = refuse_empty(d, files, err);
        goto out;
    }
    FSDP_TRY_GOTO(make_rows(d, opts->documents, err), out);
    rc = alloc_document(d, err);
out:
    if (rc != FSDP_OK)
        data_documents_close(d);
    else
        *out = d;
    return rc;
}

void data_documents_close(struct data_documents *d)
{
    if (!d)
        return;
    data_line_free(&d->line);
    data_bad_free(&d->bad);
    fsdp_free(d->learned);
    fsdp_free(d->text);
    fsdp_free(d->rows);
    fsdp_free(d->documents);
    fsdp_free(d);
}

uint64_t data_documents_nrows(const struct data_documents *d)
{
    return d->nrows;
}

int32_t data_documents_highest(const struct data_documents *d)
{
    return d->line.highest;
}

const struct data_bad *data_documents_bad(const struct data_documents *d)
{
    return &d->bad;
}

const struct data_crossed *data_documents_crossed(const struct data_documents *d)
{
    return &d->crossed;
}

uint64_t data_documents_count(const struct data_documents *d, uint64_t *ntokens, uint64_t *ncut)
{
    *ntokens = d->ntokens;
    *ncut = d->ncut;
    return d->ndocuments;
}

/* The document's tokens and labels into d->line. */
static int read_document(struct data_documents *d, struct data_files *files,
                         const struct document *document, struct fsdp_err *err)
{
    d->line.path = data_files_path(files, document->first);
    d->line.number = 0;
    d->line.takes_rejected = d->pairs && (document - d->documents) % 2;
    FSDP_TRY(data_files_bytes(files, document->first, document->nbytes, d->text, err));
    int rc = data_line_parse(&d->line, d->text, document->nbytes, NULL);
    const bool cut = d->too_long == DATA_TRUNCATE && d->line.ntokens > document->ntokens &&
                     document->ntokens == (uint32_t)d->seq_len + 1;
    if (rc == FSDP_OK && (d->line.ntokens == document->ntokens || cut))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT, "%s: a document has changed since the run began",
                        d->line.path);
}

/* Positions of a document to positions of a row. */
struct part {
    uint32_t from; /* of the document */
    int to, npositions;
};

static int place_line(struct data_documents *d, struct data_files *files,
                      const struct document *document, struct part part, const struct data_row *row,
                      struct fsdp_err *err)
{
    const size_t npositions = (size_t)part.npositions;

    FSDP_TRY(read_document(d, files, document, err));
    memcpy(row->tokens + part.to, d->line.tokens + part.from, npositions * sizeof *row->tokens);
    memcpy(row->labels + part.to, d->line.labels + part.from + 1, npositions * sizeof *row->labels);
    return FSDP_OK;
}

static int place_tokens(struct data_documents *d, struct data_files *files,
                        const struct document *document, struct part part,
                        const struct data_row *row, struct fsdp_err *err)
{
    const size_t npositions = (size_t)part.npositions;
    const uint64_t first = document->first + part.from;
    const struct data_file *file = &files->files[data_files_find(files, first)];

    FSDP_TRY(
        data_files_read(files, first, npositions + 1, row->tokens + part.to, d->vocab_size, err));
    FSDP_TRY(tokens_learned(file->index, first + 1 - file->first, npositions, d->learned, err));
    for (int i = part.to; i < part.to + part.npositions; i++)
        row->labels[i] = d->learned[i - part.to] ? row->tokens[i + 1] : DATA_IGNORE;
    return FSDP_OK;
}

int data_documents_row(struct data_documents *d, struct data_files *files, uint64_t index,
                       int seq_len, const struct data_row *out, struct fsdp_err *err)
{
    const struct row end = d->rows[index + 1];
    struct row at = d->rows[index];
    int used = 0;

    while (at.document < end.document ||
           (at.document == end.document && at.position < end.position)) {
        const struct document *document = &d->documents[at.document];
        const uint32_t left = document->ntokens - 1 - at.position;
        const int here = left < (uint32_t)(seq_len - used) ? (int)left : seq_len - used;
        const struct part part = {at.position, used, here};
        FSDP_TRY((d->of_lines ? place_line : place_tokens)(d, files, document, part, out, err));
        for (int i = used; i < used + here; i++)
            out->starts[i] = used;
        for (int i = used; out->weights && i < used + here; i++)
            out->weights[i] = d->of_lines ? (float)d->line.weight : 1;
        used += here;
        at = (struct row){at.document + 1, 0};
    }
    for (int t = used; t <= seq_len; t++) {
        out->tokens[t] = 0;
        if (t < seq_len) {
            out->labels[t] = DATA_IGNORE;
            out->starts[t] = used;
            if (out->weights)
                out->weights[t] = 1;
        }
    }
    return FSDP_OK;
}

void data_documents_ahead(const struct data_documents *d, struct data_files *files, uint64_t index)
{
    const struct row at = d->rows[index], end = d->rows[index + 1];

    for (uint32_t i = at.document; i <= end.document && i < d->ndocuments; i++)
        if (!d->of_lines && (i < end.document || end.position))
            data_files_ahead(files, d->documents[i].first, d->documents[i].ntokens);
}
