/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-cp: a checkpoint copied to another folder or store. Flags and one call. */
#include <jansson.h>

#include "tool.h"

static const char usage[] =
    "Usage: ckpt-cp [options] CHECKPOINT COPY\n"
    "\n"
    "Copies a checkpoint (a step-* folder, a folder of them: the newest, a\n"
    "torch.distributed.checkpoint, a Hugging Face folder, or a .safetensors file) byte for byte\n"
    "between folders and stores such as s3://BUCKET/PREFIX, comparing the checksum of every file.\n"
    "Within one store, the store moves the large files itself. A COPY that ends in '/' is where\n"
    "the copy shall be, under its own name. It appears when it is complete, or not at all; a run\n"
    "that was stopped, even killed, goes on where it was when the same command is given again.\n"
    "\n"
    "      --verify               read the copy again before it is published\n"
    "      --dry-run              print what would be done, write nothing\n" TOOL_LIMITS_HELP
        TOOL_HELP "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

static void print_json(const struct ckpt_copy_result *r, bool dry_run)
{
    json_t *root = json_pack(
        "{s:s, s:b, s:b, s:i, s:I, s:I, s:I, s:i, s:f}", "output", r->path, "dry_run", dry_run,
        "was_there", r->was_there, "files", r->nfiles, "bytes", (json_int_t)r->nbytes,
        "bytes_resumed", (json_int_t)r->nbytes_resumed, "bytes_within",
        (json_int_t)r->nbytes_within, "threads", r->nthreads, "seconds", r->seconds);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

static void print_result(const struct tool *tool, const struct ckpt_copy_result *r, bool dry_run)
{
    if (tool->json) {
        print_json(r, dry_run);
    } else if (tool->quiet) {
        return;
    } else if (r->was_there) {
        printf("%s: is this very checkpoint already\n", r->path);
    } else if (dry_run) {
        printf("%s: nothing was written; it would be %s in %d file%s\n", r->path,
               tool_nbytes(r->nbytes), r->nfiles, r->nfiles == 1 ? "" : "s");
    } else {
        printf("%s: %s in %d file%s, %.2f s", r->path, tool_nbytes(r->nbytes), r->nfiles,
               r->nfiles == 1 ? "" : "s", r->seconds);
        if (r->nbytes_resumed)
            printf(", %s of it from an earlier run", tool_nbytes(r->nbytes_resumed));
        if (r->nbytes_within)
            printf(", %s moved by the store itself", tool_nbytes(r->nbytes_within));
        putchar('\n');
    }
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
    args.out = argv[optind + 1];
    args.dry_run = tool.args.dry_run;
    args.mem_nbytes = tool.args.mem_nbytes;
    args.nthreads = tool.args.nthreads;
    args.progress = tool_progress;
    args.progress_ctx = &tool;
    tool_watch(&tool);
    int rc = ckpt_open(&ckpt, argv[optind], &err);
    if (rc == FSDP_OK)
        rc = ckpt_copy(&result, ckpt, &args, &err);
    status = rc ? tool_fail(&tool, TOOL_FAILED, err.text) : TOOL_DONE;
    if (rc == FSDP_OK)
        print_result(&tool, &result, args.dry_run);
    ckpt_close(ckpt);
    return tool_end(&tool, status);
}
