/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "data.h"

struct data {
    struct data_opts opts;
    struct data_files files;
    struct data_documents *documents; /* of jsonl, else NULL */
    uint64_t all_rows, nrows;         /* in the files, and of one pass */
};

/* ---- the order of a pass --------------------------------------------------------------------- */

/* splitmix64: every bit of x moves every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A Feistel network permutes 0 .. 4^half_bits - 1; walking on from images outside the range makes
 * it a permutation of the range (Black and Rogaway, 2002). The range is over a quarter of the
 * domain, so four rounds of the walk are the mean at most. */
uint64_t data_permute(uint64_t index, uint64_t nelem, uint64_t key)
{
    enum { ROUNDS = 6 };
    int half_bits = 1;

    while (half_bits < 32 && UINT64_C(1) << 2 * half_bits < nelem)
        half_bits++;
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(right + mix(key + round)) & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= nelem);
    return index;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* In layout rows a file is whole rows: anything else is a lost tail or another seq_len. */
static int count_rows(struct data *data, struct fsdp_err *err)
{
    uint64_t row = (uint64_t)data->opts.seq_len + 1;

    if (data->documents) {
        data->all_rows = data_documents_nrows(data->documents);
        return FSDP_OK;
    }
    if (data->opts.layout == DATA_STREAM) {
        data->all_rows = (data->files.ntokens - 1) / (row - 1);
        if (!data->all_rows)
            return fsdp_err_set(
                err, FSDP_EINVAL,
                "%s%s: %" PRIu64 " tokens, fewer than one row of %" PRIu64 " (data.seq_len + 1)",
                data->opts.tokens_of ? data->opts.tokens_of : data->files.files[0].path,
                data->files.nfiles > 1 ? " and the others" : "", data->files.ntokens, row);
        return FSDP_OK;
    }
    for (int i = 0; i < data->files.nfiles; i++) {
        const struct data_file *file = &data->files.files[i];
        if (file->ntokens % row)
            return fsdp_err_set(err, FSDP_ECORRUPT,
                                "%s: truncated, or data.seq_len is not its own: %" PRIu64
                                " tokens are not whole rows of %" PRIu64
                                " (data.seq_len + 1), %" PRIu64 " are left over",
                                file->path, file->ntokens, row, file->ntokens % row);
    }
    data->all_rows = data->files.ntokens / row;
    return FSDP_OK;
}

/* What data_open takes where no text is given. */
static const struct data_text plain_bytes = {.end = -1, .special = DATA_SPECIAL_EOS};

/* Rows of whole documents? */
static bool has_whole_documents(const struct data *data)
{
    if (data->opts.format == DATA_JSONL)
        return true;
    for (int i = 0; i < data->files.nfiles; i++) {
        const struct tokens *index = data->files.files[i].index;
        if (index && (data->opts.whole_documents || tokens_info(index)->has_learned))
            return true;
    }
    return false;
}

static int check_tokenizer(const struct data *data, struct fsdp_err *err)
{
    for (int i = 0; i < data->files.nfiles && data->opts.tokenizer_hash; i++) {
        const struct data_file *file = &data->files.files[i];
        if (!file->index || tokens_info(file->index)->tokenizer_hash == data->opts.tokenizer_hash)
            continue;
        return fsdp_err_set_blame(
            err, FSDP_EMISMATCH, "tokenizer",
            "%s: its tokens were made with another tokenizer than the model's; make "
            "them again (fsdp-tokenize --tokenizer MODEL), or set data.tokenizer to the "
            "tokenizer that made them",
            file->path);
    }
    return FSDP_OK;
}

/* Documents end where an index says in all files, or in none. */
static int check_index(const struct data *data, struct fsdp_err *err)
{
    const struct data_files *files = &data->files;

    for (int i = 1; i < files->nfiles && data->opts.documents; i++)
        if (!files->files[i].index != !files->files[0].index)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s has no .index of its documents, and %s has one",
                                files->files[files->files[i].index ? 0 : i].path,
                                files->files[files->files[i].index ? i : 0].path);
    return FSDP_OK;
}

static int check_ends(const struct data *data, struct fsdp_err *err)
{
    const struct data_opts *opts = &data->opts;

    if (!opts->documents || opts->nends || data->documents || opts->format == DATA_TEXT ||
        opts->format == DATA_MEGATRON || data->files.files[0].index)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "data: no token is known that ends a document: the model's config.json "
                        "has no eos_token_id; set data.document_end");
}

static int check_opts(const struct data_opts *opts, struct fsdp_err *err)
{
    if (opts->version != DATA_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "data: options of version %" PRIu32 ", not %d",
                            opts->version, DATA_OPTS_VERSION);
    if (opts->seq_len < 1 || opts->npaths < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "data: no %s given",
                            opts->npaths < 1 ? "path" : "row length");
    const bool has_text = opts->format == DATA_TEXT || opts->format == DATA_JSONL;
    if (has_text && opts->text && opts->text->tokenizer && !opts->weight_key && !opts->pairs)
        return fsdp_err_set(err, FSDP_EINVAL, "data: text was not made token files");
    if (opts->format == DATA_TEXT && opts->text && opts->text->refusal)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "tokenizer", "%s", opts->text->refusal);
    return FSDP_OK;
}

int data_open(struct data **out, const struct data_opts *opts, struct fsdp_err *err)
{
    int rc;

    FSDP_TRY(check_opts(opts, err));
    struct data *data = fsdp_alloc(1, sizeof *data, "data", err);
    if (!data)
        return FSDP_ENOMEM;
    data->opts = *opts;
    data->opts.paths = NULL;
    if (!opts->text)
        data->opts.text = &plain_bytes;
    FSDP_TRY_GOTO(data_files_open(&data->files, opts, err), out);
    rc = check_tokenizer(data, err);
    if (rc == FSDP_OK)
        rc = check_index(data, err);
    if (rc == FSDP_OK && has_whole_documents(data))
        rc = data_documents_open(&data->documents, &data->opts, &data->files, err);
    if (rc == FSDP_OK)
        rc = check_ends(data, err);
    if (rc == FSDP_OK)
        rc = count_rows(data, err);
    if (rc != FSDP_OK) {
        data_close(data);
        return rc;
    }
    if (opts->pairs)
        data->all_rows /= 2;
    bool fewer = !opts->shuffle && opts->max_rows && opts->max_rows < data->all_rows;
    data->nrows = fewer ? opts->max_rows : data->all_rows;
    *out = data;
    return FSDP_OK;
out:
    fsdp_free(data);
    return rc;
}

void data_close(struct data *data)
{
    if (data) {
        data_documents_close(data->documents);
        data_files_close(&data->files);
    }
    fsdp_free(data);
}

void data_warn(struct data *data)
{
    data_files_warn(&data->files, &data->opts);
    if (data->documents)
        data_documents_warn(data->documents, &data->opts);
}

uint64_t data_nrows(const struct data *data)
{
    return data->nrows;
}

uint64_t data_ntokens(const struct data *data)
{
    return data->files.ntokens;
}

int data_nfiles(const struct data *data)
{
    return data->files.nfiles;
}

int data_seq_len(const struct data *data)
{
    return data->opts.seq_len;
}

bool data_has_labels(const struct data *data)
{
    return data->documents || data->opts.documents;
}

bool data_has_weights(const struct data *data)
{
    return data->documents && data->opts.weight_key;
}

uint64_t data_ndocuments(const struct data *data, uint64_t *ntokens, uint64_t *ncut)
{
    *ntokens = *ncut = 0;
    return data->documents ? data_documents_count(data->documents, ntokens, ncut) : 0;
}

uint64_t data_hash(const struct data *data)
{
    uint64_t facts[] = {(uint64_t)data->opts.format, (uint64_t)data->opts.layout,
                        (uint64_t)data->opts.seq_len, data->nrows};
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, facts, sizeof facts);

    if (data_has_labels(data)) {
        hash = fsdp_hash(hash, &data->opts.documents, sizeof data->opts.documents);
        hash = fsdp_hash(hash, data->opts.ends, (size_t)data->opts.nends * sizeof(int));
    }
    if (data->documents && data->opts.too_long != DATA_SPLIT)
        hash = fsdp_hash(hash, &data->opts.too_long, sizeof data->opts.too_long);
    if (data->documents && data->opts.text_key && strcmp(data->opts.text_key, "text") != 0)
        hash = fsdp_hash(hash, data->opts.text_key, strlen(data->opts.text_key));
    if (data->opts.pairs)
        hash = fsdp_hash(hash, "pairs", 5);
    if (data_has_weights(data))
        hash = fsdp_hash(hash, data->opts.weight_key, strlen(data->opts.weight_key));
    if (data->opts.tokens_of) {
        const uint64_t how = data_text_hash(data->opts.text, data->opts.text_key);
        hash = fsdp_hash(hash, &how, sizeof how);
    }
    for (int i = 0; i < data->files.nfiles; i++) {
        const struct data_file *file = &data->files.files[i];
        hash = fsdp_hash(hash, &file->ntokens, sizeof(uint64_t));
        if (file->index)
            hash = fsdp_hash(hash, &tokens_info(file->index)->source_hash, sizeof(uint64_t));
    }
    return hash;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Of the rows in the files, that which is row `row` of all passes. */
static uint64_t row_index(const struct data *data, uint64_t row)
{
    const struct data_opts *opts = &data->opts;
    const uint64_t pass = row / data->nrows, index = row % data->nrows;

    if (opts->layout == DATA_STREAM && opts->shuffle)
        return data_permute(index, data->nrows, mix(opts->seed) + mix(~pass));
    if (data->nrows < data->all_rows)
        return (uint64_t)((__uint128_t)index * data->all_rows / data->nrows);
    return index;
}

static uint64_t row_stride(const struct data *data)
{
    return (uint64_t)data->opts.seq_len + (data->opts.layout == DATA_ROWS);
}

uint64_t data_row_id(const struct data *data, uint64_t row)
{
    return row_index(data, row);
}

static int read_pair(struct data *data, uint64_t index, const struct data_row *out,
                     struct fsdp_err *err)
{
    const int T = data->opts.seq_len;
    const struct data_row second = {out->tokens + T + 1, out->labels + T, out->starts + T,
                                    out->weights ? out->weights + T : NULL};

    FSDP_TRY(data_documents_row(data->documents, &data->files, 2 * index, T, out, err));
    return data_documents_row(data->documents, &data->files, 2 * index + 1, T, &second, err);
}

int data_row(struct data *data, uint64_t row, const struct data_row *out, struct fsdp_err *err)
{
    const struct data_opts *opts = &data->opts;
    const uint64_t index = row_index(data, row), first = index * row_stride(data);

    if (opts->pairs)
        return read_pair(data, index, out, err);
    if (data->documents)
        return data_documents_row(data->documents, &data->files, index, opts->seq_len, out, err);
    FSDP_TRY(data_files_read(&data->files, first, (size_t)opts->seq_len + 1, out->tokens,
                             opts->vocab_size, err));
    return opts->documents ? data_documents_of_window(out, opts, &data->files, first, err)
                           : FSDP_OK;
}

void data_ahead(struct data *data, uint64_t row)
{
    if (!data->files.far)
        return;
    const uint64_t index = row_index(data, row);
    if (data->documents)
        data_documents_ahead(data->documents, &data->files, index);
    else
        data_files_ahead(&data->files, index * row_stride(data), (size_t)data->opts.seq_len + 1);
}
