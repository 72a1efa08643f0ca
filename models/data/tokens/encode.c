/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to token files. The calling thread reads the sources and cuts them into items, threads turn
 * these into tokens (pool.c), and the calling thread writes what came of them, in their order. From
 * time to time it notes in the journal how far all is on disk.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/line/bad.h"
#include "join.h"
#include "journal.h"
#include "pool.h"
#include "text/tokenizer/tokenizer.h"

const struct encode_sizes encode_sizes_default = {.batch = 1 << 18,
                                                  .piece = 1 << 20,
                                                  .overlap = 1 << 15,
                                                  .agree = 1 << 10,
                                                  .most = 1 << 26,
                                                  .seconds = 2,
                                                  .tell = 0.1};

struct encode {
    const char *path;
    const struct encode_opts *opts;
    const struct encode_sizes *sizes;
    struct data_text text;
    struct encode_sources sources;
    struct encode_journal *journal;
    struct encode_reader *reader;
    struct encode_pool *pool;
    struct encode_join join;
    struct tokens_writer *writer;
    struct data_bad bad;
    struct data_crossed crossed;
    /* What is written: where work can continue, unless a text is half joined (is_clean). */
    struct encode_state state;
    bool is_clean;
    uint64_t noted; /* tokens up to the last note in the journal */
    double begun, told, noted_at;
};

/* ---- the command ----------------------------------------------------------------------------- */

static int check_opts(const struct encode_opts *opts, struct fsdp_err *err)
{
    if (opts->version != ENCODE_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "encode_opts.version %u is not known", opts->version);
    if (opts->npaths < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "no text is given");
    return FSDP_OK;
}

/* What is constant of a token file. */
static int choose_tokens(struct encode *e, struct fsdp_err *err)
{
    const struct tokenizer *t = e->text.tokenizer;
    const int nbytes = e->opts->token_nbytes, most = UINT16_MAX + 1;

    if (!e->text.vocab_size)
        e->text.vocab_size = t ? tokenizer_vocab_size(t) : 256;
    e->state.tokens.header.info = (struct tokens_info){
        .token_nbytes = nbytes                      ? nbytes
                        : e->text.vocab_size > most ? 4
                                                    : 2,
        .vocab_size = e->text.vocab_size,
        .special = e->text.special,
        .tokenizer_hash = t ? tokenizer_hash(t) : 0,
    };
    if (nbytes != 2 || e->text.vocab_size <= most)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s': tokens of 16 bits are below %d, and the vocabulary has %d: 32 bits "
                        "(a name that ends with .u32) hold them",
                        e->path, most, e->text.vocab_size);
}

static int open_journal(struct encode *e, bool *found, struct fsdp_err *err)
{
    char *head;

    e->state.place = encode_place_first;
    FSDP_TRY(encode_head(&head, &e->sources, &e->text, &e->state.tokens.header.info, err));
    const int rc = encode_journal_open(&e->journal, e->path, head, e->opts, &e->state, found, err);
    free(head);
    FSDP_TRY(rc);
    if (!*found)
        return FSDP_OK;
    if (e->state.nbad && !e->opts->skip_bad_lines)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "'%s" TOKENS_JOURNAL "': lines were left out so far, and this command "
                            "stops at the first (on_bad_line); begin anew (overwrite)",
                            e->path);
    fsdp_log(FSDP_LOG_INFO, "%s: continues behind %" PRIu64 " documents, %" PRIu64 " tokens",
             e->path, e->state.tokens.header.info.ndocuments, e->state.tokens.header.info.ntokens);
    return FSDP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int put_lines(struct encode *e, const struct encode_item *item, struct fsdp_err *err)
{
    size_t first = 0;

    for (size_t i = 0; i < item->nends; i++) {
        const bool *learned = item->has_ignored ? item->learned + first : NULL;
        FSDP_TRY(
            tokens_writer_put(e->writer, item->ids + first, learned, item->ends[i] - first, err));
        FSDP_TRY(tokens_writer_end_document(e->writer, err));
        first = item->ends[i];
    }
    FSDP_TRY(item->rc ? fsdp_err_pass(err, item->rc, &item->err) : FSDP_OK);
    for (uint64_t i = 0; i < item->nbad; i++)
        FSDP_TRY(data_bad_add(&e->bad, item->path, &item->bad, err));
    data_bad_end(&e->bad, item->path, item->nlines);
    data_crossed_join(&e->crossed, &item->crossed);
    e->state.nbytes += item->text_nbytes;
    e->state.nbad += item->nbad;
    e->state.place = item->after;
    e->state.joined = 0;
    e->is_clean = true;
    return FSDP_OK;
}

static int put_piece(struct encode *e, struct encode_item *item, struct fsdp_err *err)
{
    const uint64_t before = e->join.nbytes;

    FSDP_TRY(encode_join_put(&e->join, item, err));
    e->state.nbytes += e->join.nbytes - before;
    e->state.place = e->join.place;
    e->state.joined = e->join.joined;
    e->is_clean = e->join.is_clean;
    return FSDP_OK;
}

static int put_item(struct encode *e, struct encode_item *item, struct fsdp_err *err)
{
    e->is_clean = false;
    return item->is_lines ? put_lines(e, item, err) : put_piece(e, item, err);
}

/* Half a write is not tried again: the buffers do not know of it. */
static int note(struct encode *e, struct fsdp_err *err)
{
    e->is_clean = false;
    FSDP_TRY(tokens_writer_sync(e->writer, &e->state.tokens, err));
    FSDP_TRY(encode_journal_put(e->journal, &e->state, err));
    e->noted = e->state.tokens.header.info.ntokens;
    e->noted_at = fsdp_time_now();
    e->is_clean = true;
    return FSDP_OK;
}

static int tell(struct encode *e, struct fsdp_err *err)
{
    const double now = fsdp_time_now();
    const struct tokens_info *info = tokens_writer_info(e->writer);

    if (e->is_clean && now >= e->noted_at + e->sizes->seconds)
        FSDP_TRY(note(e, err));
    if (!e->opts->progress || now < e->told + e->sizes->tell)
        return FSDP_OK;
    e->told = now;
    const struct encode_progress progress = {.done = encode_reader_done(e->reader),
                                             .nbytes = e->sources.nbytes,
                                             .ndocuments = info->ndocuments,
                                             .ntokens = info->ntokens,
                                             .seconds = now - e->begun};
    return e->opts->progress(e->opts->progress_ctx, &progress, err);
}

/* ---- the work -------------------------------------------------------------------------------- */

/* Reads an item, if there is room for one. *end: the sources are at their end, or cannot be read.
 */
static int read_item(struct encode *e, bool *end, struct fsdp_err *err)
{
    struct encode_item *item = *end ? NULL : encode_pool_free_item(e->pool);

    if (!item)
        return FSDP_OK;
    const int rc = encode_reader_next(e->reader, item, end, err);
    if (rc)
        *end = true;
    if (!*end)
        encode_pool_give(e->pool);
    return rc;
}

/* What was read before an error is written. */
static int encode_all(struct encode *e, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    bool end = false;
    int failed = FSDP_OK;

    for (;;) {
        if (!failed)
            failed = read_item(e, &end, &why);
        if (encode_pool_is_empty(e->pool))
            return failed ? fsdp_err_pass(err, failed, &why) : FSDP_OK;
        const bool can_read = !end && encode_pool_free_item(e->pool);
        struct encode_item *item = encode_pool_wait(e->pool, can_read ? 0 : 0.1);
        if (item) {
            FSDP_TRY(put_item(e, item, err));
            encode_pool_release(e->pool);
        }
        FSDP_TRY(tell(e, err));
    }
}

/* After an error: what is there is kept, if it is something. */
static int keep_done(struct encode *e, int rc, struct fsdp_err *err)
{
    if (e->is_clean && rc != FSDP_EINTERNAL)
        note(e, NULL);
    if (!e->noted)
        return rc;
    return fsdp_err_hint(err, rc, "; the same command continues behind %" PRIu64 " tokens",
                         e->noted);
}

static int open_work(struct encode *e, bool found, struct fsdp_err *err)
{
    FSDP_TRY(tokens_writer_open(&e->writer, e->path, &e->state.tokens, found, err));
    FSDP_TRY(encode_reader_open(&e->reader, &e->sources, e->sizes, &e->state.place, err));
    e->join = (struct encode_join){.sizes = e->sizes,
                                   .writer = e->writer,
                                   .anywhere =
                                       !e->text.tokenizer || tokenizer_is_bytes(e->text.tokenizer),
                                   .joined = e->state.joined};
    encode_worker_init(&e->join.worker, e->opts, &e->text);
    e->noted = found ? e->state.tokens.header.info.ntokens : 0;
    e->noted_at = e->begun;
    return encode_pool_create(&e->pool, e->opts->nthreads, e->opts, &e->text, err);
}

static int finish(struct encode *e, struct fsdp_err *err)
{
    struct tokens_info info = *tokens_writer_info(e->writer);

    if (!info.ndocuments)
        return fsdp_err_set(err, FSDP_EINVAL, "%s%s: no document%s%s", e->sources.at[0].name,
                            e->sources.nsources > 1 ? " and the others" : "",
                            e->bad.nfiles ? "; the first line that is left out: " : "",
                            e->bad.nfiles ? e->bad.files[0].first : "");
    info.nbytes = e->state.nbytes;
    info.nbad = e->state.nbad;
    info.source_hash = e->state.place.hash;
    FSDP_TRY(tokens_writer_seal(e->writer, &info, &e->state.tokens, err));
    e->state.is_whole = true;
    return encode_journal_put(e->journal, &e->state, err);
}

static int encode_file(struct encode *e, struct tokens_info *out, struct fsdp_err *err)
{
    bool found = false;

    FSDP_TRY(choose_tokens(e, err));
    FSDP_TRY(encode_sources_open(&e->sources, e->opts, e->path, err));
    FSDP_TRY(open_journal(e, &found, err));
    if (!e->state.is_whole) {
        FSDP_TRY(open_work(e, found, err));
        int rc = encode_all(e, err);
        data_bad_warn(&e->bad);
        data_crossed_warn(&e->crossed, &e->text);
        if (!rc)
            FSDP_TRY(encode_sources_check(&e->sources, err));
        FSDP_TRY(rc ? keep_done(e, rc, err) : finish(e, err));
    }
    *out = e->state.tokens.header.info;
    out->nbytes = e->state.nbytes;
    out->nbad = e->state.nbad;
    FSDP_TRY(tokens_give_names(e->path, out->has_learned, err));
    encode_journal_remove(e->journal);
    return FSDP_OK;
}

/* Files of which nothing is kept. */
static void remove_parts(const struct encode *e)
{
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        char *path = tokens_part_path(e->path, (enum tokens_part)i, NULL);
        if (path)
            unlink(path);
        fsdp_free(path);
    }
    encode_journal_remove(e->journal);
}

int encode_run_sized(struct tokens_info *out, const char *path, const struct encode_opts *opts,
                     const struct encode_sizes *sizes, struct fsdp_err *err)
{
    struct encode e = {.path = path, .opts = opts, .sizes = sizes, .begun = fsdp_time_now()};

    FSDP_TRY(check_opts(opts, err));
    e.text = *opts->text;
    const int rc = encode_file(&e, out, err);
    encode_pool_destroy(e.pool);
    encode_reader_close(e.reader);
    encode_join_free(&e.join);
    tokens_writer_close(e.writer);
    if (rc && e.journal && !e.noted && e.pool)
        remove_parts(&e);
    encode_journal_close(e.journal);
    encode_sources_close(&e.sources);
    data_bad_free(&e.bad);
    return rc;
}

int encode_run(struct tokens_info *out, const char *path, const struct encode_opts *opts,
               struct fsdp_err *err)
{
    return encode_run_sized(out, path, opts, &encode_sizes_default, err);
}

int encode_source_hash(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err)
{
    struct encode_sources sources = {0};
    struct encode_reader *reader = NULL;
    int rc;

    FSDP_TRY(check_opts(opts, err));
    FSDP_TRY_GOTO(encode_sources_open(&sources, opts, NULL, err), out);
    FSDP_TRY_GOTO(
        encode_reader_open(&reader, &sources, &encode_sizes_default, &encode_place_first, err),
        out);
    rc = encode_reader_skim(reader, out, err);
out:
    encode_reader_close(reader);
    encode_sources_close(&sources);
    return rc;
}
