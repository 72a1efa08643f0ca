/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-reshard: a checkpoint for another number of ranks. Flags and one call. */
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static const char usage[] =
    "Usage: ckpt-reshard [options] CHECKPOINT -o OUTPUT --world N\n"
    "\n"
    "Writes a checkpoint (a step-* folder, a folder of them: the newest, a Hugging Face folder, "
    "or\n"
    "a .safetensors file) anew for N ranks: model, optimizer and training state. From a "
    "checkpoint\n"
    "of fsdp-launch, the data files are those that N ranks would have saved. OUTPUT is a folder; "
    "it\n"
    "appears when it is complete, or not at all; a run that was stopped, even killed, goes on "
    "where\n"
    "it was when the same command is given again.\n"
    "\n" TOOL_WRITE_HELP "      --world N              number of ranks\n"
    "      --mesh RxS             as R replicas of S shards (default: 1xN)\n" TOOL_SELECT_HELP
        TOOL_LIMITS_HELP TOOL_HELP "\n"
    "Sizes: 5GB is 5 * 1000^3, 5G is 5 * 1024^3. Exit status: 0 done, 1 failed, 2 wrong usage.\n";

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

int main(int argc, char **argv)
{
    enum { WORLD = TOOL_OWN, MESH };
    static const struct option options[] = {
        TOOL_OPTIONS,
        TOOL_SELECT_OPTIONS,
        TOOL_WRITE_OPTIONS,
        {"world", required_argument, NULL, WORLD},
        {"mesh", required_argument, NULL, MESH},
        {NULL, 0, NULL, 0},
    };
    const char *world = NULL, *mesh = NULL;
    struct tool tool;
    int option, status;

    tool_begin(&tool, "ckpt-reshard", usage);
    tool.args.output = CKPT_OUTPUT_NATIVE;
    tool.args.all = true;
    while ((option = getopt_long(argc, argv, "o:qh", options, NULL)) != -1) {
        if (option == WORLD)
            world = optarg;
        else if (option == MESH)
            mesh = optarg;
        else if (!tool_option(&tool, option, &status))
            return status;
    }
    if (!tool_arguments(&tool, argc, 1, "one checkpoint is", &status) ||
        (status = parse_mesh(&tool, mesh, world)))
        return status;
    return tool_write(&tool, argv[optind]);
}
