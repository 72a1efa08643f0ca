/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-verify: proves a checkpoint whole. */
#include "tool.h"

static const struct fsdp_cli_option verify_rows[] = {TOOL_CONFIG_ROW, {.help = NULL}};
static const struct fsdp_cli_group groups[] = {{"Model", verify_rows}, TOOL_REPORT, {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {
    {"0", "whole, or readable (nothing says which files there must be)"},
    {"1", "damaged, unreadable or with tensors that cannot be read"},
    {"2", "wrong usage"},
    {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-verify",
    .usage = "[options] CHECKPOINT",
    .purpose = "Proves that a checkpoint is as it was saved: no file is missing, truncated or "
               "overlapping, no shard is of another save, and every checksum and tensor "
               "fingerprint is right. It prints one line per fault.\n"
               "\n" TOOL_CHECKPOINT_HELP,
    .groups = groups,
    .examples = "ckpt-verify checkpoints\n"
                "ckpt-verify --quiet checkpoints/step-00001000 && echo whole\n"
                "ckpt-verify --json s3://bucket/run1",
    .exits = exits,
    .least = 1,
    .most = 1,
    .operands = "exactly one checkpoint: ckpt-verify CHECKPOINT",
};

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
           : !ckpt_says_whole(ckpt)
               ? "readable; nothing says which files there must be, so that it cannot be known "
                 "whether some are missing (this format has no checksums)"
           : ckpt_has_checksums(ckpt)
               ? "whole; each archive's checksum is right (that all are of one save is not proved)"
               : "complete and readable (this format has no checksums)");
}

static int print_json(const struct tool *tool, const struct ckpt *ckpt, const struct output *out,
                      int status, const struct fsdp_err *err)
{
    const bool known = status || ckpt_says_whole(ckpt);
    json_t *root =
        json_pack("{s:o, s:O, s:o*, s:i}", "whole", known ? json_boolean(!status) : json_null(),
                  "faults", out->faults, "error", status ? tool_json_text(err->text) : NULL,
                  "files", ckpt ? ckpt_nfiles(ckpt) : 0);
    return tool_json_print(tool, root, status);
}

int main(int argc, char **argv)
{
    struct output out = {NULL};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    struct tool tool;

    tool_begin(&tool, &program);
    int status = tool_parse(&tool, argc, argv);
    if (status >= 0)
        return status;
    if (tool.json)
        out.faults = json_array();
    int rc = ckpt_open_with(&ckpt, tool.operands[0], tool.config, &err);
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
