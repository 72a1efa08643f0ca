/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA graphs of a layer's operators. The kernels of a list (stack_list) are captured once and then
 * launched by one call, which saves the host most of the time that it takes for a launch each.
 *
 * A graph holds all arguments of its kernels. It may be launched again where the list would make
 * the same launches, and what a list launches depends on three things:
 *
 *   the model        constant once graphs are wanted (model_ops.set_graphs)
 *   the block        pointers, shapes, types and scalars (such as the beta of a gradient, which
 *                    differs in the first micro-step). Its bytes are the key, all of them, so that
 *                    a member that is added counts, too
 *   the batch        where the block points to it, which it does for dropout alone: what is dropped
 *                    differs in every step. Such lists are not captured
 *
 * and on what operators keep from call to call: algorithms of products, plans of attention and the
 * lane's scratch memory. These are made by the first run of a list, which is not captured;
 * algorithms are chosen before graphs are wanted; scratch is compared (fsdp_graph_fits).
 *
 * Not captured: experts, whose rows the host asks for; rows of several documents, whose number is a
 * shape that seldom comes back; and all that is not between entering and leaving a module of a
 * layer: gathers, reductions, events, ranges of a profiler, embedding and head.
 *
 * A capture that fails has run nothing. The list then runs without a graph, and no more are
 * captured.
 */
#include <inttypes.h>
#include <string.h>

#include "fsdp/sys/device_ops.h"
#include "stack.h"

/* Of one list of a layer. Training has two (the first micro-step and the others), recomputation and
 * evaluation some more, and a last batch of fewer rows. */
enum { MOST_GRAPHS = 8 };

struct kept {
    struct kept *next;
    struct stack_block key;
    struct fsdp_graph *graph; /* NULL: seen once */
};

struct stack_graphs {
    struct kept **lists; /* [nlayers][STACK_NLISTS][without and with `add`] */
    struct stack_graph_counts counts;
    bool stopped;  /* a capture has failed */
    unsigned told; /* reasons, as bits */
};

enum reason { OTHER_DEVICE, DROPOUT, EXPERTS, DOCUMENTS, TOO_MANY, NREASONS };

static void tell_once(struct stack_graphs *g, enum reason reason)
{
    static const char *const text[NREASONS] = {
        [OTHER_DEVICE] = "the device is a CPU, and graphs are a GPU's",
        [DROPOUT] = "dropout drops other values in each step",
        [EXPERTS] = "the rows of experts differ in each step",
        [DOCUMENTS] = "rows have several documents, of which each batch has another number",
        [TOO_MANY] = "a layer has more different passes than graphs are kept for; some run without",
    };

    if (!(g->told & 1U << reason))
        fsdp_log(FSDP_LOG_WARN, "model.cuda_graphs: layers run without, because of: %s",
                 text[reason]);
    g->told |= 1U << reason;
}

/* NREASONS: none. */
static enum reason why_not(const struct model *m, const struct stack_block *blk)
{
    return !fsdp_lane_captures(blk->lane)            ? OTHER_DEVICE
           : m->traits.experts                       ? EXPERTS
           : blk->drop                               ? DROPOUT
           : blk->starts && blk->documents != blk->B ? DOCUMENTS
                                                     : NREASONS;
}

/* ---- graphs that are kept -------------------------------------------------------------------- */

/* Graphs of a lane that is gone used its scratch memory. */
static void drop_stale(struct kept *k, const struct fsdp_lane *lane)
{
    if (k->graph && !fsdp_graph_fits(k->graph, lane)) {
        fsdp_graph_destroy(k->graph);
        k->graph = NULL;
    }
}

/* The one of this block, or a new one; NULL: there is no room. *seen: it is not new. None makes
 * room for another one: passes that come in turn, one more of them than fit, would all go without.
 */
static struct kept *find_kept(struct kept **list, const struct stack_block *blk, bool *seen)
{
    int n = 0;

    *seen = true;
    for (struct kept *k = *list; k; k = k->next, n++)
        if (!memcmp(&k->key, blk, sizeof *blk)) {
            drop_stale(k, blk->lane);
            return k;
        }
    *seen = false;
    struct kept *made =
        n < MOST_GRAPHS ? fsdp_alloc(1, sizeof *made, "graph of a layer", NULL) : NULL;
    if (!made)
        return NULL;
    made->key = *blk;
    made->next = *list;
    return *list = made;
}

static struct fsdp_graph *capture(struct model *m, const struct stack_block *blk,
                                  const struct stack_list_call *call)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_graph *graph = NULL;
    int rc = fsdp_capture_begin(blk->lane, &err);

    if (!rc) {
        rc = call->run(m, blk, call, &err);
        const int ended = fsdp_capture_end(&graph, blk->lane, rc ? NULL : &err);
        rc = rc ? rc : ended;
    }
    if (!rc) {
        m->graphs->counts.captured++;
        return graph;
    }
    fsdp_graph_destroy(graph);
    m->graphs->stopped = true;
    fsdp_log(FSDP_LOG_WARN, "model.cuda_graphs: no more are captured, because of: %s", err.text);
    return NULL;
}

/* ---- for the passes -------------------------------------------------------------------------- */

int stack_graph_run(struct model *m, const struct stack_block *blk,
                    const struct stack_list_call *call, struct fsdp_err *err)
{
    struct stack_graphs *g = m->graphs;
    bool seen;

    if (!g)
        return call->run(m, blk, call, err);
    const enum reason reason = why_not(m, blk);
    const size_t lists = (size_t)blk->layer * STACK_NLISTS + (size_t)call->list;
    struct kept **list = &g->lists[2 * lists + call->add];
    struct kept *k = reason == NREASONS ? find_kept(list, blk, &seen) : NULL;
    if (!k) {
        tell_once(g, reason == NREASONS ? TOO_MANY : reason);
        return call->run(m, blk, call, err);
    }
    if (!k->graph && seen && !g->stopped)
        k->graph = capture(m, blk, call);
    if (!k->graph)
        return call->run(m, blk, call, err);
    g->counts.launched++;
    return fsdp_graph_launch(k->graph, blk->lane, err);
}

int stack_set_graphs(struct model *m, struct fsdp_err *err)
{
    const size_t nlists = (size_t)m->traits.nlayers * STACK_NLISTS * 2;
    struct stack_graphs *g = fsdp_alloc(1, sizeof *g, "graphs of layers", err);

    if (!g)
        return FSDP_ENOMEM;
    if (!(g->lists = fsdp_alloc(nlists, sizeof(struct kept *), "graphs of layers", err))) {
        fsdp_free(g);
        return FSDP_ENOMEM;
    }
    m->graphs = g;
    return FSDP_OK;
}

struct stack_graph_counts stack_graph_counts(const struct model *m)
{
    return m->graphs ? m->graphs->counts : (struct stack_graph_counts){0};
}

void stack_close_graphs(struct model *m)
{
    struct stack_graphs *g = m->graphs;
    const size_t nlists = (size_t)m->traits.nlayers * STACK_NLISTS * 2;

    if (!g)
        return;
    if (g->counts.captured)
        fsdp_log(FSDP_LOG_INFO,
                 "model.cuda_graphs: %" PRId64 " graphs were captured and launched %" PRId64
                 " times",
                 g->counts.captured, g->counts.launched);
    for (size_t i = 0; i < nlists; i++)
        for (struct kept *k = g->lists[i], *next; k; k = next) {
            next = k->next;
            fsdp_graph_destroy(k->graph);
            fsdp_free(k);
        }
    fsdp_free(g->lists);
    fsdp_free(g);
    m->graphs = NULL;
}
