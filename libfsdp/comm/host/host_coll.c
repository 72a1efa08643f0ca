/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives. Every operation begins with a barrier of the node, after which each rank checks
 * that all are in the same operation, and a frame to and from every off-node rank for the same end.
 * Then data moves in one of four ways, which all ranks of a node choose alike:
 *
 *   in place  it is gathered where it lies, in memory that all ranks have in common
 *   small     it was in the staging slots before that barrier: nothing else is needed
 *   direct    all ranks' buffers are registered memory: peers read them in place; a last barrier
 *             before the caller may change them
 *   staged    chunk by chunk through the staging slots, one barrier a chunk (two in all_reduce)
 *
 * Off-node data goes straight between user buffers over TCP, except that sources of a sum are
 * received into a buffer per peer, chunk by chunk.
 *
 * Waits cannot form a cycle: all ranks go through the same phases in the same order, and a phase
 * waits only for peers to enter it.
 */
#include <stdio.h>
#include <string.h>

#include "comm/common/comm_sum.h"
#include "host.h"

struct coll {
    struct host_comm *h;
    const struct comm_op *op;
    struct comm_fail *fail;
    char *recv;
    const char *send;
    size_t elem_nbytes, nbytes; /* nbytes: op->nelem elements */
    int me, size;
    enum fsdp_dtype dtype;
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool shares_node(const struct coll *c)
{
    return c->h->nseats > 1;
}

/* ---- meeting -------------------------------------------------------------------------------- */

static const struct host_ref not_registered = {.region = -1};

static void arrive(struct coll *c, struct host_ref src, struct host_ref dst)
{
    *host_desc_of(c->h, c->h->seat, c->op->seq) = (struct host_desc){*c->op, src, dst};
    host_barrier_arrive(c->h, HOST_BARRIER_OPS);
}

static int meet_peers(struct coll *c)
{
    FSDP_TRY(host_barrier_wait(c->h, HOST_BARRIER_OPS, c->fail));
    for (int s = 0; s < c->h->nseats; s++)
        FSDP_TRY(comm_op_match(c->h->group, c->op, c->h->seat_peer[s],
                               &host_desc_of(c->h, s, c->op->seq)->op, c->fail));
    return FSDP_OK;
}

static int pass_blocks(struct coll *c)
{
    if (!shares_node(c))
        return FSDP_OK;
    host_barrier_arrive(c->h, HOST_BARRIER_OPS);
    return host_barrier_wait(c->h, HOST_BARRIER_OPS, c->fail);
}

static struct host_ref ref_of(struct coll *c, const void *ptr, size_t nbytes)
{
    return shares_node(c) ? host_ref_of(c->h, ptr, nbytes) : not_registered;
}

static bool all_direct(struct coll *c, bool with_dst)
{
    for (int s = 0; shares_node(c) && s < c->h->nseats; s++) {
        const struct host_desc *desc = host_desc_of(c->h, s, c->op->seq);
        if (desc->src.region < 0 || (with_dst && desc->dst.region < 0))
            return false;
    }
    return true;
}

/* The buffer that a seat published, here. */
static int resolve(struct coll *c, int seat, struct host_ref ref, const char **out)
{
    *out = host_ref_at(c->h, seat, ref);
    if (*out)
        return FSDP_OK;
    return comm_fail_peer(c->h->group, c->fail, FSDP_EMISMATCH, c->h->seat_peer[seat],
                          " uses registered memory that another rank has freed");
}

/* Seats other than this one, each rank beginning with its neighbour, so that they do not all read
 * the same memory at once. */
static int seat_after(const struct coll *c, int i)
{
    return (c->h->seat + 1 + i) % c->h->nseats;
}

static bool off_node(const struct coll *c, int peer)
{
    return c->h->peer_seat[peer] < 0;
}

static char *sum_buffer(const struct coll *c, int peer)
{
    return c->h->tcp.conns[c->h->peer_conn[peer]].sum_buffer;
}

/* ---- all_gather ----------------------------------------------------------------------------- */

static int all_gather_direct(struct coll *c)
{
    for (int i = 0; i < c->h->nseats - 1; i++) {
        int s = seat_after(c, i);
        const char *from;
        FSDP_TRY(resolve(c, s, host_desc_of(c->h, s, c->op->seq)->src, &from));
        memcpy(c->recv + (size_t)c->h->seat_peer[s] * c->nbytes, from, c->nbytes);
    }
    return pass_blocks(c);
}

static void slots_to_recv(struct coll *c, size_t at, size_t nbytes)
{
    for (int i = 0; i < c->h->nseats - 1; i++) {
        int s = seat_after(c, i);
        memcpy(c->recv + (size_t)c->h->seat_peer[s] * c->nbytes + at, host_slot(c->h, s), nbytes);
    }
    host_slots_next(c->h);
}

static int all_gather_staged(struct coll *c)
{
    const char *own = c->recv + (size_t)c->me * c->nbytes;

    for (size_t at = 0; at < c->nbytes; at += c->h->shm.slot_nbytes) {
        size_t nbytes = min_size(c->nbytes - at, c->h->shm.slot_nbytes);
        memcpy(host_slot(c->h, c->h->seat), own + at, nbytes);
        FSDP_TRY(pass_blocks(c));
        slots_to_recv(c, at, nbytes);
    }
    return FSDP_OK;
}

/* Meets the peers, who gather to the same place of the memory in common, or none of them there. */
static int meet_gatherers(struct coll *c, struct host_ref here)
{
    FSDP_TRY(meet_peers(c));
    for (int s = 0; shares_node(c) && s < c->h->nseats; s++) {
        const struct host_ref there = host_desc_of(c->h, s, c->op->seq)->dst;
        if (there.region != here.region || there.offset != here.offset)
            return comm_fail_peer(c->h->group, c->fail, FSDP_EMISMATCH, c->h->seat_peer[s],
                                  " gathers in another place of the memory in common");
    }
    return FSDP_OK;
}

/* All parts are there as soon as all ranks are. */
static int all_gather_in_place(struct coll *c)
{
    const struct host_ref here = host_ref_of(c->h, c->recv, c->nbytes * (size_t)c->size);

    arrive(c, not_registered, here);
    return meet_gatherers(c, here);
}

static int all_gather(struct coll *c)
{
    char *own = c->recv + (size_t)c->me * c->nbytes;
    bool small = c->nbytes <= HOST_SMALL_NBYTES;
    struct host_ref src = not_registered;

    if (own != c->send && c->nbytes)
        memcpy(own, c->send, c->nbytes);
    if (shares_node(c) && c->nbytes && host_is_common(c->h, c->recv))
        return all_gather_in_place(c);
    if (!small) {
        src = ref_of(c, own, c->nbytes);
        if (src.region < 0)
            src = ref_of(c, c->send, c->nbytes);
    } else if (shares_node(c) && c->nbytes) {
        memcpy(host_slot(c->h, c->h->seat), own, c->nbytes);
    }
    arrive(c, src, not_registered);
    host_tcp_final(c->h);
    for (int p = 0; p < c->size; p++)
        if (off_node(c, p))
            host_tcp_post(c->h, p, own, c->nbytes, c->recv + (size_t)p * c->nbytes, c->nbytes);
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    FSDP_TRY(meet_gatherers(c, not_registered));
    if (!shares_node(c) || !c->nbytes)
        return FSDP_OK;
    if (small) {
        slots_to_recv(c, 0, c->nbytes);
        return FSDP_OK;
    }
    return all_direct(c, false) ? all_gather_direct(c) : all_gather_staged(c);
}

/* ---- reduce_scatter ------------------------------------------------------------------------- */

/* Bytes of this rank's part summed per round: whole where nothing has to be buffered. */
static size_t scatter_chunk(const struct coll *c, bool direct)
{
    size_t nbytes = c->nbytes;

    if (c->h->tcp.nconns)
        nbytes = min_size(nbytes, c->h->tcp.chunk_nbytes);
    if (!direct)
        nbytes = min_size(nbytes, c->h->shm.slot_nbytes / (size_t)c->h->nseats / HOST_PART_NBYTES *
                                      HOST_PART_NBYTES);
    return nbytes;
}

/* Lays this rank's contributions to the seats' parts side by side in its slot. */
static void scatter_stage(struct coll *c, size_t at, size_t nbytes, size_t pitch)
{
    for (int s = 0; s < c->h->nseats; s++)
        if (s != c->h->seat)
            memcpy(host_slot(c->h, c->h->seat) + (size_t)s * pitch,
                   c->send + (size_t)c->h->seat_peer[s] * c->nbytes + at, nbytes);
}

static void scatter_post(struct coll *c, size_t at, size_t nbytes)
{
    for (int p = 0; p < c->size; p++)
        if (off_node(c, p))
            host_tcp_post(c->h, p, c->send + (size_t)p * c->nbytes + at, nbytes, sum_buffer(c, p),
                          nbytes);
}

/* Fills h->src for [at, ...) of this rank's part. pitch: distance of parts in a slot. */
static int scatter_sources(struct coll *c, size_t at, size_t pitch, bool direct)
{
    size_t mine = (size_t)c->me * c->nbytes + at;

    for (int p = 0; p < c->size; p++) {
        int s = c->h->peer_seat[p];
        const char *from;
        if (p == c->me) {
            from = c->send + mine;
        } else if (s < 0) {
            from = sum_buffer(c, p);
        } else if (direct) {
            FSDP_TRY(resolve(c, s, host_desc_of(c->h, s, c->op->seq)->src, &from));
            from += mine;
        } else {
            from = host_slot(c->h, s) + (size_t)c->h->seat * pitch;
        }
        c->h->src[p] = from;
    }
    return FSDP_OK;
}

static int scatter_sum(struct coll *c, size_t at, size_t nbytes, size_t pitch, bool direct)
{
    FSDP_TRY(scatter_sources(c, at, pitch, direct));
    comm_sum(c->recv + at, c->h->src, c->size, nbytes / c->elem_nbytes, c->dtype);
    if (!direct)
        host_slots_next(c->h);
    return FSDP_OK;
}

static int reduce_scatter_large(struct coll *c)
{
    arrive(c, ref_of(c, c->send, c->nbytes * (size_t)c->size), not_registered);
    FSDP_TRY(meet_peers(c));
    bool direct = all_direct(c, false);
    size_t chunk = scatter_chunk(c, direct);
    for (size_t at = 0; at < c->nbytes; at += chunk) {
        size_t nbytes = min_size(c->nbytes - at, chunk);
        if (!direct) {
            scatter_stage(c, at, nbytes, chunk);
            host_barrier_arrive(c->h, HOST_BARRIER_OPS);
        }
        if (at + nbytes == c->nbytes)
            host_tcp_final(c->h);
        scatter_post(c, at, nbytes);
        FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
        if (!direct)
            FSDP_TRY(host_barrier_wait(c->h, HOST_BARRIER_OPS, c->fail));
        FSDP_TRY(scatter_sum(c, at, nbytes, chunk, direct));
    }
    return direct ? pass_blocks(c) : FSDP_OK;
}

static int reduce_scatter(struct coll *c)
{
    if (c->nbytes * (size_t)c->size > HOST_SMALL_NBYTES)
        return reduce_scatter_large(c);
    if (shares_node(c) && c->nbytes)
        scatter_stage(c, 0, c->nbytes, c->nbytes);
    arrive(c, not_registered, not_registered);
    host_tcp_final(c->h);
    scatter_post(c, 0, c->nbytes);
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    FSDP_TRY(meet_peers(c));
    return c->nbytes ? scatter_sum(c, 0, c->nbytes, c->nbytes, !shares_node(c)) : FSDP_OK;
}

/* ---- all_reduce ----------------------------------------------------------------------------- */

/* Everyone sums everything: no second exchange. */
static int all_reduce_small(struct coll *c)
{
    if (shares_node(c) && c->nbytes)
        memcpy(host_slot(c->h, c->h->seat), c->send, c->nbytes);
    arrive(c, not_registered, not_registered);
    host_tcp_final(c->h);
    for (int p = 0; p < c->size; p++)
        if (off_node(c, p))
            host_tcp_post(c->h, p, c->send, c->nbytes, sum_buffer(c, p), c->nbytes);
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    FSDP_TRY(meet_peers(c));
    if (!c->nbytes)
        return FSDP_OK;
    for (int p = 0; p < c->size; p++)
        c->h->src[p] = p == c->me       ? c->send
                       : off_node(c, p) ? sum_buffer(c, p)
                                        : host_slot(c->h, c->h->peer_seat[p]);
    comm_sum(c->recv, c->h->src, c->size, (size_t)c->op->nelem, c->dtype);
    if (shares_node(c))
        host_slots_next(c->h);
    return FSDP_OK;
}

/* A window [at, at + nbytes) of the vector, divided into one part a rank. Ranks of different nodes
 * must divide alike, whatever way their node has chosen. */
struct window {
    size_t at, nbytes, part_nbytes;
    bool direct;
};

static struct window window_make(const struct coll *c, size_t at, bool direct)
{
    struct window w = {.at = at, .direct = direct};
    bool whole = direct && !c->h->tcp.nconns;
    w.nbytes = whole ? c->nbytes : min_size(c->nbytes - at, c->h->window_nbytes);
    w.part_nbytes = (w.nbytes + (size_t)c->size - 1) / (size_t)c->size;
    w.part_nbytes = (w.part_nbytes + 63) / 64 * 64;
    return w;
}

/* Where part p begins in the window; p = size is its end. */
static size_t part_at(const struct window *w, int p)
{
    return min_size((size_t)p * w->part_nbytes, w->nbytes);
}

/* [*from, *to) of round `at` within part p. */
static void part_round(const struct window *w, int p, size_t at, size_t chunk, size_t *from,
                       size_t *to)
{
    size_t end = part_at(w, p + 1);
    *from = min_size(part_at(w, p) + at, end);
    *to = min_size(*from + chunk, end);
}

/* Fills h->src for position `from` of the window. */
static int reduce_sources(struct coll *c, const struct window *w, size_t from)
{
    for (int p = 0; p < c->size; p++) {
        int s = c->h->peer_seat[p];
        const char *src;
        if (p == c->me) {
            src = c->send + w->at + from;
        } else if (s < 0) {
            src = sum_buffer(c, p);
        } else if (w->direct) {
            FSDP_TRY(resolve(c, s, host_desc_of(c->h, s, c->op->seq)->src, &src));
            src += w->at + from;
        } else {
            src = host_slot(c->h, s) + from;
        }
        c->h->src[p] = src;
    }
    return FSDP_OK;
}

/* Sums this rank's part of the window into dst (addressed as the window). Nobody else reads that
 * part of its buffers, so it may be summed in place. */
static int window_reduce(struct coll *c, const struct window *w, char *dst)
{
    size_t chunk =
        c->h->tcp.nconns ? min_size(w->part_nbytes, c->h->tcp.chunk_nbytes) : w->part_nbytes;
    for (size_t at = 0; at < w->part_nbytes; at += chunk) {
        size_t from, to;
        part_round(w, c->me, at, chunk, &from, &to);
        for (int p = 0; p < c->size; p++) {
            size_t their_from, their_to;
            if (!off_node(c, p))
                continue;
            part_round(w, p, at, chunk, &their_from, &their_to);
            host_tcp_post(c->h, p, c->send + w->at + their_from, their_to - their_from,
                          sum_buffer(c, p), to - from);
        }
        FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
        FSDP_TRY(reduce_sources(c, w, from));
        comm_sum(dst + from, c->h->src, c->size, (to - from) / c->elem_nbytes, c->dtype);
    }
    return FSDP_OK;
}

/* Brings all parts of the summed window to recv; this rank's is at own (addressed as the window).
 */
static int window_gather(struct coll *c, const struct window *w, const char *own)
{
    char *recv = c->recv + w->at;
    size_t mine = part_at(w, c->me), mine_nbytes = part_at(w, c->me + 1) - mine;

    if (w->at + w->nbytes == c->nbytes)
        host_tcp_final(c->h);
    for (int p = 0; p < c->size; p++)
        if (off_node(c, p))
            host_tcp_post(c->h, p, own + mine, mine_nbytes, recv + part_at(w, p),
                          part_at(w, p + 1) - part_at(w, p));
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    if (recv != own)
        memcpy(recv + mine, own + mine, mine_nbytes);
    for (int i = 0; i < c->h->nseats - 1; i++) {
        int s = seat_after(c, i), p = c->h->seat_peer[s];
        const char *from = host_slot(c->h, s);
        if (w->direct) {
            FSDP_TRY(resolve(c, s, host_desc_of(c->h, s, c->op->seq)->dst, &from));
            from += w->at;
        }
        memcpy(recv + part_at(w, p), from + part_at(w, p), part_at(w, p + 1) - part_at(w, p));
    }
    return FSDP_OK;
}

static int all_reduce(struct coll *c)
{
    struct host_ref src, dst;

    if (c->nbytes <= HOST_SMALL_NBYTES)
        return all_reduce_small(c);
    dst = ref_of(c, c->recv, c->nbytes);
    src = ref_of(c, c->send, c->nbytes);
    if (dst.region >= 0 && src.region < 0) {
        memcpy(c->recv, c->send, c->nbytes);
        c->send = c->recv;
        src = dst;
    }
    arrive(c, src, dst);
    FSDP_TRY(meet_peers(c));
    bool direct = all_direct(c, true);
    struct window w;
    for (size_t at = 0; at < c->nbytes; at += w.nbytes) {
        w = window_make(c, at, direct);
        char *own = direct ? c->recv + at : host_slot(c->h, c->h->seat);
        if (!direct) {
            memcpy(own, c->send + at, w.nbytes);
            FSDP_TRY(pass_blocks(c));
        }
        FSDP_TRY(window_reduce(c, &w, own));
        FSDP_TRY(pass_blocks(c));
        FSDP_TRY(window_gather(c, &w, own));
        if (!direct)
            host_slots_next(c->h);
    }
    return direct ? pass_blocks(c) : FSDP_OK;
}

/* ---- broadcast and barrier ------------------------------------------------------------------ */

static int broadcast_staged(struct coll *c, int root_seat)
{
    bool root = root_seat == c->h->seat;

    for (size_t at = 0; at < c->nbytes; at += c->h->shm.slot_nbytes) {
        size_t nbytes = min_size(c->nbytes - at, c->h->shm.slot_nbytes);
        if (root)
            memcpy(host_slot(c->h, root_seat), c->send + at, nbytes);
        FSDP_TRY(pass_blocks(c));
        if (!root)
            memcpy(c->recv + at, host_slot(c->h, root_seat), nbytes);
        host_slots_next(c->h);
    }
    return FSDP_OK;
}

static int broadcast_direct(struct coll *c, int root_seat)
{
    const char *from;

    if (root_seat != c->h->seat) {
        FSDP_TRY(resolve(c, root_seat, host_desc_of(c->h, root_seat, c->op->seq)->src, &from));
        memcpy(c->recv, from, c->nbytes);
    }
    return pass_blocks(c);
}

static int broadcast_blocks(struct coll *c)
{
    int root = c->op->root, root_seat = c->h->peer_seat[root];
    bool small = c->nbytes <= HOST_SMALL_NBYTES, mine = root == c->me;
    struct host_ref src = not_registered;

    if (mine && !small)
        src = ref_of(c, c->send, c->nbytes);
    else if (mine && shares_node(c) && c->nbytes)
        memcpy(host_slot(c->h, c->h->seat), c->send, c->nbytes);
    arrive(c, src, not_registered);
    host_tcp_final(c->h);
    for (int p = 0; p < c->size; p++)
        if (off_node(c, p) && (mine || p == root))
            host_tcp_post(c->h, p, c->send, mine ? c->nbytes : 0, c->recv, mine ? 0 : c->nbytes);
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    FSDP_TRY(meet_peers(c));
    if (!shares_node(c) || root_seat < 0 || !c->nbytes)
        return FSDP_OK;
    if (small) {
        if (!mine)
            memcpy(c->recv, host_slot(c->h, root_seat), c->nbytes);
        host_slots_next(c->h);
        return FSDP_OK;
    }
    return host_desc_of(c->h, root_seat, c->op->seq)->src.region >= 0
               ? broadcast_direct(c, root_seat)
               : broadcast_staged(c, root_seat);
}

static int barrier(struct coll *c)
{
    arrive(c, not_registered, not_registered);
    host_tcp_final(c->h);
    FSDP_TRY(host_tcp_run(c->h, c->op, c->fail));
    return meet_peers(c);
}

static int collective_run(struct coll *c)
{
    switch ((enum fsdp_comm_kind)c->op->kind) {
    case FSDP_COMM_ALL_GATHER:
        return all_gather(c);
    case FSDP_COMM_REDUCE_SCATTER:
        return reduce_scatter(c);
    case FSDP_COMM_ALL_REDUCE:
        return all_reduce(c);
    case FSDP_COMM_BROADCAST:
        return broadcast_blocks(c);
    case FSDP_COMM_BARRIER:
        return barrier(c);
    }
    return comm_fail_set(c->h->group, c->fail, FSDP_EINTERNAL, "unknown operation %d", c->op->kind);
}

int host_collective(struct host_comm *h, const struct comm_op *op, void *recv, const void *send,
                    struct comm_fail *fail)
{
    struct coll c = {.h = h,
                     .op = op,
                     .fail = fail,
                     .recv = recv,
                     .send = send,
                     .dtype = (enum fsdp_dtype)op->dtype,
                     .me = h->group->rank,
                     .size = h->group->size};

    c.elem_nbytes = fsdp_dtype_nbytes(c.dtype);
    c.nbytes = (size_t)op->nelem * c.elem_nbytes;
    host_tcp_begin(h, op);
    FSDP_TRY(collective_run(&c));
    host_tcp_end(h);
    return FSDP_OK;
}
