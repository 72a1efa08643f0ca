/* SPDX-License-Identifier: Apache-2.0 */
/* Where the files of a copy lie. */
#include <string.h>

#include "copy.h"
#include "format/native/native.h"
#include "source/format_ops.h"

const char *ckpt_copy_plain(const struct ckpt_copy *c, const char *path)
{
    size_t nbytes = c->ckpt->format->has_manifest ? ckpt_attempt_nbytes(&c->ckpt->m.layout) : 0;
    const char *first = nbytes ? c->ckpt->m.layout.files[0].path : "";
    return nbytes && !strncmp(path, first, nbytes) ? path + nbytes : path;
}

char *ckpt_copy_to(const struct ckpt_copy *c, const char *path, struct fsdp_err *err)
{
    return c->folder ? ckpt_path_join(c->commit.out, ckpt_copy_plain(c, path), err)
                     : fsdp_strdup(c->commit.out, err);
}
