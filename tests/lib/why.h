/* SPDX-License-Identifier: Apache-2.0 */
/* why.h: the reason of a test that aborts. */
#ifndef WHY_H
#define WHY_H

#include "fsdp/base.h"

/* A failure with this text, of which this rank is the culprit, -1: nobody. Lives until the next
 * call. */
static inline const struct fsdp_err *why_of(int culprit, const char *text)
{
    static struct fsdp_err err;

    fsdp_err_set(&err, FSDP_EINTERNAL, "%s", text);
    err.culprit = culprit;
    return &err;
}
static inline const struct fsdp_err *why(const char *text)
{
    return why_of(-1, text);
}

#endif
