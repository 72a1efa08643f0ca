/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tools share: options, progress, signals, messages. Each tool is its own flags
 * and one call of the library. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include <getopt.h>
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

/* Their lines in --help. */
#define TOOL_HELP                                                                                  \
    "  -q, --quiet                print nothing but errors\n"                                      \
    "      --json                 the result as one JSON object\n"                                 \
    "  -h, --help                 this text\n"                                                     \
    "      --version\n"
#define TOOL_SELECT_HELP                                                                           \
    "      --include GLOB         only tensors whose stored name matches, such as\n"               \
    "                             'model.layers.*'; may be given several times\n"                  \
    "      --exclude GLOB         not these; stronger than --include\n"
#define TOOL_LIMITS_HELP                                                                           \
    "      --mem SIZE             memory for buffers (default: 256M)\n"                            \
    "      --threads N            threads (default: what suits the processors and stores,\n"       \
    "                             at most 8)\n"
#define TOOL_WRITE_HELP                                                                            \
    "  -o, --output OUTPUT        what to write\n"                                                 \
    "      --dtype TYPE           cast floating tensors: float32, bfloat16, float16, ...\n"        \
    "                             (default: as stored)\n"                                          \
    "      --map MAP              rename tensors: a file of rules FROM -> TO, or one of\n"         \
    "                             torchtitan-to-hf, hf-to-torchtitan, fuse-qkv, split-qkv,\n"      \
    "                             fuse-gate-up, split-gate-up; several apply in order\n"           \
    "      --heads QxK            attention heads of queries and of keys, for maps that need\n"    \
    "                             them (default: as config.json has them)\n"                       \
    "      --overwrite            replace an existing output\n"                                    \
    "      --dry-run              print what would be done, write nothing\n"

/* Sets defaults, messages and log of a program. */
void tool_begin(struct tool *tool, const char *name, const char *usage);
/* A shared option. True: go on; false: exit with *status. */
bool tool_option(struct tool *tool, int option, int *status);
/* Prints a failure; for wrong usage also where help is. Returns status. */
int tool_fail(const struct tool *tool, int status, const char *text);
/* Of the options: *status and false unless exactly nwanted arguments follow them. */
bool tool_arguments(const struct tool *tool, int argc, int nwanted, const char *what, int *status);

/* Opens the checkpoint, runs ckpt_reshard with tool->args under signals and progress, prints what
 * came of it. Returns the exit status, or dies of the signal that stopped it. */
int tool_write(struct tool *tool, const char *path);

/* For a long operation: SIGINT, SIGTERM and SIGHUP end it within a second, a second one at once;
 * progress (a ckpt_progress_f; ctx: the tool) is shown. */
void tool_watch(struct tool *tool);
int tool_progress(void *ctx, uint64_t done, uint64_t total);
/* After it: the exit status, or dies of the signal that stopped it. */
int tool_end(struct tool *tool, int status);

/* Names come from files: what would command a terminal is shown as '?'. Static memory, one at a
 * time. */
const char *tool_shown(const char *name);
/* "12.3 GiB" in static memory; up to four at a time. */
const char *tool_nbytes(uint64_t nbytes);
/* Flushes stdout: a full disk or closed pipe is a failure. */
int tool_flush(const struct tool *tool, int status);

#endif
