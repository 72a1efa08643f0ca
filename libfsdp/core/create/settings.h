/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: the fields of struct fsdp_opts as a table, from which ranks agree on them. */
#ifndef CORE_SETTINGS_H
#define CORE_SETTINGS_H

#include <stdio.h>

#include "core/engine.h"

enum setting_type {
    SETTING_INT,
    SETTING_BOOL,
    SETTING_UINT64,
    SETTING_DOUBLE,
    SETTING_DOUBLES, /* two, one after the other */
    SETTING_TEXT,    /* const char * */
    SETTING_STRATEGY,
    SETTING_DTYPE,
    SETTING_WORD,    /* an enum; `words` names its values */
    SETTING_POINTER, /* to what the engine reads elsewhere; never written */
};

enum setting_agreement {
    SETTING_AGREED,     /* every rank needs the same value */
    SETTING_BY_OUTCOME, /* ranks compare what comes of it: units, parameters, modules */
    SETTING_OWN,        /* may differ between ranks */
};

struct setting {
    const char *name; /* as in the configuration, where it has a key: "fsdp.grad_buffers" */
    enum setting_type type;
    enum setting_agreement agreement;
    const char *const *words; /* of SETTING_WORD, NULL-terminated */
    size_t offset;            /* into struct fsdp_opts */
};
extern const struct setting setting_table[];
extern const int setting_nrows;

/* Bytes of a value of this type. Pure. */
size_t setting_nbytes(enum setting_type type);
/* A line "NAME = VALUE" for each row on which ranks agree by value. */
void settings_write(FILE *to, const struct fsdp_opts *opts);

#endif
