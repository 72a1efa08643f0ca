/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a lane came somewhere, for traces: events with timing between the lane's work, read once the
 * lane was synced. A trace's first stamp waits for the lane, to know the host's time of an event;
 * a lane that is not traced has none of this.
 */
#include "cuda.h"

struct cuda_stamp {
    cudaEvent_t event;
    double *to;
};

static int grow_stamps(struct cuda_stamps *s, struct fsdp_err *err)
{
    int more = s->max_stamps ? 2 * s->max_stamps : 256;
    struct cuda_stamp *stamps = fsdp_alloc((size_t)more, sizeof *stamps, "trace of a lane", err);

    if (!stamps)
        return FSDP_ENOMEM;
    for (int i = 0; i < s->max_stamps; i++)
        stamps[i] = s->stamps[i];
    fsdp_free(s->stamps);
    s->stamps = stamps;
    while (s->max_stamps < more) {
        cudaError_t e = cudaEventCreateWithFlags(&stamps[s->max_stamps].event, cudaEventDefault);
        FSDP_TRY(fsdp_cuda_check((int)e, err, "cannot create an event with timing"));
        s->max_stamps++;
    }
    return FSDP_OK;
}

static int begin_clock(struct cuda_stamps *s, cudaStream_t stream, struct fsdp_err *err)
{
    cudaError_t e =
        s->origin ? cudaSuccess : cudaEventCreateWithFlags(&s->origin, cudaEventDefault);
    e = e ? e : cudaStreamSynchronize(stream);
    s->origin_time = fsdp_time_now(); /* before it, so that no stamp is ahead of the clock */
    e = e ? e : cudaEventRecord(s->origin, stream);
    e = e ? e : cudaEventSynchronize(s->origin);
    return fsdp_cuda_check((int)e, err, "taking a lane's time");
}

int cuda_stamps_add(struct cuda_stamps *s, cudaStream_t stream, double *to, struct fsdp_err *err)
{
    if (s->nstamps == 0)
        FSDP_TRY(begin_clock(s, stream, err));
    if (s->nstamps == s->max_stamps)
        FSDP_TRY(grow_stamps(s, err));
    struct cuda_stamp *stamp = &s->stamps[s->nstamps];
    FSDP_TRY(fsdp_cuda_check((int)cudaEventRecord(stamp->event, stream), err,
                             "recording a lane's time"));
    stamp->to = to;
    s->nstamps++;
    return FSDP_OK;
}

void cuda_stamps_read(struct cuda_stamps *s)
{
    for (int i = 0; i < s->nstamps; i++) {
        float ms = 0;
        if (cudaEventElapsedTime(&ms, s->origin, s->stamps[i].event) == cudaSuccess)
            *s->stamps[i].to = s->origin_time + (double)ms / 1e3;
    }
    s->nstamps = 0;
}

void cuda_stamps_free(struct cuda_stamps *s)
{
    for (int i = 0; i < s->max_stamps; i++)
        cudaEventDestroy(s->stamps[i].event);
    if (s->origin)
        cudaEventDestroy(s->origin);
    fsdp_free(s->stamps);
}
