/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: the data files of a checkpoint, by the names that .metadata has for them. */
#ifndef CKPT_DCP_FILES_H
#define CKPT_DCP_FILES_H

#include "dcp.h"

/* ckpt and metadata are given, the rest begins with zeros. */
struct ckpt_dcp_files {
    struct ckpt *ckpt;
    const char *metadata; /* path of .metadata, which names it in errors */
    size_t nfiles, nhash;
    const struct ckpt_pk **names; /* in the order of the layout's files; borrowed */
    int *by_hash;                 /* [nhash] a file's index and 1; 0: free */
    int nnewer;                   /* files that are newer than .metadata */
    char newer[128];              /* the first one's name */
};

/* *out: the file's index in the layout, which it is added to where it is not yet there.
 * FSDP_ENOTFOUND where it is missing, FSDP_ECORRUPT for a name that could leave the checkpoint. */
int ckpt_dcp_files_find(int *out, struct ckpt_dcp_files *files, const struct ckpt_pk *name,
                        struct fsdp_err *err);
/* Logs that files are newer than .metadata, if they are. */
void ckpt_dcp_files_warn(const struct ckpt_dcp_files *files);
void ckpt_dcp_files_free(struct ckpt_dcp_files *files);

/* *out: a text value, freed with fsdp_free. Refused if it is none, too long, or holds a 0 byte. */
int ckpt_dcp_text(char **out, const struct ckpt_pk *value, size_t most, const char *path,
                  struct fsdp_err *err);

#endif
