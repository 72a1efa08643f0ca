/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "join.h"

void encode_join_free(struct encode_join *j)
{
    encode_item_free(&j->held);
    encode_item_free(&j->whole);
    encode_worker_free(&j->worker);
}

/* ---- a place --------------------------------------------------------------------------------- */

/* How many tokens end at or before byte `at` of the file. */
static size_t tokens_before(const struct encode_item *item, uint64_t at)
{
    size_t first = 0, end = item->ntokens;

    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        if (item->begins.offset + item->ends[middle] <= at)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static bool is_white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Between a word and white space. at is inside of the text. */
static bool is_edge(const struct encode_item *item, uint64_t at)
{
    const char *text = item->text + (at - item->begins.offset);
    return is_white(text[-1]) != is_white(text[0]);
}

static bool same_token(const struct encode_item *a, size_t i, const struct encode_item *b, size_t k)
{
    return a->ids[i] == b->ids[k] && a->begins.offset + a->ends[i] == b->begins.offset + b->ends[k];
}

/* Are the tokens of both the same from `agree` bytes before `at` to as many behind it? */
static bool agrees(const struct encode_item *a, const struct encode_item *b, uint64_t at,
                   size_t agree)
{
    const size_t i = tokens_before(a, at), k = tokens_before(b, at);

    if (!i || a->begins.offset + a->ends[i - 1] != at)
        return false;
    for (size_t n = 1; a->begins.offset + a->ends[i - n] + agree > at; n++)
        if (n > k || !same_token(a, i - n, b, k - n) || n == i)
            return false;
    for (size_t n = 0;; n++) {
        if (i + n == a->ntokens || k + n == b->ntokens || !same_token(a, i + n, b, k + n))
            return false;
        if (a->begins.offset + a->ends[i + n] > at + agree)
            return true;
    }
}

/* The first byte of the file at which a and b can be joined. */
static bool find_place(uint64_t *at, const struct encode_join *j, const struct encode_item *a,
                       const struct encode_item *b)
{
    const uint64_t end = a->begins.offset + a->nbytes;
    const uint64_t margin = j->anywhere ? 0 : 2 * j->sizes->agree;
    const uint64_t least = b->begins.offset + margin;

    if (j->anywhere) {
        *at = b->begins.offset;
        return true;
    }
    for (size_t i = tokens_before(a, least); i < a->ntokens; i++) {
        *at = a->begins.offset + a->ends[i];
        if (*at + margin > end)
            break;
        if (is_edge(a, *at) && agrees(a, b, *at, j->sizes->agree))
            return true;
    }
    return false;
}

/* ---- pieces that cannot be joined ------------------------------------------------------------ */

static int add_text(struct encode_join *j, const struct encode_item *piece, struct fsdp_err *err)
{
    struct encode_item *w = &j->whole;
    const size_t shared = (size_t)(w->begins.offset + w->nbytes - piece->begins.offset);
    const size_t more = piece->nbytes - shared, want = w->nbytes + more;

    if (want > j->sizes->most)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: from byte %" PRIu64 " on, %zu bytes have no place where "
                            "words are sure to end, such as a space; cut the file there, or make "
                            "JSON Lines of it, a document a line",
                            piece->path, w->begins.offset, want);
    if (want > w->room) {
        char *text = fsdp_alloc_reserve(w->text, w->nbytes, &w->room,
                                        want < 2 * w->room ? 2 * w->room : want, 1, "text", err);
        if (!text)
            return FSDP_ENOMEM;
        w->text = text;
    }
    memcpy(w->text + w->nbytes, piece->text + shared, more);
    w->nbytes = want;
    w->last = piece->last;
    w->after = piece->after;
    return FSDP_OK;
}

/* piece, which cannot be joined to what is held, joins its text. */
static int grow_whole(struct encode_join *j, const struct encode_item *piece, struct fsdp_err *err)
{
    struct encode_item *w = &j->whole;

    if (!w->nbytes) {
        w->path = j->held.path;
        w->begins = j->held.begins;
        w->first = j->held.first;
        FSDP_TRY(add_text(j, &j->held, err));
    }
    return add_text(j, piece, err);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Tokens behind what is joined, up to byte `end` of the file. */
static int write_to(struct encode_join *j, const struct encode_item *item, uint64_t end,
                    struct fsdp_err *err)
{
    const size_t first = j->joined ? tokens_before(item, j->joined) : 0;
    const size_t last = item->last && end == item->begins.offset + item->nbytes
                            ? item->ntokens
                            : tokens_before(item, end);

    if (j->joined && !j->anywhere &&
        (!first || item->begins.offset + item->ends[first - 1] != j->joined))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: around byte %" PRIu64 ", tokens depend on text that is far "
                            "away; cut the file there",
                            item->path, j->joined);
    FSDP_TRY(tokens_writer_put(j->writer, item->ids + first, NULL, last - first, err));
    j->joined = end;
    return FSDP_OK;
}

static void exchange(struct encode_item *a, struct encode_item *b)
{
    const struct encode_item swap = *a;
    *a = *b;
    *b = swap;
}

/* What is written or not is so up to where `piece` begins, or ends, if it is the last. */
static void note_clean(struct encode_join *j, const struct encode_place *place)
{
    j->place = *place;
    j->is_clean = true;
}

static int end_text(struct encode_join *j, const struct encode_item *item, struct fsdp_err *err)
{
    if (item->first) /* one piece: without ends */
        FSDP_TRY(tokens_writer_put(j->writer, item->ids, NULL, item->ntokens, err));
    else
        FSDP_TRY(write_to(j, item, item->begins.offset + item->nbytes, err));
    FSDP_TRY(tokens_writer_end_document(j->writer, err));
    j->nbytes += item->nbytes;
    j->joined = 0;
    j->has_held = false;
    note_clean(j, &item->after);
    return FSDP_OK;
}

/* What was held is written up to `at`, and piece is held. */
static int join_at(struct encode_join *j, const struct encode_item *before,
                   struct encode_item *piece, uint64_t at, struct fsdp_err *err)
{
    FSDP_TRY(write_to(j, before, at, err));
    j->nbytes += piece->begins.offset - before->begins.offset;
    j->whole.nbytes = 0;
    exchange(&j->held, piece);
    note_clean(j, &j->held.begins);
    return j->held.last ? end_text(j, &j->held, err) : FSDP_OK;
}

static int work_whole(struct encode_join *j, struct fsdp_err *err)
{
    encode_item_work(&j->whole, &j->worker);
    return j->whole.rc ? fsdp_err_pass(err, j->whole.rc, &j->whole.err) : FSDP_OK;
}

/* A piece behind one that is held. */
static int put_next(struct encode_join *j, struct encode_item *piece, struct fsdp_err *err)
{
    struct encode_item *w = &j->whole;
    uint64_t at;
    bool found = find_place(&at, j, &j->held, piece);

    if (found && !w->nbytes)
        return join_at(j, &j->held, piece, at, err);
    if (found) {
        FSDP_TRY(work_whole(j, err));
        if (find_place(&at, j, w, piece))
            return join_at(j, w, piece, at, err);
    }
    FSDP_TRY(grow_whole(j, piece, err));
    exchange(&j->held, piece);
    if (!j->held.last)
        return FSDP_OK;
    FSDP_TRY(work_whole(j, err));
    FSDP_TRY(end_text(j, w, err));
    w->nbytes = 0;
    return FSDP_OK;
}

int encode_join_put(struct encode_join *j, struct encode_item *piece, struct fsdp_err *err)
{
    FSDP_TRY(piece->rc ? fsdp_err_pass(err, piece->rc, &piece->err) : FSDP_OK);
    j->is_clean = false;
    if (j->has_held)
        return put_next(j, piece, err);
    if (piece->last)
        return end_text(j, piece, err);
    exchange(&j->held, piece);
    j->has_held = true;
    note_clean(j, &j->held.begins);
    return FSDP_OK;
}
