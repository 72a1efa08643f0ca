/* SPDX-License-Identifier: Apache-2.0 */
/* The options that several checkpoint tools have. */
#include <string.h>
#include <unistd.h>

#include "tool.h"

#define AT(field) offsetof(struct tool, field)

/* ---- values ---------------------------------------------------------------------------------- */

static int add_text(const char **list, int *count, const char *text, struct fsdp_err *err)
{
    if (*count == TOOL_MAX_GLOBS)
        return fsdp_err_set(err, FSDP_EINVAL, "given more than %d times", TOOL_MAX_GLOBS);
    list[(*count)++] = text;
    return FSDP_OK;
}

static int take_include(void *to, const char *text, struct fsdp_err *err)
{
    struct tool *tool = to;
    return add_text(tool->include, &tool->args.select.ninclude, text, err);
}

static int take_exclude(void *to, const char *text, struct fsdp_err *err)
{
    struct tool *tool = to;
    return add_text(tool->exclude, &tool->args.select.nexclude, text, err);
}

int tool_take_map(void *to, const char *text, struct fsdp_err *err)
{
    struct tool *tool = to;
    return add_text(tool->maps, &tool->args.select.nmaps, text, err);
}

int tool_take_heads(void *to, const char *text, struct fsdp_err *err)
{
    struct ckpt_select *select = &((struct tool *)to)->args.select;
    int end = 0;
    if (sscanf(text, "%9dx%9d%n", &select->nheads, &select->nkv_heads, &end) == 2 && !text[end] &&
        select->nheads > 0 && select->nkv_heads > 0)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not of the form 32x8", text);
}

int tool_take_config(void *to, const char *text, struct fsdp_err *err)
{
    (void)err; /* who opens it says whether it is one */
    ((struct tool *)to)->config = text;
    return FSDP_OK;
}

static int take_dtype(void *to, const char *text, struct fsdp_err *err)
{
    enum fsdp_dtype dtype;
    *(const char **)to = text;
    return fsdp_dtype_parse(&dtype, text, err);
}

/* More than the machine has would be a slip of the keyboard. */
static int take_mem(void *to, const char *text, struct fsdp_err *err)
{
    char have[FSDP_NBYTES_TEXT];
    uint64_t most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    FSDP_TRY(ckpt_nbytes_parse(to, text, err));
    if (*(uint64_t *)to <= most)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "'%s' is more than the %s of memory of this machine",
                        text, fsdp_nbytes_text(have, most));
}

int tool_parse_output(const char **out, const char *text, struct fsdp_err *err)
{
    if (!*text)
        return fsdp_err_set(err, FSDP_EINVAL, "the name of the output is empty");
    if (!strcmp(text, "-"))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the output cannot be standard output; name a file or folder ('./-' "
                            "is one)");
    *out = text;
    return FSDP_OK;
}

static int take_output(void *to, const char *text, struct fsdp_err *err)
{
    return tool_parse_output(to, text, err);
}

/* ---- rows ------------------------------------------------------------------------------------ */

const char *const tool_maps[] = {
    "torchtitan-to-hf", "hf-to-torchtitan", "fuse-qkv",       "split-qkv",
    "fuse-gate-up",     "split-gate-up",    "megatron-to-hf", NULL};
static const char *const dtypes[] = {"float32", "bfloat16", "float16", NULL};

const struct fsdp_cli_option tool_output_rows[] = {
    {"output", 'o', "OUTPUT", FSDP_CLI_OWN, AT(args.out), .parse = take_output, .is_file = true,
     .help = "the file or folder to write"},
    {"dtype", .arg = "TYPE", .kind = FSDP_CLI_OWN, .offset = AT(args.dtype), .words = dtypes,
     .parse = take_dtype,
     .help = "cast floating-point tensors to float32, bfloat16, float16, ...; an optimizer's keep "
             "theirs with float16 and smaller types (default: keep the stored type)"},
    {"map", .arg = "MAP", .kind = FSDP_CLI_OWN, .parse = tool_take_map, .words = tool_maps,
     .is_file = true,
     .help = "rename tensors. MAP is a file of rules FROM -> TO, or one of torchtitan-to-hf, "
             "hf-to-torchtitan, megatron-to-hf, fuse-qkv, split-qkv, fuse-gate-up, split-gate-up; "
             "several maps "
             "apply in order"},
    TOOL_HEADS_ROW,
    {"overwrite", .offset = AT(args.overwrite),
     .help = "replace an existing output of the same kind that holds nothing else"},
    {"dry-run", .offset = AT(args.dry_run), .help = "print the plan, write nothing"},
    {.help = NULL}};

const struct fsdp_cli_option tool_selection_rows[] = {
    {"include", .arg = "GLOB", .kind = FSDP_CLI_OWN, .parse = take_include,
     .help = "select tensors whose stored name matches, such as 'model.layers.*'; repeat it for "
             "more"},
    {"exclude", .arg = "GLOB", .kind = FSDP_CLI_OWN, .parse = take_exclude,
     .help = "leave these out, even where --include matches"},
    TOOL_CONFIG_ROW,
    {.help = NULL}};

const struct fsdp_cli_option tool_resource_rows[] = {
    {"mem", .arg = "SIZE", .kind = FSDP_CLI_OWN, .offset = AT(args.mem_nbytes), .parse = take_mem,
     .help = "memory for buffers (default: 256M); lists take up to 1 KiB more for each tensor"},
    {"threads", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(args.nthreads), .least = 1,
     .most = 256,
     .help = "threads, 1 to 256 (default: chosen from the number of processors and the stores, at "
             "most 8)"},
    {.help = NULL}};

const struct fsdp_cli_option tool_report_rows[] = {
    {"quiet", 'q', .offset = AT(quiet), .help = "print errors only"},
    {"json", .offset = AT(json), .help = "print the result as one JSON object"},
    {.help = NULL}};

const struct fsdp_cli_note tool_exits[] = {
    {"0", "done"}, {"1", "failed"}, {"2", "wrong usage"}, {NULL, NULL}};
