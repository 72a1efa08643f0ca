/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify: proves a checkpoint whole. */
#include "tool.h"

static const char usage[] =
    "Usage: ckpt-verify [options] CHECKPOINT\n"
    "\n"
    "Proves that a checkpoint is as it was saved: no file is missing, truncated,\n"
    "stray or overlapping, and every checksum and tensor fingerprint is right. It\n"
    "prints one line per fault.\n"
    "\n" TOOL_CHECKPOINT_HELP "\n" TOOL_HELP "\n"
    "Exit status: 0 whole, 1 damaged, unreadable or with tensors that cannot be\nread, 2 wrong "
    "usage.\n";

struct output {
    json_t *faults; /* NULL: lines */
};

static void report_fault(void *ctx, const char *text)
{
    struct output *out = ctx;
    if (out->faults)
        json_array_append_new(out->faults, tool_json_text(text));
    else
        fprintf(stderr, "%s\n", tool_shown(text));
}

static void summary(const struct ckpt *ckpt)
{
    uint64_t nbytes = 0;
    bool checked = true;
    for (int i = 0; i < ckpt_nfiles(ckpt); i++) {
        nbytes += ckpt_file_at(ckpt, i).nbytes;
        checked &= ckpt_file_at(ckpt, i).has_crc;
    }
    printf("%s: %d tensor%s in %d file%s, %llu bytes: %s\n", tool_shown(ckpt_path(ckpt)),
           ckpt_ntensors(ckpt), ckpt_ntensors(ckpt) == 1 ? "" : "s", ckpt_nfiles(ckpt),
           ckpt_nfiles(ckpt) == 1 ? "" : "s", (unsigned long long)nbytes,
           checked ? "whole; checksums and fingerprints prove every byte"
           : ckpt_format(ckpt) == CKPT_DCP
               ? "whole; each archive's checksum is right (that all are of one save is not proved)"
               : "complete and readable (this format has no checksums)");
}

static int print_json(const struct tool *tool, const struct ckpt *ckpt, const struct output *out,
                      int status, const struct fsdp_err *err)
{
    json_t *root = json_pack("{s:b, s:O, s:o*, s:i}", "whole", status == TOOL_DONE, "faults",
                             out->faults, "error", status ? tool_json_text(err->text) : NULL,
                             "files", ckpt ? ckpt_nfiles(ckpt) : 0);
    return tool_json_print(tool, root, status);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {TOOL_OPTIONS, {NULL, 0, NULL, 0}};
    struct output out = {NULL};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    struct tool tool;
    int option, status;

    tool_begin(&tool, "ckpt-verify", usage);
    while ((option = getopt_long(argc, argv, "qh", options, NULL)) != -1)
        if (!tool_option(&tool, option, &status))
            return status;
    if (!tool_arguments(&tool, argc, 1, "one checkpoint is", &status))
        return status;
    if (tool.json)
        out.faults = json_array();
    int rc = ckpt_open(&ckpt, argv[optind], &err);
    if (rc == FSDP_OK)
        rc = ckpt_verify(ckpt, report_fault, &out, &err);
    status = rc ? tool_fail(&tool, TOOL_FAILED, err.text) : TOOL_DONE;
    if (tool.json)
        status = print_json(&tool, ckpt, &out, status, &err);
    else if (!rc && !tool.quiet)
        summary(ckpt);
    json_decref(out.faults);
    ckpt_close(ckpt);
    return tool_flush(&tool, status);
}
