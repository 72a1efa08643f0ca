/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sections.h: the part of YAML that settings need: a mapping of sections to mappings of keys to
 * scalars, lists of scalars, or lists of mappings to scalars and lists of scalars. Anchors, tags,
 * deeper nesting and several documents are refused where they stand.
 */
#ifndef YAML_SECTIONS_H
#define YAML_SECTIONS_H

#include "fsdp/base.h"

/* What a kind of file has besides. */
struct sections_form {
    const char *section; /* one of its sections, for errors: "train" */
    bool values;         /* values and lists may stand in the place of a section */
    bool maps;           /* a key of a section may have a mapping: "section.key.name" */
    bool lists;          /* and a list of lists: "section.key[0]" with the values of the first */
};

/* Called per section, with its name as key and neither value nor values, and per key, with exactly
 * one of them. The keys of mappings in a list are "section.key[0].name". line counts from 1. */
typedef int sections_f(void *ctx, int line, const char *key, const char *value,
                       const char *const *values, int nvalues, struct fsdp_err *err);
/* Reads a file and refuses everything else by file and line. Local, blocks. */
int sections_read(const char *path, const struct sections_form *form, sections_f *fn, void *ctx,
                  struct fsdp_err *err);

#endif
