/* SPDX-License-Identifier: Apache-2.0 */
/* A chat template, then a 0 byte and what it is rendered on: an object of messages, tools and more
 * variables. */
#include <jansson.h>

#include "fuzz.h"
#include "text/chat/chat.h"

static void check_text(const struct chat_text *text)
{
    uint32_t code;
    int n;

    for (const char *at = text->at, *end = at + text->nbytes; at < end; at += n)
        if (!(n = fsdp_utf8_decode(&code, at, end)))
            abort();
    for (size_t i = 0; i < text->nspans; i++)
        if (text->spans[i].first > text->spans[i].end || text->spans[i].end > text->nbytes)
            abort();
    if (text->at[text->nbytes])
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const uint8_t *mark = nbytes ? memchr(data, 0, nbytes) : NULL;
    const size_t nsource = mark ? (size_t)(mark - data) : nbytes,
                 njson = mark ? nbytes - nsource - 1 : 0;
    json_t *root = njson ? json_loadb((const char *)mark + 1, njson, JSON_ALLOW_NUL, NULL) : NULL,
           *plain = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a b", "role",
                              "assistant", "content", "é\n");
    struct chat_input in = {.messages = json_object_get(root, "messages"),
                            .tools = json_object_get(root, "tools"),
                            .extra = root,
                            .add_generation_prompt = nbytes & 1,
                            .date = "2026-07-04"};
    struct chat_template *t = NULL;
    struct chat_text text = {0};

    if (!json_is_array(in.messages))
        in.messages = plain;
    if (!chat_template_create(&t, (const char *)data, nsource, "a.jinja", NULL) &&
        !chat_render(&text, t, &in, NULL))
        check_text(&text);
    chat_text_free(&text);
    chat_template_destroy(t);
    json_decref(root);
    json_decref(plain);
    return 0;
}

FUZZ_TARGET("chat")
