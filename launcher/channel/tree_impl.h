/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree_impl.h: the tree's state, shared by
 *
 *     tree.c     building and closing
 *     control.c  the thread that reads, routes and notices losses
 *     root.c     what only rank 0 does: collect pieces, decide
 *     words.c    failures as they travel
 *     oob.c      the channels that callers see
 *
 * Everything is guarded by `lock`. Any thread may send (sockets never block); only the control
 * thread reads.
 */
#ifndef BOOT_TREE_IMPL_H
#define BOOT_TREE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "link.h"
#include "tree.h"

/* up = towards the root, down = from it */
enum {
    TREE_PIECE = 1,   /* up: rank's data for (chan, seq) */
    TREE_RESULT = 2,  /* down: everybody's data */
    TREE_REFUSE = 3,  /* down: (chan, seq) cannot be; rank = status, text */
    TREE_WHO = 4,     /* up: rank asks who is missing in (chan, seq) */
    TREE_ABSENT = 5,  /* down: the answer to rank, words */
    TREE_LOST = 6,    /* up: rank died or gave up, words */
    TREE_VERDICT = 7, /* down: the first loss of the job, words */
    TREE_BYE = 8,     /* both: rank leaves in order */
};

struct tree_link {
    struct boot_link io; /* fd -1: none */
    bool bye;            /* the other end has said goodbye */
};

/* A collective that the root collects. */
struct tree_op {
    struct tree_op *next;
    uint64_t chan, seq, nbytes;
    int first; /* rank that came first */
    int have;
    int status; /* not FSDP_OK: refused, kept until all pieces have come */
    char text[512];
    bool *seen;          /* [size] */
    unsigned char *data; /* [size * nbytes] */
};

struct tree_chan {
    struct tree_chan *next;
    struct fsdp_oob oob;
    struct boot_tree *tree;
    char tag[32];
    double wait_s; /* deadline of its calls */
    uint64_t id, seq;
    unsigned int ndups;
    /* the call in progress */
    bool busy, done, told;
    void *out;
    const void *in; /* for sending again after the leader is gone */
    size_t nbytes;
    int rc;
    struct fsdp_err err;    /* sticky once its status is set */
    struct fsdp_err absent; /* who has not come; the culprit is the first of them */
};

struct boot_tree {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* on CLOCK_MONOTONIC */
    int refs;               /* the boot and every open channel */
    int rank, size;
    int parent; /* -1 for the root */
    int up;     /* whom pieces go to: the parent, later perhaps the root; -1: nobody */
    const struct fsdp_node_map *nodes;
    struct boot_contact root_contact;
    struct boot_secret secret;
    double wait_s;
    void (*on_words)(void *ctx, int code, const char *text);
    void *ctx;

    struct tree_link *links;        /* [size] by rank of the other end */
    struct boot_acceptor *acceptor; /* root: takes in ranks that lost their leader */
    int ep_fd, wake_fd;
    pthread_t thread;
    bool running, closing, stop;

    atomic_bool lost; /* there is a verdict */
    struct fsdp_err verdict;
    bool root_left;
    bool *left; /* [size] root: who said goodbye */
    int nleft;
    int orphaned_by; /* -1, or the leader whose loss is to be reported to the root */
    bool attach;     /* connect to the root next */

    struct tree_chan *chans;
    struct tree_op *ops; /* root */
};

/* ---- control.c ---- */

void *tree_thread(void *tree);

/* ---- send.c ---- */

/* Puts a connection to `peer` into the tree. */
int tree_link_add(struct boot_tree *tree, int peer, int fd, struct fsdp_err *err);
void tree_send(struct boot_tree *tree, int peer, const struct boot_frame *frame);
/* To every rank directly below. */
void tree_flood(struct boot_tree *tree, const struct boot_frame *frame);
/* This rank's view of the first loss; wakes every waiter. */
void tree_set_verdict(struct boot_tree *tree, const struct fsdp_err *loss);
/* The root's verdict is everybody's, so that all name the same first loss. Of the root, or where
 * nobody is left to decide. */
void tree_decide(struct boot_tree *tree, const struct fsdp_err *loss);
/* Writes what is queued for a rank. */
void tree_flush(struct boot_tree *tree, int peer);
/* Tells the root about a loss, or decides if this is the root. */
void tree_report(struct boot_tree *tree, const struct fsdp_err *loss);
/* "rank 3 on HOST" */
const char *tree_name(const struct boot_tree *tree, int rank, char *buf, size_t nbytes);

/* ---- words.c ---- */

/* Room for a frame's words. */
struct tree_words {
    unsigned char data[16 + FSDP_ERR_TEXT_NBYTES];
};
/* A frame of this type that says err; its data is *words. */
struct boot_frame tree_words_frame(struct tree_words *words, uint32_t type,
                                   const struct fsdp_err *err);
/* *out = what the frame says, FSDP_EPEER. */
void tree_words_read(struct fsdp_err *out, const struct boot_tree *tree,
                     const struct boot_frame *frame);

/* ---- root.c ---- */

void root_piece(struct boot_tree *tree, const struct boot_frame *frame);
void root_who(struct boot_tree *tree, const struct boot_frame *frame);
void root_bye(struct boot_tree *tree, int rank);
void root_free_ops(struct boot_tree *tree);

/* ---- oob.c ---- */

int tree_chan_create(struct tree_chan **out, struct boot_tree *tree, const char *tag, uint64_t id,
                     struct fsdp_err *err);
/* Collective with its own deadline. */
int tree_allgather(struct tree_chan *chan, const void *in, size_t nbytes, void *out,
                   double deadline, struct fsdp_err *err);
/* Sends the pieces of calls in progress again, after a change of `up`. */
void tree_resend(struct boot_tree *tree);
/* Waits for a change until the deadline; the lock is held. */
bool tree_wait(struct boot_tree *tree, double deadline);

/* ---- deliver.c ---- */

/* A frame from the root for the channels of this rank. */
void tree_deliver(struct boot_tree *tree, const struct boot_frame *frame);
const char *tree_chan_tag(const struct boot_tree *tree, uint64_t id);

/* ---- unref.c ---- */

void tree_chan_free(struct tree_chan *chan);
void tree_unref(struct boot_tree *tree); /* releases the lock */

#endif
