/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h: where a file is that a run replaces again and again (fsdp_file_replace): the report,
 * the metrics for Prometheus. What is there already is replaced only where it is the file of a run.
 */
#ifndef PUBLISH_H
#define PUBLISH_H

#include "fsdp/base.h"

/* *out: where `path` leads, behind links; freed with fsdp_free. FSDP_EEXIST: what is there neither
 * is empty nor has `mark` in its first 4 KiB, or is the file of `metrics` ("" for none), so that it
 * is somebody else's. FSDP_EINVAL: it is no regular file. `key` is the setting that named it. */
int publish_place(char **out, const char *path, const char *mark, const char *metrics,
                  const char *key, struct fsdp_err *err);

#endif
