/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of parameters whose optimizer needs sums over all of them. Every rank takes part, also
 * with nothing of a parameter. In f->mem.sums lie, of one flat,
 *
 *     a sum of the update for each such parameter | the sums of the first | of the second | ...
 */
#include "core/state/slots.h"
#include "update.h"

static bool is_shared(const struct fsdp *f, int flat, int i)
{
    const struct flat *of = &f->units.flats[flat];
    return of->trainable && f->optim.kinds[of->params[i]]->phase &&
           fsdp_tensor_nelem(&of->tensors[i]) > 0;
}

static uint64_t count_shared(const struct fsdp *f, int flat)
{
    uint64_t count = 0;

    for (int i = 0; i < f->units.flats[flat].ntensors; i++)
        count += is_shared(f, flat, i);
    return count;
}

/* Doubles of a flat behind the sums of updates. */
static uint64_t count_sums(const struct fsdp *f, int flat)
{
    const struct flat *of = &f->units.flats[flat];
    uint64_t nsums = 0;

    for (int i = 0; i < of->ntensors; i++)
        if (is_shared(f, flat, i))
            nsums += f->optim.kinds[of->params[i]]->nsums(&of->tensors[i]);
    return nsums;
}

uint64_t update_shared_nsums(const struct fsdp *f)
{
    uint64_t most = 0;

    for (int k = 0; k < f->units.nflats; k++) {
        const uint64_t nsums = count_shared(f, k) + count_sums(f, k);
        most = nsums > most ? nsums : most;
    }
    return most;
}

uint64_t update_shared_nroom(const struct fsdp *f)
{
    uint64_t most = 0;

    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *of = &f->units.flats[k];
        for (int i = 0; i < of->ntensors; i++) {
            const struct optimizer *kind =
                is_shared(f, k, i) ? f->optim.kinds[of->params[i]] : NULL;
            const uint64_t nroom = kind && kind->nroom ? kind->nroom(&of->tensors[i]) : 0;
            most = nroom > most ? nroom : most;
        }
    }
    return most;
}

static int run_phase(struct fsdp *f, int flat, const struct flat_state *s, int phase,
                     struct fsdp_err *err)
{
    const struct flat *of = &f->units.flats[flat];
    const struct update_step step = update_step_of(f, f->lanes[SCHED_COMPUTE]);
    double *update_sum = f->mem.sums, *sums = update_sum + count_shared(f, flat);

    for (int i = 0; i < of->ntensors; i++) {
        struct update_run run;
        if (!is_shared(f, flat, i))
            continue;
        update_run_of(&run, f, flat, i);
        struct optimizer_run args = update_args_of(f, &step, s, &run, run.pos, run.nelem);
        args.master = s->master + run.pos;
        args.tensor = &of->tensors[i];
        args.sums = sums;
        args.update_sum = update_sum++;
        args.room = f->mem.room;
        args.first = run.first;
        args.chosen =
            f->mesh->replicate_rank == 0 && (flat + i) % f->mesh->shard_size == f->mesh->shard_rank;
        sums += run.kind->nsums(args.tensor);
        FSDP_TRY(run.kind->phase(step.lane, &args, phase, err));
    }
    return FSDP_OK;
}

/* Replicas hold the same values: one of them counts. */
static int sum_over_ranks(struct fsdp *f, double *sums, uint64_t nelem, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];

    if (f->mesh->size == 1)
        return FSDP_OK;
    if (f->mesh->replicate_rank != 0)
        FSDP_TRY(fsdp_zero(lane, sums, nelem * sizeof *sums, err));
    return fsdp_comm_all_reduce(f->mesh->world, sums, sums, nelem, FSDP_F64, lane, err);
}

/* What the chosen ranks made, where that is as much as there was. */
static int sum_again(struct fsdp *f, int flat, struct fsdp_err *err)
{
    const struct flat *of = &f->units.flats[flat];
    double *sums = f->mem.sums + count_shared(f, flat);

    for (int i = 0; i < of->ntensors; i++) {
        if (!is_shared(f, flat, i))
            continue;
        const struct optimizer *kind = f->optim.kinds[of->params[i]];
        const uint64_t nsums = kind->nsums(&of->tensors[i]);
        if (kind->sums_twice)
            FSDP_TRY(sum_over_ranks(f, sums, nsums, err));
        sums += nsums;
    }
    return FSDP_OK;
}

int update_shared(struct fsdp *f, int flat, const struct flat_state *s, struct fsdp_err *err)
{
    const uint64_t nshared = count_shared(f, flat), nsums = count_sums(f, flat);

    if (!nshared)
        return FSDP_OK;
    FSDP_TRY(
        fsdp_zero(f->lanes[SCHED_COMPUTE], f->mem.sums, (nshared + nsums) * sizeof(double), err));
    FSDP_TRY(run_phase(f, flat, s, 0, err));
    FSDP_TRY(sum_over_ranks(f, f->mem.sums + nshared, nsums, err));
    FSDP_TRY(run_phase(f, flat, s, 1, err));
    FSDP_TRY(sum_over_ranks(f, f->mem.sums, nshared, err));
    FSDP_TRY(sum_again(f, flat, err));
    return run_phase(f, flat, s, 2, err);
}
