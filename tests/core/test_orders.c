/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edges suffice: with lanes run in orders drawn at random, 20 for each setting, nothing changes
 * by a bit. And such orders find what is missing: without any one of the edges some order changes
 * something. What was gathered is overwritten there where it is needed no more, so that a second
 * gather into the same slot cannot hide that it comes too early. The host runs ahead of all lanes
 * by three steps, so that edges between steps count, too.
 *
 * run: long
 * run: timeout=600
 */
#include "../../libfsdp/core/engine.h"
#include "toy.h"

static bool same(const struct outcome *a, const struct outcome *b)
{
    return !memcmp(a->value, b->value, sizeof a->value) &&
           !memcmp(a->seen, b->seen, sizeof a->seen) &&
           !memcmp(a->looked, b->looked, sizeof a->looked) && a->grads == b->grads &&
           a->grad_norm[STEPS - 1] == b->grad_norm[STEPS - 1];
}

/* How many of the repeats end as `want` did; -1 if a rank failed. */
static int count_same(const struct cell *c, const struct outcome *want)
{
    struct outcome *got = run_cell(c);
    int count = 0;
    if (!got)
        return -1;
    for (int i = 0; i < c->repeats; i++)
        count += same(&got[i], want);
    munmap(got, outcome_nbytes(c));
    return count;
}

static const struct cell cells[] = {
    {.nranks = 2, .nnodes = 1, .accumulation = 1, .prefetch = 1, .limit = 2},
    {.nranks = 3, .nnodes = 1, .accumulation = 2, .prefetch = 3, .grad_buffers = 3},
    {.nranks = 2, .nnodes = 1, .accumulation = 2, .limit = 1, .grad_buffers = 1},
    {.nranks = 2, .nnodes = 1, .accumulation = 3, .prefetch = 1, .limit = 2, .reduce_last = true},
    {.nranks = 2, .nnodes = 1, .accumulation = 1, .prefetch = 2, .checkpointing = FSDP_AC_FULL},
    {.nranks = 4, .nnodes = 1, .accumulation = 1, .prefetch = 1, .limit = 2, .regather = 2},
    {.nranks = 4, .nnodes = 2, .accumulation = 1, .prefetch = 1, .limit = 2, .two_level = true},
    {.nranks = 4, .nnodes = 2, .accumulation = 3, .prefetch = 1, .strategy = FSDP_HYBRID_SHARD},
    {.nranks = 2, .nnodes = 1, .accumulation = 2, .strategy = FSDP_ZERO1},
    {.nranks = 2, .nnodes = 1, .accumulation = 1, .strategy = FSDP_NO_SHARD},
    {.nranks = 3, .nnodes = 1, .accumulation = 2, .prefetch = 2, .odd = true},
    {.nranks = 4, .nnodes = 2, .accumulation = 1, .prefetch = 2, .two_level = true, .odd = true},
    {.nranks = 2, .nnodes = 1, .accumulation = 2, .prefetch = 1, .offload = FSDP_OFFLOAD_PARAMS},
    {.nranks = 1, .nnodes = 1, .accumulation = 1, .offload = FSDP_OFFLOAD_PARAMS, .slots = 1},
    {.nranks = 3,
     .nnodes = 1,
     .accumulation = 1,
     .prefetch = 2,
     .offload = FSDP_OFFLOAD_PARAMS,
     .odd = true},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 1,
     .offload = FSDP_OFFLOAD_PARAMS,
     .slots = 3,
     .two_level = true},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 2,
     .strategy = FSDP_HYBRID_SHARD,
     .offload = FSDP_OFFLOAD_OPTIMIZER},
    {.nranks = 1, .nnodes = 1, .accumulation = 1, .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 2,
     .nnodes = 1,
     .accumulation = 2,
     .prefetch = 2,
     .clip = true,
     .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 2,
     .nnodes = 1,
     .accumulation = 1,
     .strategy = FSDP_NO_SHARD,
     .clip = true,
     .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 2,
     .prefetch = 1,
     .two_level = true,
     .odd = true,
     .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 1,
     .strategy = FSDP_HYBRID_SHARD,
     .offload = FSDP_OFFLOAD_PARAMS,
     .slots = 2,
     .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 1, .nnodes = 1, .accumulation = 2, .acts = true, .slots = 1},
    {.nranks = 2,
     .nnodes = 1,
     .accumulation = 2,
     .prefetch = 1,
     .limit = 2,
     .checkpointing = FSDP_AC_FULL,
     .acts = true},
    {.nranks = 2,
     .nnodes = 1,
     .accumulation = 1,
     .prefetch = 2,
     .checkpointing = FSDP_AC_SELECTIVE,
     .offload = FSDP_OFFLOAD_PARAMS,
     .slots = 1,
     .acts = true,
     .grads = true},
    {.nranks = 1, .nnodes = 1, .accumulation = 3, .clip = true, .grads = true, .slots = 1},
    {.nranks = 2,
     .nnodes = 1,
     .accumulation = 2,
     .prefetch = 1,
     .limit = 2,
     .clip = true,
     .offload = FSDP_OFFLOAD_OPTIMIZER,
     .grads = true,
     .on_host = true},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 1,
     .prefetch = 2,
     .two_level = true,
     .odd = true,
     .offload = FSDP_OFFLOAD_OPTIMIZER,
     .slots = 1,
     .grads = true,
     .on_host = true,
     .update_at = FSDP_UPDATE_AT_FORWARD},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 2,
     .strategy = FSDP_HYBRID_SHARD,
     .clip = true,
     .offload = FSDP_OFFLOAD_PARAMS,
     .acts = true,
     .grads = true,
     .on_host = true},
    {.nranks = 1,
     .nnodes = 1,
     .accumulation = 1,
     .clip = true,
     .offload = FSDP_OFFLOAD_PARAMS,
     .slots = 1,
     .grads = true,
     .on_host = true},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 2,
     .prefetch = 1,
     .strategy = FSDP_HYBRID_SHARD,
     .clip = true,
     .offload = FSDP_OFFLOAD_OPTIMIZER,
     .grads = true},
    {.nranks = 4,
     .nnodes = 2,
     .accumulation = 3,
     .prefetch = 1,
     .two_level = true,
     .odd = true,
     .clip = true,
     .grads = true,
     .slots = 3,
     .update_at = FSDP_UPDATE_AT_FORWARD},
};
enum { NCELLS = sizeof cells / sizeof cells[0], NSEEDS = 20 };

/* A sanitizer looks for other faults, and orders are the same under it. */
static bool sanitized(void)
{
    const char *sanitizer = getenv("TEST_SANITIZER");
    return sanitizer && *sanitizer;
}

static void test_orders(void)
{
    const int nseeds = sanitized() ? 4 : NSEEDS;
    int nsame = 0;
    for (int i = 0; i < NCELLS; i++) {
        struct cell c = cells[i];
        c.unwaited = true;
        c.wrap = i % 2 ? FSDP_WRAP_SIZE : FSDP_WRAP_TRANSFORMER;
        struct outcome *want = run_cell(&c);
        c.shuffle = 1 + (unsigned)i;
        c.repeats = nseeds;
        int equal = count_same(&c, want);
        ok(equal == nseeds, "%s, case %d: %d of %d orders are bit-equal to the list's own",
           fsdp_strategy_name(c.strategy), i, equal, nseeds);
        ok(want && want->syncs_in_loop == 0 && want->allocs_in_loop == 0,
           "case %d: the host neither waits nor allocates in the loop", i);
        nsame += equal;
        munmap(want, sizeof *want);
    }
    ok(nsame == NCELLS * nseeds, "%d orders in all", nsame);
}

/* ---- the proof can fail ---------------------------------------------------------------------- */

static int count_edges(const struct sched *s)
{
    int count = 0;
    for (int i = 0; i < s->nops; i++)
        count += s->ops[i].nwaits;
    return count;
}

/* Takes edge number `index` from the training list. */
static void take_edge(struct fsdp *f, int index)
{
    struct sched *s = &f->plan.programs[FSDP_TRAIN].sched;
    for (int i = 0; i < s->nops; i++) {
        struct sched_op *op = &s->ops[i];
        if (index < op->nwaits) {
            s->waits[op->waits + index] = s->waits[op->waits + op->nwaits - 1];
            op->nwaits--;
            return;
        }
        index -= op->nwaits;
    }
}

static int edges_of(const struct cell *c)
{
    struct fsdp_opts opts = opts_of(c);
    struct fsdp_mesh_shape shape = {.shard_size = c->nranks, .replicate_size = 1};
    struct fsdp_device *device = NULL;
    struct fsdp *f = NULL;
    struct toy toy;
    int count = 0;
    toy_make(&toy);
    if (!fsdp_device_open(&device, "cpu", 0, NULL) &&
        !fsdp_plan(&f, toy.tree, &opts, device, shape, NULL))
        count = count_edges(&f->plan.programs[FSDP_TRAIN].sched);
    fsdp_destroy(f);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return count;
}

/* Does one of so many orders differ? */
static bool is_noticed(struct cell *c, int norders, const struct outcome *want)
{
    c->repeats = norders;
    int nsame = count_same(c, want);
    return nsame >= 0 && nsame < norders;
}

/* Orders come from a seed, so that the same edges are noticed whenever this runs. Few orders show
 * most of them; where one lane would have to fall behind another by a whole pass, it takes many. */
static void test_edges_needed(enum fsdp_offload offload, enum fsdp_update_at update_at, bool away,
                              bool on_host)
{
    struct cell c = {.nranks = 2, .nnodes = 1, .accumulation = 2, .prefetch = 1, .limit = 2};
    c.offload = offload;
    c.update_at = update_at;
    c.acts = away;
    c.grads = away || on_host;
    c.on_host = c.clip = on_host; /* clipped, or the scalars are the same in every step */
    c.slots = away ? 1 : 0;
    c.unwaited = c.scribbles = true;
    int count = edges_of(&c), noticed = 0;
    struct outcome *want = run_cell(&c);
    c.sabotage = take_edge;
    c.shuffle = 1;
    for (c.index = 0; c.index < count; c.index++)
        noticed += is_noticed(&c, 16, want) || is_noticed(&c, 512, want);
    ok(count > 20 && noticed == count,
       "offload %d, update_at %d%s%s: without one of %d edges some order differs, for %d of them",
       (int)offload, (int)update_at, away ? ", activations and gradients offloaded" : "",
       on_host ? ", updates on the host" : "", count, noticed);
    munmap(want, sizeof *want);
}

int main(void)
{
    if (!sanitized()) {
        test_edges_needed(FSDP_OFFLOAD_NONE, FSDP_UPDATE_AT_STEP, true, false);
        test_edges_needed(FSDP_OFFLOAD_PARAMS, FSDP_UPDATE_AT_STEP, false, false);
        test_edges_needed(FSDP_OFFLOAD_NONE, FSDP_UPDATE_AT_FORWARD, false, false);
        test_edges_needed(FSDP_OFFLOAD_OPTIMIZER, FSDP_UPDATE_AT_STEP, false, true);
        test_edges_needed(FSDP_OFFLOAD_PARAMS, FSDP_UPDATE_AT_STEP, false, true);
    }
    test_orders();
    return tap_done();
}
