/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "publish.h"

/* ---- whose it is ----------------------------------------------------------------------------- */

enum { HEAD_NBYTES = 4096 };

static int check_head(const char *path, const char *mark, const char *key, struct fsdp_err *err)
{
    char head[HEAD_NBYTES];
    FILE *from = NULL;

    const int rc = fsdp_file_stream(&from, path, err);
    if (rc)
        return fsdp_err_prefix(err, rc, "%s: ", key);
    const size_t nbytes = fread(head, 1, sizeof head, from);
    fclose(from);
    if (!nbytes || memmem(head, nbytes, mark, strlen(mark)))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST,
                        "%s: '%s' is there already, and no run has written it; name another file, "
                        "or remove it",
                        key, path);
}

int publish_place(char **out, const char *path, const char *mark, const char *metrics,
                  const char *key, struct fsdp_err *err)
{
    char whole[PATH_MAX];

    if (access(path, F_OK) == 0) {
        if (metrics[0] && fsdp_file_is_same(path, metrics))
            return fsdp_err_set(err, FSDP_EEXIST, "%s: '%s' is the file of log.metrics, too", key,
                                path);
        FSDP_TRY(check_head(path, mark, key, err));
    }
    *out = fsdp_strdup(realpath(path, whole) ? whole : path, err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}
