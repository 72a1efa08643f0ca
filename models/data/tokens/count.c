/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "count.h"
#include "data/line/bad.h"
#include "pool.h"
#include "text/train/vocab_train.h"

/* ---- all ------------------------------------------------------------------------------------- */

struct count {
    const struct encode_opts *opts;
    struct encode_sources sources;
    struct encode_reader *reader;
    struct encode_pool *pool;
    struct data_bad bad;
    struct encode_progress progress;
    double begun;
};

static int take_item(struct count *c, const struct encode_item *item, struct fsdp_err *err)
{
    FSDP_TRY(item->rc ? fsdp_err_pass(err, item->rc, &item->err) : FSDP_OK);
    for (uint64_t i = 0; i < item->nbad; i++)
        FSDP_TRY(data_bad_add(&c->bad, item->path, &item->bad, err));
    data_bad_end(&c->bad, item->path, item->nlines);
    c->progress.ndocuments += item->nends;
    return FSDP_OK;
}

static int tell(struct count *c, struct fsdp_err *err)
{
    const double now = fsdp_time_now() - c->begun;

    if (!c->opts->progress || now < c->progress.seconds + 0.1)
        return FSDP_OK;
    c->progress.seconds = now;
    c->progress.done = encode_reader_done(c->reader);
    c->progress.nbytes = c->sources.nbytes;
    return c->opts->progress(c->opts->progress_ctx, &c->progress, err);
}

static int count_all(struct count *c, struct fsdp_err *err)
{
    struct encode_item *item;
    bool end = false;

    for (;;) {
        while (!end && (item = encode_pool_free_item(c->pool))) {
            FSDP_TRY(encode_reader_next(c->reader, item, &end, err));
            if (!end)
                encode_pool_give(c->pool);
        }
        if (encode_pool_is_empty(c->pool))
            return FSDP_OK;
        if ((item = encode_pool_wait(c->pool, 0.1))) {
            FSDP_TRY(take_item(c, item, err));
            encode_pool_release(c->pool);
        }
        FSDP_TRY(tell(c, err));
    }
}

static int count_and_merge(struct count *c, struct vocab_train *into,
                           const struct vocab_train_opts *vocab, struct fsdp_err *err)
{
    int nworkers;
    struct encode_worker *workers = encode_pool_workers(c->pool, &nworkers);

    for (int i = 0; i < nworkers; i++)
        FSDP_TRY(vocab_train_create(&workers[i].train, vocab, err));
    FSDP_TRY(count_all(c, err));
    data_bad_warn(&c->bad);
    for (int i = 0; i < nworkers; i++)
        FSDP_TRY(vocab_train_merge(into, workers[i].train, err));
    return FSDP_OK;
}

int encode_count(struct vocab_train *into, const struct vocab_train_opts *vocab,
                 const struct encode_opts *opts, uint64_t *nbad, struct fsdp_err *err)
{
    struct encode_sizes sizes = encode_sizes_default;
    struct count c = {.opts = opts, .begun = fsdp_time_now()};
    struct data_text bytes = *opts->text;
    int rc;

    sizes.by_lines = true;
    bytes.tokenizer = NULL;
    bytes.special = DATA_SPECIAL_NONE;
    bytes.end = -1;
    bytes.vocab_size = 256;
    FSDP_TRY_GOTO(encode_sources_open(&c.sources, opts, NULL, err), out);
    FSDP_TRY_GOTO(encode_reader_open(&c.reader, &c.sources, &sizes, &encode_place_first, err), out);
    FSDP_TRY_GOTO(encode_pool_create(&c.pool, opts->nthreads, opts, &bytes, err), out);
    rc = count_and_merge(&c, into, vocab, err);
    *nbad = 0;
    for (size_t i = 0; i < c.bad.nfiles; i++)
        *nbad += c.bad.files[i].nbad;
out:
    encode_pool_destroy(c.pool);
    encode_reader_close(c.reader);
    encode_sources_close(&c.sources);
    data_bad_free(&c.bad);
    return rc;
}
