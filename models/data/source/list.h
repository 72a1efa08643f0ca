/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: expands paths of a configuration (files, folders, patterns) to a list of files. */
#ifndef DATA_LIST_H
#define DATA_LIST_H

#include "fsdp/base.h"
#include "remote.h"

struct data_list {
    size_t npaths, room;
    char **paths; /* owned */
    /* Set by the caller: folders and patterns give only files with this ending; NULL: all. */
    const char *only;
    /* In folders and patterns, a file with this ending needs a partner that ends with `only`;
     * otherwise it is an error. NULL: none. */
    const char *partner;
    /* In folders and patterns, files with these endings are left out. Ends with NULL. NULL: none.
     */
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
/* FSDP_EINVAL: a file of the list is one of fsdp-tokenize's, by its name and its index, and the
 * list is to be read as text. */
int data_list_refuse_tokens(const struct data_list *list, struct fsdp_err *err);
void data_list_free(struct data_list *list);

/* Does the name have this ending? */
bool data_name_ends(const char *path, const char *end);

#endif
