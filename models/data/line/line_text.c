/* SPDX-License-Identifier: Apache-2.0 */
/* What kinds of documents share: errors, room, and text as tokens, of which some are learned. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "found.h"
#include "line_impl.h"
#include "text/tokenizer/tokenizer.h"

int data_line_refuse_at(const struct data_line *line, size_t column, const char *what,
                        struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL, "%s:%" PRIu64 ":%zu: %s", line->path, line->number,
                        column, what);
}

int data_line_refuse(const struct data_line *line, const char *what, struct fsdp_err *err)
{
    return data_line_refuse_at(
        line, data_found_column(line->source, line->source_nbytes, line->key), what, err);
}

int data_line_grow(struct data_line *line, size_t ntokens, struct fsdp_err *err)
{
    const size_t want = line->ntokens + ntokens,
                 room = want < 2 * line->room ? 2 * line->room : want;
    int32_t *tokens, *labels;

    if (want <= line->room)
        return FSDP_OK;
    if (!(tokens = fsdp_alloc(room, sizeof *tokens, "document", err)))
        return FSDP_ENOMEM;
    if (!(labels = fsdp_alloc(room, sizeof *labels, "document", err))) {
        fsdp_free(tokens);
        return FSDP_ENOMEM;
    }
    if (line->ntokens) {
        memcpy(tokens, line->tokens, line->ntokens * sizeof *tokens);
        memcpy(labels, line->labels, line->ntokens * sizeof *labels);
    }
    fsdp_free(line->tokens);
    fsdp_free(line->labels);
    line->tokens = tokens;
    line->labels = labels;
    line->room = room;
    return FSDP_OK;
}

int data_line_add_token(struct data_line *line, int64_t token, bool learned, struct fsdp_err *err)
{
    const int vocab_size = line->text->vocab_size;
    char text[120];

    if (token < 0 || token > INT32_MAX || (vocab_size && token >= vocab_size)) {
        snprintf(text, sizeof text, "token %" PRId64 ", not below the model's vocabulary of %d",
                 token, vocab_size);
        return data_line_refuse(line, text, err);
    }
    line->tokens[line->ntokens] = (int32_t)token;
    line->labels[line->ntokens++] = learned ? (int32_t)token : DATA_IGNORE;
    return FSDP_OK;
}

int data_line_add_end(struct data_line *line, struct fsdp_err *err)
{
    const int end = line->text->end;

    if (end < 0 ||
        (line->text->tokenizer && line->ntokens && line->tokens[line->ntokens - 1] == end))
        return FSDP_OK;
    FSDP_TRY(data_line_grow(line, 1, err));
    return data_line_add_token(line, end, true, err);
}

/* Is the token of bytes [first, end) learned? *at is the first span that may hold it. */
static bool is_learned(const struct data_line_text *text, size_t first, size_t end, size_t *at)
{
    const struct data_spans *spans = &text->learned;

    while (*at < spans->nspans && spans->at[*at].end <= first)
        ++*at;
    if (*at == spans->nspans)
        return false;
    return spans->at[*at].first < end && (!text->behind || spans->at[*at].first <= first);
}

/* Is a token learned that the tokenizer adds at the start or at the end of the text? As the text is
 * there. */
static bool added_is_learned(const struct data_line_text *text, size_t at)
{
    const struct data_spans *spans = &text->learned;

    if (!spans->nspans)
        return false;
    return (at == 0 && spans->at[0].first == 0) ||
           (at == text->nbytes && spans->at[spans->nspans - 1].end == text->nbytes);
}

static int add_bytes(struct data_line *line, const struct data_line_text *text,
                     struct fsdp_err *err)
{
    const unsigned char *bytes = (const unsigned char *)text->at;
    size_t span = 0;

    FSDP_TRY(data_line_grow(line, text->nbytes, err));
    for (size_t i = 0; i < text->nbytes; i++)
        FSDP_TRY(data_line_add_token(line, bytes[i], is_learned(text, i, i + 1, &span), err));
    return FSDP_OK;
}

static int add_ids(struct data_line *line, const struct data_line_text *text,
                   const struct tokenizer_ids *ids, struct fsdp_err *err)
{
    size_t first = 0, span = 0;
    bool learned = false;

    FSDP_TRY(data_line_grow(line, ids->nids, err));
    for (size_t i = 0; i < ids->nids; i++) {
        const bool has_bytes = tokenizer_nbytes(line->text->tokenizer, ids->at[i]) > 0;
        if (ids->ends[i] > first)
            learned = is_learned(text, first, ids->ends[i], &span);
        else if (!has_bytes)
            learned = added_is_learned(text, first);
        /* else one more token of a character, which is learned as its first is */
        FSDP_TRY(data_line_add_token(line, ids->at[i], learned, err));
        line->is_crossed |= first < text->nprompt && text->nprompt < ids->ends[i];
        first = ids->ends[i];
    }
    return FSDP_OK;
}

int data_line_add_text(struct data_line *line, const struct data_line_text *text,
                       struct fsdp_err *err)
{
    const struct tokenizer *tokenizer = line->text->tokenizer;
    struct tokenizer_ids ids = {.with_ends = true};
    struct fsdp_err why = FSDP_ERR_INIT;

    line->nbytes += text->nbytes;
    if (line->text->refusal)
        return fsdp_err_blame(err, data_line_refuse(line, line->text->refusal, err), "tokenizer");
    if (!tokenizer)
        return add_bytes(line, text, err);
    if (!line->encoder)
        FSDP_TRY(tokenizer_encoder_create(&line->encoder, tokenizer, err));
    int rc = tokenizer_encode(line->encoder, text->at, text->nbytes, text->add_special, &ids, &why);
    if (rc == FSDP_EINVAL)
        data_line_refuse(line, why.text, err);
    else if (rc)
        fsdp_err_pass(err, rc, &why);
    else
        rc = add_ids(line, text, &ids, err);
    tokenizer_ids_free(&ids);
    return rc;
}
