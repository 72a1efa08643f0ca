/* SPDX-License-Identifier: Apache-2.0 */
/* The place of an output: what its name stands for, and what may be replaced there. */
#ifndef CKPT_TARGET_H
#define CKPT_TARGET_H

#include "belongs.h"
#include "source/source.h"

/* Where *path (freed and replaced) is a link, the path of what it points to, so that work in
 * progress lies next to the target. Refuses a link to nothing. */
int ckpt_target_resolve(char **path, const struct ckpt_store_ops *store, struct fsdp_err *err);

/* Refuses a device, a pipe or a socket; what is not there is fine. */
int ckpt_target_refuse_special(const struct ckpt_store_ops *store, const char *path,
                               struct fsdp_err *err);

/* Refuses a new name that is the checkpoint, lies in it, or holds it or one of its files: compared
 * as objects (device and inode), whatever they are called. */
int ckpt_target_refuse_input(const struct ckpt *ckpt, const char *final,
                             const struct ckpt_store_ops *store, struct fsdp_err *err);

/* Refuses a new name that is this folder of the store, or lies in it. what: the folder's kind. */
int ckpt_target_refuse_within(const char *folder, const char *what, const char *final,
                              const struct ckpt_store_ops *store, struct fsdp_err *err);

struct ckpt_target {
    const struct ckpt_store_ops *store;
    const char *path;
    enum ckpt_place place; /* what it must be: NATIVE, HF (one file, too), DCP or GGUF (one file) */
    const struct ckpt_manifest *extras; /* names of files that the new output has, too, belong */
};
/* Refuses to replace what is there, unless it is nothing (no entry, no byte), or a checkpoint or
 * model of this kind: its manifest, .metadata, index or weights can be parsed, and nothing in it
 * belongs to anybody else. */
int ckpt_target_prove(const struct ckpt_target *target, struct fsdp_err *err);
/* target_torch.c: refuses a file that torch.save did not write of a dict of tensors alone. */
int ckpt_target_prove_saved(const struct ckpt_store_ops *store, const char *path,
                            struct fsdp_err *err);

#endif
