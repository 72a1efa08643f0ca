/* SPDX-License-Identifier: Apache-2.0 */
/* One document of JSON Lines: its tokens, and which of them are to be predicted. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "found.h"
#include "text.h"

static int refuse_at(const struct data_line *line, size_t column, const char *what,
                     struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EINVAL, "data: %s:%" PRIu64 ":%zu: %s", line->path, line->number,
                        column, what);
}

static int refuse_line(const struct data_line *line, const char *what, struct fsdp_err *err)
{
    return refuse_at(line, data_found_column(line->source, line->source_nbytes, line->key), what,
                     err);
}

/* Room for ntokens more. */
static int grow_line(struct data_line *line, size_t ntokens, struct fsdp_err *err)
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

static int add_token(struct data_line *line, json_int_t token, bool counts, struct fsdp_err *err)
{
    char text[120];

    if (token < 0 || token > INT32_MAX || (line->vocab_size && token >= line->vocab_size)) {
        snprintf(text, sizeof text,
                 "token %" JSON_INTEGER_FORMAT ", not below the model's vocabulary of %d", token,
                 line->vocab_size);
        return refuse_line(line, text, err);
    }
    line->tokens[line->ntokens] = (int32_t)token;
    line->labels[line->ntokens++] = counts ? (int32_t)token : DATA_IGNORE;
    return FSDP_OK;
}

/* The bytes of a text are its tokens. */
static int add_text(struct data_line *line, const json_t *text, bool counts, struct fsdp_err *err)
{
    const unsigned char *bytes = (const unsigned char *)json_string_value(text);
    const size_t nbytes = json_string_length(text);
    struct fsdp_err why = FSDP_ERR_INIT;

    if (text_check_vocab(line->vocab_size, line->tokenizer, "give input_ids", &why))
        return fsdp_err_blame(err, refuse_line(line, why.text, err), why.setting);
    FSDP_TRY(grow_line(line, nbytes, err));
    for (size_t i = 0; i < nbytes; i++)
        FSDP_TRY(add_token(line, bytes[i], counts, err));
    return FSDP_OK;
}

static int add_end(struct data_line *line, struct fsdp_err *err)
{
    if (line->end < 0)
        return FSDP_OK;
    FSDP_TRY(grow_line(line, 1, err));
    return add_token(line, line->end, true, err);
}

/* labels, where given, are those of transformers: labels[i] is input_ids[i], or -100. */
static int add_ids(struct data_line *line, const json_t *ids, const json_t *labels,
                   struct fsdp_err *err)
{
    const size_t ntokens = json_array_size(ids);

    if (labels && (!json_is_array(labels) || json_array_size(labels) != ntokens))
        return refuse_line(line, "labels are no list as long as input_ids", err);
    FSDP_TRY(grow_line(line, ntokens, err));
    for (size_t i = 0; i < ntokens; i++) {
        const json_t *id = json_array_get(ids, i), *label = labels ? json_array_get(labels, i) : id;
        if (!json_is_integer(id) || !json_is_integer(label))
            return refuse_line(line, "input_ids or labels hold something that is no whole number",
                               err);
        const bool ignored = json_integer_value(label) == DATA_IGNORE;
        if (!ignored && json_integer_value(label) != json_integer_value(id))
            return refuse_line(line, "a label is neither its token of input_ids nor -100", err);
        FSDP_TRY(add_token(line, json_integer_value(id), !ignored, err));
        const int32_t token = line->tokens[line->ntokens - 1];
        line->highest = token > line->highest ? token : line->highest;
    }
    return FSDP_OK;
}

/* None of the documents that are known. */
static int refuse_object(const struct data_line *line, const char *text_key, const json_t *root,
                         struct fsdp_err *err)
{
    char what[900], found[600];
    const json_t *text = json_object_get(root, text_key);

    data_found_keys(found, sizeof found, root);
    if (text)
        snprintf(what, sizeof what, "'%.60s' is %s, and needs to be a text", text_key,
                 data_found_type(text));
    else
        snprintf(what, sizeof what, "needs %.60s, prompt + completion, or input_ids; found %s%s",
                 text_key, found,
                 json_is_object(root) ? " (data.text_key names the field of a text)" : "");
    return refuse_line(line, what, err);
}

static int add_document(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    const char *text_key = line->text_key ? line->text_key : "text";
    const json_t *text = json_object_get(root, text_key), *ids = json_object_get(root, "input_ids");
    const json_t *prompt = json_object_get(root, "prompt");
    const json_t *completion = json_object_get(root, "completion");

    if (json_is_array(ids))
        return add_ids(line, ids, json_object_get(root, "labels"), err);
    if (json_is_string(prompt) && json_is_string(completion)) {
        FSDP_TRY(add_text(line, prompt, false, err));
        FSDP_TRY(add_text(line, completion, true, err));
        return add_end(line, err);
    }
    if (!json_is_string(text))
        return refuse_object(line, text_key, root, err);
    FSDP_TRY(add_text(line, text, true, err));
    return add_end(line, err);
}

/* The field that makes a line one of the documents that are known, and so is where an error is. */
static const char *main_key(const struct data_line *line, const json_t *root)
{
    const char *text_key = line->text_key ? line->text_key : "text";

    if (json_is_array(json_object_get(root, "input_ids")))
        return "input_ids";
    return json_object_get(root, text_key) ? text_key : NULL;
}

int data_line_parse(struct data_line *line, const char *text, size_t nbytes, struct fsdp_err *err)
{
    json_error_t why;
    char what[JSON_ERROR_TEXT_LENGTH + 40];
    int rc;

    while (nbytes && (text[nbytes - 1] == '\n' || text[nbytes - 1] == '\r'))
        nbytes--;
    json_t *root = json_loadb(text, nbytes, JSON_ALLOW_NUL, &why);
    line->ntokens = 0;
    if (!root) {
        snprintf(what, sizeof what, "not JSON: %s", why.text);
        return refuse_at(line, why.column > 0 ? (size_t)why.column : 1, what, err);
    }
    line->source = text;
    line->source_nbytes = nbytes;
    line->key = main_key(line, root);
    rc = add_document(line, root, err);
    json_decref(root);
    return rc;
}

void data_line_free(struct data_line *line)
{
    fsdp_free(line->tokens);
    fsdp_free(line->labels);
    *line = (struct data_line){0};
}
