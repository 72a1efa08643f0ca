/* SPDX-License-Identifier: Apache-2.0 */
/* PEFT's rank_pattern and alpha_pattern: what of Python's re is matched as Python does, and what is
 * refused. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "adapter/merge.h"
#include "tap.h"

static struct fsdp_err err = FSDP_ERR_INIT;

static int read_patterns(struct ckpt_patterns **out, const char *text, bool whole)
{
    json_t *json = json_loads(text, 0, NULL);
    const int rc = ckpt_patterns_read(out, json, "rank_pattern", whole, "config", &err);
    json_decref(json);
    return rc;
}

#define Q0 "model.layers.0.self_attn.q_proj"
#define Q10 "model.layers.10.self_attn.q_proj"
#define GATE_UP "model.layers.1.mlp.experts.gate_up_proj"

/* Does re.match(rf"(.*\.)?({pattern})$", name) match? */
static void test_match(const char *pattern, const char *name, bool want)
{
    struct ckpt_patterns *p = NULL;
    json_t *json = json_pack("{s:{s:i}}", "rank_pattern", pattern, 5);
    char *text = json_dumps(json, 0);
    const int rc = read_patterns(&p, text, true);

    ok(!rc && ckpt_patterns_value(p, name, 2) == (want ? 5 : 2), "'%s' %s %s%s%s", pattern,
       want ? "is" : "is not", name, rc ? ": " : "", rc ? err.text : "");
    ckpt_patterns_free(p);
    free(text);
    json_decref(json);
}

static void test_refused(const char *pattern)
{
    struct ckpt_patterns *p = NULL;
    json_t *json = json_pack("{s:{s:i}}", "rank_pattern", pattern, 5);
    char *text = json_dumps(json, 0);

    ok(read_patterns(&p, text, true) == FSDP_EUNSUPPORTED && strstr(err.text, "rank_pattern"),
       "refused: %.40s", pattern);
    free(text);
    json_decref(json);
}

static void test_json(const char *text, bool whole, int want)
{
    struct ckpt_patterns *p = NULL;
    const int rc = read_patterns(&p, text, whole);
    ok(rc == want, "%s: %s", text, rc ? err.text : "accepted");
    ckpt_patterns_free(p);
}

int main(void)
{
    struct ckpt_patterns *p = NULL;
    char deep[64] = "", many[700];

    test_match("q_proj", Q0, true);
    test_match("_proj", Q0, false);
    test_match("attn.q_proj", Q0, false);
    test_match("self_attn.q_proj", Q0, true);
    test_match(Q0, Q0, true);
    test_match("^model.layers.0.self_attn.q_proj", Q0, true);
    test_match("^layers.0.self_attn.q_proj", Q0, false);
    test_match("layers\\.0\\..*", Q0, true);
    test_match("layers\\.1\\..*", Q10, false);
    test_match("layers\\.1.\\..*", Q10, true);
    test_match(".*\\.gate_up_proj", GATE_UP, true);
    test_match(".*\\.gate_up_proj", "gate_up_proj", false);
    test_match("gate_up_proj$", GATE_UP, true);
    test_match("experts.gate_up", GATE_UP, false);
    test_match("[qkv]_proj", Q0, true);
    test_match("[^qkv]_proj", Q0, false);
    test_match("(?:q|k)_proj", Q0, true);
    test_match("(v|o)_proj|mlp.*", Q0, false);
    test_match("(v|o)_proj|mlp.*", GATE_UP, true);
    test_match("layers\\.\\d+\\.self_attn\\.\\w+", Q10, true);
    test_match("layers\\.[0-9]{2}\\.self_attn.*?", Q10, true);
    test_match("layers\\.[0-9]{2}\\.self_attn.*?", Q0, false);
    test_match("layers\\.\\d{1,}\\..*", Q10, true);
    test_match("Q_PROJ", Q0, false);

    test_refused("(?!q)q_proj");
    test_refused("(?i)q_proj");
    test_refused("(q)_\\1");
    test_refused("\\bq_proj");
    test_refused("[\\d]_proj");
    test_refused("[[:alpha:]]_proj");
    test_refused("q_proj)");
    test_refused("(q_proj");
    test_refused("q_proj\\");
    test_refused("[q_proj");
    test_refused("q**");
    test_refused("q*+");
    test_refused("a{1,2}{3}");
    test_refused("a{100}");
    test_refused("a{b}");
    for (int i = 0; i < 20; i++)
        strcat(deep, "(");
    test_refused(deep);
    memset(many, 'a', sizeof many);
    many[sizeof many - 1] = 0;
    test_refused(many);

    ok(read_patterns(&p, "{\"rank_pattern\": {\"q_proj\": 3, \"self_attn.q_proj\": 4, \"k\": 5}}",
                     true) == FSDP_OK &&
           ckpt_patterns_value(p, Q0, 2) == 3 && ckpt_patterns_value(p, "k", 2) == 5,
       "the first pattern that matches counts");
    ckpt_patterns_free(p);
    test_json("{\"rank_pattern\": {}}", true, FSDP_OK);
    test_json("{\"rank_pattern\": null}", true, FSDP_OK);
    test_json("{}", true, FSDP_OK);
    test_json("{\"rank_pattern\": [3]}", true, FSDP_EINVAL);
    test_json("{\"rank_pattern\": \"q_proj\"}", true, FSDP_EINVAL);
    test_json("{\"rank_pattern\": {\"q_proj\": 0}}", true, FSDP_EUNSUPPORTED);
    test_json("{\"rank_pattern\": {\"q_proj\": 1.5}}", true, FSDP_EUNSUPPORTED);
    test_json("{\"rank_pattern\": {\"q_proj\": 1.5}}", false, FSDP_OK);
    test_json("{\"rank_pattern\": {\"q_proj\": \"8\"}}", false, FSDP_EUNSUPPORTED);
    test_json("{\"rank_pattern\": {\"q_proj\": 4294967296}}", true, FSDP_EUNSUPPORTED);
    return tap_done();
}
