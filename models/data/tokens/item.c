/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "item.h"
#include "text/tokenizer/tokenizer.h"
#include "text/train/vocab_train.h"

void encode_item_free(struct encode_item *item)
{
    fsdp_free(item->text);
    fsdp_free(item->ids);
    fsdp_free(item->learned);
    fsdp_free(item->ends);
    *item = (struct encode_item){0};
}

void encode_worker_init(struct encode_worker *w, const struct encode_opts *opts,
                        const struct data_text *text)
{
    *w = (struct encode_worker){.opts = opts,
                                .text = text,
                                .line = {.text = text, .text_key = opts->text_key, .highest = -1}};
}

void encode_worker_free(struct encode_worker *worker)
{
    data_line_free(&worker->line);
    vocab_train_destroy(worker->train);
    worker->train = NULL;
}

/* ---- tokens of an item ----------------------------------------------------------------------- */

static size_t room_for(size_t want, size_t room)
{
    return want > room && want < 2 * room ? 2 * room : want;
}

static int make_room(struct encode_item *item, size_t ntokens, struct fsdp_err *err)
{
    const size_t want = item->ntokens + ntokens;
    int32_t *ids = fsdp_alloc_reserve(item->ids, item->ntokens, &item->ids_room,
                                      room_for(want, item->ids_room), sizeof *ids, "tokens", err);

    if (!ids && want)
        return FSDP_ENOMEM;
    item->ids = ids;
    return FSDP_OK;
}

static int make_room_learned(struct encode_item *item, size_t ntokens, struct fsdp_err *err)
{
    const size_t want = item->ntokens + ntokens;
    bool *learned =
        fsdp_alloc_reserve(item->learned, item->ntokens, &item->learned_room,
                           room_for(want, item->learned_room), sizeof *learned, "tokens", err);

    if (!learned && want)
        return FSDP_ENOMEM;
    item->learned = learned;
    return FSDP_OK;
}

static int add_end(struct encode_item *item, size_t end, struct fsdp_err *err)
{
    size_t *ends =
        fsdp_alloc_grow(item->ends, item->nends, &item->ends_room, sizeof *ends, "documents", err);

    if (!ends)
        return FSDP_ENOMEM;
    item->ends = ends;
    ends[item->nends++] = end;
    return FSDP_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int add_line(struct encode_item *item, const struct data_line *line, struct fsdp_err *err)
{
    FSDP_TRY(make_room(item, line->ntokens, err));
    FSDP_TRY(make_room_learned(item, line->ntokens, err));
    for (size_t i = 0; i < line->ntokens; i++) {
        item->ids[item->ntokens + i] = line->tokens[i];
        item->learned[item->ntokens + i] = line->labels[i] != DATA_IGNORE;
    }
    item->ntokens += line->ntokens;
    item->has_ignored |= line->nignored != 0;
    item->text_nbytes += line->nbytes;
    data_crossed_add(&item->crossed, line);
    return add_end(item, item->ntokens, err);
}

/* A setting that is at fault is at fault for all lines. */
static int work_line(struct encode_item *item, struct encode_worker *w, const char *text,
                     size_t nbytes, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = w->train ? encode_count_line(item, w, text, nbytes, &why)
                            : data_line_parse(&w->line, text, nbytes, &why);

    if (rc == FSDP_OK)
        return w->train ? add_end(item, 0, err) : add_line(item, &w->line, err);
    if (rc != FSDP_EINVAL || why.setting[0] || !w->opts->skip_bad_lines)
        return fsdp_err_pass(err, rc, &why);
    if (!item->nbad++)
        item->bad = why;
    return FSDP_OK;
}

static bool is_blank(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

static int work_lines(struct encode_item *item, struct encode_worker *w, struct fsdp_err *err)
{
    const char *at = item->text, *end = at + item->nbytes;

    w->line.path = item->path;
    w->line.number = item->begins.line;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const char *behind = feed ? feed + 1 : end;
        w->line.number++;
        if (!item->is_json || !is_blank(at, (size_t)(behind - at)))
            FSDP_TRY(work_line(item, w, at, (size_t)(behind - at), err));
        at = behind;
    }
    return FSDP_OK;
}

/* ---- a piece of a text ----------------------------------------------------------------------- */

/* end: 0 where nobody asks. */
static int add_token(struct encode_item *item, int32_t id, size_t end, struct fsdp_err *err)
{
    FSDP_TRY(make_room(item, 1, err));
    item->ids[item->ntokens++] = id;
    return item->first && item->last ? FSDP_OK : add_end(item, end, err);
}

static int add_post(struct encode_item *item, const struct encode_worker *w, bool behind,
                    struct fsdp_err *err)
{
    const int32_t *ids;

    if (!w->text->tokenizer || w->text->special == DATA_SPECIAL_NONE)
        return FSDP_OK;
    const int n = tokenizer_post(w->text->tokenizer, behind, &ids);
    for (int i = 0; i < n; i++)
        FSDP_TRY(add_token(item, ids[i], behind ? item->nbytes : 0, err));
    return FSDP_OK;
}

static int add_bytes(struct encode_item *item, struct fsdp_err *err)
{
    for (size_t i = 0; i < item->nbytes; i++)
        FSDP_TRY(add_token(item, (unsigned char)item->text[i], i + 1, err));
    return FSDP_OK;
}

static int refuse_byte(const struct encode_item *item, struct fsdp_err *err)
{
    const char *at = item->text, *end = at + item->nbytes;
    uint32_t code;
    int n;

    while (at < end && (n = fsdp_utf8_decode(&code, at, end)) > 0)
        at += n;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s: byte %" PRIu64
                        ", 0x%02x, is not valid UTF-8; text must be, for this tokenizer",
                        item->path, item->begins.offset + (uint64_t)(at - item->text),
                        at < end ? (unsigned char)*at : 0U);
}

static int add_ids(struct encode_item *item, const struct tokenizer_ids *ids, struct fsdp_err *err)
{
    const size_t n = ids->nids, want = item->nends + n;

    if (!n)
        return FSDP_OK;
    FSDP_TRY(make_room(item, n, err));
    memcpy(item->ids + item->ntokens, ids->at, n * sizeof *item->ids);
    item->ntokens += n;
    if (!ids->with_ends)
        return FSDP_OK;
    size_t *ends = fsdp_alloc_reserve(item->ends, item->nends, &item->ends_room,
                                      room_for(want, item->ends_room), sizeof *ends, "tokens", err);
    if (!ends)
        return FSDP_ENOMEM;
    item->ends = ends;
    memcpy(ends + item->nends, ids->ends, n * sizeof *ends);
    item->nends = want;
    return FSDP_OK;
}

static int add_words(struct encode_item *item, struct encode_worker *w, struct fsdp_err *err)
{
    struct tokenizer_ids ids = {.with_ends = !(item->first && item->last)};
    struct fsdp_err why = FSDP_ERR_INIT;

    if (!w->line.encoder)
        FSDP_TRY(tokenizer_encoder_create(&w->line.encoder, w->text->tokenizer, err));
    int rc = tokenizer_encode(w->line.encoder, item->text, item->nbytes, false, &ids, &why);
    if (rc == FSDP_EINVAL)
        refuse_byte(item, err);
    else if (rc)
        fsdp_err_pass(err, rc, &why);
    else
        rc = add_ids(item, &ids, err);
    tokenizer_ids_free(&ids);
    return rc;
}

static int work_piece(struct encode_item *item, struct encode_worker *w, struct fsdp_err *err)
{
    const struct data_text *text = w->text;

    if (text->refusal)
        return fsdp_err_set_blame(err, FSDP_EINVAL, "tokenizer", "%s: %s", item->path,
                                  text->refusal);
    if (item->first)
        FSDP_TRY(add_post(item, w, false, err));
    FSDP_TRY(text->tokenizer ? add_words(item, w, err) : add_bytes(item, err));
    if (!item->last)
        return FSDP_OK;
    FSDP_TRY(add_post(item, w, true, err));
    const bool ended =
        text->tokenizer && item->ntokens && item->ids[item->ntokens - 1] == text->end;
    return text->special == DATA_SPECIAL_EOS && text->end >= 0 && !ended
               ? add_token(item, text->end, item->nbytes, err)
               : FSDP_OK;
}

void encode_item_work(struct encode_item *item, struct encode_worker *w)
{
    item->ntokens = item->nends = 0;
    item->text_nbytes = item->nbad = 0;
    item->has_ignored = false;
    item->crossed = (struct data_crossed){0};
    item->err = (struct fsdp_err)FSDP_ERR_INIT;
    item->rc = item->is_lines ? work_lines(item, w, &item->err) : work_piece(item, w, &item->err);
}
