/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-merge: full weights from a sharded checkpoint. Flags and one call. */
#include "tool.h"

static const char usage[] =
    "Usage: ckpt-merge [options] CHECKPOINT -o OUTPUT\n"
    "\n"
    "Writes the full weights of a sharded checkpoint: to one file if OUTPUT ends in\n"
    ".safetensors, else to a Hugging Face folder.\n"
    "\n" TOOL_CHECKPOINT_HELP TOOL_RESUME_HELP "\n" TOOL_WRITE_HELP "      --max-shard-size SIZE\n"
    "                           begin a new file of a folder at this size\n"
    "                           (default: 5GB; 0: never)\n"
    "      --dcp                write a folder of .distcp files for\n"
    "                           torch.distributed.checkpoint instead\n"
    "      --all                also write the optimizer's tensors\n"
    "      --ema                write the moving averages of the weights\n"
    "                           (optim.ema_decay); frozen weights stay as they "
    "are\n" TOOL_SELECT_HELP TOOL_LIMITS_HELP TOOL_HELP "\n" TOOL_SIZE_HELP
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

int main(int argc, char **argv)
{
    enum { ALL = TOOL_OWN, EMA, SHARD, DCP };
    static const struct option options[] = {
        TOOL_OPTIONS,
        TOOL_SELECT_OPTIONS,
        TOOL_WRITE_OPTIONS,
        {"max-shard-size", required_argument, NULL, SHARD},
        {"all", no_argument, NULL, ALL},
        {"ema", no_argument, NULL, EMA},
        {"dcp", no_argument, NULL, DCP},
        {NULL, 0, NULL, 0},
    };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tool tool;
    int option, status;

    tool_begin(&tool, "ckpt-merge", usage);
    tool.args.max_shard_nbytes = UINT64_C(5000000000);
    while ((option = getopt_long(argc, argv, "o:qh", options, NULL)) != -1) {
        if (option == ALL)
            tool.args.all = true;
        else if (option == EMA)
            tool.args.ema = true;
        else if (option == DCP)
            tool.args.output = CKPT_OUTPUT_DCP;
        else if (option == SHARD && ckpt_nbytes_parse(&tool.args.max_shard_nbytes, optarg, &err))
            return tool_fail(&tool, TOOL_USAGE, err.text);
        else if (option != SHARD && !tool_option(&tool, option, &status))
            return status;
    }
    if (tool.args.all && tool.args.ema)
        return tool_fail(&tool, TOOL_USAGE, "--ema takes the place of weights; --all keeps them");
    if (!tool_arguments(&tool, argc, 1, "one checkpoint is", &status))
        return status;
    return tool_write(&tool, argv[optind]);
}
