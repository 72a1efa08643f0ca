/* SPDX-License-Identifier: Apache-2.0 */
/* data.h: opens the data sources of a run's configuration. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "setup.h"

/* Blames `key` for a missing path; a path that cannot be read may be a node's fault. */
int train_blame_missing(struct fsdp_err *err, int status, const char *key);
/* Passes an error of reading data to err, with its place `where` in the configuration. It blames
 * the setting that the error names, or `key` if that is `path` or the file is missing. Returns rc.
 */
int train_data_blame(struct fsdp_err *why, int rc, const char *where, const char *key,
                     struct fsdp_err *err);
/* May a row hold several documents, which attention keeps apart, by the settings? */
bool train_data_is_packed(const struct config *config);
/* Opens parts->data and parts->eval, after train_tokens_prepare. Local, blocks. */
int train_data_open(struct train_parts *parts, struct fsdp_err *err);
/* Logs where text that was tokenized looks like documents. Local: one rank calls it. */
void train_data_warn(const struct train_parts *parts);

#endif
