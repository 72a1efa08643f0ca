/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder next to an output in which it grows on a file system, until one rename gives it its
 * name:
 *
 *   FINAL.tmp.<key>/out, or out.safetensors   the output
 *   FINAL.tmp.<key>/journal                   what of it is done, and that it was to be renamed
 *   FINAL.tmp.<~key>                          the folder, once the output has its name, until it
 *                                             is gone: an empty one of the first name would not
 *                                             say whether the run that made it had begun or ended
 */
#ifndef CKPT_TEMP_H
#define CKPT_TEMP_H

#include "file/journal.h"
#include "layout/contents.h"

struct ckpt_temp {
    const struct ckpt_store_ops *store;
    const char *final, *folder, *out;
    uint64_t job; /* whose the journal is */
    /* The small files that the output has: names that the table of belongs.h may lack. NULL: none.
     */
    const struct ckpt_manifest *extras;
};

/* FSDP_EINVAL if the last part of final is too long a name to append the folder's suffix to. */
int ckpt_temp_check_name(const char *final, struct fsdp_err *err);
/* A folder's name. */
char *ckpt_temp_name(const char *final, uint64_t key, struct fsdp_err *err);
/* Makes a folder, with its parents, in or as a temporary folder; one of an earlier run is fine, a
 * link in its place is not. */
int ckpt_temp_mkdir(const struct ckpt_store_ops *store, const char *path, struct fsdp_err *err);
/* Are the folder, and the output in it if there is one, what ckpt_temp_mkdir makes, no links? Who
 * cleans up asks first: a path through a link is somebody else's. */
bool ckpt_temp_is_plain(const struct ckpt_temp *temp);
/* FSDP_EEXIST, naming them, if an output folder of an earlier run holds objects that no run made:
 * they would become part of the output. */
int ckpt_temp_check_output(const struct ckpt_temp *temp, struct fsdp_err *err);
/* Removes what a failed run leaves at path: the folder or the output. Objects that do not belong
 * stop it, with a warning. */
int ckpt_temp_drop(const struct ckpt_temp *temp, const char *path);
/* FSDP_EEXIST if another process has it open. */
int ckpt_temp_journal(struct ckpt_journal *out, const struct ckpt_temp *temp, struct fsdp_err *err);
/* The output's name is taken: *out: by a run of this job that was killed afterwards. What it left
 * is removed then, but for a journal of an output that was published. */
int ckpt_temp_was_published(bool *out, const struct ckpt_temp *temp, struct fsdp_err *err);
/* The output has its name, and the journal is closed: removes the folder. What stays is a warning.
 */
void ckpt_temp_remove(const struct ckpt_temp *temp);
/* Removes what is no longer needed of an output that is done; what stays is a warning. */
void ckpt_temp_remove_left(const struct ckpt_temp *temp, const char *path);

#endif
