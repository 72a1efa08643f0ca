/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tunable.h: tables of settings. Every tunable is a row {name, type, default, help, allowed, offset};
 * the table parses, checks, prints and documents itself, so that each fact is in one place.
 */
#ifndef FSDP_TUNABLE_H
#define FSDP_TUNABLE_H

#include <stdio.h>

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum fsdp_tunable_type {
    FSDP_TUNABLE_STRING, /* char[FSDP_TUNABLE_STRING_NBYTES] */
    FSDP_TUNABLE_INT,    /* int64_t */
    FSDP_TUNABLE_FLOAT,  /* double */
    FSDP_TUNABLE_BOOL,   /* bool */
    FSDP_TUNABLE_CHOICE, /* int: index into the `|`-separated words of `allowed` */
    FSDP_TUNABLE_FLOATS, /* double[FSDP_TUNABLE_FLOATS_NELEM]: exactly as many values as the default */
};
#define FSDP_TUNABLE_STRING_NBYTES 1024
#define FSDP_TUNABLE_FLOATS_NELEM 4

struct fsdp_tunable {
    const char *name; /* "train.steps" */
    enum fsdp_tunable_type type;
    const char *def;     /* as the user would write it; NULL: must be given */
    const char *help;    /* one line */
    const char *allowed; /* CHOICE: "a|b|c"; INT and FLOAT: "lo..hi", either end may be missing */
    size_t offset;       /* into the settings struct */
};

/* Fills *base with all defaults. */
int fsdp_tunable_defaults(const struct fsdp_tunable *table, int nrows, void *base,
                          struct fsdp_err *err);
/* Sets one value from text. `where` ("file:line" or "command line") begins the error text, which
 * names the key and what is allowed; an unknown key names the nearest known one. */
int fsdp_tunable_set(const struct fsdp_tunable *table, int nrows, void *base, const char *where,
                     const char *name, const char *value, struct fsdp_err *err);
/* One line `name = value` per row; with help, also default, allowed and help text. */
void fsdp_tunable_print(const struct fsdp_tunable *table, int nrows, const void *base, bool help,
                        FILE *to);

#ifdef __cplusplus
}
#endif
#endif
