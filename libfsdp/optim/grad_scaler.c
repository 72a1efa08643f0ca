/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "fsdp/optim.h"

int fsdp_scaler_check(const struct fsdp_scaler_opts *o, struct fsdp_err *err)
{
    if (!(o->init > 0 && isfinite(o->init)))
        return fsdp_err_set(err, FSDP_EINVAL, "loss scale: it cannot begin at %g", o->init);
    if (!(o->growth >= 1 && isfinite(o->growth)))
        return fsdp_err_set(err, FSDP_EINVAL, "loss scale: growth %g is below 1", o->growth);
    if (!(o->backoff > 0 && o->backoff <= 1))
        return fsdp_err_set(err, FSDP_EINVAL, "loss scale: backoff %g is not in (0, 1]",
                            o->backoff);
    if (o->interval < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "loss scale: an interval of %d steps", o->interval);
    return FSDP_OK;
}

int fsdp_scaler_predivisor(int nranks)
{
    int part = 1;
    while ((int64_t)part * part < nranks)
        part *= 2;
    return part;
}
