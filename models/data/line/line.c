/* SPDX-License-Identifier: Apache-2.0 */
/* One document of JSON Lines: its tokens, and which of them are to be predicted. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "found.h"
#include "line_impl.h"
#include "text/tokenizer/tokenizer.h"

/* What transformers' collators write. labels[i] is input_ids[i], or -100; where attention_mask[i]
 * is 0, the token is padding, which is left out. */
static int add_ids(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    const json_t *ids = json_object_get(root, "input_ids");
    const json_t *labels = json_object_get(root, "labels");
    const json_t *mask = json_object_get(root, "attention_mask");
    const size_t ntokens = json_array_size(ids);

    if (labels && (!json_is_array(labels) || json_array_size(labels) != ntokens))
        return data_line_refuse(line, "labels is not a list as long as input_ids", err);
    if (mask && (!json_is_array(mask) || json_array_size(mask) != ntokens))
        return data_line_refuse(line, "attention_mask is not a list as long as input_ids", err);
    FSDP_TRY(data_line_grow(line, ntokens, err));
    for (size_t i = 0; i < ntokens; i++) {
        const json_t *id = json_array_get(ids, i), *label = labels ? json_array_get(labels, i) : id;
        const json_t *seen = json_array_get(mask, i); /* NULL: there is no mask */
        if (seen && (!json_is_integer(seen) || json_integer_value(seen) >> 1))
            return data_line_refuse(line, "attention_mask holds a value other than 0 and 1", err);
        if (seen && !json_integer_value(seen))
            continue;
        if (!json_is_integer(id) || !json_is_integer(label))
            return data_line_refuse(
                line, "input_ids or labels holds a value that is not a whole number", err);
        const bool ignored = json_integer_value(label) == DATA_IGNORE;
        if (!ignored && json_integer_value(label) != json_integer_value(id))
            return data_line_refuse(line, "a label is neither its token of input_ids nor -100",
                                    err);
        FSDP_TRY(data_line_add_token(line, json_integer_value(id), !ignored, err));
        const int32_t token = line->tokens[line->ntokens - 1];
        line->highest = token > line->highest ? token : line->highest;
    }
    return FSDP_OK;
}

static const char list_hint[] =
    "; each line holds one document: jq -c '.[]' LIST >LINES turns a list into such lines";

/* How other programs' files become these: a list in one file, ShareGPT's turns. */
static const char *hint_of(const struct data_line *line, const json_t *root)
{
    if (json_is_array(root))
        return line->number == 1 ? list_hint : "";
    if (json_object_get(root, "conversations"))
        return " (docs/faq.md shows how 'conversations' become messages)";
    return json_is_object(root) ? " (data.text_key names the field of a text)" : "";
}

/* A field of a document that is known, of another type than it has there. *wanted: the right one.
 * NULL: there is none. */
static const char *odd_field(const json_t *root, const char **wanted)
{
    static const struct {
        const char *key;
        json_type type;
        const char *name;
    } fields[] = {{"messages", JSON_ARRAY, "a list"},
                  {"input_ids", JSON_ARRAY, "a list"},
                  {"prompt", JSON_STRING, "a text"},
                  {"completion", JSON_STRING, "a text"}};

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(root, fields[i].key);
        *wanted = fields[i].name;
        if (value && json_typeof(value) != fields[i].type)
            return fields[i].key;
    }
    return NULL;
}

/* None of the documents that are known. */
static int refuse_object(const struct data_line *line, const char *text_key, const json_t *root,
                         struct fsdp_err *err)
{
    char what[900], found[600];
    const json_t *text = json_object_get(root, text_key);
    const char *wanted, *odd = odd_field(root, &wanted);

    data_found_keys(found, sizeof found, root);
    if (text)
        snprintf(what, sizeof what, "'%.60s' is %s, and needs to be a text", text_key,
                 data_found_type(text));
    else if (odd)
        snprintf(what, sizeof what, "'%s' is %s, and needs to be %s%s", odd,
                 data_found_type(json_object_get(root, odd)), wanted,
                 json_is_array(json_object_get(root, odd)) ? " (turns of a chat go into messages)"
                                                           : "");
    else
        snprintf(what, sizeof what,
                 "needs %.60s, prompt + completion, messages, or input_ids; found %s%s", text_key,
                 found, hint_of(line, root));
    return data_line_refuse(line, what, err);
}

/* The whole text, or what is behind the prompt, is learned. */
static int add_texts(struct data_line *line, const char *text, size_t nbytes, size_t nprompt,
                     struct fsdp_err *err)
{
    struct data_span learned = {nprompt, nbytes};
    const struct data_line_text whole = {.at = text,
                                         .nbytes = nbytes,
                                         .learned = {&learned, 1, 0},
                                         .nprompt = nprompt,
                                         .add_special = line->text->special != DATA_SPECIAL_NONE,
                                         .behind = true};

    FSDP_TRY(data_line_add_text(line, &whole, err));
    return line->text->special == DATA_SPECIAL_EOS ? data_line_add_end(line, err) : FSDP_OK;
}

static int add_completion(struct data_line *line, const json_t *prompt, const json_t *completion,
                          struct fsdp_err *err)
{
    const size_t nprompt = json_string_length(prompt), ncompletion = json_string_length(completion);
    char *both = fsdp_alloc_unset(nprompt + ncompletion + 1, 1, "document", err);

    if (!both)
        return FSDP_ENOMEM;
    memcpy(both, json_string_value(prompt), nprompt);
    memcpy(both + nprompt, json_string_value(completion), ncompletion);
    const int rc = add_texts(line, both, nprompt + ncompletion, nprompt, err);
    fsdp_free(both);
    return rc;
}

/* Appends the ids of a list. */
static int add_list(struct data_line *line, const json_t *ids, bool learned, struct fsdp_err *err)
{
    const size_t ntokens = json_array_size(ids);

    FSDP_TRY(data_line_grow(line, ntokens, err));
    for (size_t i = 0; i < ntokens; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id))
            return data_line_refuse(line, "a list of ids holds a value that is not a whole number",
                                    err);
        FSDP_TRY(data_line_add_token(line, json_integer_value(id), learned, err));
        const int32_t token = line->tokens[line->ntokens - 1];
        line->highest = token > line->highest ? token : line->highest;
    }
    return FSDP_OK;
}

/* A chat of the prompt's messages and the answer's, of which the last turn is learned. */
static int add_pair_chat(struct data_line *line, const json_t *root, json_t *prompt, json_t *answer,
                         struct fsdp_err *err)
{
    const struct data_text *text = line->text;
    struct data_text last = *text;
    json_t *messages = json_array(), *chat = json_copy((json_t *)(uintptr_t)root);
    int rc = FSDP_ENOMEM;

    last.train_on = DATA_TRAIN_LAST;
    if (!messages || !chat || (prompt && json_array_extend(messages, prompt)) ||
        json_array_extend(messages, answer) || json_object_set(chat, "messages", messages))
        fsdp_err_set(err, rc, "no memory for a chat");
    else {
        line->text = &last;
        rc = data_line_add_chat(line, chat, err);
        line->text = text;
    }
    json_decref(messages);
    json_decref(chat);
    return rc;
}

/* The prompt and one of its answers. */
static int add_pair(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    const bool rejected = line->takes_rejected;
    json_t *prompt = json_object_get(root, "prompt");
    json_t *answer = json_object_get(root, rejected ? "rejected" : "chosen");
    const json_t *prompt_ids = json_object_get(root, "prompt_ids");
    const json_t *ids = json_object_get(root, rejected ? "rejected_ids" : "chosen_ids");

    if (json_is_array(prompt_ids) && json_is_array(ids)) {
        FSDP_TRY(add_list(line, prompt_ids, false, err));
        return add_list(line, ids, true, err);
    }
    if (json_is_string(prompt) && json_is_string(answer))
        return add_completion(line, prompt, answer, err);
    if ((!prompt || json_is_array(prompt)) && json_is_array(answer))
        return add_pair_chat(line, root, prompt, answer, err);
    return data_line_refuse(line,
                            "a pair has prompt, chosen and rejected, which are texts, or lists of "
                            "messages, or with _ids behind their names lists of ids",
                            err);
}

static int add_document(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    const char *text_key = line->text_key ? line->text_key : "text";
    const json_t *text = json_object_get(root, text_key), *ids = json_object_get(root, "input_ids");
    const json_t *prompt = json_object_get(root, "prompt");
    const json_t *completion = json_object_get(root, "completion");

    if (json_is_array(ids))
        return add_ids(line, root, err);
    if (json_is_string(prompt) && json_is_string(completion))
        return add_completion(line, prompt, completion, err);
    if (json_is_array(json_object_get(root, "messages")))
        return data_line_add_chat(line, root, err);
    if (!json_is_string(text))
        return refuse_object(line, text_key, root, err);
    return add_texts(line, json_string_value(text), json_string_length(text), 0, err);
}

static int read_weight(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    const json_t *weight = line->weight_key ? json_object_get(root, line->weight_key) : NULL;

    line->weight = 1;
    if (!weight)
        return FSDP_OK;
    line->weight = json_number_value(weight);
    if (json_is_number(weight) && line->weight >= 0 && line->weight <= 1e30)
        return FSDP_OK;
    line->key = line->weight_key;
    return data_line_refuse(line, "a weight is a number of at least 0, up to 1e30", err);
}

/* The field that makes a line one of the documents that are known, and so is where an error is. */
static const char *main_key(const struct data_line *line, const json_t *root)
{
    const char *text_key = line->text_key ? line->text_key : "text";

    if (json_is_array(json_object_get(root, "input_ids")))
        return "input_ids";
    if (json_is_array(json_object_get(root, "messages")))
        return "messages";
    return json_object_get(root, text_key) ? text_key : NULL;
}

int data_line_parse(struct data_line *line, const char *text, size_t nbytes, struct fsdp_err *err)
{
    json_error_t why;
    char what[JSON_ERROR_TEXT_LENGTH + 40 + sizeof list_hint];
    int rc;

    /* A byte order mark, which JSON does not have and some systems' files do. */
    if (line->number == 1 && nbytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
        text += 3;
        nbytes -= 3;
    }
    while (nbytes && (text[nbytes - 1] == '\n' || text[nbytes - 1] == '\r'))
        nbytes--;
    json_t *root = json_loadb(text, nbytes, JSON_ALLOW_NUL, &why);
    line->ntokens = 0;
    line->nbytes = line->nignored = 0;
    line->is_chat = line->is_crossed = false;
    if (!root) {
        /* A list over several lines, as json.dump() writes it: valid JSON, but not JSON Lines. */
        const bool lists = line->number == 1 && nbytes && text[0] == '[';
        snprintf(what, sizeof what, "not JSON: %s%s", why.text, lists ? list_hint : "");
        return data_line_refuse_at(line, why.column > 0 ? (size_t)why.column : 1, what, err);
    }
    line->source = text;
    line->source_nbytes = nbytes;
    line->key = main_key(line, root);
    rc = read_weight(line, root, err);
    if (rc == FSDP_OK)
        rc = line->is_pair ? add_pair(line, root, err) : add_document(line, root, err);
    json_decref(root);
    for (size_t i = 0; i < line->ntokens; i++)
        line->nignored += line->labels[i] == DATA_IGNORE;
    return rc;
}

void data_line_free(struct data_line *line)
{
    fsdp_free(line->tokens);
    fsdp_free(line->labels);
    tokenizer_encoder_destroy(line->encoder);
    *line = (struct data_line){0};
}
