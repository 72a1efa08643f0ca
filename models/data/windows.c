/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over documents: what a window of a stream of tokens predicts, and where its documents
 * begin. */
#include "data.h"
#include "megatron.h"

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

/* The first token behind document `token` is in, among those of all files; not of the last of all:
 * that has no end here. */
static uint64_t end_by_index(const struct data_files *files, uint64_t token)
{
    const struct data_file *file = &files->files[data_files_find(files, token)];
    const uint64_t document = tokens_find(file->index, token - file->first);
    return file->first + tokens_begin(file->index, document + 1);
}

static void window_by_tokens_index(const struct data_row *row, int seq_len,
                                   const struct data_files *files, uint64_t first)
{
    uint64_t end = end_by_index(files, first);

    for (int t = 0, start = 0; t < seq_len; t++) {
        const uint64_t next = first + (uint64_t)t + 1;
        const bool ends = next == end;
        row->starts[t] = start;
        row->labels[t] = ends ? DATA_IGNORE : row->tokens[t + 1];
        if (!ends)
            continue;
        start = t + 1;
        if (next < files->ntokens)
            end = end_by_index(files, next);
    }
}

int data_documents_of_window(const struct data_row *row, const struct data_opts *opts,
                             struct data_files *files, uint64_t first, struct fsdp_err *err)
{
    const bool by_file = opts->format == DATA_TEXT;

    if (opts->format == DATA_MEGATRON)
        return window_by_index(row, opts->seq_len, files, first, err);
    if (files->files[0].index) {
        window_by_tokens_index(row, opts->seq_len, files, first);
        return FSDP_OK;
    }

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
