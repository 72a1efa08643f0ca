/* SPDX-License-Identifier: Apache-2.0 */
/* What transformers made of each template and expression of tests/text/data/chat (make.py there).
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "text/chat/chat.h"

static json_t *load(const char *name)
{
    char path[1000];
    json_error_t why;

    snprintf(path, sizeof path, "%s/tests/text/data/chat/%s", getenv("TOP"), name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!json)
        diag("%s: %s", path, why.text);
    return json;
}

static int render(struct chat_text *out, const char *source, size_t nbytes,
                  const struct chat_input *in, struct fsdp_err *err)
{
    struct chat_template *t = NULL;
    int rc = chat_template_create(&t, source, nbytes, "a.jinja", err);

    if (!rc)
        rc = chat_render(out, t, in, err);
    chat_template_destroy(t);
    return rc;
}

static bool same_spans(const struct chat_text *text, const json_t *want)
{
    if (text->marks_generation != (want != NULL) || text->nspans != json_array_size(want))
        return false;
    for (size_t i = 0; i < text->nspans; i++) {
        const json_t *span = json_array_get(want, i);
        if (json_integer_value(json_array_get(span, 0)) != (json_int_t)text->spans[i].first ||
            json_integer_value(json_array_get(span, 1)) != (json_int_t)text->spans[i].end)
            return false;
    }
    return true;
}

/* One case against what transformers gave: a text, or an error of whatever words. */
static void check_case(const char *what, const json_t *source, const struct chat_input *in,
                       const json_t *want)
{
    const json_t *text = json_object_get(want, "text");
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_text got = {0};
    const int rc = render(&got, json_string_value(source), json_string_length(source), in, &err);

    if (!text)
        ok(rc && !strncmp(err.text, "a.jinja:", 8), "%s: refused", what);
    else if (!ok(!rc && got.nbytes == json_string_length(text) &&
                     !memcmp(got.at, json_string_value(text), got.nbytes) &&
                     same_spans(&got, json_object_get(want, "spans")),
                 "%s", what))
        diag("got  %s\nwant %s", rc ? err.text : got.at, json_string_value(text));
    chat_text_free(&got);
}

static void test_semantics(const char *date)
{
    json_t *root = load("semantics.json"),
           *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    const struct chat_input in = {
        .messages = messages, .extra = json_object_get(root, "context"), .date = date};
    const json_t *cases = json_object_get(root, "cases");
    char what[80];

    ok(json_array_size(cases) > 100, "%zu expressions", json_array_size(cases));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *source = json_object_get(one, "template");
        size_t n = 0;
        for (const char *c = json_string_value(source); *c && n < 60; c++) /* a TAP line */
            what[n++] = *c >= ' ' && *c != '#' ? *c : '.';
        what[n] = 0;
        check_case(what, source, &in, one);
    }
    json_decref(messages);
    json_decref(root);
}

static json_t *read_template(const char *name)
{
    char path[1000], *text = NULL;
    size_t nbytes = 0;

    snprintf(path, sizeof path, "%s/tests/text/data/chat/%s", getenv("TOP"), name);
    if (fsdp_file_read(&text, &nbytes, path, 1 << 20, NULL))
        return NULL;
    json_t *json = json_stringn(text, nbytes);
    fsdp_free(text);
    return json;
}

static void test_templates(const json_t *root, const char *date)
{
    json_t *all = load("renderings.json");
    const json_t *conversations = json_object_get(root, "conversations");
    const char *name;
    json_t *want;

    json_object_foreach(all, name, want)
    {
        json_t *source = read_template(name);
        for (size_t i = 0; i < json_array_size(conversations); i++) {
            const json_t *c = json_array_get(conversations, i);
            const char *case_name = json_string_value(json_object_get(c, "name"));
            json_t *extra = json_copy(json_object_get(root, "special_tokens"));
            char what[200];
            if (json_object_get(c, "kwargs"))
                json_object_update(extra, json_object_get(c, "kwargs"));
            const struct chat_input in = {
                .messages = json_object_get(c, "messages"),
                .tools = json_object_get(c, "tools"),
                .extra = extra,
                .add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt")),
                .date = date,
            };
            snprintf(what, sizeof what, "%s on %s", name, case_name);
            check_case(what, source, &in, json_object_get(want, case_name));
            json_decref(extra);
        }
        json_decref(source);
    }
    ok(json_object_size(all) > 2, "%zu templates", json_object_size(all));
    json_decref(all);
}

int main(void)
{
    json_t *root = load("conversations.json");
    const char *date = json_string_value(json_object_get(root, "now"));

    test_semantics(date);
    test_templates(root, date);
    json_decref(root);
    return tap_done();
}
