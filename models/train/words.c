/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

int train_words_open(struct train_words *w, struct fsdp_device *device, struct fsdp_err *err)
{
    w->device = device;
    FSDP_TRY(fsdp_lane_create(&w->lane, device, "control", err));
    for (int i = 0; i < 2; i++) {
        w->control[i] =
            fsdp_device_alloc(device, FSDP_CONTROL_NELEM * sizeof(double), "control word", err);
        if (!w->control[i])
            return FSDP_ENOMEM;
    }
    w->eval_sums =
        fsdp_device_alloc(device, TRAIN_EVAL_NSUMS * sizeof(double), "evaluation loss", err);
    return w->eval_sums ? FSDP_OK : FSDP_ENOMEM;
}

void train_words_close(struct train_words *w)
{
    if (w->device) {
        fsdp_device_free(w->device, w->eval_sums);
        fsdp_device_free(w->device, w->control[1]);
        fsdp_device_free(w->device, w->control[0]);
    }
    fsdp_lane_destroy(w->lane);
    *w = (struct train_words){0};
}

int train_words_zero(struct train_words *w, double *to, int nelem, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_zero(w->lane, to, (size_t)nelem * sizeof *to, err));
    return fsdp_lane_sync(w->lane, err);
}

int train_words_copy(struct train_words *w, double *to, const double *from, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_copy(w->lane, to, from, sizeof *to, err));
    return fsdp_lane_sync(w->lane, err);
}
