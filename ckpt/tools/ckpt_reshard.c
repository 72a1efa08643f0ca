/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-reshard: a checkpoint for another number of ranks. Flags and one call. */
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static const char usage[] =
    "Usage: ckpt-reshard [options] CHECKPOINT -o OUTPUT --world N\n"
    "\n"
    "Rewrites a checkpoint for N ranks: weights, optimizer and training state. From a\n"
    "checkpoint of fsdp-launch, the data files equal those that N ranks would save.\n"
    "\n" TOOL_CHECKPOINT_HELP TOOL_RESUME_HELP "\n" TOOL_WRITE_HELP
    "      --world N            number of ranks\n"
    "      --mesh RxS           R replicas of S shards (default: 1xN)\n"
    "      --format FORMAT      native (default), dcp (.distcp files for\n"
    "                           torch.distributed.checkpoint) or hf-dcp (its Hugging\n"
    "                           Face layout)\n"
    "      --compress HOW       zstd or none (default); native files only\n" TOOL_SELECT_HELP
        TOOL_LIMITS_HELP TOOL_HELP "\n" TOOL_SIZE_HELP
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

static bool parse_number(int *out, const char *text, const char **end)
{
    char *stop;
    long value = strtol(text, &stop, 10);
    *end = stop;
    *out = (int)value;
    return stop != text && value >= 1 && value <= 1 << 20;
}

static int parse_mesh(struct tool *tool, const char *mesh, const char *world)
{
    struct ckpt_reshard_args *args = &tool->args;
    const char *end;
    int nranks = 0;
    if (world && (!parse_number(&nranks, world, &end) || *end))
        return tool_fail(tool, TOOL_USAGE, "--world: not a number of ranks");
    if (!world && !mesh)
        return tool_fail(tool, TOOL_USAGE, "for how many ranks? (--world N)");
    args->shard_size = nranks;
    if (!mesh)
        return TOOL_DONE;
    if (!parse_number(&args->replicate_size, mesh, &end) || *end != 'x' ||
        !parse_number(&args->shard_size, end + 1, &end) || *end)
        return tool_fail(tool, TOOL_USAGE,
                         "--mesh: not of the form RxS, such as 2x4: replicas x shards");
    if (world && (int64_t)args->replicate_size * args->shard_size != nranks)
        return tool_fail(tool, TOOL_USAGE, "--mesh does not make as many ranks as --world says");
    return TOOL_DONE;
}

static int parse_format(struct tool *tool, const char *text)
{
    static const struct {
        const char *name;
        enum ckpt_output output;
    } formats[] = {
        {"native", CKPT_OUTPUT_NATIVE}, {"dcp", CKPT_OUTPUT_DCP}, {"hf-dcp", CKPT_OUTPUT_HF_DCP}};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (!strcmp(text, formats[i].name)) {
            tool->args.output = formats[i].output;
            return TOOL_DONE;
        }
    }
    return tool_fail(tool, TOOL_USAGE, "--format: native, dcp or hf-dcp");
}

static int parse_compress(struct tool *tool, const char *text)
{
    if (strcmp(text, "zstd") && strcmp(text, "none"))
        return tool_fail(tool, TOOL_USAGE, "--compress: zstd or none");
    tool->args.compress = strcmp(text, "zstd") ? CKPT_COMPRESS_NONE : CKPT_COMPRESS_ZSTD;
    return TOOL_DONE;
}

int main(int argc, char **argv)
{
    enum { WORLD = TOOL_OWN, MESH, FORMAT, COMPRESS };
    static const struct option options[] = {
        TOOL_OPTIONS,
        TOOL_SELECT_OPTIONS,
        TOOL_WRITE_OPTIONS,
        {"world", required_argument, NULL, WORLD},
        {"mesh", required_argument, NULL, MESH},
        {"format", required_argument, NULL, FORMAT},
        {"compress", required_argument, NULL, COMPRESS},
        {NULL, 0, NULL, 0},
    };
    const char *world = NULL, *mesh = NULL;
    struct tool tool;
    int option, status;

    tool_begin(&tool, "ckpt-reshard", usage);
    tool.args.output = CKPT_OUTPUT_NATIVE;
    tool.args.all = true;
    while ((option = getopt_long(argc, argv, "o:qh", options, NULL)) != -1) {
        status = TOOL_DONE;
        if (option == WORLD)
            world = optarg;
        else if (option == MESH)
            mesh = optarg;
        else if (option == FORMAT)
            status = parse_format(&tool, optarg);
        else if (option == COMPRESS)
            status = parse_compress(&tool, optarg);
        else if (!tool_option(&tool, option, &status))
            return status;
        if (status)
            return status;
    }
    if (!tool_arguments(&tool, argc, 1, "one checkpoint is", &status) ||
        (status = parse_mesh(&tool, mesh, world)))
        return status;
    return tool_write(&tool, argv[optind]);
}
