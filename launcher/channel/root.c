/* SPDX-License-Identifier: Apache-2.0 */
/* What only rank 0 does: collects the pieces of collectives and answers who is missing. */
#include <stdio.h>
#include <string.h>

#include "tree_impl.h"

static void op_free(struct tree_op *op)
{
    fsdp_free(op->seen);
    fsdp_free(op->data);
    fsdp_free(op);
}

void root_free_ops(struct boot_tree *tree)
{
    while (tree->ops) {
        struct tree_op *op = tree->ops;
        tree->ops = op->next;
        op_free(op);
    }
}

static struct tree_op **op_find(struct boot_tree *tree, uint64_t chan, uint64_t seq)
{
    struct tree_op **at = &tree->ops;
    while (*at && ((*at)->chan != chan || (*at)->seq != seq))
        at = &(*at)->next;
    return at;
}

/* A refused collective stays on the list until every rank has come to it, so that late ranks are
 * told too. */
static void op_refuse(struct boot_tree *tree, struct tree_op *op)
{
    struct boot_frame refuse = {.type = TREE_REFUSE,
                                .rank = op->status,
                                .chan = op->chan,
                                .seq = op->seq,
                                .nbytes = strlen(op->text) + 1,
                                .data = (unsigned char *)op->text};
    tree_flood(tree, &refuse);
    tree_deliver(tree, &refuse);
}

static void refuse_left(struct boot_tree *tree, struct tree_op *op, int rank)
{
    char name[FSDP_HOST_NBYTES + 32];
    op->status = FSDP_EPEER;
    snprintf(op->text, sizeof op->text, "channel '%s': %s has left the job",
             tree_chan_tag(tree, op->chan), tree_name(tree, rank, name, sizeof name));
}

static struct tree_op *op_create(struct boot_tree *tree, const struct boot_frame *f)
{
    struct tree_op *op = fsdp_alloc(1, sizeof *op, "boot collective", NULL);
    if (!op)
        return NULL;
    op->seen = fsdp_alloc((size_t)tree->size, 1, "boot collective", NULL);
    op->data = fsdp_alloc((size_t)tree->size, f->nbytes, "boot collective", NULL);
    if (!op->seen || !op->data) {
        op_free(op);
        return NULL;
    }
    op->chan = f->chan;
    op->seq = f->seq;
    op->nbytes = f->nbytes;
    op->first = f->rank;
    op->next = tree->ops;
    tree->ops = op;
    for (int r = 0; r < tree->size && tree->nleft; r++)
        if (tree->left[r] && op->status == FSDP_OK)
            refuse_left(tree, op, r);
    return op;
}

static void check_size(struct boot_tree *tree, struct tree_op *op, const struct boot_frame *f)
{
    char a[FSDP_HOST_NBYTES + 32], b[FSDP_HOST_NBYTES + 32];
    if (f->nbytes == op->nbytes || op->status)
        return;
    op->status = FSDP_EMISMATCH;
    snprintf(op->text, sizeof op->text,
             "channel '%s', call %llu: %s gives %llu bytes, %s gives %llu",
             tree_chan_tag(tree, op->chan), (unsigned long long)op->seq,
             tree_name(tree, op->first, a, sizeof a), (unsigned long long)op->nbytes,
             tree_name(tree, f->rank, b, sizeof b), (unsigned long long)f->nbytes);
}

void root_piece(struct boot_tree *tree, const struct boot_frame *f)
{
    struct tree_op **at = op_find(tree, f->chan, f->seq);
    struct tree_op *op = *at ? *at : op_create(tree, f);

    if (!op) {
        struct fsdp_err loss = FSDP_ERR_INIT;
        fsdp_err_set(&loss, FSDP_EPEER, "rank 0, which collects for all, is out of memory");
        loss.rank = loss.culprit = 0;
        tree_report(tree, &loss);
        return;
    }
    if (op->seen[f->rank]) { /* sent again by a rank that lost its leader */
        if (op->status)      /* and perhaps the answer with it */
            op_refuse(tree, op);
        return;
    }
    op->seen[f->rank] = true;
    op->have++;
    check_size(tree, op, f);
    if (op->status)
        op_refuse(tree, op);
    else if (f->nbytes)
        memcpy(op->data + (size_t)f->rank * op->nbytes, f->data, op->nbytes);
    if (op->have < tree->size)
        return;
    if (op->status == FSDP_OK) {
        struct boot_frame result = {.type = TREE_RESULT,
                                    .chan = op->chan,
                                    .seq = op->seq,
                                    .nbytes = op->nbytes * (uint64_t)tree->size,
                                    .data = op->data};
        tree_flood(tree, &result);
        tree_deliver(tree, &result);
    }
    at = op_find(tree, op->chan, op->seq);
    *at = op->next;
    op_free(op);
}

void root_who(struct boot_tree *tree, const struct boot_frame *f)
{
    enum { MOST = 8 };
    struct tree_op *op = *op_find(tree, f->chan, f->seq);
    char text[768] = "";
    struct fsdp_err who = FSDP_ERR_INIT;
    struct tree_words words;
    size_t len = 0;
    int nabsent = 0, first = -1;

    for (int r = 0; op && r < tree->size; r++) {
        char name[FSDP_HOST_NBYTES + 32];
        if (op->seen[r])
            continue;
        first = first < 0 ? r : first;
        if (nabsent++ >= MOST)
            continue;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", len ? ", " : "",
                                tree_name(tree, r, name, sizeof name));
        len = len < sizeof text ? len : sizeof text - 1;
    }
    if (nabsent > MOST)
        snprintf(text + len, sizeof text - len, " and %d more", nabsent - MOST);
    fsdp_err_set(&who, FSDP_ETIMEDOUT, "%s", text);
    who.culprit = first;
    struct boot_frame absent = tree_words_frame(&words, TREE_ABSENT, &who);
    absent.rank = f->rank;
    absent.chan = f->chan;
    absent.seq = f->seq;
    tree_flood(tree, &absent);
    tree_deliver(tree, &absent);
}

void root_bye(struct boot_tree *tree, int rank)
{
    if (tree->left[rank])
        return;
    tree->left[rank] = true;
    tree->nleft++;
    for (struct tree_op *op = tree->ops; op; op = op->next)
        if (!op->seen[rank] && op->status == FSDP_OK) {
            refuse_left(tree, op, rank);
            op_refuse(tree, op);
        }
    pthread_cond_broadcast(&tree->changed);
}
