/* SPDX-License-Identifier: Apache-2.0 */
/* What all parts of the engine ask of it. */
#include <stdio.h>

#include "engine.h"

void engine_describe(const struct fsdp_module_tree *tree, enum sched_kind kind, int module,
                     enum fsdp_phase phase, int micro, char *text, size_t nbytes)
{
    const char *verb = sched_kind_name(kind);
    if (sched_is_visit(kind)) {
        const char *name = tree->modules[module].name;
        snprintf(text, nbytes, "%s '%s' (%s)", verb, *name ? name : "the root",
                 fsdp_phase_name(phase));
    } else if (kind == SCHED_MICRO_BEGIN || kind == SCHED_MICRO_END) {
        snprintf(text, nbytes, "%s %d", verb, micro);
    } else {
        snprintf(text, nbytes, "%s", verb);
    }
}

int engine_between_steps(const struct fsdp *f, const char *call, struct fsdp_err *err)
{
    char at[160];

    if (f->cursor.broken)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: the step was broken by an earlier error; fsdp_step_reset first",
                            call);
    if (!f->cursor.program || f->cursor.index == 0 ||
        f->cursor.index == f->cursor.program->sched.nops)
        return FSDP_OK;
    const struct sched_op *op = &f->cursor.program->sched.ops[f->cursor.index];
    if (op->kind == SCHED_STEP)
        return FSDP_OK;
    engine_describe(f->tree, op->kind, op->module, op->phase, op->micro, at, sizeof at);
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s in mid-step, where %s is next: call it between steps (fsdp_step_reset "
                        "abandons this one)",
                        call, at);
}

int engine_join_updates(struct fsdp *f, struct fsdp_err *err)
{
    const bool on_host = engine_updates_on_host(f);

    if (on_host) /* what they wrote, and the scalars they read */
        FSDP_TRY(engine_order(f, SCHED_DOWNLOADS, f->lanes[SCHED_COMPUTE], err));
    if (!on_host && f->opts.update_at != FSDP_UPDATE_AT_FORWARD)
        return FSDP_OK;
    return engine_order(f, SCHED_UPDATES, f->lanes[SCHED_COMPUTE], err);
}

int engine_order(struct fsdp *f, enum sched_lane before, struct fsdp_lane *after,
                 struct fsdp_err *err)
{
    FSDP_TRY(fsdp_event_record(f->plan.tails[before], f->lanes[before], err));
    return fsdp_event_wait(f->plan.tails[before], after, err);
}

int fsdp_sync(struct fsdp *f, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        int lane_rc = fsdp_lane_sync(f->lanes[lane], rc ? NULL : err);
        rc = rc ? rc : lane_rc;
    }
    return rc;
}

bool engine_is_by_hand(const struct fsdp *f, const struct unit *unit)
{
    for (int k = 0; k < UNIT_NFLATS; k++)
        if (unit->flats[k] >= 0 && f->flats[unit->flats[k]].by_hand)
            return true;
    return false;
}

int engine_check_resharded(const struct fsdp *f, const char *call, struct fsdp_err *err)
{
    for (int u = 0; u < f->units.nunits; u++)
        if (engine_is_by_hand(f, &f->units.units[u]))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s would leave the copy of unit '%s' behind, which is unsharded "
                                "by hand: fsdp_reshard it first",
                                call, f->tree->modules[f->units.units[u].module].name);
    return FSDP_OK;
}
