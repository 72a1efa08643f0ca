/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the command line of fsdp-generate, fsdp-tokenize and fsdp-gradcheck as tables. */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include "fsdp/base.h"

enum option_kind {
    OPTION_FLAG,   /* bool, without an argument */
    OPTION_TEXT,   /* const char *, of argv */
    OPTION_INT,    /* int, least to most */
    OPTION_SEED,   /* uint64_t */
    OPTION_NUMBER, /* double, least to most */
    OPTION_SHARE,  /* double, least to less than 1; 0 only where least is negative */
    OPTION_WORD,   /* int: index into `words`, NULL-terminated */
    OPTION_NAME,   /* const char *: one of `words` */
    OPTION_OWN,    /* as `parse` takes it */
};

struct option_row {
    const char *name;
    enum option_kind kind;
    size_t offset; /* into the program's settings */
    double least, most;
    const char *const *words;
    /* FSDP_EINVAL says what is wrong. Called each time that the option is given. */
    int (*parse)(void *to, const char *text, struct fsdp_err *err);
};

struct option_table {
    const char *program, *usage;
    const struct option_row *rows;
    int nrows;
    bool operands; /* arguments besides options, which are then argv[optind] and so on */
};

extern const char *const option_devices[]; /* auto, cpu, cuda */

/* Sets what the command line says; --help and --version are added to the table's,
 * and -v and -o where it has --verbose and --output. Returns -1, or
 * the exit code where the program ends here: 0 after help, 2 after an error. */
int options_parse(const struct option_table *table, void *settings, int argc, char **argv);
/* Says what is wrong, and how to get help. Returns 2. */
int options_refuse(const struct option_table *table, const char *what);

#endif
