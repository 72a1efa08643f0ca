/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the fields of struct fsdp_opts as a table: fsdp/settings.h's rows, and those without
 * a key. Ranks agree on settings by it. */
#ifndef CORE_SETTINGS_H
#define CORE_SETTINGS_H

#include <stdio.h>

#include "core/engine.h"
#include "fsdp/settings.h"

enum setting_type {
    SETTING_INT,
    SETTING_BOOL,
    SETTING_UINT64,
    SETTING_DOUBLE,
    SETTING_DOUBLES, /* two, one after the other */
    SETTING_TEXT,    /* const char * */
    SETTING_NAME,    /* const char * */
    SETTING_STRATEGY,
    SETTING_WRAP_POLICY,
    SETTING_DTYPE,
    SETTING_CODEC,
    SETTING_WORD, /* an enum */
    SETTING_GIB,  /* uint64_t, bytes */
    SETTING_POINTER,
};

enum setting_agreement { SETTING_AGREED, SETTING_BY_OUTCOME, SETTING_OWN };

struct setting {
    const char *name; /* its key where it has one, else the field: "fsdp.grad_buffers" */
    enum setting_type type;
    enum setting_agreement agreement;
    const char *def;     /* NULL: no key */
    const char *allowed; /* of a key, as in tunable.h */
    enum fsdp_tunable_type kind;
    size_t offset; /* into struct fsdp_opts */
};
extern const struct setting setting_table[];
extern const int setting_nrows;

/* Bytes of a value of this type. Pure. */
size_t setting_nbytes(enum setting_type type);
/* A line "NAME = VALUE" for each row on which ranks agree by value. */
void settings_write(FILE *to, const struct fsdp_opts *opts);

#endif
