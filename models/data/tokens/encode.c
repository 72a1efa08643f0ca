/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "data/line/bad.h"
#include "encode.h"
#include "item.h"
#include "sources.h"
#include "text/tokenizer/tokenizer.h"
#include "writer.h"

struct encode {
    const struct encode_opts *opts;
    struct data_text text;
    struct encode_sources sources;
    struct encode_reader *reader;
    struct encode_worker worker;
    struct encode_item item;
    struct tokens_writer *writer;
    struct data_bad bad;
    struct tokens_info info; /* nbytes, nbad and source_hash are counted here */
    double begun, told;
};

/* ---- the kind of tokens ---------------------------------------------------------------------- */

static int check_opts(const struct encode_opts *opts, struct fsdp_err *err)
{
    if (opts->version != ENCODE_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "encode_opts.version %u is not known", opts->version);
    if (opts->npaths < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "no text is given");
    return FSDP_OK;
}

static int choose_tokens(struct encode *e, const char *path, struct fsdp_err *err)
{
    const struct tokenizer *t = e->text.tokenizer;
    const int nbytes = e->opts->token_nbytes, most = UINT16_MAX + 1;

    if (!e->text.vocab_size)
        e->text.vocab_size = t ? tokenizer_vocab_size(t) : 256;
    e->info = (struct tokens_info){
        .token_nbytes = nbytes                      ? nbytes
                        : e->text.vocab_size > most ? 4
                                                    : 2,
        .vocab_size = e->text.vocab_size,
        .special = e->text.special,
        .tokenizer_hash = t ? tokenizer_hash(t) : 0,
    };
    if (e->info.token_nbytes == 4 || e->text.vocab_size <= most)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s': tokens of 16 bits are below %d, and the vocabulary has %d: 32 bits "
                        "(a name that ends with .u32) hold them",
                        path, most, e->text.vocab_size);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int put_item(struct encode *e, struct encode_item *item, struct fsdp_err *err)
{
    size_t first = 0;

    for (size_t i = 0; i < item->ndocuments; i++) {
        const bool *learned = item->has_ignored ? item->learned + first : NULL;
        FSDP_TRY(
            tokens_writer_put(e->writer, item->ids + first, learned, item->ends[i] - first, err));
        FSDP_TRY(tokens_writer_end_document(e->writer, err));
        first = item->ends[i];
    }
    e->info.nbytes += item->text_nbytes;
    e->info.nbad += item->nbad;
    e->info.source_hash = item->after.hash;
    for (uint64_t i = 0; i < item->nbad; i++)
        FSDP_TRY(data_bad_add(&e->bad, item->path, &item->bad, err));
    return item->rc ? fsdp_err_pass(err, item->rc, &item->err) : FSDP_OK;
}

static int tell(struct encode *e, struct fsdp_err *err)
{
    const double now = fsdp_time_now();
    const struct tokens_info *info = tokens_writer_info(e->writer);
    struct encode_progress progress = {.ndocuments = info->ndocuments, .ntokens = info->ntokens};

    if (!e->opts->progress || now < e->told + 0.1)
        return FSDP_OK;
    e->told = now;
    progress.seconds = now - e->begun;
    encode_reader_progress(e->reader, &progress.done, &progress.nbytes);
    return e->opts->progress(e->opts->progress_ctx, &progress, err);
}

static int encode_all(struct encode *e, struct fsdp_err *err)
{
    bool end = false;

    for (;;) {
        FSDP_TRY(encode_reader_next(e->reader, &e->item, &end, err));
        if (end)
            return FSDP_OK;
        encode_item_work(&e->item, &e->worker);
        FSDP_TRY(put_item(e, &e->item, err));
        FSDP_TRY(tell(e, err));
    }
}

static int run(struct encode *e, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(choose_tokens(e, path, err));
    FSDP_TRY(encode_sources_open(&e->sources, e->opts, err));
    FSDP_TRY(encode_reader_open(&e->reader, &e->sources, err));
    const struct tokens_state state = {.header.info = e->info};
    FSDP_TRY(tokens_writer_open(&e->writer, path, &state, false, err));
    FSDP_TRY(encode_all(e, err));
    data_bad_warn(&e->bad);
    return tokens_writer_finish(e->writer, &e->info, err);
}

int encode_run(struct tokens_info *out, const char *path, const struct encode_opts *opts,
               struct fsdp_err *err)
{
    struct encode e = {.opts = opts, .begun = fsdp_time_now()};

    FSDP_TRY(check_opts(opts, err));
    e.text = *opts->text;
    e.worker = (struct encode_worker){.opts = opts, .text = &e.text, .line = {.highest = -1}};
    const int rc = run(&e, path, err);
    if (rc == FSDP_OK)
        *out = *tokens_writer_info(e.writer);
    tokens_writer_close(e.writer);
    encode_reader_close(e.reader);
    encode_sources_close(&e.sources);
    encode_worker_free(&e.worker);
    encode_item_free(&e.item);
    data_bad_free(&e.bad);
    return rc;
}

int encode_source_hash(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err)
{
    struct encode_sources sources = {0};
    struct encode_reader *reader = NULL;
    int rc;

    FSDP_TRY(check_opts(opts, err));
    FSDP_TRY_GOTO(encode_sources_open(&sources, opts, err), out);
    FSDP_TRY_GOTO(encode_reader_open(&reader, &sources, err), out);
    rc = encode_reader_skim(reader, out, err);
out:
    encode_reader_close(reader);
    encode_sources_close(&sources);
    return rc;
}
