/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule: every pair of conflicting accesses is ordered, limits hold, a small list reads as
 * written down here. The order proof is independent of the code that made the edges: it computes
 * the full happens-before relation over three consecutive steps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../libfsdp/core/run/op_run.h"
#include "../../libfsdp/core/sched/sched.h"
#include "tap.h"

enum { MAX_MODULES = 16 };

struct model {
    int nmodules, nunits;
    int parent[MAX_MODULES], unit_of_module[MAX_MODULES];
    struct sched_unit units[MAX_MODULES];
    bool recompute[MAX_MODULES];
    struct sched_flat flats[2 * MAX_MODULES];
    int nflats;
};

/* Root with an embedding, nblocks blocks and a head; units: root and blocks, or all modules. */
static struct model model_make(int nblocks, bool wrap_all, bool frozen, bool recompute)
{
    struct model m = {.nmodules = nblocks + 3};
    for (int i = 0; i < m.nmodules; i++) {
        bool block = i >= 2 && i < 2 + nblocks;
        m.parent[i] = i ? 0 : -1;
        m.recompute[i] = block && recompute;
        if (!i || block || wrap_all) {
            m.units[m.nunits] = (struct sched_unit){
                .module = i, .reshard_after_forward = true, .reshard_after_backward = true};
            m.unit_of_module[i] = m.nunits++;
        }
    }
    for (int u = 0; u < m.nunits; u++) {
        uint64_t nbytes = u ? 1000 : 3000;
        m.flats[m.nflats++] = (struct sched_flat){.unit = u,
                                                  .trainable = true,
                                                  .full_nbytes = nbytes,
                                                  .grad_nbytes = nbytes,
                                                  .grad_narrow = u % 2};
        if (frozen && u % 2)
            m.flats[m.nflats++] = (struct sched_flat){.unit = u, .full_nbytes = 500};
    }
    return m;
}

/* Root and nblocks blocks of two modules each; units: root and the modules in blocks, and with
 * `both` the blocks, too. */
static struct model model_nested(int nblocks, bool both, bool recompute, bool recompute_inside)
{
    struct model m = {.nmodules = 1 + 3 * nblocks};
    for (int i = 0; i < m.nmodules; i++) {
        const bool block = i % 3 == 1, inside = i && !block;
        m.parent[i] = i == 0 ? -1 : block ? 0 : i - (i - 1) % 3;
        m.recompute[i] = (block && recompute) || (inside && recompute_inside && !recompute);
        m.unit_of_module[i] = m.nunits;
        if (block && !both) {
            m.unit_of_module[i] = 0;
            continue;
        }
        m.units[m.nunits] = (struct sched_unit){
            .module = i, .reshard_after_forward = true, .reshard_after_backward = true};
        const uint64_t nbytes = block ? 10 : i % 3 == 0 ? 900 : 300;
        m.flats[m.nflats++] = (struct sched_flat){
            .unit = m.nunits++, .trainable = true, .full_nbytes = nbytes, .grad_nbytes = nbytes};
    }
    return m;
}

static struct sched_input input_of(const struct model *m)
{
    return (struct sched_input){.program = FSDP_TRAIN,
                                .nmodules = m->nmodules,
                                .nunits = m->nunits,
                                .nflats = m->nflats,
                                .parent = m->parent,
                                .unit_of_module = m->unit_of_module,
                                .units = m->units,
                                .recompute = m->recompute,
                                .flats = m->flats,
                                .sharded = true,
                                .replicated = true,
                                .accumulation = 1,
                                .forward_prefetch = 1,
                                .backward_prefetch = 1,
                                .limit_all_gathers = 2,
                                .grad_buffers = 2};
}

static bool on_lane(const struct sched_op *op)
{
    return op->kind != SCHED_FREE && op->kind != SCHED_MICRO_BEGIN && op->kind != SCHED_MICRO_END &&
           op->kind != SCHED_STEP;
}

/* An ENTER..LEAVE bracket: operations of other lanes between them in time must not conflict, so the
 * pair is tested as one: before means before its ENTER, after means after its LEAVE. */
static int bracket_end(const struct sched *s, int i)
{
    if (s->ops[i].kind != SCHED_ENTER)
        return i;
    for (int j = i + 1; j < s->nops; j++)
        if (s->ops[j].kind == SCHED_LEAVE && s->ops[j].module == s->ops[i].module &&
            s->ops[j].phase == s->ops[i].phase)
            return j;
    return -1;
}

static int unordered_pairs(const struct sched *s, const struct sched_input *in)
{
    enum { STEPS = 3 };
    int total = s->nops * STEPS, bad = 0, last[SCHED_NLANES];
    bool *before = calloc((size_t)total * (size_t)total, 1); /* before[b * total + a]: a before b */

    memset(last, 0xff, sizeof last);
    for (int b = 0; b < total; b++) {
        const struct sched_op *op = &s->ops[b % s->nops];
        int from[SCHED_NLANES + 64], n = 0;
        if (!on_lane(op))
            continue;
        if (last[op->lane] >= 0)
            from[n++] = last[op->lane];
        last[op->lane] = b;
        for (int k = 0; k < op->nwaits; k++) {
            int target = s->waits[op->waits + k], step = b / s->nops;
            step -= target >= b % s->nops;
            if (step >= 0)
                from[n++] = step * s->nops + target;
        }
        for (int k = 0; k < n; k++) {
            before[(size_t)b * (size_t)total + (size_t)from[k]] = true;
            for (int a = 0; a < total; a++)
                before[(size_t)b * (size_t)total + (size_t)a] |=
                    before[(size_t)from[k] * (size_t)total + (size_t)a];
        }
    }
    for (int a = 0; a < total; a++) {
        struct sched_access x[SCHED_MAX_ACCESSES], y[SCHED_MAX_ACCESSES];
        int ia = a % s->nops, nx = on_lane(&s->ops[ia]) && s->ops[ia].kind != SCHED_LEAVE
                                       ? sched_accesses(s, in, ia, x)
                                       : 0;
        int a_end = a - ia + bracket_end(s, ia);
        for (int b = a + 1; nx && b < total; b++) {
            int ib = b % s->nops, ny = on_lane(&s->ops[ib]) && s->ops[ib].kind != SCHED_LEAVE
                                           ? sched_accesses(s, in, ib, y)
                                           : 0;
            for (int i = 0; i < nx; i++)
                for (int j = 0; j < ny; j++)
                    if (x[i].buffer == y[j].buffer && x[i].index == y[j].index &&
                        (x[i].write || y[j].write) &&
                        !before[(size_t)b * (size_t)total + (size_t)a_end] &&
                        !(s->ops[ib].lane == s->ops[ia].lane))
                        bad++;
        }
    }
    free(before);
    return bad;
}

/* Is the unit one that the strategy keeps gathered, so that limit_all_gathers does not count it? In
 * these models the last unit is the last to begin its forward pass. */
static bool is_kept(const struct sched_input *in, int unit)
{
    if (in->program == FSDP_EVAL)
        return unit == 0;
    return !in->units[unit].reshard_always &&
           (unit == 0 || unit == in->nunits - 1 || !in->units[unit].reshard_after_forward);
}

/* The most units that are needed at once: those around a module, and those inside one that is
 * recomputed, which stay for its backward pass. */
static int nest_of(const struct sched_input *in)
{
    int most = 0;
    for (int m = 0; m < in->nmodules; m++) {
        int n = 0;
        for (int u = 0; u < in->nunits; u++) {
            bool around = false, inside = false;
            for (int p = m; p >= 0; p = in->parent[p])
                around |= in->units[u].module == p;
            for (int p = in->parent[in->units[u].module]; p >= 0; p = in->parent[p])
                inside |= p == m && in->recompute[m];
            n += (around || inside) && !is_kept(in, u);
        }
        most = n > most ? n : most;
    }
    return most > 1 ? most : 1;
}

/* Replays the list's gathers and frees. A unit that needs its parameters gets them, so that the
 * nest of units that are entered at once is the least that a limit can mean. */
static bool limits_hold(const struct sched *s, const struct sched_input *in)
{
    int slot_owner[64], live = 0, counted = 0, most = 0, flats_of[MAX_MODULES] = {0};
    const int nest = nest_of(in);
    bool good = true;
    memset(slot_owner, 0xff, sizeof slot_owner);
    for (int i = 0; i < s->nops; i++) {
        const struct sched_op *op = &s->ops[i];
        if (op->kind == SCHED_GATHER || op->kind == SCHED_REGATHER) {
            good &= slot_owner[op->slot] < 0;
            good &= s->param_slot_nbytes[op->slot] >= in->flats[op->flat].full_nbytes;
            slot_owner[op->slot] = op->flat;
            live++;
            int unit = in->flats[op->flat].unit;
            counted += flats_of[unit]++ == 0 && !is_kept(in, unit);
        } else if (op->kind == SCHED_FREE) {
            good &= slot_owner[op->slot] == op->flat;
            slot_owner[op->slot] = -1;
            live--;
            int unit = in->flats[op->flat].unit;
            counted -= --flats_of[unit] == 0 && !is_kept(in, unit);
        } else if (op->kind == SCHED_ENTER && (in->sharded || in->offload_params)) {
            int unit = in->unit_of_module[op->module];
            for (int f = 0; f < in->nflats; f++) {
                bool found = false;
                for (int k = 0; k < s->nparam_slots; k++)
                    found |= slot_owner[k] == f;
                good &= in->flats[f].unit != unit || found;
            }
        }
        most = counted > most ? counted : most;
    }
    good &= live == 0 && most == s->max_unsharded;
    if (in->limit_all_gathers)
        good &= most <= (in->limit_all_gathers > nest ? in->limit_all_gathers : nest);
    return good;
}

static void test_grid(void)
{
    int lists = 0, bad_pairs = 0, bad_limits = 0, repeats = 0;
    for (int bits = 0; bits < 512; bits++) {
        struct model m = bits % 3 == 1 ? model_nested(1 + bits % 4, bits & 4, bits & 8, bits & 16)
                                       : model_make(1 + bits % 4, bits & 4, bits & 8, bits & 16);
        for (int f = 0; f < m.nflats; f++)
            m.flats[f].encoded = bits % 5 < 2;
        struct sched_input in = input_of(&m);
        struct sched s, again;
        struct fsdp_err err = FSDP_ERR_INIT;
        in.program = bits & 32 ? FSDP_TRAIN : FSDP_EVAL;
        in.accumulation = in.program == FSDP_TRAIN ? 1 + (bits >> 6) % 3 : 1;
        in.sharded = bits % 7 != 0;
        for (int f = 0; f < m.nflats; f++)
            m.flats[f].chunked = in.sharded && (bits + f) % 19 < 8;
        in.replicated = bits % 3 != 0;
        in.offload_slots = 1 + bits % 4;
        for (int f = 0; f < m.nflats; f++)
            m.flats[f].offloaded = m.flats[f].trainable && !m.flats[f].encoded && bits % 23 < 12;
        in.offload_params = bits % 5 >= 2 && bits % 13 < 5;
        struct sched_act acts[MAX_MODULES];
        bool keeps[MAX_MODULES];
        for (int i = 0; i < m.nmodules; i++)
            keeps[i] = m.parent[i] == 0 && (bits + i) % 7;
        sched_place_acts(acts, keeps, m.nmodules, in.offload_slots);
        in.acts = bits % 37 < 20 ? acts : NULL;
        for (int u = 0; u < m.nunits; u++) {
            struct sched_unit *unit = &m.units[u];
            unit->reshard_after_forward = bits % 5 == 1 ? u % 2 == 0 : bits % 5 != 0;
            unit->reshard_after_backward = unit->reshard_after_forward || bits % 2;
            unit->reshard_always = unit->reshard_after_forward && bits % 11 == 0;
            unit->keep_part = unit->reshard_after_forward && bits % 9 == 0;
        }
        in.two_level = in.sharded && bits % 17 < 6;
        in.reduce_last = bits % 13 == 0;
        in.update_at_reduce =
            in.program == FSDP_TRAIN && bits % 29 < 10 && (in.reduce_last || in.accumulation == 1);
        in.offload_grads = in.program == FSDP_TRAIN && !in.update_at_reduce && bits % 41 < 20;
        for (int f = 0; f < m.nflats; f++)
            m.flats[f].on_host = in.offload_grads && m.flats[f].trainable && !m.flats[f].encoded &&
                                 (bits + f) % 7 < 4;
        in.update_at_forward = in.program == FSDP_TRAIN && !in.update_at_reduce && bits % 31 < 15;
        in.forward_prefetch = bits % 3;
        in.backward_prefetch = (bits >> 2) % 4;
        in.limit_all_gathers = (bits >> 1) % 4;
        in.grad_buffers = 1 + bits % 3;
        if (sched_create(&s, &in, &err)) {
            ok(false, "schedule %d: %s", bits, err.text);
            continue;
        }
        sched_create(&again, &in, &err);
        repeats += sched_hash(&s) == sched_hash(&again);
        bad_pairs += unordered_pairs(&s, &in);
        bad_limits += !limits_hold(&s, &in);
        lists++;
        sched_destroy(&s);
        sched_destroy(&again);
    }
    ok(lists == 512 && bad_pairs == 0, "%d schedules: %d unordered conflicting pairs", lists,
       bad_pairs);
    ok(bad_limits == 0, "%d schedules: slots are exclusive, gathered when entered, within limits",
       lists);
    ok(repeats == lists, "the same input gives the same schedule");
}

/* How many units' gathers stand before the pass enters unit `unit`, since the pass began. */
static int gathers_before(const struct sched *s, const struct sched_input *in, int unit,
                          enum fsdp_phase phase)
{
    int count = 0, begin = 0, i = 0;
    for (; i < s->nops; i++) {
        const struct sched_op *op = &s->ops[i];
        if (op->kind == SCHED_LEAVE && op->module == 0 && op->phase == FSDP_FORWARD)
            begin = i; /* the turn */
        if (op->kind == SCHED_ENTER && op->phase == phase && op->module == in->units[unit].module)
            break;
    }
    for (int k = phase == FSDP_BACKWARD ? begin : 0; k < i; k++)
        count += s->ops[k].kind == SCHED_GATHER;
    return count;
}

/* A root and six blocks; the root and the last block are there when the backward pass begins. */
static void test_prefetch(void)
{
    struct model m = model_make(6, false, false, false);
    struct sched_input in = input_of(&m);
    bool forward = true, backward = true, turn = true;
    in.limit_all_gathers = 0;
    for (int depth = 0; depth <= 8; depth++) {
        struct sched s;
        in.forward_prefetch = in.backward_prefetch = depth;
        sched_create(&s, &in, NULL);
        for (int u = 0; u < 7; u++) {
            int want = u + 1 + depth < 7 ? u + 1 + depth : 7;
            forward &= gathers_before(&s, &in, u, FSDP_FORWARD) == want;
        }
        for (int u = 1; u < 7; u++) { /* block u is number 7 - u in backward, after the root */
            int ahead = 7 - u + depth < 6 ? 7 - u + depth : 6;
            backward &= gathers_before(&s, &in, u, FSDP_BACKWARD) == ahead - 1;
        }
        int at_turn = depth < 6 ? depth - 1 : 5;
        turn &= gathers_before(&s, &in, 0, FSDP_BACKWARD) == (at_turn > 0 ? at_turn : 0);
        sched_destroy(&s);
    }
    ok(forward, "forward prefetch of 0 to 8 units gathers so many ahead");
    ok(backward, "backward prefetch, too");
    ok(turn, "at the turn nothing is gathered before the root's forward pass is over");
}

/* Units of which the first in the backward pass, or every second, is small: all slots take turns,
 * so that a unit's gradients are written while those of the one before are reduced. */
static void test_slots_rotate(void)
{
    for (int which = 0; which < 2; which++) {
        struct model m =
            which ? model_nested(4, false, false, false) : model_make(6, false, false, false);
        struct sched_input in = input_of(&m);
        struct sched s;
        int before = -1, repeats = 0, reductions = 0, root = -1;
        in.accumulation = 3;
        if (!which)
            m.flats[m.nflats - 1].grad_nbytes = 100;
        sched_create(&s, &in, NULL);
        for (int i = 0; i < s.nops; i++) {
            const struct sched_op *op = &s.ops[i];
            if (op->kind == SCHED_REDUCE && op->flat == 0)
                root = op->slot;
            if (op->kind != SCHED_REDUCE || op->flat == 0)
                continue;
            reductions++;
            repeats += op->slot == before;
            before = op->slot;
        }
        ok(reductions == 3 * (m.nunits - 1) && repeats == 0,
           "%s: of %d reductions none has the slot of the one before (%d)",
           which ? "large and small in turn" : "a small unit before larger ones", reductions,
           repeats);
        ok(s.ngrad_slots == 3 && s.grad_slot_nbytes[root] == m.flats[0].grad_nbytes,
           "the root keeps a slot of its own size in every micro-step, %d slots in all",
           s.ngrad_slots);
        sched_destroy(&s);
    }
}

/* The proof must be able to fail: without its edges a schedule has unordered pairs. */
static void test_proof_can_fail(bool chunked)
{
    struct model m = model_make(3, false, false, false);
    struct sched_input in = input_of(&m);
    m.units[1].keep_part = m.units[2].keep_part = true;
    for (int f = 0; f < m.nflats; f++)
        m.flats[f].chunked = chunked;
    in.two_level = true;
    struct sched s;
    int caught = 0, removed = 0;
    sched_create(&s, &in, NULL);
    for (int i = 0; i < s.nops; i++) {
        int keep = s.ops[i].nwaits;
        if (!keep)
            continue;
        s.ops[i].nwaits = keep - 1;
        removed++;
        caught += unordered_pairs(&s, &in) > 0;
        s.ops[i].nwaits = keep;
    }
    ok(removed > 10 && caught == removed,
       "each of %d edges%s is needed: removing it is noticed %d times", removed,
       chunked ? " of chunked units" : "", caught);
    sched_destroy(&s);
}

static void check_text(const struct sched_input *in, const char *want, const char *what)
{
    struct sched s;
    char text[2000] = "";
    sched_create(&s, in, NULL);
    for (int i = 0; i < s.nops; i++) {
        const struct sched_op *op = &s.ops[i];
        char word[64];
        int index = op->kind == SCHED_ENTER || op->kind == SCHED_LEAVE ? op->module : op->flat;
        snprintf(word, sizeof word, "%s%s%d", i ? " " : "", sched_kind_name(op->kind), index);
        strcat(text, word);
    }
    if (!ok(!strcmp(text, want), "FULL_SHARD list of two blocks, prefetch 1%s", what))
        diag("%s", text);
    sched_destroy(&s);
}

static void test_text(void)
{
    struct model m = model_make(2, false, false, false);
    struct sched_input in = input_of(&m);
    /* modules: 0 root, 1 embedding, 2 and 3 blocks, 4 head; flats: 0 root, 1 and 2 blocks */
    static const char *const want =
        "micro_begin-1 gather0 gather1 enter0 enter1 leave1 gather2 enter2 leave2 free1 "
        "enter3 leave3 enter4 leave4 leave0 "
        "enter0 enter4 leave4 gather1 enter3 leave3 free2 reduce2 all_reduce2 "
        "enter2 leave2 free1 reduce1 all_reduce1 enter1 leave1 leave0 free0 reduce0 all_reduce0 "
        "micro_end-1 step-1 norm2 norm1 norm0 norm_sum-1 update0 update1 update2";
    check_text(&in, want, "");
    static const char *const chunked =
        "micro_begin-1 gather0 gather1 unpack1 enter0 enter1 leave1 gather2 enter2 leave2 free1 "
        "enter3 leave3 enter4 leave4 leave0 "
        "enter0 enter4 leave4 gather1 unpack1 enter3 leave3 free2 reduce2 all_reduce2 "
        "enter2 leave2 free1 pack1 reduce1 all_reduce1 enter1 leave1 leave0 free0 reduce0 "
        "all_reduce0 micro_end-1 step-1 norm2 norm1 norm0 norm_sum-1 update0 update1 update2";
    m.flats[1].chunked = true;
    check_text(&in, chunked, ", the first in chunks");
}

static void test_refusals(void)
{
    struct model m = model_make(2, false, false, false);
    struct sched_input in = input_of(&m);
    struct sched s;
    struct fsdp_err err = FSDP_ERR_INIT;
    in.accumulation = 0;
    ok(sched_create(&s, &in, &err) == FSDP_EINVAL, "accumulation 0 is refused: %s", err.text);
    in.accumulation = 1 << 30;
    ok(sched_create(&s, &in, &err) == FSDP_EINVAL, "2^30 micro-steps are refused: %s", err.text);
    in = input_of(&m);
    m.units[1].reshard_after_backward = false;
    ok(sched_create(&s, &in, &err) == FSDP_EINVAL, "resharding halfway is refused: %s", err.text);
    in = input_of(&m);
    in.forward_prefetch = -1;
    ok(sched_create(&s, &in, &err) == FSDP_EINVAL, "negative prefetch is refused: %s", err.text);
}

/* Both halves of the table have a row for every operation: a new one cannot be forgotten in one. */
static void test_rows(void)
{
    int complete = 0, run = 0;

    for (int k = 0; k < SCHED_NKINDS; k++) {
        enum sched_kind kind = (enum sched_kind)k;
        const struct sched_op_info *info = &sched_infos[k];
        const struct sched_op op = {.kind = kind};
        complete += info->name && (info->accesses != NULL) == on_lane(&op) &&
                    (!info->comm == !info->collective) &&
                    !!info->collective + !!info->copied + !!info->touched_nbytes <= 1;
        run += (op_run_of(kind) == NULL) == sched_is_driven(kind);
    }
    ok(complete == SCHED_NKINDS, "%d of %d operations: name, accesses if on a lane, bytes if sent",
       complete, SCHED_NKINDS);
    ok(run == SCHED_NKINDS, "automatic operations have a function each, driven ones have none");
}

int main(void)
{
    test_rows();
    test_text();
    test_grid();
    test_prefetch();
    test_slots_rotate();
    test_proof_can_fail(false);
    test_proof_can_fail(true);
    test_refusals();
    return tap_done();
}
