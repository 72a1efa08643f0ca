/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fsdp/base.h"

int fsdp_err_set(struct fsdp_err *err, int status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = status;
        err->setting[0] = 0;
        err->of_other = false;
        err->kind = FSDP_ERR_PLAIN;
        err->rank = -1;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        fsdp_text_clean(err->text);
    }
    return status;
}

static int status_of_errno(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
        return FSDP_ENOSPC;
    case ENOENT:
        return FSDP_ENOTFOUND;
    case EEXIST:
    case ENOTEMPTY:
        return FSDP_EEXIST;
    case ENOMEM:
        return FSDP_ENOMEM;
    default:
        return FSDP_EIO;
    }
}

int fsdp_err_sys(struct fsdp_err *err, int errnum, const char *fmt, ...)
{
    int status = status_of_errno(errnum);
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->status = status;
        err->setting[0] = 0;
        err->of_other = false;
        err->kind = FSDP_ERR_PLAIN;
        err->rank = -1;
        int len = vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        if (len >= 0 && (size_t)len < sizeof err->text)
            snprintf(err->text + len, sizeof err->text - (size_t)len, ": %s", strerror(errnum));
        fsdp_text_clean(err->text);
    }
    return status;
}

int fsdp_err_blame(struct fsdp_err *err, int status, const char *setting)
{
    if (status && err && !err->setting[0])
        snprintf(err->setting, sizeof err->setting, "%s", setting);
    return status;
}

int fsdp_err_of_rank(struct fsdp_err *err, int status, int rank)
{
    char text[FSDP_ERR_TEXT_NBYTES];

    if (status && err) {
        snprintf(text, sizeof text, "%s", err->text);
        snprintf(err->text, sizeof err->text, "rank %d: %.1000s", rank, text);
        err->of_other = true;
        err->rank = rank;
    }
    return status;
}

int fsdp_err_pass(struct fsdp_err *err, int status, const struct fsdp_err *from)
{
    if (status && err) {
        *err = *from;
        err->status = status;
    }
    return status;
}

const char *fsdp_status_name(int status)
{
    switch ((enum fsdp_status)status) {
    case FSDP_OK:
        return "FSDP_OK";
    case FSDP_EINTERNAL:
        return "FSDP_EINTERNAL";
    case FSDP_EINVAL:
        return "FSDP_EINVAL";
    case FSDP_ENOMEM:
        return "FSDP_ENOMEM";
    case FSDP_EIO:
        return "FSDP_EIO";
    case FSDP_ENOTFOUND:
        return "FSDP_ENOTFOUND";
    case FSDP_EEXIST:
        return "FSDP_EEXIST";
    case FSDP_ECORRUPT:
        return "FSDP_ECORRUPT";
    case FSDP_EUNSUPPORTED:
        return "FSDP_EUNSUPPORTED";
    case FSDP_ENOSPC:
        return "FSDP_ENOSPC";
    case FSDP_EPEER:
        return "FSDP_EPEER";
    case FSDP_ETIMEDOUT:
        return "FSDP_ETIMEDOUT";
    case FSDP_EMISMATCH:
        return "FSDP_EMISMATCH";
    case FSDP_ECANCELED:
        return "FSDP_ECANCELED";
    }
    return "unknown status";
}
