/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h: the control channel, a tree of connections that stays open for the life of the job.
 *
 *     rank 0 (root) ─┬─ its node's other ranks
 *                    ├─ leader of node 1 ── that node's other ranks
 *                    └─ leader of node 2 ── ...            leader = lowest rank of a node
 *
 * Pieces of a collective travel up rank by rank, so that the root always knows who is missing; the
 * result travels down. A connection that ends without goodbye is a death: whoever notices tells the
 * root, the root decides which loss was the first and tells everybody. A rank that loses its leader
 * connects to the root instead.
 */
#ifndef BOOT_TREE_H
#define BOOT_TREE_H

#include "wire.h"

struct boot_tree;

struct boot_tree_opts {
    int rank;
    const struct fsdp_node_map *nodes;   /* lives as long as the tree */
    const struct boot_contact *contacts; /* [nranks], copied */
    struct boot_secret secret;
    double wait_s; /* deadline of every collective */
    /* (optional) called with a rank's own last words, on the thread that says them */
    void (*on_words)(void *ctx, int code, const char *text);
    void *ctx;
};

/* Connects this rank to its place in the tree and waits for all others. Takes the acceptor whose
 * contact the others were given, on failure too. Collective, blocks. FSDP_ETIMEDOUT names who did
 * not come. */
int boot_tree_create(struct boot_tree **out, const struct boot_tree_opts *opts,
                     struct boot_acceptor *acceptor, double deadline, struct fsdp_err *err);
/* Says goodbye, waits a moment for the ranks below to do the same, closes everything. Channels that
 * are still open stay valid and fail. */
void boot_tree_close(struct boot_tree *tree);
/* The channel that all others are dup'ed from; closed by boot_tree_close. */
struct fsdp_oob *boot_tree_oob(struct boot_tree *tree);

#endif
