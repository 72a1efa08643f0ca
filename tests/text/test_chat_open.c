/* SPDX-License-Identifier: Apache-2.0 */
/* The template of a model folder, and what is refused: what is not known, and what is too much. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tap.h"
#include "text/chat/chat.h"

/* ---- folders -------------------------------------------------------------------------------- */

static void put(const char *folder, const char *name, const char *text)
{
    char path[200];
    FILE *file;

    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if ((file = fopen(path, "w"))) {
        fputs(text, file);
        fclose(file);
    }
}

static bool renders(const struct chat_template *t, bool with_tools, const char *want)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi"),
           *tools = json_pack("[{s:s}]", "name", "f");
    const struct chat_input in = {.messages = messages, .tools = with_tools ? tools : NULL};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_text text = {0};
    const int rc = chat_render(&text, t, &in, &err);
    const bool same = !rc && !strcmp(text.at, want);

    if (!same)
        diag("got %s", rc ? err.text : text.at);
    chat_text_free(&text);
    json_decref(messages);
    json_decref(tools);
    return same;
}

static bool opens(const char *folder, bool with_tools, const char *want)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_template *t = NULL;
    const int rc = chat_template_open(&t, folder, &err);
    const bool good = want ? !rc && t && renders(t, with_tools, want) : !rc && !t;

    if (rc)
        diag("%s", err.text);
    chat_template_destroy(t);
    return good;
}

static bool refuses(const char *folder, int status, const char *part)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_template *t = NULL;
    const int rc = chat_template_open(&t, folder, &err);

    if (rc != status || !strstr(err.text, part))
        diag("%s", err.text);
    chat_template_destroy(t);
    return rc == status && strstr(err.text, part);
}

static void test_folders(void)
{
    put("none", "config.json", "{}");
    ok(opens("none", false, NULL), "a folder without a template has none");
    put("config", "tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": {\"__type\": "
        "\"AddedToken\", \"content\": \"<s>\"}, \"eos_token\": "
        "\"</s>\","
        " \"pad_token\": null, \"image_token\": \"<i>\", \"add_bos_token\": true,"
        " \"extra_special_tokens\": {\"audio\": \"<a>\"}, \"chat_template\":"
        " \"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ image_token }}{{ audio }}"
        "{{ pad_token is defined }}{{ add_bos_token is defined }}\"}");
    ok(opens("config", false, "<s>hi</s><i><a>FalseFalse"), "tokenizer_config.json and its tokens");
    put("config", "chat_template.jinja", "file {{ eos_token }}\n");
    ok(opens("config", false, "file </s>"), "chat_template.jinja comes first");
    put("list", "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"},"
        " {\"name\": \"tool_use\", \"template\": \"{{ tools[0].name }}\"}]}");
    ok(opens("list", false, "plain") && opens("list", true, "f"), "named templates");
    put("map", "tokenizer_config.json", "{\"chat_template\": \"{{ eos_token }}\"}");
    put("map", "special_tokens_map.json", "{\"eos_token\": {\"content\": \"<end>\"}}");
    ok(opens("map", false, "<end>"), "tokens of special_tokens_map.json");
    put("files", "chat_template.jinja", "plain");
    mkdir("files/additional_chat_templates", 0777);
    put("files", "additional_chat_templates/tool_use.jinja", "tools");
    ok(opens("files", false, "plain") && opens("files", true, "tools"), "a file for tools");
}

static void test_bad_folders(void)
{
    put("bad", "chat_template.jinja", "a\n{% if x %}\n");
    ok(refuses("bad", FSDP_EINVAL, "bad/chat_template.jinja:2: "), "an error names file and line");
    put("new", "chat_template.jinja", "a\n\n{{ 1 | nosuch }}");
    ok(refuses("new", FSDP_EUNSUPPORTED, "new/chat_template.jinja:3: unknown filter 'nosuch'"),
       "an unknown filter is refused by name and line");
    put("json", "tokenizer_config.json", "{\"chat_template\":\n 1, }");
    ok(refuses("json", FSDP_EINVAL, "json/tokenizer_config.json:2: "), "broken JSON");
    put("number", "tokenizer_config.json", "{\"chat_template\": 1}");
    ok(refuses("number", FSDP_EINVAL, "number/tokenizer_config.json"),
       "a template that is a number");
    put("nameless", "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    ok(refuses("nameless", FSDP_EINVAL, "'default'"), "no template named default");
}

/* ---- bounds --------------------------------------------------------------------------------- */

static void check_error(const char *what, const char *source, int status, const char *part)
{
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi");
    const struct chat_input in = {.messages = messages, .date = "2026-13-01"};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct chat_template *t = NULL;
    struct chat_text text = {0};
    int rc = chat_template_create(&t, source, strlen(source), "b.jinja", &err);

    if (!rc)
        rc = chat_render(&text, t, &in, &err);
    if (!ok(rc == status && strstr(err.text, part), "%s", what))
        diag("%s: %s", fsdp_status_name(rc), err.text);
    chat_text_free(&text);
    chat_template_destroy(t);
    json_decref(messages);
}

/* `what` nested 3,000 times. */
static void check_nested(const char *what, const char *open, const char *middle, const char *close)
{
    enum { LEVELS = 3000 };
    const size_t nopen = strlen(open), nclose = strlen(close), nmiddle = strlen(middle);
    char *source = malloc(LEVELS * (nopen + nclose) + nmiddle + 1), *at = source;

    for (int i = 0; i < LEVELS; i++, at += nopen)
        memcpy(at, open, nopen);
    memcpy(at, middle, nmiddle);
    at += nmiddle;
    for (int i = 0; i < LEVELS; i++, at += nclose)
        memcpy(at, close, nclose);
    *at = 0;
    check_error(what, source, FSDP_EINVAL, "levels deep");
    free(source);
}

static void test_bounds(void)
{
    check_error("steps are bounded",
                "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                FSDP_EINVAL, "b.jinja:1: the template takes more than 100000000 steps");
    check_error(
        "output is bounded",
        "{% set x = 'abcdefghij' * 100000 %}\n{% for a in range(1000) %}{{ x }}{% endfor %}",
        FSDP_EINVAL, "b.jinja:2: the template writes more than 64 MiB");
    check_error("memory is bounded",
                "{% set n = namespace(x='a') %}{% for a in range(40) %}{% set n.x = n.x + n.x %}"
                "{% endfor %}",
                FSDP_EINVAL, "MiB of memory");
    check_error("a repetition is bounded", "{{ 'ab' * 10000000000000 }}", FSDP_EINVAL, "memory");
    check_error("range is bounded", "{{ range(1000000) | length }}", FSDP_EINVAL,
                "more than 100000 elements");
    check_error("recursion is bounded", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}\n{{ f(0) }}",
                FSDP_EINVAL, "b.jinja:1: nested more than 500 levels deep");
    check_error("values are no deeper than that",
                "{% set n = namespace(x=[]) %}{% for a in range(5000) %}{% set n.x = [n.x] %}"
                "{% endfor %}{{ n.x }}",
                FSDP_EINVAL, "levels deep");
    check_nested("nested brackets", "{{ (", "1", ") }}");
    check_nested("nested ifs", "{% if 1 %}", "x", "{% endif %}");
    check_nested("nested loops", "{% for a in [1] %}", "x", "{% endfor %}");
}

static void test_errors(void)
{
    check_error("raise_exception's text", "x\n{{ raise_exception('no ' ~ messages[0].role) }}",
                FSDP_EINVAL, "b.jinja:2: no user");
    check_error("a tag that is not known", "{% include 'x' %}", FSDP_EUNSUPPORTED,
                "b.jinja:1: the tag 'include'");
    check_error("an undefined attribute", "{{ messages[0].a.b }}", FSDP_EINVAL,
                "'dict object' has no attribute 'a'");
    check_error("a bad date", "{{ strftime_now('%Y') }}", FSDP_EINVAL, "'2026-13-01' is no date");
    check_error("bytes that are no UTF-8", "a\nb\xff", FSDP_EINVAL, "b.jinja:2: ");
    check_error("an integer that is too long", "{{ 10 ** 40 }}", FSDP_EUNSUPPORTED, "127 bits");
}

/* ---- threads -------------------------------------------------------------------------------- */

static void *render_many(void *arg)
{
    bool good = true;

    for (int i = 0; i < 200; i++)
        good &= renders(arg, i & 1, "user: hi!;");
    return good ? arg : NULL;
}

static void test_threads(void)
{
    const char *source =
        "{% macro say(m) %}{{ m.role ~ ': ' ~ m['content'] }}{% endmacro %}"
        "{% for m in messages %}{{ say(m) | trim }}{{ '!' if loop.last }};{% endfor %}";
    struct chat_template *t = NULL;
    pthread_t threads[4];
    bool good = !chat_template_create(&t, source, strlen(source), "t.jinja", NULL);
    void *result;

    for (int i = 0; i < 4; i++)
        good &= !pthread_create(&threads[i], NULL, render_many, t);
    for (int i = 0; i < 4; i++)
        good &= !pthread_join(threads[i], &result) && result == t;
    ok(good, "four threads render one template");
    chat_template_destroy(t);
}

/* Every allocation fails once. */
static void test_memory(void)
{
    int rc = FSDP_ENOMEM, n = 0;

    for (; rc == FSDP_ENOMEM && n < 1000; n++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        struct chat_template *t = NULL;
        struct chat_text text = {0};
        json_t *messages = json_pack("[{s:s}]", "role", "user");
        const struct chat_input in = {.messages = messages};
        fsdp_alloc_fail_at((uint64_t)n + 1);
        rc = chat_template_open(&t, "config", &err);
        if (!rc)
            rc = chat_render(&text, t, &in, &err);
        fsdp_alloc_fail_at(0);
        chat_text_free(&text);
        chat_template_destroy(t);
        json_decref(messages);
    }
    ok(rc == FSDP_OK && n > 5, "out of memory in each of %d places is an error", n - 1);
}

int main(void)
{
    test_folders();
    test_bad_folders();
    test_bounds();
    test_errors();
    test_threads();
    test_memory();
    return tap_done();
}
