/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-reshard: a checkpoint for another number of ranks. Options and one call. */
#include <stdlib.h>

#include "tool.h"

struct settings {
    struct tool tool; /* first */
    const char *mesh;
    int nranks; /* 0: not given */
    int format, compress;
};

static const char *const formats[] = {"native", "dcp", "hf-dcp", NULL};
static const enum ckpt_output outputs[] = {CKPT_OUTPUT_NATIVE, CKPT_OUTPUT_DCP, CKPT_OUTPUT_HF_DCP};
static const char *const compressions[] = {"none", "zstd", NULL};

#define AT(field) offsetof(struct settings, field)
enum { MOST_RANKS = 1 << 20 };
static const struct fsdp_cli_option ranks_rows[] = {
    {"world", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(nranks), .least = 1,
     .most = MOST_RANKS, .help = "number of ranks"},
    {"mesh", .arg = "RxS", .kind = FSDP_CLI_TEXT, .offset = AT(mesh),
     .help = "R replicas of S shards (default: 1xN)"},
    {"format", .arg = "FORMAT", .kind = FSDP_CLI_WORD, .offset = AT(format), .words = formats,
     .help = "native (default), dcp (.distcp files for torch.distributed.checkpoint) or hf-dcp "
             "(its Hugging Face layout)"},
    {"compress", .arg = "HOW", .kind = FSDP_CLI_WORD, .offset = AT(compress), .words = compressions,
     .help = "zstd or none (default); native files only"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {{"Result", tool_output_rows},
                                               {"Ranks and format", ranks_rows},
                                               TOOL_SELECTION,
                                               TOOL_RESOURCES,
                                               TOOL_REPORT,
                                               {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-reshard",
    .usage = "[options] CHECKPOINT -o OUTPUT --world N",
    .purpose = "Rewrites a checkpoint for N ranks: weights, optimizer and training state. From a "
               "checkpoint of fsdp-launch, the data files equal those that N ranks would save.\n"
               "\n" TOOL_CHECKPOINT_HELP " " TOOL_RESUME_HELP,
    .groups = groups,
    .notes = TOOL_SIZE_HELP,
    .examples = "ckpt-reshard checkpoints -o for-16 --world 16\n"
                "ckpt-reshard checkpoints -o for-2-nodes --world 16 --mesh 2x8\n"
                "ckpt-reshard checkpoints -o torch --world 8 --format dcp",
    .exits = tool_exits,
    .least = 1,
    .most = 1,
    .operands = "exactly one checkpoint: ckpt-reshard CHECKPOINT -o OUTPUT --world N",
};

static bool parse_number(int *out, const char *text, const char **end)
{
    char *stop;
    long value = strtol(text, &stop, 10);
    *end = stop;
    *out = (int)value;
    return stop != text && value >= 1 && value <= 1 << 20;
}

static int parse_mesh(struct settings *set)
{
    struct ckpt_reshard_args *args = &set->tool.args;
    const char *end;
    if (!set->nranks && !set->mesh)
        return tool_fail(&set->tool, TOOL_USAGE, "give the number of ranks: --world N");
    args->shard_size = set->nranks;
    if (!set->mesh)
        return TOOL_DONE;
    if (!parse_number(&args->replicate_size, set->mesh, &end) || *end != 'x' ||
        !parse_number(&args->shard_size, end + 1, &end) || *end)
        return tool_fail(&set->tool, TOOL_USAGE,
                         "--mesh: not of the form RxS, such as 2x4: replicas x shards");
    if (set->nranks && (int64_t)args->replicate_size * args->shard_size != set->nranks)
        return tool_fail(&set->tool, TOOL_USAGE,
                         "--mesh does not make as many ranks as --world says");
    return TOOL_DONE;
}

int main(int argc, char **argv)
{
    struct settings set = {.format = 0};
    struct tool *tool = &set.tool;

    tool_begin(tool, &program);
    tool->args.all = true;
    int status = tool_parse(tool, argc, argv);
    if (status >= 0 || (status = parse_mesh(&set)))
        return status;
    tool->args.output = outputs[set.format];
    tool->args.compress = set.compress ? CKPT_COMPRESS_ZSTD : CKPT_COMPRESS_NONE;
    return tool_write(tool, tool->operands[0]);
}
