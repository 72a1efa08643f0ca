/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-merge: full weights from a sharded checkpoint. Options and one call. */
#include <string.h>
#include <strings.h>

#include "ckpt/adapter.h"
#include "ckpt/average.h"
#include "watch.h"

struct settings {
    struct tool tool; /* first */
    bool dcp, torch, no_card, check, average, watches;
    struct watch_args watch;
    const char *type; /* of a GGUF file */
    const char *adapters[TOOL_MAX_GLOBS];
    int nadapters;
    const char *quantize_ignore[TOOL_MAX_GLOBS];
};

static int take_adapter(void *to, const char *text, struct fsdp_err *err)
{
    struct settings *set = to;
    if (set->nadapters == TOOL_MAX_GLOBS)
        return fsdp_err_set(err, FSDP_EINVAL, "there may be %d adapters", TOOL_MAX_GLOBS);
    set->adapters[set->nadapters++] = text;
    return FSDP_OK;
}

static int take_shard_size(void *to, const char *text, struct fsdp_err *err)
{
    return ckpt_nbytes_parse(to, text, err);
}

static int take_ignored(void *to, const char *text, struct fsdp_err *err)
{
    struct settings *set = to;
    struct ckpt_reshard_args *args = &set->tool.args;
    if (args->nquantize_ignore == TOOL_MAX_GLOBS)
        return fsdp_err_set(err, FSDP_EINVAL, "there may be %d patterns", TOOL_MAX_GLOBS);
    set->quantize_ignore[args->nquantize_ignore++] = text;
    args->quantize_ignore = set->quantize_ignore;
    return FSDP_OK;
}

static int take_type(void *to, const char *text, struct fsdp_err *err)
{
    (void)err; /* the library knows the types */
    *(const char **)to = text;
    return FSDP_OK;
}

static const uint64_t shard_nbytes = UINT64_C(5000000000); /* of a file of a folder */

#define AT(field) offsetof(struct settings, field)
static const char *const types[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m", "q6_k", NULL};
static const char *const schemes[] = {"fp8_dynamic", "fp8_channel", "fp8_tensor",    "w8a16",
                                      "w8a16_g64",   "w8a16_g32",   "w8a16_channel", NULL};
static const struct fsdp_cli_option merge_rows[] = {
    {"max-shard-size", .arg = "SIZE", .kind = FSDP_CLI_OWN,
     .offset = AT(tool.args.max_shard_nbytes), .parse = take_shard_size,
     .help = "begin a new file of a folder at this size (default: 5GB; 0: never)"},
    {"adapter", .arg = "PATH[=WEIGHT]", .kind = FSDP_CLI_OWN, .parse = take_adapter,
     .is_file = true,
     .help = "add a LoRA adapter to the weights, times WEIGHT: PEFT's folder, or a checkpoint of a "
             "run with adapters; repeat it for more"},
    {"average", .offset = AT(average),
     .help = "write the average of several checkpoints: --average A B C, or A=2 B=1, whose weights "
             "are divided by their sum"},
    {"dcp", .offset = AT(dcp),
     .help = "write a folder of .distcp files for torch.distributed.checkpoint instead"},
    {"torch", .offset = AT(torch),
     .help = "write a folder of pytorch_model.bin, as torch.save does, instead"},
    {"no-card", .offset = AT(no_card),
     .help = "write no model card (README.md) into a Hugging Face folder"},
    {"type", .arg = "TYPE", .kind = FSDP_CLI_OWN, .offset = AT(type), .words = types,
     .parse = take_type,
     .help =
         "of an OUTPUT that ends in .gguf: f32, f16, bf16, q8_0, q4_0, q4_k_m or q6_k (default: "
         "the stored type)"},
    {"quantize", .arg = "SCHEME", .kind = FSDP_CLI_OWN, .offset = AT(tool.args.quantize),
     .words = schemes, .parse = take_type,
     .help = "quantize the linear layers of a folder, as compressed-tensors does: fp8_dynamic, "
             "fp8_channel, fp8_tensor, w8a16, w8a16_g64, w8a16_g32 or w8a16_channel"},
    {"quantize-ignore", .arg = "GLOB", .kind = FSDP_CLI_OWN, .parse = take_ignored,
     .help = "leave layers of matching names as they are, as the head always is; repeat it for "
             "more"},
    {"check", .offset = AT(check),
     .help = "write nothing: compare names, shapes and types of CHECKPOINT's tensors with its "
             "config.json"},
    {"all", .offset = AT(tool.args.all), .help = "also write the optimizer's tensors"},
    {"ema", .offset = AT(tool.args.ema),
     .help = "write the moving averages of the weights (optim.ema_decay); frozen weights stay as "
             "they are"},
    {.help = NULL}};
static const struct fsdp_cli_option watch_rows[] = {
    {"watch", .offset = AT(watches),
     .help = "publish each checkpoint of a running job below the folder OUTPUT, until the job has "
             "ended; --type makes GGUF files"},
    {"then", .arg = "COMMAND", .kind = FSDP_CLI_TEXT, .offset = AT(watch.then),
     .help = "after each, a command for the shell; CKPT_STEP, CKPT_SOURCE and CKPT_OUTPUT are in "
             "its environment; an address of http:// or https:// gets them by POST"},
    {"poll", .arg = "SECONDS", .kind = FSDP_CLI_ABOVE, .offset = AT(watch.poll_s), .least = 0,
     .most = 86400, .help = "between two looks (default: 10)"},
    {"end-after", .arg = "SECONDS", .kind = FSDP_CLI_NUMBER, .offset = AT(watch.end_s), .least = 0,
     .most = 1e9,
     .help = "end when there was no job for so long (default: 60); a job that is done ends it at "
             "once"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {{"Result", tool_output_rows},
                                               {"Contents and form", merge_rows},
                                               {"While a job runs", watch_rows},
                                               TOOL_SELECTION,
                                               TOOL_RESOURCES,
                                               TOOL_REPORT,
                                               {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-merge",
    .usage = "[options] CHECKPOINT -o OUTPUT\n"
             "--average [options] CHECKPOINT[=WEIGHT]... -o OUTPUT\n"
             "--watch [options] CHECKPOINTS -o OUTPUT\n"
             "--check CHECKPOINT",
    .purpose = "Writes the full weights of a sharded checkpoint: to one file if OUTPUT ends in "
               ".safetensors, to a GGUF file for llama.cpp if it ends in .gguf, to a file of "
               "torch.save if it ends in .pt, .pth or .bin, else to a Hugging Face folder.\n"
               "\n" TOOL_CHECKPOINT_HELP " " TOOL_RESUME_HELP,
    .groups = groups,
    .notes = TOOL_SIZE_HELP,
    .examples = "ckpt-merge checkpoints -o merged\n"
                "ckpt-merge checkpoints/step-00001000 -o model.safetensors --dtype bfloat16\n"
                "ckpt-merge --adapter checkpoints Llama-3.1-8B -o llama.gguf --type q4_k_m",
    .exits = tool_exits,
    .least = 1,
    .most = TOOL_MAX_GLOBS,
    .operands = "one checkpoint: ckpt-merge CHECKPOINT -o OUTPUT",
};

static bool ends_in(const char *name, const char *const *ends)
{
    const char *end = name ? strrchr(name, '.') : NULL;
    for (int i = 0; end && ends[i]; i++)
        if (!strcasecmp(end, ends[i]))
            return true;
    return false;
}
static const char *const gguf_ends[] = {".gguf", NULL};
static const char *const torch_ends[] = {".pt", ".pth", ".bin", NULL};

/* The output's name says that it is a GGUF file. Returns -1, or the status of wrong usage. */
static int take_gguf(struct settings *set)
{
    struct tool *tool = &set->tool;
    if (!ends_in(tool->args.out, gguf_ends) && !(set->watches && set->type))
        return set->type ? tool_fail(tool, TOOL_USAGE,
                                     "--type is of a GGUF file: name an output that ends in .gguf")
                         : -1;
    if (set->dcp || set->torch || tool->args.all)
        return tool_fail(tool, TOOL_USAGE,
                         "a GGUF file holds whole weights alone: leave out --dcp, --torch "
                         "and --all");
    if (tool->args.dtype)
        return tool_fail(tool, TOOL_USAGE, "--type is the type of a GGUF file; leave out --dtype");
    tool->args.output = CKPT_OUTPUT_GGUF;
    tool->args.dtype = set->type;
    return -1;
}

/* Returns -1, or the status of wrong usage. */
static int check_quantize(const struct settings *set)
{
    const struct tool *tool = &set->tool;
    if (!tool->args.quantize)
        return tool->args.nquantize_ignore
                   ? tool_fail(tool, TOOL_USAGE, "--quantize-ignore is of --quantize")
                   : -1;
    if (set->dcp || set->torch || tool->args.all || set->type ||
        ends_in(tool->args.out, gguf_ends) || ends_in(tool->args.out, torch_ends))
        return tool_fail(tool, TOOL_USAGE,
                         "--quantize writes a Hugging Face folder of weights: leave out --dcp, "
                         "--torch and --all, and name a folder; a GGUF file has --type instead");
    return -1;
}

/* Of a path of argv: names are put behind it. */
static const char *without_slash(const char *path)
{
    char *end = (char *)(uintptr_t)path + strlen(path);
    while (end > path + 1 && end[-1] == '/')
        *--end = 0;
    return path;
}

static int merge_watched(struct settings *set)
{
    struct tool *tool = &set->tool;
    static const char *const safetensors_ends[] = {".safetensors", NULL};

    if (!tool->args.out)
        return tool_fail(tool, TOOL_USAGE, "name the output: -o OUTPUT");
    if (ends_in(tool->args.out, gguf_ends) || ends_in(tool->args.out, torch_ends) ||
        ends_in(tool->args.out, safetensors_ends))
        return tool_fail(tool, TOOL_USAGE,
                         "--watch publishes each checkpoint below a folder: -o FOLDER (--type "
                         "makes GGUF files)");
    if (set->watch.poll_s <= 0)
        set->watch.poll_s = 10;
    if (set->watch.end_s < 0)
        set->watch.end_s = 60;
    if (set->average || set->nadapters || tool->args.overwrite || tool->args.dry_run)
        return tool_fail(tool, TOOL_USAGE,
                         "--watch publishes what a job saves: leave out --average, --adapter, "
                         "--overwrite and --dry-run");
    set->watch.tool = tool;
    set->watch.root = without_slash(tool->operands[0]);
    set->watch.out = without_slash(tool->args.out);
    set->watch.suffix = set->type ? ".gguf" : "";
    return watch(&set->watch);
}

/* An option that was given, and means nothing with others. */
struct given {
    bool is;
    const char *name;
};

/* The name of the first that was given; NULL: none was. */
static const char *first_given(const struct given *options, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (options[i].is)
            return options[i].name;
    return NULL;
}

/* Returns -1, or the status of wrong usage. */
static int check_watch_options(const struct settings *set)
{
    const struct given options[] = {{set->watch.then, "--then"},
                                    {set->watch.poll_s > 0, "--poll"},
                                    {set->watch.end_s >= 0, "--end-after"}};
    const char *name = first_given(options, sizeof options / sizeof options[0]);
    char text[80];
    if (set->watches || !name)
        return -1;
    snprintf(text, sizeof text, "%s is of --watch", name);
    return tool_fail(&set->tool, TOOL_USAGE, text);
}

static int check_only(const struct settings *set)
{
    const struct tool *tool = &set->tool;
    const struct ckpt_reshard_args *args = &tool->args;
    const struct given options[] = {{args->out, "-o"},
                                    {set->average, "--average"},
                                    {set->watches, "--watch"},
                                    {set->nadapters, "--adapter"},
                                    {args->dtype, "--dtype"},
                                    {args->select.nmaps, "--map"},
                                    {args->select.nheads, "--heads"},
                                    {args->overwrite, "--overwrite"},
                                    {args->dry_run, "--dry-run"},
                                    {args->max_shard_nbytes != shard_nbytes, "--max-shard-size"},
                                    {set->dcp, "--dcp"},
                                    {set->torch, "--torch"},
                                    {set->no_card, "--no-card"},
                                    {set->type, "--type"},
                                    {args->quantize, "--quantize"},
                                    {args->nquantize_ignore, "--quantize-ignore"},
                                    {args->all, "--all"},
                                    {args->ema, "--ema"},
                                    {args->select.ninclude, "--include"},
                                    {args->select.nexclude, "--exclude"}};
    const char *name = first_given(options, sizeof options / sizeof options[0]);
    char text[80];
    if (name) {
        snprintf(text, sizeof text, "--check writes nothing: leave out %s", name);
        return tool_fail(tool, TOOL_USAGE, text);
    }
    if (tool->noperands > 1)
        return tool_fail(tool, TOOL_USAGE,
                         "give exactly one checkpoint: ckpt-merge --check CHECKPOINT");
    return tool_check(tool, tool->operands[0]);
}

static int merge_average(struct tool *tool)
{
    struct ckpt_average *average = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!tool->args.out)
        return tool_fail(tool, TOOL_USAGE, "name the output: -o OUTPUT");
    tool_watch(tool);
    const int rc = ckpt_average_open(&average, (const char *const *)tool->operands, tool->noperands,
                                     tool->config, &err);
    tool->args.average = average;
    const int status = rc ? tool_fail(tool, tool_status(&err), err.text)
                          : tool_write_opened(tool, ckpt_average_member(average, 0));
    ckpt_average_close(average);
    return tool_end(tool, status);
}

static int merge(struct settings *set)
{
    struct tool *tool = &set->tool;
    struct ckpt_adapters *adapters = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (set->watches)
        return merge_watched(set);
    if (set->nadapters && ckpt_adapters_open(&adapters, set->adapters, set->nadapters, &err))
        return tool_fail(tool, tool_status(&err), err.text);
    tool->args.adapters = adapters;
    const int status = set->average ? merge_average(tool) : tool_write(tool, tool->operands[0]);
    ckpt_adapters_close(adapters);
    return status;
}

int main(int argc, char **argv)
{
    struct settings set = {.watch = {.poll_s = 0, .end_s = -1}}; /* not given */
    struct tool *tool = &set.tool;

    tool_begin(tool, &program);
    tool->args.max_shard_nbytes = shard_nbytes;
    int status = tool_parse(tool, argc, argv);
    if (status >= 0)
        return status;
    status = check_watch_options(&set);
    if (status >= 0)
        return status;
    if (set.check)
        return check_only(&set);
    tool->args.card = !set.no_card;
    if (set.dcp && set.torch)
        return tool_fail(tool, TOOL_USAGE, "an output has one form: --dcp or --torch");
    if (set.dcp)
        tool->args.output = CKPT_OUTPUT_DCP;
    else if (set.torch || ends_in(tool->args.out, torch_ends))
        tool->args.output = CKPT_OUTPUT_TORCH;
    status = check_quantize(&set);
    if (status < 0)
        status = take_gguf(&set);
    if (status >= 0)
        return status;
    if (!set.average && tool->noperands > 1)
        return tool_fail(tool, TOOL_USAGE,
                         "give exactly one checkpoint: ckpt-merge CHECKPOINT -o OUTPUT (or "
                         "--average)");
    if (set.average && tool->args.all)
        return tool_fail(tool, TOOL_USAGE, "an average is of weights: leave out --all");
    if (tool->args.all && tool->args.ema)
        return tool_fail(tool, TOOL_USAGE, "--ema takes the place of weights; --all keeps them");
    return merge(&set);
}
