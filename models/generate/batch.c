/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "batch_impl.h"

/* ---- lines in -------------------------------------------------------------------------------- */

static int refuse(const struct generate_batch *b, const char *what, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL, "%s:%d: %s", b->path, b->line, what);
}

static int read_ids(struct batch_row *row, const struct generate_batch *b, const json_t *ids,
                    struct fsdp_err *err)
{
    const size_t n = json_array_size(ids);

    if (n > INT_MAX || !(row->prompt = fsdp_alloc(n, sizeof *row->prompt, "prompt", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= b->opts.session->vocab)
            return refuse(b, "\"tokens\" is no list of token ids of the model's vocabulary", err);
        row->prompt[i] = (int32_t)json_integer_value(id);
    }
    row->seq.nprompt = (int)n;
    return FSDP_OK;
}

/* An empty prompt begins with the model's first token. */
static int begin_empty(struct batch_row *row, const struct generate_batch *b, struct fsdp_err *err)
{
    const int bos = b->opts.session->bos;

    if (row->seq.nprompt || bos < 0 || bos >= b->opts.session->vocab)
        return FSDP_OK;
    fsdp_free(row->prompt);
    if (!(row->prompt = fsdp_alloc(1, sizeof *row->prompt, "prompt", err)))
        return FSDP_ENOMEM;
    row->prompt[row->seq.nprompt++] = bos;
    return FSDP_OK;
}

static int encode_text(struct batch_row *row, const struct generate_batch *b, const json_t *json,
                       struct fsdp_err *err)
{
    const char *text = json_string_value(json);
    const size_t nbytes = json_string_length(json);
    const struct generate_words *words = b->opts.words;

    if (row->is_chat)
        return generate_chat_encode_prompt(&row->prompt, &row->seq.nprompt, b->opts.chat, text,
                                           nbytes, err);
    FSDP_TRY(words->ops->encode(&row->prompt, &row->seq.nprompt, words, text, nbytes, true, err));
    return begin_empty(row, b, err);
}

static int encode_messages(struct batch_row *row, const struct generate_batch *b,
                           const json_t *messages, struct fsdp_err *err)
{
    const json_t *tools = json_object_get(row->root, "tools");

    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return fsdp_err_set(err, FSDP_EINVAL, "\"tools\" is no list");
    return generate_chat_encode(&row->prompt, &row->seq.nprompt, b->opts.chat, messages, tools,
                                err);
}

static int read_text(struct batch_row *row, const struct generate_batch *b, const json_t *text,
                     struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;

    row->is_text = true;
    row->is_chat = json_is_array(text) || b->opts.prompts_are_chats;
    if (b->opts.words->refusal)
        return refuse(b, b->opts.words->refusal, err);
    if (row->is_chat && b->opts.chat->refusal)
        return refuse(b, b->opts.chat->refusal, err);
    const int rc =
        json_is_array(text) ? encode_messages(row, b, text, &why) : encode_text(row, b, text, &why);
    return rc ? refuse(b, why.text, err) : FSDP_OK;
}

static int read_numbers(struct batch_row *row, const struct generate_batch *b, struct fsdp_err *err)
{
    const json_t *seed = json_object_get(row->root, "seed");
    const json_t *most = json_object_get(row->root, "max_tokens");

    if (seed && (!json_is_integer(seed) || json_integer_value(seed) < 0))
        return refuse(b, "\"seed\" is no integer of 0 or more", err);
    if (most && (!json_is_integer(most) || json_integer_value(most) < 1 ||
                 json_integer_value(most) > 1 << 30))
        return refuse(b, "\"max_tokens\" is no integer of 1 or more", err);
    if (seed)
        row->seq.seed = (uint64_t)json_integer_value(seed);
    if (most)
        row->seq.max_tokens = (int)json_integer_value(most);
    return FSDP_OK;
}

static int read_row(struct batch_row *row, struct generate_batch *b, struct fsdp_err *err)
{
    const json_t *prompt = json_object_get(row->root, "prompt");
    const json_t *tokens = json_object_get(row->root, "tokens");
    const json_t *messages = json_object_get(row->root, "messages");
    struct fsdp_err why = FSDP_ERR_INIT;
    int room;

    if (json_is_string(prompt) + json_is_array(tokens) + json_is_array(messages) != 1)
        return refuse(b,
                      "needs an object with \"prompt\" (a text), \"tokens\" (ids) or \"messages\" "
                      "(a chat)",
                      err);
    FSDP_TRY(read_numbers(row, b, err));
    FSDP_TRY(json_is_array(tokens)
                 ? read_ids(row, b, tokens, err)
                 : read_text(row, b, json_is_array(messages) ? messages : prompt, err));
    row->seq.prompt = row->prompt;
    row->seq.ctx = row;
    if (generate_room(&room, b->opts.session, &row->seq, &why))
        return refuse(b, why.text, err);
    b->room = room > b->room ? room : b->room;
    return FSDP_OK;
}

static int add_line(struct generate_batch *b, const char *text, size_t nbytes, struct fsdp_err *err)
{
    json_error_t where;
    char what[JSON_ERROR_TEXT_LENGTH + 40];
    struct batch_row *rows =
        fsdp_alloc_grow(b->rows, (size_t)b->nrows, &b->max_rows, sizeof *rows, "prompts", err);

    if (!rows)
        return FSDP_ENOMEM;
    b->rows = rows;
    rows[b->nrows] = (struct batch_row){.batch = b, .seq = b->opts.defaults};
    json_t *root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root) {
        snprintf(what, sizeof what, "not JSON: %s (byte %d)", where.text, where.position);
        return refuse(b, what, err);
    }
    rows[b->nrows++].root = root;
    return read_row(&rows[b->nrows - 1], b, err);
}

static int read_lines(struct generate_batch *b, FILE *file, struct fsdp_err *err)
{
    char *text = NULL;
    size_t size = 0;
    ssize_t nbytes;
    int rc = FSDP_OK;

    while (rc == FSDP_OK && (nbytes = getline(&text, &size, file)) >= 0) {
        b->line++;
        if (strspn(text, " \t\r\n") < (size_t)nbytes)
            rc = add_line(b, text, (size_t)nbytes, err);
    }
    if (rc == FSDP_OK && ferror(file))
        rc = fsdp_err_sys(err, errno, "%s", b->path);
    free(text);
    if (rc == FSDP_OK && !b->nrows)
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s: no prompts in it", b->path);
    return rc;
}

int generate_batch_open(struct generate_batch **out, const char *path,
                        const struct generate_batch_opts *opts, struct fsdp_err *err)
{
    const bool is_stdin = !strcmp(path, "-");
    FILE *file = stdin;

    if (!is_stdin)
        FSDP_TRY(fsdp_file_stream(&file, path, err));
    struct generate_batch *b = fsdp_alloc(1, sizeof *b, "prompts", err);
    int rc = b ? FSDP_OK : FSDP_ENOMEM;
    if (b) {
        *b = (struct generate_batch){.path = is_stdin ? "standard input" : path, .opts = *opts};
        rc = read_lines(b, file, err);
    }
    if (!is_stdin)
        fclose(file);
    /* Rows lie where they stay from here on. */
    for (int i = 0; rc == FSDP_OK && i < b->nrows; i++)
        b->rows[i].seq.ctx = &b->rows[i];
    if (rc == FSDP_OK)
        *out = b;
    else
        generate_batch_close(b);
    return rc;
}

static void free_row(struct batch_row *row)
{
    json_decref(row->root);
    if (row->stream)
        row->batch->opts.words->ops->stream_destroy(row->stream);
    fsdp_free(row->prompt);
    fsdp_free(row->text);
    fsdp_free(row->tokens);
}

void generate_batch_close(struct generate_batch *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->nrows; i++)
        free_row(&b->rows[i]);
    if (b->file && b->file != stdout)
        fclose(b->file);
    fsdp_free(b->rows);
    fsdp_free(b->part);
    fsdp_free(b);
}

int generate_batch_room(const struct generate_batch *b)
{
    return b->room;
}

/* ---- what the loop asks ---------------------------------------------------------------------- */

static int next_row(void *ctx, struct generate_sequence *seq, bool *there, struct fsdp_err *err)
{
    struct generate_batch *b = ctx;

    *there = b->next < b->nrows;
    if (!*there)
        return FSDP_OK;
    struct batch_row *row = &b->rows[b->next++];
    *seq = row->seq;
    if (!row->is_text)
        return FSDP_OK;
    /* An answer is a text of its own; the template is not part of it. */
    return b->opts.words->ops->stream_create(&row->stream, b->opts.words, row->prompt,
                                             row->is_chat ? 0 : row->seq.nprompt, err);
}

/* The text that a token completes; -1: what is left. */
static int add_text(struct batch_row *row, int32_t token, struct fsdp_err *err)
{
    const char *text;
    size_t nbytes;

    FSDP_TRY(row->batch->opts.words->ops->stream_put(&text, &nbytes, row->stream, token, err));
    if (!nbytes)
        return FSDP_OK;
    char *all = fsdp_alloc_reserve(row->text, row->text_nbytes, &row->text_max,
                                   row->text_nbytes + nbytes, 1, "completion", err);
    if (!all)
        return FSDP_ENOMEM;
    row->text = all;
    memcpy(row->text + row->text_nbytes, text, nbytes);
    row->text_nbytes += nbytes;
    return FSDP_OK;
}

static int put_token(void *ctx, const struct generate_sequence *seq, int32_t token,
                     struct fsdp_err *err)
{
    struct batch_row *row = seq->ctx;
    (void)ctx;

    if (row->is_text) {
        row->ntokens++;
        return add_text(row, token, err);
    }
    int32_t *tokens = fsdp_alloc_grow(row->tokens, (size_t)row->ntokens, &row->max_tokens,
                                      sizeof *tokens, "completion", err);
    if (!tokens)
        return FSDP_ENOMEM;
    row->tokens = tokens;
    row->tokens[row->ntokens++] = token;
    return FSDP_OK;
}

static int end_row(void *ctx, const struct generate_sequence *seq, enum generate_finish finish,
                   struct fsdp_err *err)
{
    struct generate_batch *b = ctx;
    struct batch_row *row = seq->ctx;

    if (finish == GENERATE_INTERRUPTED)
        return FSDP_OK;
    if (row->is_text)
        FSDP_TRY(add_text(row, -1, err));
    row->reason = finish == GENERATE_STOP ? "stop" : "length";
    return batch_write_ready(b, err);
}

struct generate_source generate_batch_source(struct generate_batch *b)
{
    return (struct generate_source){.ctx = b, .next = next_row, .put = put_token, .done = end_row};
}
