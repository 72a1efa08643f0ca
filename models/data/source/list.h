/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: from paths as people write them (files, folders, patterns) to a list of files. */
#ifndef DATA_LIST_H
#define DATA_LIST_H

#include "fsdp/base.h"
#include "remote.h"

struct data_list {
    size_t npaths, room;
    char **paths; /* owned */
    /* The caller's: of folders and patterns, only files whose names end so; NULL: all. */
    const char *only;
    /* There, a file that ends so and has no partner that ends with `only` is an error; NULL: none.
     */
    const char *partner;
    /* There, files whose names end with one of these are left out; ends with NULL. NULL: none. */
    const char *const *skipped;
    const struct data_remote *remote; /* the caller's; NULL: addresses are refused */
};

/* Adds what `path` names: a file; a folder's files, recursively; or, where no file has that name
 * and it holds one of * ? [, all files and folders that match it (glob(7)). The files of one path
 * are sorted, names with a leading dot are left out, and links to folders are followed only where
 * `path` names them. FSDP_ENOTFOUND; FSDP_EINVAL: nothing matches, or an empty folder;
 * FSDP_EUNSUPPORTED: Parquet and Arrow, with the command that converts them. The last and a
 * pattern without a match are the fault of setting `path`. Local, blocks. */
int data_list_add(struct data_list *list, const char *path, struct fsdp_err *err);
void data_list_free(struct data_list *list);

/* Does the name end so? */
bool data_name_ends(const char *path, const char *end);

#endif
