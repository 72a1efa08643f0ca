/* SPDX-License-Identifier: Apache-2.0 */
/* leaves.h: a YAML or JSON file as a flat list of values with dotted paths. */
#ifndef FROM_LEAVES_H
#define FROM_LEAVES_H

#include "fsdp/base.h"

enum { FROM_PATH_NBYTES = 256, FROM_VALUE_NBYTES = 1024 };

struct from_leaf {
    char path[FROM_PATH_NBYTES];   /* "zero_optimization.stage" */
    char value[FROM_VALUE_NBYTES]; /* a list is "[a, b]", an empty mapping "{}", null "" */
    int line;
    bool seen; /* something has been made of it */
};

struct from_leaves {
    struct from_leaf *all;
    int count, capacity;
};

/* Appends the values of a file, their paths after `prefix`. FSDP_EINVAL names the line. */
int from_leaves_read(struct from_leaves *out, const char *path, const char *prefix,
                     struct fsdp_err *err);
void from_leaves_free(struct from_leaves *leaves);
/* NULL: there is none. */
struct from_leaf *from_leaves_find(const struct from_leaves *leaves, const char *path);

#endif
