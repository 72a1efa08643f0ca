/* SPDX-License-Identifier: Apache-2.0 */
/* find.h: the runs below folders. */
#ifndef TOP_FIND_H
#define TOP_FIND_H

#include "job.h"

enum top_sort { TOP_BY_NAME, TOP_BY_STATE, TOP_BY_SEEN, TOP_BY_LEFT, TOP_NSORTS };
extern const char *const top_sort_words[]; /* ended by NULL */

struct top_jobs {
    struct top_job *job;
    int njobs, room;
    bool too_deep, too_many;           /* there are folders that were not looked into */
    char skipped[256];                 /* the first of them, as far as it fits */
    int nunread;                       /* files named like a status that cannot be read */
    char unread[FSDP_ERR_TEXT_NBYTES]; /* why the first of them cannot */
};

/* How deep below a folder, and into how many, top_find looks. */
enum { TOP_MAX_DEPTH = 8, TOP_MAX_FOLDERS = 20000 };
/* What a person should know of that; "" for nothing. Into out. */
void top_cut_text(char *out, size_t out_nbytes, const struct top_jobs *jobs);
/* The same of files that cannot be read. */
void top_unread_text(char *out, size_t out_nbytes, const struct top_jobs *jobs);

/* Looks for the status of each run below the folders, and for the newest metrics of folders whose
 * runs have none, and reads them. Folders of checkpoints' steps, hidden folders and links are not
 * entered. FSDP_ENOTFOUND and the like name a folder that cannot be read. Local, blocks. */
int top_find(struct top_jobs *out, int nfolders, char *const *folders, double now,
             struct fsdp_err *err);
/* Reads them again; those that are gone keep what they said. Local, blocks. */
void top_refresh(struct top_jobs *jobs, double now);
void top_sort(struct top_jobs *jobs, enum top_sort by);
void top_jobs_free(struct top_jobs *jobs);

#endif
