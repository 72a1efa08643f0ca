/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation moves, and how long a simple model says that it takes. */
#include <math.h>
#include <string.h>

#include "core/state/gather.h"
#include "core/state/offload.h"
#include "trace.h"

const char *trace_op_name(char *out, size_t out_nbytes, const struct fsdp *f,
                          const struct sched_op *op)
{
    int module = op->module;
    bool frozen = false;

    if (op->flat >= 0) {
        module = f->units.units[f->units.flats[op->flat].unit].module;
        frozen = !f->units.flats[op->flat].trainable;
    }
    const char *name = module >= 0 ? f->tree->modules[module].name : "";
    snprintf(out, out_nbytes, "%s%s", module >= 0 && !*name ? "(root)" : name,
             frozen ? ", frozen" : "");
    return out;
}

const char *trace_op_label(char *out, size_t out_nbytes, const struct fsdp *f,
                           const struct sched_op *op)
{
    char name[200];

    trace_op_name(name, sizeof name, f, op);
    if (op->kind == SCHED_STEP)
        snprintf(out, out_nbytes, "optimizer");
    else if (op->kind == SCHED_MICRO_BEGIN)
        snprintf(out, out_nbytes, "micro-step %d", op->micro);
    else
        snprintf(out, out_nbytes, "%s%s%s",
                 op->kind == SCHED_ENTER ? fsdp_phase_name(op->phase) : sched_kind_name(op->kind),
                 *name ? " " : "", name);
    return out;
}

/* Of nbytes that nranks ranks share, all but its own part reaches each. */
static uint64_t others_part(uint64_t nbytes, int nranks)
{
    return nbytes - nbytes / (uint64_t)nranks;
}

/* What all ranks of the shard group send to a gather together; and the parameters themselves. */
static uint64_t sent_nbytes(const struct fsdp *f, int flat)
{
    return gather_shard_nbytes(&f->units.flats[flat]) * (uint64_t)f->mesh->shard_size;
}

static uint64_t param_nbytes(const struct fsdp *f, int flat)
{
    return flat_full_nelem(&f->units.flats[flat]) *
           fsdp_dtype_nbytes(f->units.flats[flat].param_dtype);
}

uint64_t trace_op_nbytes(const struct fsdp *f, const struct sched_op *op)
{
    const struct fsdp_mesh *mesh = f->mesh;
    uint64_t nflats = (uint64_t)f->units.nflats;
    int inner = mesh->inner_size ? mesh->inner_size : mesh->shard_size;

    switch (op->kind) {
    case SCHED_LOAD:
    case SCHED_FETCH:
    case SCHED_STORE:
        return offload_op_nbytes(f, op);
    case SCHED_OUTER_GATHER:
        return others_part(sent_nbytes(f, op->flat) / (uint64_t)mesh->inner_size, mesh->outer_size);
    case SCHED_GATHER:
        return others_part(sent_nbytes(f, op->flat), inner);
    case SCHED_REGATHER:
        return others_part(param_nbytes(f, op->flat), mesh->regather_size);
    case SCHED_REDUCE:
        return others_part(f->sched_flats[op->flat].grad_nbytes, inner);
    case SCHED_OUTER_REDUCE:
        return others_part(f->sched_flats[op->flat].grad_nbytes / (uint64_t)mesh->inner_size,
                           mesh->outer_size);
    case SCHED_ALL_REDUCE: /* scattered, then gathered */
        return 2 * others_part(f->sched_flats[op->flat].grad_nbytes / (uint64_t)mesh->shard_size,
                               mesh->replicate_size);
    case SCHED_NORM_SUM:
        return 2 * others_part((FSDP_CONTROL_NELEM + nflats) * sizeof(double), mesh->size);
    case SCHED_AMAX:
        return 2 * others_part((uint64_t)f->namax_trainable * (uint64_t)mesh->shard_size *
                                   sizeof(double),
                               mesh->size);
    default:
        return 0;
    }
}

/* Its own parameters, and those of others that it uses under another name. */
static double module_nelem(const struct fsdp_module_tree *tree, int module)
{
    double nelem = 0;
    for (int i = 0; i < tree->nparams; i++)
        if (tree->params[i].module == module)
            nelem += (double)fsdp_tensor_nelem(&tree->params[i].tensor);
    for (int i = 0; i < tree->naliases; i++)
        if (tree->aliases[i].module == module)
            nelem += (double)fsdp_tensor_nelem(&tree->params[tree->aliases[i].param].tensor);
    return nelem;
}

static double seconds_of(const struct fsdp *f, const struct sched_op *op,
                         const struct fsdp_schedule_cost *cost)
{
    /* Passes over the fp32 shard: the norm reads it; AdamW reads four arrays and writes three. */
    enum { NORM_PASSES = 1, UPDATE_PASSES = 7 };
    double flop, shard_nbytes = 0;

    if (op->flat >= 0)
        shard_nbytes = (double)f->units.flats[op->flat].cut.shard_nelem * sizeof(float);
    switch (op->kind) {
    case SCHED_ENTER: /* all of the module's own work; what is below it has its own */
        flop = (op->phase == FSDP_BACKWARD ? 4 : 2) * module_nelem(f->tree, op->module);
        return flop * cost->ntokens / cost->flops_per_s;
    case SCHED_KEEP_PART: /* read and written */
        return 2 * (double)param_nbytes(f, op->flat) / f->mesh->regather_size /
               cost->memory_nbytes_per_s;
    case SCHED_UNPACK:
        return 2 * (double)param_nbytes(f, op->flat) / cost->memory_nbytes_per_s;
    case SCHED_PACK:
        return 2 * (double)f->sched_flats[op->flat].grad_nbytes / cost->memory_nbytes_per_s;
    case SCHED_NORM:
        return NORM_PASSES * shard_nbytes / cost->memory_nbytes_per_s;
    case SCHED_UPDATE:
        return UPDATE_PASSES * shard_nbytes / cost->memory_nbytes_per_s;
    case SCHED_LOAD:
    case SCHED_FETCH:
    case SCHED_STORE:
        return (double)trace_op_nbytes(f, op) / cost->link_nbytes_per_s;
    default:
        if (!trace_is_comm(op) || f->mesh->size == 1)
            return 0;
        return cost->latency_s + (double)trace_op_nbytes(f, op) / cost->link_nbytes_per_s;
    }
}

struct model {
    const struct sched *sched;
    double free_at[SCHED_NLANES];
    struct trace_time *pass[2];
};

static double ready_at(const struct model *m, int pass, int i)
{
    const struct sched_op *op = &m->sched->ops[i];
    double ready = m->free_at[op->lane];

    for (int k = 0; k < op->nwaits; k++) {
        int target = m->sched->waits[op->waits + k];
        if (target >= i && pass == 0)
            continue; /* of a step that never was */
        const struct trace_time *t = &m->pass[target >= i ? 0 : pass][target];
        ready = t->end > ready ? t->end : ready;
    }
    return ready;
}

static void run_pass(struct model *m, int pass, const struct fsdp *f,
                     const struct fsdp_schedule_cost *cost)
{
    struct trace_time *times = m->pass[pass], *driven = NULL;

    for (int i = 0; i < m->sched->nops; i++) {
        const struct sched_op *op = &m->sched->ops[i];
        double *free_at = &m->free_at[op->lane];
        if (op->kind == SCHED_FREE)
            continue;
        double ready = ready_at(m, pass, i), seconds = seconds_of(f, op, cost);
        if (sched_is_driven(op->kind)) {
            driven = &times[i];
            *driven = (struct trace_time){*free_at, ready};
        } else {
            times[i] = (struct trace_time){ready, ready + seconds};
            if (op->lane == SCHED_COMPUTE && driven)
                driven->end = times[i].end; /* the model continues after it */
        }
        *free_at = ready + seconds;
    }
}

void trace_model(struct trace_time *times, const struct fsdp *f, enum fsdp_program program,
                 const struct fsdp_schedule_cost *cost, struct trace_time *scratch)
{
    const struct sched *s = &f->programs[program].sched;
    struct model m = {.sched = s, .pass = {scratch, times}};
    double first = INFINITY;

    memset(times, 0, (size_t)s->nops * sizeof *times);
    memset(scratch, 0, (size_t)s->nops * sizeof *scratch);
    run_pass(&m, 0, f, cost);
    run_pass(&m, 1, f, cost);
    for (int i = 0; i < s->nops; i++)
        if (s->ops[i].kind != SCHED_FREE && times[i].begin < first)
            first = times[i].begin;
    for (int i = 0; i < s->nops; i++) {
        times[i].begin -= first;
        times[i].end -= first;
    }
}
