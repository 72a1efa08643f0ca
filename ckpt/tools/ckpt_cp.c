/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-cp: a checkpoint copied to another folder or store. Options and one call. */
#include "tool.h"

struct settings {
    struct tool tool; /* first */
    struct ckpt_copy_args args;
};

static const struct fsdp_cli_option copy_rows[] = {
    {"verify", .offset = offsetof(struct settings, args.verify),
     .help = "read the copy again before it is published"},
    {"dry-run", .offset = offsetof(struct settings, tool.args.dry_run),
     .help = "print the plan, write nothing"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Copying", copy_rows}, TOOL_RESOURCES, TOOL_REPORT, {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-cp",
    .usage = "[options] CHECKPOINT COPY",
    .purpose =
        "Copies a checkpoint byte for byte between folders and stores such as s3://BUCKET/PREFIX, "
        "and compares the checksum of every file. Within one store, the store itself moves large "
        "files. If COPY ends in '/', the copy keeps its name and goes into that folder.\n"
        "\n" TOOL_CHECKPOINT_HELP " " TOOL_RESUME_HELP,
    .groups = groups,
    .notes = TOOL_SIZE_HELP,
    .examples = "ckpt-cp checkpoints/step-00001000 s3://bucket/run1/\n"
                "ckpt-cp --verify s3://bucket/run1 restored\n"
                "ckpt-cp --dry-run checkpoints /archive/run1",
    .exits = tool_exits,
    .least = 2,
    .most = 2,
    .operands = "exactly one checkpoint and one copy: ckpt-cp CHECKPOINT COPY",
};

static int print_json(const struct tool *tool, const struct ckpt_copy_result *r, bool dry_run)
{
    json_t *root = json_pack(
        "{s:o, s:b, s:b, s:i, s:I, s:I, s:I, s:i, s:f}", "output", tool_json_text(r->path),
        "dry_run", dry_run, "was_there", r->was_there, "files", r->nfiles, "bytes",
        (json_int_t)r->nbytes, "bytes_resumed", (json_int_t)r->nbytes_resumed, "bytes_within",
        (json_int_t)r->nbytes_within, "threads", r->nthreads, "seconds", r->seconds);
    return tool_json_print(tool, root, TOOL_DONE);
}

static int print_result(const struct tool *tool, const struct ckpt_copy_result *r, bool dry_run)
{
    if (tool->json)
        return print_json(tool, r, dry_run);
    if (tool->quiet)
        return TOOL_DONE;
    printf("%s: ", tool_shown(r->path));
    if (r->was_there) {
        printf("is this very checkpoint already\n");
    } else if (dry_run) {
        printf("nothing was written; it would be %s in %d file%s\n", tool_nbytes(r->nbytes),
               r->nfiles, r->nfiles == 1 ? "" : "s");
    } else {
        printf("%s in %d file%s, %.2f s", tool_nbytes(r->nbytes), r->nfiles,
               r->nfiles == 1 ? "" : "s", r->seconds);
        if (r->nbytes_resumed)
            printf(", %s of it from an earlier run", tool_nbytes(r->nbytes_resumed));
        if (r->nbytes_within)
            printf(", %s moved by the store itself", tool_nbytes(r->nbytes_within));
        putchar('\n');
    }
    return TOOL_DONE;
}

int main(int argc, char **argv)
{
    struct settings set = {.args = CKPT_COPY_ARGS_INIT};
    struct tool *tool = &set.tool;
    struct ckpt_copy_args *args = &set.args;
    struct ckpt_copy_result result;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;

    tool_begin(tool, &program);
    int status = tool_parse(tool, argc, argv);
    if (status >= 0)
        return status;
    if (tool_parse_output(&args->out, tool->operands[1], &err))
        return tool_fail(tool, TOOL_USAGE, err.text);
    args->dry_run = tool->args.dry_run;
    args->mem_nbytes = tool->args.mem_nbytes;
    args->nthreads = tool->args.nthreads;
    args->progress = tool_progress;
    args->progress_ctx = tool;
    tool_watch(tool);
    int rc = ckpt_open(&ckpt, tool->operands[0], &err);
    if (rc == FSDP_OK)
        rc = ckpt_copy(&result, ckpt, args, &err);
    status = rc ? tool_fail(tool, tool_status(&err), err.text)
                : print_result(tool, &result, args->dry_run);
    ckpt_close(ckpt);
    return tool_end(tool, status);
}
