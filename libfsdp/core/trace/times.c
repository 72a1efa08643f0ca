/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over a list under a clock. */
#include "trace.h"

/* Of one operation: what it computes, touches and sends. */
static void add_op(struct fsdp_schedule_times *sums, const struct fsdp *f,
                   const struct sched_op *op, const struct fsdp_clock *clock)
{
    const struct sched_op_info *info = &sched_infos[op->kind];

    if (op->kind == SCHED_FREE)
        return;
    if (op->kind == SCHED_ENTER) {
        const double seconds = trace_work_seconds(f, op, clock, sums->work_s);
        sums->again_s += op->phase == FSDP_RECOMPUTE ? seconds : 0;
        return;
    }
    const struct trace_cost cost = trace_op_cost(f, op, clock);
    if (info->touched_nbytes)
        sums->memory_s += cost.seconds;
    if (op->on_host && cost.transfers)
        sums->host_s += fsdp_transfer_seconds(&cost.transfer);
    if (!cost.transfers)
        return;
    sums->ncollectives += info->comm;
    for (int link = 0; link < FSDP_NLINKS; link++) {
        const double nbytes = cost.transfer.nbytes * cost.transfer.load[link];
        const double share = link == FSDP_LINK_NIC ? cost.transfer.nic_share : 1;
        sums->link_nbytes[link] += nbytes * share;
        sums->link_s[link] +=
            nbytes > 0 ? nbytes / fsdp_link_capacity(&clock->net, (enum fsdp_link)link) : 0;
    }
}

int trace_times(struct trace_time **times, struct fsdp_trace_share *share,
                struct fsdp_schedule_times *sums, const struct fsdp *f, enum fsdp_program program,
                const struct fsdp_clock *clock, struct fsdp_err *err)
{
    const struct sched *s = &f->plan.programs[program].sched;
    const size_t nops = (size_t)s->nops;
    struct trace_totals totals;

    *times = NULL;
    FSDP_TRY(fsdp_clock_check(clock, err));
    struct trace_time *out = fsdp_alloc(nops, sizeof *out, "modelled times", err);
    struct trace_time *scratch = fsdp_alloc(2 * nops, sizeof *scratch, "modelled times", err);
    int rc = out && scratch ? trace_timeline(out, &totals, f, program, clock, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK) {
        trace_share(share, s, out, 1, scratch);
        *sums = (struct fsdp_schedule_times){.nops = s->nops,
                                             .list_s = totals.list_s,
                                             .slowed_s = totals.slowed_s,
                                             .compute_s = share->compute_s,
                                             .comm_s = share->comm_s,
                                             .exposed_s = share->exposed_s};
        for (int i = 0; i < s->nops; i++)
            add_op(sums, f, &s->ops[i], clock);
        sums->memory_s -= totals.hidden_s;
        sums->step_s =
            (sums->list_s + clock->device.step_s) * fsdp_jitter_factor(&clock->net, f->mesh->size);
        *times = out;
        out = NULL;
    }
    fsdp_free(out);
    fsdp_free(scratch);
    return rc;
}

int fsdp_schedule_time(const struct fsdp *f, enum fsdp_program program,
                       const struct fsdp_clock *clock, struct fsdp_schedule_times *out,
                       struct fsdp_err *err)
{
    struct fsdp_trace_share share;
    struct trace_time *times;
    int rc = trace_times(&times, &share, out, f, program, clock, err);

    fsdp_free(times);
    return rc;
}
