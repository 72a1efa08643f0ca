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
#include "data.h"
#include "megatron.h"

/* ---- windows of a stream of tokens --------------------------------------------------------- */

static bool is_end(const struct data_opts *opts, int32_t token)
{
    for (int i = 0; i < opts->nends; i++)
        if (opts->ends[i] == token)
            return true;
    return false;
}

static int window_by_index(const struct data_row *row, int seq_len, struct data_files *files,
                           uint64_t first, struct fsdp_err *err)
{
    struct data_megatron_at at;

    FSDP_TRY(data_megatron_find(&at, files, data_files_find(files, first), first, err));
    for (int t = 0, start = 0; t < seq_len; t++) {
        const bool ends = first + (uint64_t)t + 1 == at.end;
        row->starts[t] = start;
        row->labels[t] = ends ? DATA_IGNORE : row->tokens[t + 1];
        if (!ends)
            continue;
        start = t + 1;
        FSDP_TRY(data_megatron_next(&at, files, err));
    }
    return FSDP_OK;
}

int data_documents_of_window(const struct data_row *row, const struct data_opts *opts,
                             struct data_files *files, uint64_t first, struct fsdp_err *err)
{
    const bool by_file = opts->format == DATA_TEXT;

    if (opts->format == DATA_MEGATRON)
        return window_by_index(row, opts->seq_len, files, first, err);

    for (int t = 0, start = 0; t < opts->seq_len; t++) {
        const uint64_t next = first + (uint64_t)t + 1;
        const bool ends =
            is_end(opts, row->tokens[t]) || (by_file && data_files_begins(files, next));
        row->starts[t] = start;
        row->labels[t] = ends ? DATA_IGNORE : row->tokens[t + 1];
        if (ends)
            start = t + 1;
    }
    return FSDP_OK;
}

/* ---- the list of documents ------------------------------------------------------------------ */

/* Document d, of which ntokens tokens are used, is nbytes bytes at `first` of all files. Row r
 * begins at position `position` of document `document`. */
struct document {
    uint64_t first;
    uint32_t nbytes, ntokens;
};
struct row {
    uint32_t document, position;
};

struct data_documents {
    struct document *documents;
    struct row *rows; /* and one more: the end */
    uint64_t ndocuments, nrows, ntokens, ncut;
    size_t max_documents, max_rows;
    char *text; /* of the longest document */
    int seq_len;
    enum data_too_long too_long;
    bool skip_bad_lines;
    struct data_bad bad;
    struct data_line line;
};

/* Of the line that was read: how many of its tokens are used. */
static int judge_length(struct data_documents *d, size_t *ntokens, struct fsdp_err *err)
{
    const size_t most = (size_t)d->seq_len + 1;

    *ntokens = d->line.ntokens;
    if (*ntokens <= most)
        return FSDP_OK;
    d->ncut++;
    if (d->too_long == DATA_TRUNCATE)
        *ntokens = most;
    else if (d->too_long == DATA_DROP)
        *ntokens = 0;
    else if (d->too_long == DATA_REFUSE)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "data: %s:%" PRIu64 ":1: a document of %zu tokens, and a row has %zu "
                            "(data.seq_len + 1); data.too_long can split, truncate or drop it",
                            d->line.path, d->line.number, d->line.ntokens, most);
    return FSDP_OK;
}

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
    bool is_bad;
    size_t ntokens;

    FSDP_TRY(parse_line(d, text, nbytes, &is_bad, err));
    if (is_bad)
        return FSDP_OK;
    FSDP_TRY(judge_length(d, &ntokens, err));
    if (nbytes > INT32_MAX || d->ndocuments == UINT32_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "data: %s:%" PRIu64 ": %s", d->line.path,
                            d->line.number,
                            nbytes > INT32_MAX ? "longer than 2 GiB" : "too many documents");
    if (ntokens < 2)
        return FSDP_OK; /* nothing to predict */
    struct document *documents = fsdp_alloc_grow(d->documents, d->ndocuments, &d->max_documents,
                                                 sizeof *documents, "list of documents", err);
    if (!documents)
        return FSDP_ENOMEM;
    d->documents = documents;
    d->documents[d->ndocuments++] = (struct document){first, (uint32_t)nbytes, (uint32_t)ntokens};
    d->ntokens += ntokens;
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

static int add_file(struct data_documents *d, struct data_files *files, int i, struct fsdp_err *err)
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
            rc = add_line(d, text, here, file->first + at, err);
        at += (uint64_t)nbytes;
        errno = 0;
    }
    if (rc == FSDP_OK && (ferror(in) || errno))
        rc = fsdp_err_sys(err, errno ? errno : EIO, "data: %s", file->path);
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
    return fsdp_err_set(err, FSDP_EINVAL, "data: %s%s: no document of two tokens or more%s%s%s",
                        files->files[0].path, files->nfiles > 1 ? " and the others" : "",
                        d->ncut ? " that fits a row (data.too_long)" : "",
                        d->bad.nfiles ? "; the first line that is left out: " : "",
                        d->bad.nfiles ? d->bad.files[0].first : "");
}

int data_documents_open(struct data_documents **out, const struct data_opts *opts,
                        struct data_files *files, struct fsdp_err *err)
{
    struct data_documents *d = fsdp_alloc(1, sizeof *d, "documents", err);
    size_t longest = 0;
    int rc = FSDP_OK;

    if (!d)
        return FSDP_ENOMEM;
    d->line.text = opts->text;
    d->line.highest = -1;
    d->line.text_key = opts->text_key;
    d->seq_len = opts->seq_len;
    d->too_long = opts->too_long;
    d->skip_bad_lines = opts->skip_bad_lines;
    for (int i = 0; i < files->nfiles; i++)
        FSDP_TRY_GOTO(add_file(d, files, i, err), out);
    if (!d->ndocuments) {
        rc = refuse_empty(d, files, err);
        goto out;
    }
    FSDP_TRY_GOTO(make_rows(d, opts->documents, err), out);
    for (uint64_t i = 0; i < d->ndocuments; i++)
        longest = d->documents[i].nbytes > longest ? d->documents[i].nbytes : longest;
    d->text = fsdp_alloc(longest, 1, "document", err);
    rc = d->text ? FSDP_OK : FSDP_ENOMEM;
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
    FSDP_TRY(data_files_bytes(files, document->first, document->nbytes, d->text, err));
    int rc = data_line_parse(&d->line, d->text, document->nbytes, NULL);
    const bool cut = d->too_long == DATA_TRUNCATE && d->line.ntokens > document->ntokens &&
                     document->ntokens == (uint32_t)d->seq_len + 1;
    if (rc == FSDP_OK && (d->line.ntokens == document->ntokens || cut))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT, "data: %s: a document has changed since the run began",
                        d->line.path);
}

/* Positions [from, from + npositions) of the document in d->line, to positions at `to` of the row.
 */
static void place_line(const struct data_row *row, const struct data_line *line, int to,
                       uint32_t from, int npositions)
{
    memcpy(row->tokens + to, line->tokens + from, (size_t)npositions * sizeof *row->tokens);
    memcpy(row->labels + to, line->labels + from + 1, (size_t)npositions * sizeof *row->labels);
    for (int i = 0; i < npositions; i++)
        row->starts[to + i] = to;
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
        FSDP_TRY(read_document(d, files, document, err));
        place_line(out, &d->line, used, at.position, here);
        used += here;
        at = (struct row){at.document + 1, 0};
    }
    for (int t = used; t <= seq_len; t++) {
        out->tokens[t] = 0;
        if (t < seq_len) {
            out->labels[t] = DATA_IGNORE;
            out->starts[t] = used;
        }
    }
    return FSDP_OK;
}
