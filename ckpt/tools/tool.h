/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tools share: options, progress, signals, messages. Each tool is its own flags
 * and one call of the library. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>

#include "ckpt/ckpt.h"

/* Exit statuses of all tools but ckpt-diff. */
enum { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

enum { TOOL_MAX_GLOBS = 256 };

struct tool {
    const char *name, *usage;
    bool quiet, json;
    struct ckpt_reshard_args args; /* of the tools that write */
    const char *include[TOOL_MAX_GLOBS], *exclude[TOOL_MAX_GLOBS], *maps[TOOL_MAX_GLOBS];

    bool draw; /* progress: redrawn on a terminal; else a line now and then */
    int percent;
    double begun, said;
};

/* Values of getopt_long for the options below; a tool's own begin at TOOL_OWN. */
enum {
    TOOL_VERSION = 512,
    TOOL_JSON,
    TOOL_INCLUDE,
    TOOL_EXCLUDE,
    TOOL_DTYPE,
    TOOL_MEM,
    TOOL_THREADS,
    TOOL_OVERWRITE,
    TOOL_DRY_RUN,
    TOOL_MAP,
    TOOL_HEADS,
    TOOL_OWN = 768,
};
#define TOOL_OPTIONS                                                                               \
    {"quiet", no_argument, NULL, 'q'}, {"json", no_argument, NULL, TOOL_JSON},                     \
        {"help", no_argument, NULL, 'h'},                                                          \
    {                                                                                              \
        "version", no_argument, NULL, TOOL_VERSION                                                 \
    }
#define TOOL_SELECT_OPTIONS                                                                        \
    {"include", required_argument, NULL, TOOL_INCLUDE},                                            \
        {"exclude", required_argument, NULL, TOOL_EXCLUDE},                                        \
        {"threads", required_argument, NULL, TOOL_THREADS},                                        \
    {                                                                                              \
        "mem", required_argument, NULL, TOOL_MEM                                                   \
    }
#define TOOL_WRITE_OPTIONS                                                                         \
    {"output", required_argument, NULL, 'o'}, {"dtype", required_argument, NULL, TOOL_DTYPE},      \
        {"map", required_argument, NULL, TOOL_MAP},                                                \
        {"heads", required_argument, NULL, TOOL_HEADS},                                            \
        {"overwrite", no_argument, NULL, TOOL_OVERWRITE},                                          \
    {                                                                                              \
        "dry-run", no_argument, NULL, TOOL_DRY_RUN                                                 \
    }

/* Their lines in --help, at most 80 columns wide. */
#define TOOL_HELP                                                                                  \
    "  -q, --quiet              print errors only\n"                                               \
    "      --json               print the result as one JSON object\n"                             \
    "  -h, --help               print this help\n"                                                 \
    "      --version            print the version\n"
#define TOOL_SELECT_HELP                                                                           \
    "      --include GLOB       select tensors whose stored name matches, such as\n"               \
    "                           'model.layers.*'; repeat it for more\n"                            \
    "      --exclude GLOB       leave these out, even where --include matches\n"
#define TOOL_LIMITS_HELP                                                                           \
    "      --mem SIZE           memory for buffers (default: 256M); lists take up to\n"            \
    "                           1 KiB more for each tensor\n"                                      \
    "      --threads N          threads, 1 to 256 (default: chosen from the number of\n"           \
    "                           processors and the stores, at most 8)\n"
#define TOOL_WRITE_HELP                                                                            \
    "  -o, --output OUTPUT      the file or folder to write\n"                                     \
    "      --dtype TYPE         cast floating-point tensors to float32, bfloat16,\n"               \
    "                           float16, ... (default: keep the stored type)\n"                    \
    "      --map MAP            rename tensors. MAP is a file of rules FROM -> TO, or\n"           \
    "                           one of torchtitan-to-hf, hf-to-torchtitan, fuse-qkv,\n"            \
    "                           split-qkv, fuse-gate-up, split-gate-up; several\n"                 \
    "                           maps apply in order\n"                                             \
    "      --heads QxK          attention heads of queries and of keys, for maps that\n"           \
    "                           need them (default: from config.json)\n"                           \
    "      --overwrite          replace an existing output of the same kind that\n"                \
    "                           holds nothing else\n"                                              \
    "      --dry-run            print the plan, write nothing\n"
/* What all tools take as CHECKPOINT. */
#define TOOL_CHECKPOINT_HELP                                                                       \
    "CHECKPOINT is a step-* folder, a folder of such folders (the newest is taken),\n"             \
    "a torch.distributed.checkpoint, a Hugging Face folder, or a .safetensors file.\n"
/* What the tools that write promise. */
#define TOOL_RESUME_HELP                                                                           \
    "The output appears only when it is complete. If a run is stopped or killed, the\n"            \
    "same command resumes it.\n"
#define TOOL_SIZE_HELP "SIZE: 5GB is 5 * 1000^3 bytes, 5G is 5 * 1024^3.\n"

/* Sets defaults, messages and log of a program. */
void tool_begin(struct tool *tool, const char *name, const char *usage);
/* A shared option. True: continue; false: exit with *status. */
bool tool_option(struct tool *tool, int option, int *status);
/* Prints a failure; for wrong usage also where help is. Returns status. */
int tool_fail(const struct tool *tool, int status, const char *text);
/* Of the options: *status and false unless exactly nwanted arguments follow them. */
bool tool_arguments(const struct tool *tool, int argc, int nwanted, const char *what, int *status);

/* The name of an output: neither empty nor '-'. */
int tool_parse_output(const char **out, const char *text, struct fsdp_err *err);
/* The exit status of a failed call: TOOL_USAGE where a setting is at fault. */
int tool_status(const struct fsdp_err *err);

/* Opens the checkpoint, runs ckpt_reshard with tool->args under signals and progress, prints what
 * came of it. Returns the exit status, or dies of the signal that stopped it. */
int tool_write(struct tool *tool, const char *path);

/* For a long operation: SIGINT, SIGTERM and SIGHUP end it within a second, a second one at once;
 * progress (a ckpt_progress_f; ctx: the tool) is shown. */
void tool_watch(struct tool *tool);
int tool_progress(void *ctx, uint64_t done, uint64_t total);
/* After it: the exit status, or dies of the signal that stopped it. */
int tool_end(struct tool *tool, int status);

/* A name or path, safe to print (fsdp_text_clean). Static memory, one at a time. */
const char *tool_shown(const char *name);
/* ASCII alone: names may hold characters that a terminal obeys. */
#define TOOL_JSON_FLAGS (JSON_INDENT(1) | JSON_ENSURE_ASCII)
/* For --json. A text that is not UTF-8 gets U+FFFD for each wrong byte, so that the output is JSON
 * whatever a path holds. A new reference, which the caller owns; NULL without memory. */
json_t *tool_json_text(const char *text);
/* object[key] = value, with such a key. Takes the reference to value. */
void tool_json_set(json_t *object, const char *key, json_t *value);
/* Prints root, to which it takes the reference. Returns the exit status. */
int tool_json_print(const struct tool *tool, json_t *root, int status);
/* "12.3 GiB" in static memory; up to four at a time. */
const char *tool_nbytes(uint64_t nbytes);
/* Flushes stdout: a full disk or closed pipe is a failure. */
int tool_flush(const struct tool *tool, int status);

#endif
