/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokenizes a chat. The model's own template renders it. The text that the template marks with
 * {% generation %} is learned. If the template has no such marks, an assistant's turn is located in
 * the rendered chat in one of two ways:
 *
 *   by its content  The chat is rendered again with a placeholder as the turn's content. The texts
 *                   before and after the placeholder also occur in the chat; the content is between
 *                   them.
 *   by its prompt   Two prefixes of the chat are rendered: the messages before the turn, with a
 *                   generation prompt, and the messages up to the turn. The turn lies between their
 *                   ends. This also locates turns with more than content, such as tool calls.
 *
 * The special token that ends a turn is learned, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "found.h"
#include "line_impl.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

/* Two characters of private use, which no template looks for or strips. */
static const char mark[] = "\xee\x83\xb3turn\xee\x83\xb4";

struct chat {
    struct data_line *line;
    const json_t *root, *messages;
    struct chat_text whole;
    struct data_spans learned;
};

static int render(struct chat_text *out, const struct chat *c, const json_t *messages, bool prompt,
                  struct fsdp_err *err)
{
    const json_t *tools = json_object_get(c->root, "tools");
    const json_t *extra = json_object_get(c->root, "chat_template_kwargs");
    const struct chat_input in = {.messages = messages,
                                  .tools = json_array_size(tools) ? tools : NULL,
                                  .extra = json_is_object(extra) ? extra : NULL,
                                  .add_generation_prompt = prompt,
                                  .date = c->line->text->date};

    return chat_render(out, c->line->text->chat, &in, err);
}

static int learn(struct chat *c, size_t first, size_t end, struct fsdp_err *err)
{
    struct data_spans *spans = &c->learned;
    struct data_span *at =
        fsdp_alloc_grow(spans->at, spans->nspans, &spans->room, sizeof *at, "turns of a chat", err);

    if (!at)
        return FSDP_ENOMEM;
    spans->at = at;
    spans->at[spans->nspans++] = (struct data_span){first, end};
    return FSDP_OK;
}

/* ---- the end of a turn ----------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Length of the special token at the beginning of text; 0: there is none. */
static size_t special_at(const struct data_line *line, const char *text, size_t nbytes)
{
    const struct tokenizer *t = line->text->tokenizer;
    enum { LONGEST = 64 };

    for (size_t n = nbytes < LONGEST ? nbytes : LONGEST; t && n > 1; n--) {
        const int32_t id = tokenizer_find(t, text, n);
        if (id >= 0 && !tokenizer_nbytes(t, id))
            return n;
    }
    return 0;
}

/* The end of the special token after byte `at`, which white space may precede; else `at`. */
static size_t with_end_token(const struct chat *c, size_t at)
{
    size_t from = at;

    while (from < c->whole.nbytes && is_space(c->whole.at[from]))
        from++;
    const size_t n = special_at(c->line, c->whole.at + from, c->whole.nbytes - from);
    return n ? from + n : at;
}

/* The end of a turn without the white space after its end token. */
static size_t without_space(const struct chat *c, size_t first, size_t end)
{
    size_t last = end;

    while (last > first && is_space(c->whole.at[last - 1]))
        last--;
    for (size_t n = 2; last - first >= n && n < 64; n++)
        if (special_at(c->line, c->whole.at + last - n, n) == n)
            return last;
    return end;
}

/* ---- finding a turn -------------------------------------------------------------------------- */

static bool begins_with(const struct chat_text *text, const char *with, size_t nbytes)
{
    return text->nbytes >= nbytes && !memcmp(text->at, with, nbytes);
}

/* Where a turn is in the rendered chat. */
struct turn {
    bool found;
    size_t first, end;
};

/* Renders with the placeholder as message i's content. A template that refuses it finds nothing. */
static int find_by_content(struct turn *turn, const struct chat *c, size_t i, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct chat_text marked = {0};
    json_t *messages = json_copy((json_t *)(uintptr_t)c->messages);
    json_t *message = json_copy(json_array_get(c->messages, i));
    int rc = FSDP_OK;

    *turn = (struct turn){0};
    if (!messages || !message || json_object_set_new(message, "content", json_string(mark)) ||
        json_array_set(messages, i, message))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "out of memory for a chat");
    else if (!render(&marked, c, messages, false, &why)) {
        const char *at = memmem(marked.at, marked.nbytes, mark, sizeof mark - 1);
        const size_t before = at ? (size_t)(at - marked.at) : 0,
                     behind = at ? marked.nbytes - before - (sizeof mark - 1) : 0;
        turn->found = at && !memmem(at + 1, behind + sizeof mark - 2, mark, sizeof mark - 1) &&
                      before + behind <= c->whole.nbytes &&
                      begins_with(&c->whole, marked.at, before) &&
                      !memcmp(c->whole.at + c->whole.nbytes - behind, at + sizeof mark - 1, behind);
        turn->first = before;
        turn->end = c->whole.nbytes - behind;
    }
    chat_text_free(&marked);
    json_decref(message);
    json_decref(messages);
    return rc;
}

static int render_first(struct chat_text *out, const struct chat *c, size_t nmessages, bool prompt,
                        struct fsdp_err *err)
{
    json_t *messages = json_array();
    int rc = messages ? FSDP_OK : FSDP_ENOMEM;

    for (size_t i = 0; rc == FSDP_OK && i < nmessages; i++)
        rc = json_array_append(messages, json_array_get(c->messages, i)) ? FSDP_ENOMEM : FSDP_OK;
    if (rc)
        fsdp_err_set(err, rc, "out of memory for a chat");
    else
        rc = render(out, c, messages, prompt, err);
    json_decref(messages);
    return rc;
}

/* A template without a generation prompt does not say where a turn's header ends. */
static int find_by_prompt(struct turn *turn, const struct chat *c, size_t i, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct chat_text before = {0}, prompt = {0}, with = {0};
    int rc = render_first(&before, c, i, false, &why);

    *turn = (struct turn){0};
    if (!rc)
        rc = render_first(&prompt, c, i, true, &why);
    if (!rc)
        rc = render_first(&with, c, i + 1, false, &why);
    if (!rc) {
        turn->found = prompt.nbytes > before.nbytes && with.nbytes > prompt.nbytes &&
                      begins_with(&with, prompt.at, prompt.nbytes) &&
                      begins_with(&c->whole, with.at, with.nbytes);
        turn->first = prompt.nbytes;
        turn->end = with.nbytes;
    }
    chat_text_free(&before);
    chat_text_free(&prompt);
    chat_text_free(&with);
    return rc == FSDP_ENOMEM ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

/* Nothing but a text. */
static bool is_plain(const json_t *message)
{
    return json_object_size(message) == 2 && json_is_string(json_object_get(message, "content"));
}

static int refuse_turn(const struct chat *c, size_t i, struct fsdp_err *err)
{
    char what[240];

    snprintf(what, sizeof what,
             "the text of message %zu cannot be located in the rendered chat; mark it in the "
             "template with {%% generation %%}, or set data.train_on to all",
             i + 1);
    return data_line_refuse(c->line, what, err);
}

static int learn_turn(struct chat *c, size_t i, struct fsdp_err *err)
{
    const json_t *message = json_array_get(c->messages, i);
    const bool plain = is_plain(message);
    struct turn turn = {0};

    if (plain)
        FSDP_TRY(find_by_content(&turn, c, i, err));
    if (turn.found)
        return learn(c, turn.first, with_end_token(c, turn.end), err);
    FSDP_TRY(find_by_prompt(&turn, c, i, err));
    if (turn.found)
        return learn(c, turn.first, without_space(c, turn.first, turn.end), err);
    if (!plain && json_string_length(json_object_get(message, "content")))
        FSDP_TRY(find_by_content(&turn, c, i, err));
    if (turn.found)
        return learn(c, turn.first, with_end_token(c, turn.end), err);
    return refuse_turn(c, i, err);
}

/* ---- a line ---------------------------------------------------------------------------------- */

static bool is_assistant(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && (!strcmp(role, "assistant") || !strcmp(role, "model"));
}

static int learn_marked(struct chat *c, struct fsdp_err *err)
{
    const size_t n = c->whole.nspans;
    const size_t first = c->line->text->train_on == DATA_TRAIN_LAST && n ? n - 1 : 0;

    for (size_t i = first; i < n; i++)
        FSDP_TRY(learn(c, c->whole.spans[i].first, c->whole.spans[i].end, err));
    return FSDP_OK;
}

static int by_place(const void *a, const void *b)
{
    const size_t x = ((const struct data_span *)a)->first, y = ((const struct data_span *)b)->first;
    return (x > y) - (x < y);
}

static int learn_turns(struct chat *c, struct fsdp_err *err)
{
    const size_t n = json_array_size(c->messages);
    size_t first = 0;

    if (c->line->text->train_on == DATA_TRAIN_ALL)
        return learn(c, 0, c->whole.nbytes, err);
    if (c->whole.marks_generation)
        return learn_marked(c, err);
    if (c->line->text->train_on == DATA_TRAIN_LAST)
        for (first = n; first > 0 && !is_assistant(json_array_get(c->messages, first - 1));)
            first--;
    first -= first > 0;
    for (size_t i = first; i < n; i++)
        if (is_assistant(json_array_get(c->messages, i)))
            FSDP_TRY(learn_turn(c, i, err));
    /* A template may render messages in another order. */
    qsort(c->learned.at, c->learned.nspans, sizeof *c->learned.at, by_place);
    return FSDP_OK;
}

static int check_messages(const struct chat *c, struct fsdp_err *err)
{
    const json_t *message;
    size_t i;
    char what[400], found[240];

    if (!c->line->text->chat && c->line->text->chat_refusal)
        return data_line_refuse(c->line, c->line->text->chat_refusal, err);
    if (!c->line->text->chat)
        return data_line_refuse(c->line,
                                "messages need a chat template, and the model's folder has none "
                                "(chat_template.jinja, or chat_template in tokenizer_config.json)",
                                err);
    json_array_foreach((json_t *)(uintptr_t)c->messages, i, message)
    {
        if (json_is_string(json_object_get(message, "role")))
            continue;
        snprintf(
            what, sizeof what,
            "message %zu has no role; found %s (a message is {\"role\": ..., \"content\": ...})",
            i + 1, data_found_keys(found, sizeof found, message));
        return data_line_refuse(c->line, what, err);
    }
    return i ? FSDP_OK : data_line_refuse(c->line, "messages is an empty list", err);
}

/* Bytes of the chat up to the last answer, as generation renders them; 0: they are not a beginning
 * of the chat. */
static int measure_prompt(size_t *out, const struct chat *c, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct chat_text prompt = {0};
    size_t last = json_array_size(c->messages);

    *out = 0;
    while (last > 0 && !is_assistant(json_array_get(c->messages, last - 1)))
        last--;
    if (last < 2)
        return FSDP_OK;
    const int rc = render_first(&prompt, c, last - 1, true, &why);
    if (!rc && begins_with(&c->whole, prompt.at, prompt.nbytes))
        *out = prompt.nbytes;
    chat_text_free(&prompt);
    return rc == FSDP_ENOMEM ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

int data_line_add_chat(struct data_line *line, const json_t *root, struct fsdp_err *err)
{
    struct chat c = {.line = line, .root = root, .messages = json_object_get(root, "messages")};
    struct fsdp_err why = FSDP_ERR_INIT;
    size_t nprompt = 0;

    line->is_chat = true;
    FSDP_TRY(check_messages(&c, err));
    int rc = render(&c.whole, &c, c.messages, false, &why);
    if (rc == FSDP_EINVAL)
        data_line_refuse(line, why.text, err);
    else if (rc)
        fsdp_err_pass(err, rc, &why);
    if (!rc)
        rc = learn_turns(&c, err);
    if (!rc)
        rc = measure_prompt(&nprompt, &c, err);
    if (!rc) {
        const struct data_line_text text = {
            .at = c.whole.at, .nbytes = c.whole.nbytes, .learned = c.learned, .nprompt = nprompt};
        rc = data_line_add_text(line, &text, err);
    }
    fsdp_free(c.learned.at);
    chat_text_free(&c.whole);
    return rc;
}
