/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h: the command line of a program as a table. From it come parsing, --help, --version,
 * --completion and the messages for wrong usage, so that an option is one row:
 *
 *     static const struct fsdp_cli_option rows[] = {
 *         {"output", 'o', "FILE", FSDP_CLI_FILE, AT(output), .help = "the file to write"},
 *         {"threads", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(threads), .least = 1,
 *          .most = 256, .help = "number of threads (default: 8)"},
 *         {.help = NULL}};
 *
 * Every program has --help, --version and --completion in addition. An option's name is given in
 * full; its value follows as --name=VALUE or --name VALUE. Options may stand between operands, up
 * to "--".
 */
#ifndef FSDP_SYS_CLI_H
#define FSDP_SYS_CLI_H

#include "fsdp/tunable.h"

#ifdef __cplusplus
extern "C" {
#endif

enum fsdp_cli_kind {
    FSDP_CLI_FLAG,   /* bool, without a value */
    FSDP_CLI_TEXT,   /* const char *, of argv */
    FSDP_CLI_FILE,   /* the same; completion offers files */
    FSDP_CLI_INT,    /* int, least to most */
    FSDP_CLI_SEED,   /* uint64_t */
    FSDP_CLI_NUMBER, /* double, least to most */
    FSDP_CLI_ABOVE,  /* double, more than least, up to most */
    FSDP_CLI_BELOW,  /* double, least to less than most */
    FSDP_CLI_WITHIN, /* double, more than least, less than most */
    FSDP_CLI_WORD,   /* int: index into `words` */
    FSDP_CLI_NAME,   /* const char *: one of `words` */
    FSDP_CLI_OWN,    /* as `parse` takes it; completion offers `words`, or files if is_file */
};

struct fsdp_cli_option {
    const char *name; /* without "--"; NULL: it has a letter alone */
    char letter;      /* 0: none */
    const char *arg;  /* what --help calls the value; NULL: a flag. "[=FILE]": may be left out */
    enum fsdp_cli_kind kind;
    size_t offset; /* into the program's settings */
    double least, most;
    const char *const *words; /* ended by NULL */
    /* Called each time that the option is given; text is NULL for a value that was left out.
     * FSDP_EINVAL says what is wrong, without the option's name. */
    int (*parse)(void *to, const char *text, struct fsdp_err *err);
    bool is_file;
    const char *help; /* --help wraps it; NULL ends the rows */
};

/* Options under one heading. */
struct fsdp_cli_group {
    const char *title;                  /* NULL ends the groups */
    const struct fsdp_cli_option *rows; /* ended by a row without help */
};

struct fsdp_cli_note {
    const char *name, *text; /* an exit status or variable of the environment; NULL ends them */
};

struct fsdp_cli_program {
    const char *name;
    const char *usage;   /* the forms of the command, a line each, without the name */
    const char *purpose; /* paragraphs, a line each; --help wraps them */
    const struct fsdp_cli_group *groups;
    const char *notes;                               /* paragraphs below the options; NULL: none */
    const char *examples;                            /* commands, a line each */
    const struct fsdp_cli_note *environment, *exits; /* NULL: none */
    int least, most;                                 /* number of operands */
    const char *operands; /* these, for an error: "one checkpoint"; with most 0: what to type in
                             their place, "--prompt TEXT", or NULL */
    bool starts_program;  /* "--" begins another program's command */
    const struct fsdp_tunable *keys; /* operands such as train.steps=100, for completion */
    int nkeys;
};

enum fsdp_cli_request { FSDP_CLI_RUN, FSDP_CLI_HELP, FSDP_CLI_VERSION, FSDP_CLI_COMPLETION };

/* What the command line says besides options. Pointers are into argv, whose order parsing changes.
 */
struct fsdp_cli_line {
    enum fsdp_cli_request request;
    int shell; /* of a completion: index into fsdp_cli_shells */
    int noperands;
    char **operands;
    char **program; /* what follows "--", where the program starts others; else NULL */
};

extern const char *const fsdp_cli_shells[];  /* bash, zsh, fish, NULL */
extern const char *const fsdp_cli_devices[]; /* auto, cpu, cuda, NULL */

/* Sets what the options say. FSDP_EINVAL says what is wrong and what to type. Local. */
int fsdp_cli_parse(struct fsdp_cli_line *out, const struct fsdp_cli_program *program,
                   void *settings, int argc, char **argv, struct fsdp_err *err);

/* Prints what the line requests, which is not FSDP_CLI_RUN. FSDP_EIO where `to` cannot be
 * written. */
int fsdp_cli_answer(FILE *to, const struct fsdp_cli_program *program,
                    const struct fsdp_cli_line *line, struct fsdp_err *err);
void fsdp_cli_print_help(FILE *to, const struct fsdp_cli_program *program);
void fsdp_cli_print_completion(FILE *to, const struct fsdp_cli_program *program, int shell);

/* All of it for a program's main, whose messages go to `errors`: -1 to continue, or the exit
 * status: 0 after an answer on standard output, 1 where that fails, 2 after an error. */
int fsdp_cli_begin(struct fsdp_cli_line *out, const struct fsdp_cli_program *program,
                   void *settings, int argc, char **argv, FILE *errors);
/* Prints what is wrong, and how to get help. Returns 2. */
int fsdp_cli_refuse(FILE *errors, const struct fsdp_cli_program *program, const char *what);

#ifdef __cplusplus
}
#endif
#endif
