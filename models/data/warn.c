/* SPDX-License-Identifier: Apache-2.0 */
/* Data that can be read, but looks as if data.format were wrong. */
#include <inttypes.h>
#include <string.h>

#include "data/line/bad.h"
#include "data/line/crossed.h"
#include "data.h"

enum {
    LOOK_NBYTES = 16384, /* of each text file */
    LOOK_FILES = 256,
    LOOK_WINDOWS = 64,
    LOOK_NTOKENS = 256, /* of each window */
    FAR_BELOW = 8       /* so many times the highest token has room in the vocabulary */
};

static bool has_binary_name(const char *path)
{
    static const char *const ends[] = {".bin",         ".u16", ".u32",  ".npy",     ".pt",
                                       ".safetensors", ".zip", ".png",  ".parquet", ".arrow",
                                       ".pdf",         ".jpg", ".jsonl"};
    const char *end = strrchr(path, '.');
    for (size_t i = 0; end && i < sizeof ends / sizeof ends[0]; i++)
        if (!strcmp(end, ends[i]))
            return true;
    return false;
}

static bool has_nul(struct data_files *files, int i, char *buffer)
{
    const struct data_file *file = &files->files[i];
    size_t nbytes = file->ntokens < LOOK_NBYTES ? (size_t)file->ntokens : LOOK_NBYTES;
    return nbytes && data_files_bytes(files, file->first, nbytes, buffer, NULL) == FSDP_OK &&
           memchr(buffer, 0, nbytes);
}

static void look_at_text(struct data_files *files)
{
    const char *first = NULL, *why = NULL;
    char *buffer = fsdp_alloc(LOOK_NBYTES, 1, "start of a file", NULL);
    int nodd = 0;

    for (int i = 0; buffer && i < files->nfiles && i < LOOK_FILES; i++) {
        bool nul = has_nul(files, i, buffer), odd = nul || has_binary_name(files->files[i].path);
        if (odd && !first) {
            first = files->files[i].path;
            why = nul ? "holds NUL bytes" : "has the name of a file that is not text";
        }
        nodd += odd;
    }
    if (nodd)
        fsdp_log(FSDP_LOG_WARN,
                 "%s %s, and is read as text (data.format); %d of %d files looked at are "
                 "like this",
                 first, why, nodd, files->nfiles < LOOK_FILES ? files->nfiles : LOOK_FILES);
    fsdp_free(buffer);
}

static void warn_highest(int32_t highest, const struct data_opts *opts)
{
    if (highest >= 0 && ((int64_t)highest + 1) * FAR_BELOW <= opts->vocab_size)
        fsdp_log(FSDP_LOG_WARN,
                 "data: the highest token found is %" PRId32 ", and the model has %d: were these "
                 "tokens made for another model, or with another data.format?",
                 highest, opts->vocab_size);
}

/* Token files carry no type: 32-bit ids read as 16-bit ones are zero at every second place. */
static void look_at_tokens(struct data_files *files, const struct data_opts *opts)
{
    int32_t tokens[LOOK_NTOKENS], highest = -1;
    uint64_t step = files->ntokens / LOOK_WINDOWS / 2 * 2;
    size_t nread = opts->seq_len < LOOK_NTOKENS ? (size_t)opts->seq_len + 1 : LOOK_NTOKENS;
    bool nonzero[2] = {false, false};

    for (uint64_t window = 0; window < LOOK_WINDOWS; window++) {
        uint64_t first = window * step;
        if (first + nread > files->ntokens ||
            data_files_read(files, first, nread, tokens, 0, NULL) != FSDP_OK)
            break;
        for (size_t i = 0; i < nread; i++) {
            highest = tokens[i] > highest ? tokens[i] : highest;
            nonzero[i % 2] |= tokens[i] != 0;
        }
    }
    if (opts->format == DATA_U16 && nonzero[0] != nonzero[1])
        fsdp_log(FSDP_LOG_WARN,
                 "%s: every second token is 0, as if 32-bit tokens were read as 16-bit ones "
                 "(data.format: u32)",
                 files->files[0].path);
    warn_highest(highest, opts);
}

/* Lines that were left out when token files were made. */
static void warn_left_out(const struct data_files *files)
{
    for (int i = 0; i < files->nfiles; i++) {
        const struct tokens *index = files->files[i].index;
        if (index && tokens_info(index)->nbad)
            fsdp_log(FSDP_LOG_WARN,
                     "%s: %" PRIu64 " lines of its text are left out: they were no documents",
                     files->files[i].path, tokens_info(index)->nbad);
    }
}

/* A token that the model lacks ends the run, perhaps late. */
static void warn_vocabulary(const struct data_files *files, const struct data_opts *opts)
{
    for (int i = 0; i < files->nfiles && opts->vocab_size > 0; i++) {
        const struct tokens *index = files->files[i].index;
        if (index && tokens_info(index)->vocab_size > opts->vocab_size)
            fsdp_log(FSDP_LOG_WARN,
                     "%s: its tokenizer has %d tokens, and the model %d: the first token that the "
                     "model lacks ends the run",
                     files->files[i].path, tokens_info(index)->vocab_size, opts->vocab_size);
    }
}

void data_files_warn(struct data_files *files, const struct data_opts *opts)
{
    warn_left_out(files);
    warn_vocabulary(files, opts);
    if (opts->format == DATA_TEXT)
        look_at_text(files);
    else if (opts->format != DATA_JSONL)
        look_at_tokens(files, opts);
}

void data_documents_warn(const struct data_documents *documents, const struct data_opts *opts)
{
    data_bad_warn(data_documents_bad(documents));
    data_crossed_warn(data_documents_crossed(documents), opts->text);
    warn_highest(data_documents_highest(documents), opts);
}
