/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from the root for the channels of this rank. */
#include <string.h>

#include "tree_impl.h"

const char *tree_chan_tag(const struct boot_tree *tree, uint64_t id)
{
    for (const struct tree_chan *c = tree->chans; c; c = c->next)
        if (c->id == id)
            return c->tag;
    return "?"; /* other ranks have opened it, this one not yet */
}

static void deliver_result(struct boot_tree *tree, struct tree_chan *c, const struct boot_frame *f)
{
    if (f->nbytes != c->nbytes * (uint64_t)tree->size) {
        c->rc = fsdp_err_set(&c->err, FSDP_EMISMATCH,
                             "channel '%s', call %llu: this rank gives %zu bytes, others do not",
                             c->tag, (unsigned long long)c->seq, c->nbytes);
    } else {
        if (f->nbytes)
            memcpy(c->out, f->data, f->nbytes);
        c->rc = FSDP_OK;
    }
    c->done = true;
}

void tree_deliver(struct boot_tree *tree, const struct boot_frame *f)
{
    struct tree_chan *c = tree->chans;
    while (c && (c->id != f->chan || c->seq != f->seq || !c->busy || c->done))
        c = c->next;
    if (!c)
        return; /* a call that has timed out here */
    if (f->type == TREE_RESULT) {
        deliver_result(tree, c, f);
    } else if (f->type == TREE_REFUSE) {
        c->rc = fsdp_err_set(&c->err, f->rank < 0 ? f->rank : FSDP_EINTERNAL, "%s", f->data);
        c->done = true;
    } else if (f->type == TREE_ABSENT && f->rank == tree->rank) {
        tree_words_read(&c->absent, tree, f);
        c->told = true;
    }
    pthread_cond_broadcast(&tree->changed);
}
