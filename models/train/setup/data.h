/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: the sources of a run's data, as the configuration has them. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "setup.h"

/* A path that is not there is the configuration's fault; one that cannot be read may be a node's.
 */
int train_blame_missing(struct fsdp_err *err, int status, const char *key);
/* An error of data, whose place in the configuration is `where`, into err: the fault of the setting
 * that it names, of `key` where it says path or that nothing is there. Returns rc. */
int train_data_blame(struct fsdp_err *why, int rc, const char *where, const char *key,
                     struct fsdp_err *err);
/* Opens parts->data and parts->eval. Text is in parts->tokens by then. Local, blocks. */
int train_data_open(struct train_parts *parts, struct fsdp_err *err);

#endif
