/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a tree: when nobody uses it any more. */
#include <unistd.h>

#include "tree_impl.h"

void tree_chan_free(struct tree_chan *chan)
{
    struct tree_chan **at = &chan->tree->chans;
    while (*at && *at != chan)
        at = &(*at)->next;
    if (*at)
        *at = chan->next;
    fsdp_free(chan);
}

static void tree_free(struct boot_tree *tree)
{
    for (int r = 0; tree->links && r < tree->size; r++)
        boot_link_close(&tree->links[r].io);
    while (tree->chans)
        tree_chan_free(tree->chans);
    root_free_ops(tree);
    boot_acceptor_destroy(tree->acceptor);
    if (tree->ep_fd >= 0)
        close(tree->ep_fd);
    if (tree->wake_fd >= 0)
        close(tree->wake_fd);
    fsdp_free(tree->links);
    fsdp_free(tree->left);
    pthread_cond_destroy(&tree->changed);
    pthread_mutex_destroy(&tree->lock);
    fsdp_free(tree);
}

void tree_unref(struct boot_tree *tree)
{
    bool last = --tree->refs == 0;
    pthread_mutex_unlock(&tree->lock);
    if (last)
        tree_free(tree);
}
