/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keyfile.h: a user's key, for methods whose starter hands out no secret. It is a file that
 * only its owner can read, on a file system that all nodes share, and is made at first use. Each
 * job's secret is derived from it and from the job's name, so that jobs do not let in each other.
 */
#ifndef BOOT_KEYFILE_H
#define BOOT_KEYFILE_H

#include "sys/boot_ops.h"

#define BOOT_ENV_KEY_FILE "BOOT_KEY_FILE" /* instead of ~/.config/fsdp/key */

/* HMAC-SHA256 of the job's name under the user's key; path gets the file's name. FSDP_EINVAL: the
 * file can be read by others, or is no key. Local, blocks. */
int boot_keyfile_secret(struct boot_secret *out, char *path, size_t path_nbytes, const char *job,
                        struct fsdp_err *err);

/* Is the user's key here? path gets the file's name, there or not. Local. */
int boot_keyfile_find(bool *here, char *path, size_t path_nbytes, struct fsdp_err *err);

#endif
