/* SPDX-License-Identifier: Apache-2.0 */
/* Renders what chat.py asks for: a line of JSON in, a line out. Without arguments, one chat. */
#include <jansson.h>
#include <string.h>

#include "tap.h"
#include "text/chat/chat.h"

static json_t *render(const json_t *ask)
{
    const json_t *source = json_object_get(ask, "source");
    struct chat_input in = {
        .messages = json_object_get(ask, "messages"),
        .tools = json_object_get(ask, "tools"),
        .extra = json_object_get(ask, "extra"),
        .add_generation_prompt = json_is_true(json_object_get(ask, "add_generation_prompt")),
        .date = json_string_value(json_object_get(ask, "date")),
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_template *t = NULL;
    struct chat_text text = {0};
    json_t *out = json_object(), *spans = json_array();

    int rc = chat_template_create(&t, json_string_value(source), json_string_length(source),
                                  "template", &err);
    if (!rc)
        rc = chat_render(&text, t, &in, &err);
    if (rc) {
        json_object_set_new(out, "error", json_string(err.text));
        json_object_set_new(out, "status", json_string(fsdp_status_name(rc)));
    } else {
        json_object_set_new(out, "text", json_stringn(text.at, text.nbytes));
        for (size_t i = 0; i < text.nspans; i++)
            json_array_append_new(spans, json_pack("[I, I]", (json_int_t)text.spans[i].first,
                                                   (json_int_t)text.spans[i].end));
        json_object_set(out, "spans", spans);
        json_object_set_new(out, "marks", json_boolean(text.marks_generation));
    }
    json_decref(spans);
    chat_text_free(&text);
    chat_template_destroy(t);
    return out;
}

static int serve(void)
{
    char *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, stdin) > 0) {
        json_t *ask = json_loads(line, JSON_ALLOW_NUL, NULL), *answer;
        if (!ask)
            return 1;
        answer = render(ask);
        json_dumpf(answer, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(answer);
        json_decref(ask);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "serve"))
        return serve();
    json_t *ask = json_pack("{s:s, s:[{s:s, s:s}]}", "source",
                            "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}",
                            "messages", "role", "user", "content", "hi");
    json_t *answer = render(ask);
    const char *text = json_string_value(json_object_get(answer, "text"));
    ok(text && !strcmp(text, "<user>hi"), "one chat is rendered");
    json_decref(ask);
    json_decref(answer);
    return tap_done();
}
