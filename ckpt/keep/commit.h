/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an output becomes visible, at one instant. There are two ways, and the store decides:
 *
 *   rename.c          where names can be changed: it grows in a temporary folder next to its name
 *                     and gets that name by one rename
 *   manifest_last.c   in an object store: the files lie where they stay. Those that a manifest
 *                     lists lie in FINAL/<attempt>/, which nobody reads before there is
 *                     FINAL/manifest.json: the last file is the commit. Without a manifest each
 *                     file is visible when it is whole
 *
 * Who is killed before the commit leaves nothing at that name, who is killed behind it, all.
 */
#ifndef CKPT_COMMIT_H
#define CKPT_COMMIT_H

#include "store/store.h"

struct ckpt_commit_ops;

struct ckpt_commit {
    /* Given to ckpt_commit_begin. */
    const struct ckpt_store_ops *store;
    char *final;         /* the name that readers know; owned */
    const char *attempt; /* a uuid: no other writer has files of that name */
    uint64_t key;        /* of the job, where the same command resumes: names its temporary folder;
                            0: `attempt` does */
    bool folder;         /* else one file */
    bool has_manifest;   /* readers find its files by a manifest */
    bool sync;           /* it is durable when it is published */
    /* From there on. */
    const struct ckpt_commit_ops *ops;
    char *temp;     /* the temporary folder; NULL: there is none */
    char *out;      /* where the files are written: a folder, or the file */
    char *replaced; /* data of the checkpoint that the manifest named before; NULL: of none */
    bool published;
};

/* Names temp and out. Nothing is made. */
int ckpt_commit_begin(struct ckpt_commit *commit, struct fsdp_err *err);
void ckpt_commit_end(struct ckpt_commit *commit);

/* Is nothing of it visible before it is published? */
bool ckpt_commit_is_hidden(const struct ckpt_commit *commit);
/* Is there an output at that name already? */
int ckpt_commit_is_taken(bool *taken, const struct ckpt_commit *commit, struct fsdp_err *err);
/* The path that the manifest has of a file: relative to the manifest, of the file `name` below
 * `out`. */
char *ckpt_commit_listed(const struct ckpt_commit *commit, const char *name, struct fsdp_err *err);
char *ckpt_commit_manifest(const struct ckpt_commit *commit, struct fsdp_err *err);
/* When all files that it lists are durable. overwrite: in place of that of another checkpoint. */
int ckpt_commit_put_manifest(struct ckpt_commit *commit, const char *text, size_t nbytes,
                             bool overwrite, struct fsdp_err *err);
/* What is in a folder that will have the name is durable. */
int ckpt_commit_seal(struct ckpt_commit *commit, struct fsdp_err *err);
/* When all is written. FSDP_EEXIST if something has the name and may not be replaced. */
int ckpt_commit_publish(struct ckpt_commit *commit, bool overwrite, struct fsdp_err *err);
/* Is this attempt what readers find at that name? Also where the answer to its last file was lost.
 * Not of a temporary folder, whose journal knows. *is is true after a failure: it may be. */
int ckpt_commit_is_there(bool *is, const struct ckpt_commit *commit, struct fsdp_err *err);
/* After a failure: takes it back if it is visible, then removes it. Where it cannot be told that
 * nobody sees it, all stays. */
void ckpt_commit_discard(struct ckpt_commit *commit);

/* ---- what others have published -------------------------------------------------------------- */

/* Removes a published checkpoint: first the name, then the files. FSDP_EEXIST if something in it
 * does not belong to a checkpoint. */
int ckpt_commit_unpublish(const struct ckpt_store_ops *store, const char *folder,
                          struct fsdp_err *err);
/* The folders below it that were written for it and that its manifest does not name. */
int ckpt_commit_leftovers(struct ckpt_names *out, const struct ckpt_store_ops *store,
                          const char *folder, struct fsdp_err *err);

/* ---- the ways -------------------------------------------------------------------------------- */

struct ckpt_commit_ops {
    int (*begin)(struct ckpt_commit *commit, struct fsdp_err *err);
    bool (*is_hidden)(const struct ckpt_commit *commit);
    int (*is_taken)(bool *taken, const struct ckpt_commit *commit, struct fsdp_err *err);
    char *(*listed)(const struct ckpt_commit *commit, const char *name, struct fsdp_err *err);
    const char *(*manifest_folder)(const struct ckpt_commit *commit);
    int (*put_manifest)(struct ckpt_commit *commit, const char *path, const char *text,
                        size_t nbytes, bool overwrite, struct fsdp_err *err);
    int (*seal)(struct ckpt_commit *commit, struct fsdp_err *err);
    int (*publish)(struct ckpt_commit *commit, bool overwrite, struct fsdp_err *err);
    int (*is_there)(bool *is, const struct ckpt_commit *commit, struct fsdp_err *err);
    /* False: that cannot be told. */
    bool (*retract)(struct ckpt_commit *commit);
    int (*unpublish)(const struct ckpt_store_ops *store, const char *folder, struct fsdp_err *err);
    int (*leftovers)(struct ckpt_names *out, const struct ckpt_store_ops *store, const char *folder,
                     struct fsdp_err *err);
};

extern const struct ckpt_commit_ops ckpt_commit_rename, ckpt_commit_manifest_last;

#endif
