/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "data/source/stream.h"
#include "format.h"
#include "item.h"
#include "reader.h"

enum { BUFFER_NBYTES = 1 << 18, MAX_LINE = 1 << 30 };

const struct encode_place encode_place_first = {.hash = FSDP_HASH_SEED};

struct encode_reader {
    const struct encode_sources *sources;
    const struct encode_sizes *sizes;
    struct data_stream *stream; /* of file place.file; NULL: not open */
    struct encode_place place;
    bool at_end; /* of the stream */
    char *rest;  /* read, and of the next item */
    size_t nrest, rest_room;
    uint64_t done; /* bytes of the files before, as they lie */
};

int encode_reader_open(struct encode_reader **out, const struct encode_sources *sources,
                       const struct encode_sizes *sizes, const struct encode_place *place,
                       struct fsdp_err *err)
{
    struct encode_reader *r = fsdp_alloc(1, sizeof *r, "reader", err);

    if (!r)
        return FSDP_ENOMEM;
    r->sources = sources;
    r->sizes = sizes;
    r->place = *place;
    for (size_t i = 0; i < place->file && i < sources->nsources; i++)
        r->done += sources->at[i].nbytes;
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

uint64_t encode_reader_done(const struct encode_reader *r)
{
    uint64_t all;
    return r->done + (r->stream ? data_stream_position(r->stream, &all) : 0);
}

static const struct encode_source *source_of(const struct encode_reader *r)
{
    return &r->sources->at[r->place.file];
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* Reads up to where an earlier run came, and compares the bytes. */
static int read_past(struct encode_reader *r, struct fsdp_err *err)
{
    char *buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "bytes of a source", err);
    uint64_t left = r->place.offset, crc = 0;
    size_t got = 1;
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;

    while (rc == FSDP_OK && left && got) {
        rc = data_stream_read(r->stream, buffer, left < BUFFER_NBYTES ? left : BUFFER_NBYTES, &got,
                              err);
        if (rc == FSDP_OK)
            crc = tokens_crc(crc, buffer, got);
        left -= rc == FSDP_OK ? got : 0;
    }
    fsdp_free(buffer);
    if (rc == FSDP_OK && (left || crc != r->place.crc))
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: its first %" PRIu64
                            " bytes are not those that were read before; begin anew (overwrite)",
                            source_of(r)->name, r->place.offset);
    return rc;
}

/* *end: there is no file any more. */
static int open_stream(struct encode_reader *r, bool *end, struct fsdp_err *err)
{
    bool found = false;

    *end = r->place.file == r->sources->nsources;
    if (*end || r->stream)
        return FSDP_OK;
    r->at_end = false;
    FSDP_TRY(data_stream_open_at(&r->stream, source_of(r)->path, r->sources->opts->remote, err));
    if (!r->place.offset)
        return FSDP_OK;
    /* Of a file with a time, nobody asks again what it holds. */
    if (source_of(r)->has_size)
        FSDP_TRY(data_stream_seek(r->stream, r->place.offset, &found, err));
    return found ? FSDP_OK : read_past(r, err);
}

static void end_file(struct encode_reader *r)
{
    struct encode_place *p = &r->place;
    const uint64_t numbers[] = {source_of(r)->is_lines, p->offset, p->crc};

    r->done = encode_reader_done(r);
    data_stream_close(r->stream);
    r->stream = NULL;
    *p = (struct encode_place){.file = p->file + 1,
                               .hash = fsdp_hash(p->hash, numbers, sizeof numbers)};
}

static void pass(struct encode_reader *r, const char *bytes, size_t nbytes)
{
    r->place.crc = tokens_crc(r->place.crc, bytes, nbytes);
    r->place.offset += nbytes;
}

int encode_reader_skim(struct encode_reader *r, uint64_t *hash, struct fsdp_err *err)
{
    char *buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "bytes of a source", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;
    bool end = false;

    while (rc == FSDP_OK && (rc = open_stream(r, &end, err)) == FSDP_OK && !end) {
        size_t got;
        rc = data_stream_read(r->stream, buffer, BUFFER_NBYTES, &got, err);
        if (rc == FSDP_OK && got)
            pass(r, buffer, got);
        else if (rc == FSDP_OK)
            end_file(r);
    }
    fsdp_free(buffer);
    *hash = r->place.hash;
    return rc;
}

/* ---- an item --------------------------------------------------------------------------------- */

static int make_room(struct encode_item *item, size_t nbytes, struct fsdp_err *err)
{
    const size_t want = item->nbytes + nbytes;

    if (want <= item->room)
        return FSDP_OK;
    char *text = fsdp_alloc_reserve(item->text, item->nbytes, &item->room,
                                    want < 2 * item->room ? 2 * item->room : want, 1, "text", err);
    if (!text)
        return FSDP_ENOMEM;
    item->text = text;
    return FSDP_OK;
}

/* Up to nbytes more of the file, behind what the item has. */
static int read_more(struct encode_reader *r, struct encode_item *item, size_t nbytes,
                     struct fsdp_err *err)
{
    size_t got = 0;

    FSDP_TRY(make_room(item, nbytes, err));
    FSDP_TRY(data_stream_read(r->stream, item->text + item->nbytes, nbytes, &got, err));
    item->nbytes += got;
    r->at_end = got == 0;
    return FSDP_OK;
}

/* Keeps what is behind byte `at` of the item for the next one. */
static int keep_rest(struct encode_reader *r, const struct encode_item *item, size_t at,
                     struct fsdp_err *err)
{
    r->nrest = item->nbytes - at;
    if (r->nrest > r->rest_room) {
        fsdp_free(r->rest);
        r->rest_room = 0;
        if (!(r->rest = fsdp_alloc_unset(r->nrest, 1, "text", err)))
            return FSDP_ENOMEM;
        r->rest_room = r->nrest;
    }
    if (r->nrest)
        memcpy(r->rest, item->text + at, r->nrest);
    return FSDP_OK;
}

static int take_rest(struct encode_reader *r, struct encode_item *item, struct fsdp_err *err)
{
    item->nbytes = 0;
    FSDP_TRY(make_room(item, r->nrest, err));
    if (r->nrest)
        memcpy(item->text, r->rest, r->nrest);
    item->nbytes = r->nrest;
    r->nrest = 0;
    return FSDP_OK;
}

static uint64_t count_lines(const struct encode_item *item, bool at_end)
{
    const char *at = item->text, *end = at + item->nbytes;
    uint64_t n = at_end && item->nbytes && end[-1] != '\n';

    for (; at < end && (at = memchr(at, '\n', (size_t)(end - at))); at++)
        n++;
    return n;
}

/* Whole lines; *passed: their bytes. */
static int next_lines(struct encode_reader *r, struct encode_item *item, size_t *passed,
                      struct fsdp_err *err)
{
    const char *last = item->nbytes ? memrchr(item->text, '\n', item->nbytes) : NULL;
    size_t whole = last ? (size_t)(last - item->text) + 1 : 0;

    while (!r->at_end && (!whole || item->nbytes < r->sizes->batch)) {
        const size_t before = item->nbytes;
        if (before - whole > MAX_LINE)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s:%" PRIu64 ": longer than 1 GiB",
                                item->path, r->place.line + 1);
        FSDP_TRY(read_more(r, item, r->sizes->batch, err));
        last = memrchr(item->text + before, '\n', item->nbytes - before);
        whole = last ? (size_t)(last - item->text) + 1 : whole;
    }
    *passed = r->at_end ? item->nbytes : whole;
    FSDP_TRY(keep_rest(r, item, *passed, err));
    item->nbytes = *passed;
    r->place.line += count_lines(item, r->at_end);
    return FSDP_OK;
}

/* Where the character that byte `at` is inside of begins; `at` itself where that is not UTF-8. */
static size_t whole_characters(const char *text, size_t at)
{
    for (size_t back = 0; back < 4 && back < at; back++)
        if (((unsigned char)text[at - back] & 0xc0) != 0x80)
            return at - back;
    return at;
}

/* A piece; *passed: where the next one begins. */
static int next_piece(struct encode_reader *r, struct encode_item *item, size_t *passed,
                      struct fsdp_err *err)
{
    const size_t most = r->sizes->piece + r->sizes->overlap;

    while (!r->at_end && item->nbytes <= most)
        FSDP_TRY(read_more(r, item, most + 1 - item->nbytes, err));
    item->last = item->nbytes <= most;
    *passed = item->last ? item->nbytes : whole_characters(item->text, r->sizes->piece);
    FSDP_TRY(keep_rest(r, item, *passed, err));
    if (!item->last)
        item->nbytes = whole_characters(item->text, most);
    return FSDP_OK;
}

int encode_reader_next(struct encode_reader *r, struct encode_item *item, bool *end,
                       struct fsdp_err *err)
{
    size_t passed = 0;

    FSDP_TRY(open_stream(r, end, err));
    if (*end)
        return FSDP_OK;
    item->path = source_of(r)->name;
    item->is_json = source_of(r)->is_lines;
    item->is_lines = item->is_json || r->sizes->by_lines;
    item->begins = r->place;
    item->first = !r->place.offset;
    FSDP_TRY(take_rest(r, item, err));
    FSDP_TRY(item->is_lines ? next_lines(r, item, &passed, err)
                            : next_piece(r, item, &passed, err));
    pass(r, item->text, passed);
    item->nlines = r->place.line;
    if (item->is_lines ? r->at_end : item->last)
        end_file(r);
    item->after = r->place;
    return FSDP_OK;
}
