/* SPDX-License-Identifier: Apache-2.0 */
/* What the host does for a device: it holds what is copied, and updates what is offloaded. */
#include "sweep.h"

int sweep_update(struct fsdp_lane *lane, void *const buffer[4], size_t nelem, int64_t nsteps,
                 struct fsdp_err *err)
{
    const struct fsdp_adamw_args args = {.master = buffer[0],
                                         .exp_avg = buffer[1],
                                         .exp_avg_sq = buffer[2],
                                         .grad = buffer[3],
                                         .moment_dtype = FSDP_F32,
                                         .nelem = nelem,
                                         .nsteps = nsteps,
                                         .lr = 1e-4,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-8,
                                         .weight_decay = 0.1};
    return fsdp_adamw(lane, &args, err);
}

/* Copies between the host's memory and the device's, in both directions one after the other. */
struct upload {
    void *host, *device;
    size_t nbytes;
};

static int run_upload(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct upload *u = ctx;

    return call % 2 ? fsdp_copy(s->lane, u->host, u->device, u->nbytes, err)
                    : fsdp_copy(s->lane, u->device, u->host, u->nbytes, err);
}

static int time_uploads(struct sweep *s, struct fsdp_err *err)
{
    struct upload u = {.nbytes = 64 << 20};
    double seconds = 0;

    u.host = fsdp_host_alloc(s->opts->device, u.nbytes, "sweep of copies", err);
    u.device = u.host ? fsdp_device_alloc(s->opts->device, u.nbytes, "sweep of copies", err) : NULL;
    int rc = fsdp_oob_agree(s->opts->oob, u.host && u.device ? FSDP_OK : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = sweep_time(&seconds, s, run_upload, &u, err);
    if (rc == FSDP_OK)
        s->out->host_nbytes_per_s = (double)u.nbytes / seconds;
    fsdp_device_free(s->opts->device, u.device);
    fsdp_host_free(s->opts->device, u.host);
    return rc;
}

/* AdamW on the threads of each rank, over arrays that no cache holds (fsdp.offload_update). */
enum { HOST_NELEM = 8 << 20, HOST_NARRAYS = 4 };

struct host_update {
    struct fsdp_device *host;
    struct fsdp_lane *lane;
    void *buffer[HOST_NARRAYS];
};

static int run_host_update(struct sweep *s, void *ctx, int call, struct fsdp_err *err)
{
    const struct host_update *u = ctx;

    (void)s;
    FSDP_TRY(sweep_update(u->lane, u->buffer, HOST_NELEM, call + 1, err));
    return fsdp_lane_sync(u->lane, err);
}

static int host_update_open(struct host_update *u, struct fsdp_err *err)
{
    const struct fsdp_init normal = {FSDP_INIT_NORMAL, 0.02f};

    FSDP_TRY(fsdp_device_open(&u->host, "cpu", 0, err));
    FSDP_TRY(fsdp_lane_create(&u->lane, u->host, "sweep of host updates", err));
    for (int i = 0; i < HOST_NARRAYS; i++) {
        u->buffer[i] =
            fsdp_device_alloc(u->host, HOST_NELEM * sizeof(float), "sweep of host updates", err);
        if (!u->buffer[i])
            return FSDP_ENOMEM;
        FSDP_TRY(i == 1 || i == 2 /* moments */
                     ? fsdp_zero(u->lane, u->buffer[i], HOST_NELEM * sizeof(float), err)
                     : fsdp_init_fill(u->lane, u->buffer[i], 0, HOST_NELEM, normal, 1, (uint64_t)i,
                                      err));
    }
    return fsdp_lane_sync(u->lane, err);
}

static void host_update_close(struct host_update *u)
{
    for (int i = 0; i < HOST_NARRAYS && u->host; i++)
        fsdp_device_free(u->host, u->buffer[i]);
    fsdp_lane_destroy(u->lane);
    fsdp_device_close(u->host);
}

static int time_host_updates(struct sweep *s, struct fsdp_err *err)
{
    struct host_update u = {0};
    double seconds = 0;
    int rc = fsdp_oob_agree(s->opts->oob, host_update_open(&u, err), err);

    if (rc == FSDP_OK)
        rc = sweep_time(&seconds, s, run_host_update, &u, err);
    if (rc == FSDP_OK)
        s->out->host_memory_nbytes_per_s = HOST_NELEM * (double)SWEEP_UPDATE_NBYTES / seconds;
    host_update_close(&u);
    return rc;
}

int sweep_host(struct sweep *s, struct fsdp_err *err)
{
    if (fsdp_device_is_host(s->opts->device))
        return FSDP_OK;
    sweep_say(s, "copies to the host, and updates on it");
    FSDP_TRY(time_uploads(s, err));
    return time_host_updates(s, err);
}
