/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "data/source/stream.h"
#include "format.h"
#include "item.h"
#include "sources.h"

enum { BATCH_NBYTES = 1 << 18, MAX_LINE = 1 << 30, MAX_TEXT = 1 << 30 };

struct encode_reader {
    const struct encode_sources *sources;
    struct data_stream *stream; /* of file place.file; NULL: not open */
    struct encode_place place;
    bool at_end; /* of the stream */
    char *rest;  /* read, and not in an item yet */
    size_t nrest, rest_room;
    uint64_t done, nbytes; /* of the files before; of all */
};

/* ---- the list -------------------------------------------------------------------------------- */

static int add_stdin(struct data_list *list, struct fsdp_err *err)
{
    char **paths = fsdp_alloc_grow(list->paths, list->npaths, &list->room, sizeof *paths,
                                   "list of files", err);

    if (!paths)
        return FSDP_ENOMEM;
    list->paths = paths;
    if (!(paths[list->npaths] = fsdp_strdup("-", err)))
        return FSDP_ENOMEM;
    list->npaths++;
    return FSDP_OK;
}

int encode_sources_open(struct encode_sources *out, const struct encode_opts *opts,
                        struct fsdp_err *err)
{
    struct encode_sources s = {.opts = opts, .list = {.remote = opts->remote}};
    int rc = FSDP_OK;

    for (int i = 0; rc == FSDP_OK && i < opts->npaths; i++)
        rc = strcmp(opts->paths[i], "-") != 0 ? data_list_add(&s.list, opts->paths[i], err)
                                              : add_stdin(&s.list, err);
    if (rc == FSDP_OK)
        *out = s;
    else
        data_list_free(&s.list);
    return rc;
}

void encode_sources_close(struct encode_sources *s)
{
    data_list_free(&s->list);
}

const char *encode_sources_name(const struct encode_sources *s, size_t file)
{
    const char *path = s->list.paths[file];
    return strcmp(path, "-") != 0 ? path : "standard input";
}

bool encode_sources_is_lines(const struct encode_sources *s, size_t file)
{
    static const char *const ends[] = {".jsonl", ".ndjson", ".json"};
    static const char *const packed[] = {"", ".gz", ".zst"};
    char end[16];

    if (s->opts->format != ENCODE_AUTO)
        return s->opts->format == ENCODE_LINES;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        for (size_t k = 0; k < sizeof packed / sizeof packed[0]; k++) {
            snprintf(end, sizeof end, "%s%s", ends[i], packed[k]);
            if (data_name_ends(s->list.paths[file], end))
                return true;
        }
    return false;
}

/* ---- reading --------------------------------------------------------------------------------- */

static uint64_t nbytes_of(const struct data_list *list)
{
    uint64_t nbytes = 0;
    struct stat st;

    for (size_t i = 0; i < list->npaths; i++) {
        if (data_is_remote(list->paths[i]) || stat(list->paths[i], &st) || !S_ISREG(st.st_mode))
            return 0;
        nbytes += (uint64_t)st.st_size;
    }
    return nbytes;
}

int encode_reader_open(struct encode_reader **out, const struct encode_sources *sources,
                       struct fsdp_err *err)
{
    struct encode_reader *r = fsdp_alloc(1, sizeof *r, "reader", err);

    if (!r)
        return FSDP_ENOMEM;
    r->sources = sources;
    r->place.hash = FSDP_HASH_SEED;
    r->nbytes = nbytes_of(&sources->list);
    *out = r;
    return FSDP_OK;
}

void encode_reader_close(struct encode_reader *r)
{
    if (!r)
        return;
    data_stream_close(r->stream);
    fsdp_free(r->rest);
    fsdp_free(r);
}

void encode_reader_progress(const struct encode_reader *r, uint64_t *done, uint64_t *nbytes)
{
    uint64_t here = 0, all;

    if (r->stream)
        here = data_stream_position(r->stream, &all);
    *done = r->done + here;
    *nbytes = r->nbytes;
}

/* *end: there is no file any more. */
static int open_stream(struct encode_reader *r, bool *end, struct fsdp_err *err)
{
    const struct data_list *list = &r->sources->list;

    *end = r->place.file == list->npaths;
    if (*end || r->stream)
        return FSDP_OK;
    r->at_end = false;
    return data_stream_open_at(&r->stream, list->paths[r->place.file], r->sources->opts->remote,
                               err);
}

static void end_file(struct encode_reader *r)
{
    struct encode_place *p = &r->place;
    const uint64_t numbers[] = {encode_sources_is_lines(r->sources, p->file), p->offset, p->crc};
    uint64_t all;

    r->done += data_stream_position(r->stream, &all);
    data_stream_close(r->stream);
    r->stream = NULL;
    *p = (struct encode_place){.file = p->file + 1,
                               .hash = fsdp_hash(p->hash, numbers, sizeof numbers)};
}

/* Notes that bytes of the file are in an item. */
static void pass(struct encode_reader *r, const char *bytes, size_t nbytes)
{
    r->place.crc = tokens_crc(r->place.crc, bytes, nbytes);
    r->place.offset += nbytes;
}

int encode_reader_skim(struct encode_reader *r, uint64_t *hash, struct fsdp_err *err)
{
    char *buffer = fsdp_alloc_unset(BATCH_NBYTES, 1, "bytes of a source", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;
    bool end = false;

    while (rc == FSDP_OK && (rc = open_stream(r, &end, err)) == FSDP_OK && !end) {
        size_t got;
        rc = data_stream_read(r->stream, buffer, BATCH_NBYTES, &got, err);
        if (rc == FSDP_OK && got)
            pass(r, buffer, got);
        else if (rc == FSDP_OK)
            end_file(r);
    }
    fsdp_free(buffer);
    *hash = r->place.hash;
    return rc;
}

/* Up to nbytes more of the file behind what the item has. */
static int read_more(struct encode_reader *r, struct encode_item *item, size_t nbytes,
                     struct fsdp_err *err)
{
    size_t got = 0;

    if (item->nbytes + nbytes > item->room) {
        size_t room = item->room;
        char *text = fsdp_alloc_reserve(item->text, item->nbytes, &room, item->nbytes + nbytes, 1,
                                        "text", err);
        if (!text)
            return FSDP_ENOMEM;
        item->text = text;
        item->room = room;
    }
    FSDP_TRY(data_stream_read(r->stream, item->text + item->nbytes, nbytes, &got, err));
    item->nbytes += got;
    r->at_end = got == 0;
    return FSDP_OK;
}

/* Keeps what is behind byte `at` of the item for the next one. */
static int keep_rest(struct encode_reader *r, struct encode_item *item, size_t at,
                     struct fsdp_err *err)
{
    r->nrest = item->nbytes - at;
    if (r->nrest > r->rest_room) {
        fsdp_free(r->rest);
        r->rest_room = r->nrest;
        if (!(r->rest = fsdp_alloc_unset(r->nrest, 1, "text", err)))
            return FSDP_ENOMEM;
    }
    memcpy(r->rest, item->text + at, r->nrest);
    item->nbytes = at;
    return FSDP_OK;
}

static int take_rest(struct encode_reader *r, struct encode_item *item, struct fsdp_err *err)
{
    item->nbytes = 0;
    if (r->nrest > item->room) {
        fsdp_free(item->text);
        item->room = r->nrest;
        if (!(item->text = fsdp_alloc_unset(r->nrest, 1, "text", err)))
            return FSDP_ENOMEM;
    }
    if (r->nrest)
        memcpy(item->text, r->rest, r->nrest);
    item->nbytes = r->nrest;
    r->nrest = 0;
    return FSDP_OK;
}

static int next_lines(struct encode_reader *r, struct encode_item *item, struct fsdp_err *err)
{
    size_t searched = 0;

    for (;;) {
        const char *last = item->nbytes > searched
                               ? memrchr(item->text + searched, '\n', item->nbytes - searched)
                               : NULL;
        searched = item->nbytes;
        if (r->at_end)
            return FSDP_OK;
        if (last && item->nbytes >= BATCH_NBYTES)
            return keep_rest(r, item, (size_t)(last - item->text) + 1, err);
        if (item->nbytes > MAX_LINE)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "data: %s:%" PRIu64 ": longer than 1 GiB",
                                item->path, r->place.line + 1);
        searched = last ? (size_t)(last - item->text) : searched;
        FSDP_TRY(read_more(r, item, BATCH_NBYTES, err));
    }
}

static int next_text(struct encode_reader *r, struct encode_item *item, struct fsdp_err *err)
{
    while (!r->at_end) {
        if (item->nbytes > MAX_TEXT)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "data: %s: longer than 1 GiB", item->path);
        FSDP_TRY(read_more(r, item, 1 << 20, err));
    }
    return FSDP_OK;
}

int encode_reader_next(struct encode_reader *r, struct encode_item *item, bool *end,
                       struct fsdp_err *err)
{
    FSDP_TRY(open_stream(r, end, err));
    if (*end)
        return FSDP_OK;
    item->path = encode_sources_name(r->sources, r->place.file);
    item->line = r->place.line;
    item->is_lines = encode_sources_is_lines(r->sources, r->place.file);
    FSDP_TRY(take_rest(r, item, err));
    FSDP_TRY(item->is_lines ? next_lines(r, item, err) : next_text(r, item, err));
    pass(r, item->text, item->nbytes);
    for (const char *at = item->text, *behind = at + item->nbytes;
         item->is_lines && at < behind && (at = memchr(at, '\n', (size_t)(behind - at))); at++)
        r->place.line++;
    if (r->at_end && !r->nrest)
        end_file(r);
    item->after = r->place;
    return FSDP_OK;
}
