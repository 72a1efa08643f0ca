/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "item.h"
#include "text/tokenizer/tokenizer.h"

void encode_item_free(struct encode_item *item)
{
    fsdp_free(item->text);
    fsdp_free(item->ids);
    fsdp_free(item->learned);
    fsdp_free(item->ends);
    *item = (struct encode_item){0};
}

void encode_worker_free(struct encode_worker *worker)
{
    data_line_free(&worker->line);
}

/* ---- tokens of an item ----------------------------------------------------------------------- */

static int grow(struct encode_item *item, size_t ntokens, struct fsdp_err *err)
{
    const size_t want = item->ntokens + ntokens;
    const size_t room = want < 2 * item->ids_room ? 2 * item->ids_room : want;

    if (want <= item->ids_room && want <= item->learned_room)
        return FSDP_OK;
    int32_t *ids = fsdp_alloc_reserve(item->ids, item->ntokens, &item->ids_room, room, sizeof *ids,
                                      "tokens", err);
    if (!ids)
        return FSDP_ENOMEM;
    item->ids = ids;
    bool *learned = fsdp_alloc_reserve(item->learned, item->ntokens, &item->learned_room, room,
                                       sizeof *learned, "tokens", err);
    if (!learned)
        return FSDP_ENOMEM;
    item->learned = learned;
    return FSDP_OK;
}

static int end_document(struct encode_item *item, struct fsdp_err *err)
{
    size_t *ends = fsdp_alloc_grow(item->ends, item->ndocuments, &item->ends_room, sizeof *ends,
                                   "documents", err);
    if (!ends)
        return FSDP_ENOMEM;
    item->ends = ends;
    ends[item->ndocuments++] = item->ntokens;
    return FSDP_OK;
}

/* Tokens that are all learned. */
static int add_ids(struct encode_item *item, const int32_t *ids, size_t nids, struct fsdp_err *err)
{
    FSDP_TRY(grow(item, nids, err));
    if (nids) {
        memcpy(item->ids + item->ntokens, ids, nids * sizeof *ids);
        memset(item->learned + item->ntokens, true, nids);
    }
    item->ntokens += nids;
    return FSDP_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int add_line(struct encode_item *item, const struct data_line *line, struct fsdp_err *err)
{
    FSDP_TRY(grow(item, line->ntokens, err));
    for (size_t i = 0; i < line->ntokens; i++) {
        item->ids[item->ntokens + i] = line->tokens[i];
        item->learned[item->ntokens + i] = line->labels[i] != DATA_IGNORE;
    }
    item->ntokens += line->ntokens;
    item->has_ignored |= line->nignored != 0;
    item->text_nbytes += line->nbytes;
    return end_document(item, err);
}

/* A setting that is at fault is at fault for all lines. */
static int work_line(struct encode_item *item, struct encode_worker *w, const char *text,
                     size_t nbytes, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = data_line_parse(&w->line, text, nbytes, &why);

    if (rc == FSDP_OK)
        return add_line(item, &w->line, err);
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
    w->line.number = item->line;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const char *behind = feed ? feed + 1 : end;
        w->line.number++;
        if (!is_blank(at, (size_t)(behind - at)))
            FSDP_TRY(work_line(item, w, at, (size_t)(behind - at), err));
        at = behind;
    }
    return FSDP_OK;
}

/* ---- a text ---------------------------------------------------------------------------------- */

static int add_bytes(struct encode_item *item, struct fsdp_err *err)
{
    FSDP_TRY(grow(item, item->nbytes, err));
    for (size_t i = 0; i < item->nbytes; i++)
        item->ids[item->ntokens + i] = (unsigned char)item->text[i];
    memset(item->learned + item->ntokens, true, item->nbytes);
    item->ntokens += item->nbytes;
    return FSDP_OK;
}

static int add_text(struct encode_item *item, struct encode_worker *w, struct fsdp_err *err)
{
    struct tokenizer_ids ids = {0};

    if (!w->line.encoder)
        FSDP_TRY(tokenizer_encoder_create(&w->line.encoder, w->text->tokenizer, err));
    int rc = tokenizer_encode(w->line.encoder, item->text, item->nbytes,
                              w->text->special != DATA_SPECIAL_NONE, &ids, err);
    if (rc == FSDP_EINVAL)
        rc = fsdp_err_prefix(err, rc, "data: %s: ", item->path);
    if (rc == FSDP_OK)
        rc = add_ids(item, ids.at, ids.nids, err);
    tokenizer_ids_free(&ids);
    return rc;
}

static int work_text(struct encode_item *item, struct encode_worker *w, struct fsdp_err *err)
{
    const struct data_text *text = w->text;

    if (text->refusal)
        return fsdp_err_blame(
            err, fsdp_err_set(err, FSDP_EINVAL, "data: %s: %s", item->path, text->refusal),
            "tokenizer");
    FSDP_TRY(text->tokenizer ? add_text(item, w, err) : add_bytes(item, err));
    item->text_nbytes += item->nbytes;
    const bool ended =
        text->tokenizer && item->ntokens && item->ids[item->ntokens - 1] == text->end;
    const int32_t end = text->end;
    if (text->special == DATA_SPECIAL_EOS && end >= 0 && !ended)
        FSDP_TRY(add_ids(item, &end, 1, err));
    return end_document(item, err);
}

void encode_item_work(struct encode_item *item, struct encode_worker *w)
{
    item->ntokens = item->ndocuments = 0;
    item->text_nbytes = item->nbad = 0;
    item->has_ignored = false;
    item->err = (struct fsdp_err)FSDP_ERR_INIT;
    w->line.text = w->text;
    w->line.text_key = w->opts->text_key;
    item->rc = item->is_lines ? work_lines(item, w, &item->err) : work_text(item, w, &item->err);
}
