/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tunable.h: tables of settings. Every tunable is a row {name, type, default, help, allowed,
 * offset}; the table parses, checks, prints and documents itself, so that each fact is in one
 * place.
 *
 * What `allowed` says:
 *   CHOICE       the words, "a|b|c"; case does not matter, the stored index is the word's position
 *   INT          alternatives, each a range "lo..hi" (either end may be missing) or a named value
 *                "word=value": "auto=-1|1.." takes auto and the whole numbers from 1
 *   FLOAT        the same; "lo<..hi" leaves lo out, "..<hi" hi
 *   FLOATS       one such range, for each
 *   STRING, LIST, BOOL, MAPS  NULL
 */
#ifndef FSDP_TUNABLE_H
#define FSDP_TUNABLE_H

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
    FSDP_TUNABLE_FLOATS, /* double[FSDP_TUNABLE_FLOATS_NELEM]: exactly as many values as the default
                          */
    FSDP_TUNABLE_LIST,   /* struct fsdp_tunable_list: any number of texts */
    FSDP_TUNABLE_MAPS,   /* a list of mappings, which the caller reads and prints; no field */
};
#define FSDP_TUNABLE_STRING_NBYTES 1024
#define FSDP_TUNABLE_FLOATS_NELEM 4
#define FSDP_TUNABLE_LIST_NBYTES 8192
/* Room for any value as fsdp_tunable_format writes it. */
#define FSDP_TUNABLE_FORMAT_NBYTES (4 * FSDP_TUNABLE_LIST_NBYTES)

/* Texts back to back, each ended by a zero byte. */
struct fsdp_tunable_list {
    int nelem;
    size_t nbytes;
    char text[FSDP_TUNABLE_LIST_NBYTES];
};

struct fsdp_tunable {
    const char *name; /* "train.steps" */
    enum fsdp_tunable_type type;
    const char *def;     /* as the user would write it; NULL: must be given */
    const char *help;    /* one line */
    const char *allowed; /* see above */
    size_t offset;       /* into the settings struct */
};

/* Fills *base with all defaults. Rows without one are left zero. */
int fsdp_tunable_defaults(const struct fsdp_tunable *table, int nrows, void *base,
                          struct fsdp_err *err);
/* Sets one value from text. `where` ("file:line" or "command line") begins the error text, which
 * names the key and what is allowed; an unknown key names the nearest known one. FLOATS and LIST
 * take "[a, b]" as well as "a, b" (FLOATS) or one text (LIST). */
int fsdp_tunable_set(const struct fsdp_tunable *table, int nrows, void *base, const char *where,
                     const char *name, const char *value, struct fsdp_err *err);
/* The same from several texts: for FLOATS and LIST; other types refuse. */
int fsdp_tunable_set_list(const struct fsdp_tunable *table, int nrows, void *base,
                          const char *where, const char *name, const char *const *values,
                          int nvalues, struct fsdp_err *err);
/* Index of a row by name; FSDP_EINVAL names the nearest known key, or those of the section. */
int fsdp_tunable_find(int *out, const struct fsdp_tunable *table, int nrows, const char *where,
                      const char *name, struct fsdp_err *err);
/* The value of a row as YAML (and fsdp_tunable_set) takes it. out has FSDP_TUNABLE_FORMAT_NBYTES.
 */
void fsdp_tunable_format(char *out, const struct fsdp_tunable *row, const void *base);
/* What a row takes, in words: "auto, or a whole number of at least 1". */
void fsdp_tunable_allowed(char *out, size_t out_nbytes, const struct fsdp_tunable *row);
/* Word `index` of a CHOICE row into out. */
void fsdp_tunable_word(char *out, size_t out_nbytes, const struct fsdp_tunable *row, int index);
/* Text `index` of a list, NULL past the end. */
const char *fsdp_tunable_list_at(const struct fsdp_tunable_list *list, int index);

#ifdef __cplusplus
}
#endif
#endif
