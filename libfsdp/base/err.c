/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fsdp/base.h"

/* All but status and text. */
static void clear(struct fsdp_err *err)
{
    err->setting[0] = 0;
    err->of_other = false;
    err->kind = FSDP_ERR_PLAIN;
    err->rank = err->culprit = -1;
    err->cause = err->ncause = 0;
}

static void set(struct fsdp_err *err, int status, const char *fmt, va_list ap)
{
    if (err) {
        clear(err);
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        fsdp_text_clean(err->text);
    }
}

int fsdp_err_set(struct fsdp_err *err, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, status, fmt, ap);
    va_end(ap);
    return status;
}

int fsdp_err_set_blame(struct fsdp_err *err, int status, const char *setting, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    set(err, status, fmt, ap);
    va_end(ap);
    return fsdp_err_blame(err, status, setting);
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
    const int status = status_of_errno(errnum);
    va_list ap;

    va_start(ap, fmt);
    set(err, status, fmt, ap);
    va_end(ap);
    if (err) {
        const size_t len = strlen(err->text);
        snprintf(err->text + len, sizeof err->text - len, ": %s", strerror(errnum));
    }
    return status;
}

int fsdp_err_blame(struct fsdp_err *err, int status, const char *setting)
{
    if (status && err && !err->setting[0])
        snprintf(err->setting, sizeof err->setting, "%s", setting);
    return status;
}

/* ---- text before and behind ------------------------------------------------------------------ */

static int text_format(char text[FSDP_ERR_TEXT_NBYTES], const char *fmt, va_list ap)
{
    vsnprintf(text, FSDP_ERR_TEXT_NBYTES, fmt, ap);
    return (int)strlen(fsdp_text_clean(text));
}

/* Returns how far the error's own text moved. */
static int put_before(struct fsdp_err *err, const char *fmt, va_list ap)
{
    char head[FSDP_ERR_TEXT_NBYTES];
    const int nhead = text_format(head, fmt, ap), room = FSDP_ERR_TEXT_NBYTES - 1 - nhead;
    int ntext = (int)strlen(err->text);

    ntext = ntext < room ? ntext : room;
    memmove(err->text + nhead, err->text, (size_t)ntext);
    memcpy(err->text, head, (size_t)nhead);
    err->text[nhead + ntext] = 0;
    return nhead;
}

int fsdp_err_prefix(struct fsdp_err *err, int status, const char *fmt, ...)
{
    if (status && err) {
        va_list ap;
        va_start(ap, fmt);
        const int moved = put_before(err, fmt, ap);
        va_end(ap);
        if (err->cause)
            err->cause += moved;
        else if (err->ncause)
            err->ncause += moved;
    }
    return status;
}

int fsdp_err_relay(struct fsdp_err *err, int status, const char *fmt, ...)
{
    if (status && err) {
        va_list ap;
        va_start(ap, fmt);
        err->cause += put_before(err, fmt, ap);
        va_end(ap);
    }
    return status;
}

int fsdp_err_hint(struct fsdp_err *err, int status, const char *fmt, ...)
{
    if (status && err) {
        char tail[FSDP_ERR_TEXT_NBYTES];
        const size_t ntext = strlen(err->text);
        va_list ap;
        va_start(ap, fmt);
        text_format(tail, fmt, ap);
        va_end(ap);
        if (!err->ncause)
            err->ncause = (int)ntext - err->cause;
        snprintf(err->text + ntext, sizeof err->text - ntext, "%s", tail);
    }
    return status;
}

const char *fsdp_err_reason(char out[FSDP_ERR_TEXT_NBYTES], const struct fsdp_err *err)
{
    const int ntext = (int)strlen(err->text);
    const int begin = err->cause < ntext ? err->cause : ntext;
    const int most = ntext - begin;
    const int nbytes = err->ncause && err->ncause < most ? err->ncause : most;

    memcpy(out, err->text + begin, (size_t)nbytes);
    out[nbytes] = 0;
    return out;
}

/* ---- whose it is ----------------------------------------------------------------------------- */

int fsdp_err_of_rank(struct fsdp_err *err, int status, int rank)
{
    fsdp_err_prefix(err, status, "rank %d: ", rank);
    if (status && err) {
        err->of_other = true;
        err->rank = rank;
        err->culprit = err->culprit < 0 ? rank : err->culprit;
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
