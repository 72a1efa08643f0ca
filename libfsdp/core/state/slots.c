/* SPDX-License-Identifier: Apache-2.0 */
#include "slots.h"

static uint64_t *pos_of(struct fsdp *f, int flat, int tensor, int k)
{
    const int param = f->units.flats[flat].params[tensor];
    return &f->optim.slot_pos[(size_t)param * MAX_SLOTS + (size_t)k];
}

/* Does the slot lie as the shard does? */
static bool lies_as_shard(const struct fsdp *f, int flat, int k)
{
    const enum fsdp_slot_kind kind = f->optim.slots[k].kind;

    for (int i = 0; i < f->units.flats[flat].ntensors; i++)
        if (!slots_has(f, flat, i, k))
            return false;
    return kind == FSDP_PER_ELEMENT || kind == FSDP_PER_BLOCK;
}

static uint64_t place_as_shard(struct fsdp *f, int flat, int k)
{
    const struct flat *of = &f->units.flats[flat];
    const uint64_t each = f->optim.slots[k].kind == FSDP_PER_BLOCK ? FSDP_CUT_ALIGN : 1;

    for (int i = 0; i < of->ntensors; i++) {
        struct fsdp_box box;
        fsdp_cut_box(&box, pos_of(f, flat, i, k), &of->cut, of->tensors, i, flat_shard(f, of));
        *pos_of(f, flat, i, k) /= each;
    }
    return of->cut.shard_nelem / each;
}

/* One after another. Returns where the last ends of what a shard has. */
static uint64_t place_in_turn(struct fsdp *f, int flat, int k, int shard)
{
    const struct flat *of = &f->units.flats[flat];
    uint64_t end = 0;

    for (int i = 0; i < of->ntensors; i++) {
        struct fsdp_box box, part;
        uint64_t pos, nelem;
        if (!slots_has(f, flat, i, k))
            continue;
        nelem = fsdp_cut_box(&box, &pos, &of->cut, of->tensors, i, shard);
        nelem = fsdp_slot_box(&part, &f->optim.slots[k], &of->tensors[i], &box, nelem);
        *pos_of(f, flat, i, k) = end;
        end += (nelem + FSDP_CUT_ALIGN - 1) / FSDP_CUT_ALIGN * FSDP_CUT_ALIGN;
    }
    return end;
}

static uint64_t place_slot(struct fsdp *f, int flat, int k)
{
    uint64_t most = 0;

    if (lies_as_shard(f, flat, k))
        return place_as_shard(f, flat, k);
    for (int shard = 0; shard < f->units.flats[flat].cut.nranks; shard++) {
        uint64_t end = place_in_turn(f, flat, k, shard);
        most = end > most ? end : most;
    }
    place_in_turn(f, flat, k, flat_shard(f, &f->units.flats[flat]));
    return most;
}

static int check_blocks(const struct fsdp *f, int flat, int k, struct fsdp_err *err)
{
    const struct flat *of = &f->units.flats[flat];
    const char *unit = f->tree->modules[f->units.units[of->unit].module].name;

    if (f->optim.slots[k].kind != FSDP_PER_BLOCK || !flat_is_chunked(of))
        return FSDP_OK;
    for (int i = 0; i < of->ntensors; i++)
        if (slots_has(f, flat, i, k))
            return fsdp_err_set(
                err, FSDP_EUNSUPPORTED,
                "%s: unit '%s' is cut in chunks, because its row lengths have no small common "
                "multiple, and a cut would fall within blocks of %d elements of '%s': choose "
                "another optimizer for it (optim.groups), or wrap it differently",
                f->optim.kinds[of->params[i]]->name, *unit ? unit : "(root)", FSDP_CUT_ALIGN,
                of->tensors[i].name);
    return FSDP_OK;
}

int slots_plan(struct fsdp *f, struct fsdp_err *err)
{
    const size_t nflats = (size_t)f->units.nflats, nparams = (size_t)f->units.nparams;

    f->optim.slot_nelem = fsdp_alloc(nflats * MAX_SLOTS, sizeof *f->optim.slot_nelem, "slots", err);
    f->optim.slot_pos = fsdp_alloc(nparams * MAX_SLOTS, sizeof *f->optim.slot_pos, "slots", err);
    if (!f->optim.slot_nelem || !f->optim.slot_pos)
        return FSDP_ENOMEM;
    for (int flat = 0; flat < f->units.nflats; flat++)
        for (int k = 0; f->units.flats[flat].trainable && k < f->optim.nslots; k++) {
            FSDP_TRY(check_blocks(f, flat, k, err));
            f->optim.slot_nelem[flat * MAX_SLOTS + k] = place_slot(f, flat, k);
        }
    return FSDP_OK;
}

void slots_of_run(void *out[OPTIMIZER_MAX_STATE], const struct fsdp *f, const struct flat_state *s,
                  const struct update_run *run, uint64_t at)
{
    for (int j = 0; j < OPTIMIZER_MAX_STATE; j++) {
        const int k = run->slots[j];
        const bool blocks = k >= 0 && f->optim.slots[k].kind == FSDP_PER_BLOCK;
        out[j] = k < 0
                     ? NULL
                     : state_at(&f->optim, s, k, run->at[j] + (blocks ? at / FSDP_CUT_ALIGN : at));
    }
}
