/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-merge --check: is a folder or file the model that its config.json describes? */
#include <string.h>

#include "tool.h"

struct output {
    json_t *mismatches; /* NULL: lines */
};

static json_t *text_or_null(const char *text)
{
    return text ? tool_json_text(text) : json_null();
}

static void report(void *ctx, const struct ckpt_mismatch *m)
{
    const struct output *out = ctx;
    if (!out->mismatches)
        fprintf(stderr, "%s\n", tool_shown(m->text));
    else
        json_array_append_new(
            out->mismatches, json_pack("{s:o, s:o, s:o}", "tensor", text_or_null(m->tensor), "file",
                                       text_or_null(m->file), "text", tool_json_text(m->text)));
}

static int print_json(const struct tool *tool, const struct ckpt_check_result *r,
                      const struct output *out, int status)
{
    json_t *root = json_pack("{s:b, s:o, s:s, s:o, s:i, s:O}", "ok", status == TOOL_DONE, "family",
                             text_or_null(r->family[0] ? r->family : NULL), "compared",
                             r->by_family ? "family" : "headers", "why_not_family",
                             text_or_null(r->by_family || !r->why[0] ? NULL : r->why), "tensors",
                             r->ntensors, "mismatches", out->mismatches);
    return tool_json_print(tool, root, status);
}

static void print_line(const char *path, const struct ckpt_check_result *r)
{
    printf("%s: ", tool_shown(path));
    if (r->nmismatches)
        printf("%d mismatch%s in %d tensors", r->nmismatches, r->nmismatches == 1 ? "" : "es",
               r->ntensors);
    else if (r->by_family)
        printf("OK: %d tensors, as config.json has them of a model of type '%s'", r->ntensors,
               tool_shown(r->family));
    else
        printf("OK: the headers of %d tensors are consistent", r->ntensors);
    if (!r->nmismatches && r->by_family && r->ndecoded)
        printf("; %d of them are stored quantized, and compared as they decode", r->ndecoded);
    if (!r->by_family)
        printf("; names and shapes are not compared: %s", tool_shown(r->why));
    putchar('\n');
}

int tool_check(const struct tool *tool, const char *path)
{
    struct output out = {tool->json ? json_array() : NULL};
    struct ckpt_check_result result = {.nmismatches = 0};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    int rc = ckpt_open_with(&ckpt, path, tool->config, &err), status = TOOL_DONE;
    if (rc == FSDP_OK)
        rc = ckpt_check(&result, ckpt, report, &out, &err);
    if (rc && tool->json) {
        const struct ckpt_mismatch failed = {NULL, NULL, err.text};
        report(&out, &failed);
    }
    if (rc)
        status = tool_fail(tool, TOOL_FAILED, err.text);
    else if (result.nmismatches)
        status = TOOL_FAILED;
    if (tool->json)
        status = print_json(tool, &result, &out, status);
    else if (!rc && !tool->quiet)
        print_line(path, &result);
    json_decref(out.mismatches);
    ckpt_close(ckpt);
    return tool_flush(tool, status);
}
