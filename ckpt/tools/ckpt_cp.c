/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-cp: a checkpoint copied to another folder or store. Flags and one call. */
#include "tool.h"

static const char usage[] =
    "Usage: ckpt-cp [options] CHECKPOINT COPY\n"
    "\n"
    "Copies a checkpoint byte for byte between folders and stores such as\n"
    "s3://BUCKET/PREFIX, and compares the checksum of every file. Within one store,\n"
    "the store itself moves large files. If COPY ends in '/', the copy keeps its name\n"
    "and goes into that folder.\n"
    "\n" TOOL_CHECKPOINT_HELP TOOL_RESUME_HELP "\n"
    "      --verify             read the copy again before it is published\n"
    "      --dry-run            print the plan, write nothing\n" TOOL_LIMITS_HELP TOOL_HELP "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

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
    enum { VERIFY = TOOL_OWN };
    static const struct option options[] = {
        TOOL_OPTIONS,
        {"verify", no_argument, NULL, VERIFY},
        {"dry-run", no_argument, NULL, TOOL_DRY_RUN},
        {"threads", required_argument, NULL, TOOL_THREADS},
        {"mem", required_argument, NULL, TOOL_MEM},
        {NULL, 0, NULL, 0},
    };
    struct ckpt_copy_args args = CKPT_COPY_ARGS_INIT;
    struct ckpt_copy_result result;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    struct tool tool;
    int option, status;

    tool_begin(&tool, "ckpt-cp", usage);
    while ((option = getopt_long(argc, argv, "qh", options, NULL)) != -1) {
        if (option == VERIFY)
            args.verify = true;
        else if (!tool_option(&tool, option, &status))
            return status;
    }
    if (!tool_arguments(&tool, argc, 2, "a checkpoint and its copy are", &status))
        return status;
    if (tool_parse_output(&args.out, argv[optind + 1], &err))
        return tool_fail(&tool, TOOL_USAGE, err.text);
    args.dry_run = tool.args.dry_run;
    args.mem_nbytes = tool.args.mem_nbytes;
    args.nthreads = tool.args.nthreads;
    args.progress = tool_progress;
    args.progress_ctx = &tool;
    tool_watch(&tool);
    int rc = ckpt_open(&ckpt, argv[optind], &err);
    if (rc == FSDP_OK)
        rc = ckpt_copy(&result, ckpt, &args, &err);
    status = rc ? tool_fail(&tool, tool_status(&err), err.text)
                : print_result(&tool, &result, args.dry_run);
    ckpt_close(ckpt);
    return tool_end(&tool, status);
}
