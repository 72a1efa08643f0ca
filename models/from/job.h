/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: one conversion: the values that were read, and what has been made of them so far. */
#ifndef FROM_JOB_H
#define FROM_JOB_H

#include "leaves.h"

/* What becomes of a key. */
enum from_fate {
    FROM_SET,  /* a setting of ours */
    FROM_HAVE, /* nothing to set: it is always so here, or has no object */
    FROM_LINE, /* said on the command line */
    FROM_OPEN, /* to be filled in by the user */
    FROM_LOST, /* no counterpart */
    FROM_UNKNOWN,
    FROM_NFATES
};

/* Of names that need no quotes, neither in YAML nor in a shell; more may be added to it. */
#define FROM_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

struct from_job;
struct from_row;

/* Sets what the value asks for, or remarks on it. */
typedef void from_convert_f(struct from_job *job, const struct from_row *row,
                            struct from_leaf *leaf);

struct from_row {
    const char *theirs; /* dotted path; a last "*" stands for any ending */
    enum from_fate fate;
    const char *ours;        /* FROM_SET: section.key; else NULL, or what says the same */
    from_convert_f *convert; /* FROM_SET: NULL sets the value as it is */
    const char *off;         /* "a|b": values that ask for nothing */
    const char *note;
};

struct from_source {
    const char *name;  /* as from_table takes it */
    const char *title; /* as users know it */
    const struct from_row *rows;
    int nrows;
    /* Settings that hang on several keys, and those whose default differs from ours. */
    void (*finish)(struct from_job *job);
};

extern const struct from_source from_accelerate, from_deepspeed;

enum { FROM_MOST_SETTINGS = 96, FROM_MOST_REMARKS = 512 };

struct from_setting {
    char key[64], value[FROM_VALUE_NBYTES], why[FROM_PATH_NBYTES];
};

struct from_remark {
    enum from_fate fate;
    char key[FROM_PATH_NBYTES], value[80], text[240];
};

struct from_job {
    const char *path;
    struct from_leaves leaves;
    char prefix[64]; /* of the paths of the source at work */
    struct from_setting settings[FROM_MOST_SETTINGS];
    struct from_remark remarks[FROM_MOST_REMARKS];
    int nsettings, nremarks;
    int nranks, nnodes, node_rank; /* 0, 0, 0: not said */
    char master[80], port[16];
};

/* The value of a path of the source at work, NULL: none. */
const char *from_get(const struct from_job *job, const char *path);
bool from_is_true(const char *value);
bool from_is_auto(const char *value);
/* Whether it is a number, which *out gets. */
bool from_number(double *out, const char *value);

/* A setting of ours; `value` is YAML. `why` names whose words it is. The last one counts. */
void from_set(struct from_job *job, const char *key, const char *why, const char *fmt, ...)
    FSDP_PRINTF(4, 5);
/* The same for any text, in quotes. */
void from_set_text(struct from_job *job, const char *key, const char *why, const char *text);
bool from_has(const struct from_job *job, const char *key);
void from_remark(struct from_job *job, enum from_fate fate, const struct from_leaf *leaf,
                 const char *fmt, ...) FSDP_PRINTF(4, 5);

/* Makes of every value with the job's prefix what the source's table says. */
void from_run(struct from_job *job, const struct from_source *source);

#endif
