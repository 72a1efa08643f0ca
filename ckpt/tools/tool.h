/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tools share: options, progress, signals, messages. Each tool is its own
 * options and one call of the library. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include <jansson.h>
#include <stdio.h>

#include "ckpt/ckpt.h"
#include "fsdp/sys/cli.h"

/* Exit statuses of all tools but ckpt-diff. */
enum { TOOL_DONE = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

enum { TOOL_MAX_GLOBS = 256 };

struct tool {
    const struct fsdp_cli_program *program;
    const char *name; /* the program's */
    char **operands;
    int noperands;
    bool quiet, json;
    struct ckpt_reshard_args args; /* of the tools that write */
    const char *config;            /* the model's configuration; NULL: next to the checkpoint */
    const char *include[TOOL_MAX_GLOBS], *exclude[TOOL_MAX_GLOBS], *maps[TOOL_MAX_GLOBS];

    bool draw; /* progress: redrawn on a terminal; else a line now and then */
    int percent;
    double begun, said;
};

/* Options that several tools have, whose settings begin with a struct tool. */
extern const struct fsdp_cli_option tool_output_rows[];    /* -o, --dtype, --map, --heads ... */
extern const struct fsdp_cli_option tool_selection_rows[]; /* --include, --exclude */
extern const struct fsdp_cli_option tool_resource_rows[];  /* --mem, --threads */
extern const struct fsdp_cli_option tool_report_rows[];    /* -q, --json */
#define TOOL_SELECTION                                                                             \
    {                                                                                              \
        "Selection", tool_selection_rows                                                           \
    }
#define TOOL_RESOURCES                                                                             \
    {                                                                                              \
        "Resources", tool_resource_rows                                                            \
    }
#define TOOL_REPORT                                                                                \
    {                                                                                              \
        "Output", tool_report_rows                                                                 \
    }

/* Rows for --map and --heads, whose texts differ. */
extern const char *const tool_maps[]; /* the built-in ones */
int tool_take_map(void *tool, const char *text, struct fsdp_err *err);
int tool_take_heads(void *tool, const char *text, struct fsdp_err *err);
#define TOOL_HEADS_ROW                                                                             \
    {                                                                                              \
        "heads",                                                                                   \
            .arg = "QxK", .kind = FSDP_CLI_OWN, .parse = tool_take_heads,                          \
            .help =                                                                                \
                "attention heads of queries and of keys, for maps that need them (default: from "  \
                "config.json)"                                                                     \
    }

int tool_take_config(void *tool, const char *text, struct fsdp_err *err);
#define TOOL_CONFIG_ROW                                                                            \
    {                                                                                              \
        "config",                                                                                  \
            .arg = "DIR", .kind = FSDP_CLI_OWN, .parse = tool_take_config, .is_file = true,        \
            .help =                                                                                \
                "the model's folder or config.json, where the checkpoint has none next to it; "    \
                "FSDP1's LOCAL_STATE_DICT needs it"                                                \
    }

/* What all tools take as CHECKPOINT. */
#define TOOL_CHECKPOINT_HELP                                                                       \
    "CHECKPOINT is a step-* folder, a folder of such folders (the newest is taken), a "            \
    "torch.distributed.checkpoint, a folder of DeepSpeed or Hugging Face, a .safetensors file, "   \
    "or "                                                                                          \
    "a file of torch.save."
/* What the tools that write promise. */
#define TOOL_RESUME_HELP                                                                           \
    "The output appears only when it is complete. If a run is stopped or killed, the same "        \
    "command resumes it."
#define TOOL_SIZE_HELP "SIZE: 5GB is 5 * 1000^3 bytes, 5G is 5 * 1024^3."
extern const struct fsdp_cli_note tool_exits[];

/* Sets defaults, messages and log of a program. */
void tool_begin(struct tool *tool, const struct fsdp_cli_program *program);
/* The command line: -1 to continue, with the operands in tool->operands, or the exit status. */
int tool_parse(struct tool *tool, int argc, char **argv);
/* Prints a failure; for wrong usage also where help is. Returns status. */
int tool_fail(const struct tool *tool, int status, const char *text);

/* The name of an output: neither empty nor '-'. */
int tool_parse_output(const char **out, const char *text, struct fsdp_err *err);
/* The exit status of a failed call: TOOL_USAGE where a setting is at fault. */
int tool_status(const struct fsdp_err *err);

/* Opens the checkpoint, runs ckpt_reshard with tool->args under signals and progress, prints what
 * came of it. Returns the exit status, or dies of the signal that stopped it. */
int tool_write(struct tool *tool, const char *path);
/* The same with an opened checkpoint, which the caller closes. */
int tool_write_opened(struct tool *tool, struct ckpt *ckpt);
/* Prints what came of it. */
int tool_print_result(const struct tool *tool, const struct ckpt_reshard_result *result);

/* Compares the headers of a checkpoint with its config.json (ckpt_check), and prints a line, or
 * each mismatch. Returns the exit status. */
int tool_check(const struct tool *tool, const char *path);

/* For a long operation: SIGINT, SIGTERM and SIGHUP end it within a second, a second one at once;
 * progress (a ckpt_progress_f; ctx: the tool) is shown. */
void tool_watch(struct tool *tool);
int tool_progress(void *ctx, uint64_t done, uint64_t total);
/* Has a signal asked it to end? */
bool tool_is_stopped(void);
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
