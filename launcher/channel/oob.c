/* SPDX-License-Identifier: Apache-2.0 */
/* The channels on the tree: struct fsdp_oob as callers see it. */
#include <stdio.h>
#include <string.h>

#include "fsdp/sys/thread.h"
#include "tree_impl.h"

/* How long the root may take to say who is missing, once a deadline has passed. */
enum { WHO_S = 5 };

bool tree_wait(struct boot_tree *tree, double deadline)
{
    const double left = deadline - fsdp_time_now();
    const struct timespec end = fsdp_cond_time(left);
    if (left <= 0)
        return false;
    pthread_cond_timedwait(&tree->changed, &tree->lock, &end);
    return true;
}

static int lost_error(const struct boot_tree *tree, struct fsdp_err *err)
{
    return fsdp_err_pass(err, FSDP_EPEER, &tree->verdict);
}

/* ---- allgather ---- */

static void send_piece(struct tree_chan *c)
{
    struct boot_tree *tree = c->tree;
    struct boot_frame piece = {.type = TREE_PIECE,
                               .rank = tree->rank,
                               .chan = c->id,
                               .seq = c->seq,
                               .nbytes = c->nbytes,
                               .data = (unsigned char *)(uintptr_t)c->in};
    if (tree->rank == 0)
        root_piece(tree, &piece);
    else
        tree_send(tree, tree->up, &piece);
}

void tree_resend(struct boot_tree *tree)
{
    for (struct tree_chan *c = tree->chans; c; c = c->next)
        if (c->busy && !c->done)
            send_piece(c);
}

/* Ranks that leave because of a loss are not its cause. */
static bool is_answered(const struct tree_chan *c)
{
    return c->done && (c->rc != FSDP_EPEER || !atomic_load(&c->tree->lost));
}

/* The deadline has passed: asks the root who has not come. The call may still end well meanwhile.
 */
static int timed_out(struct tree_chan *c, double waited)
{
    struct boot_tree *tree = c->tree;
    struct boot_frame who = {.type = TREE_WHO, .rank = tree->rank, .chan = c->id, .seq = c->seq};
    char name[FSDP_HOST_NBYTES + 32];

    if (tree->rank == 0)
        root_who(tree, &who);
    else
        tree_send(tree, tree->up, &who);
    double until = fsdp_time_now() + WHO_S;
    while (!c->done && !c->told && !atomic_load(&tree->lost) && tree_wait(tree, until))
        ;
    if (is_answered(c))
        return c->rc;
    if (atomic_load(&tree->lost))
        return lost_error(tree, &c->err);
    /* A root that does not answer is what is waited for. */
    const bool known = c->told && c->absent.text[0];
    fsdp_err_set(&c->err, FSDP_ETIMEDOUT, "%s",
                 known ? c->absent.text : tree_name(tree, 0, name, sizeof name));
    c->err.culprit = known ? c->absent.culprit : 0;
    return fsdp_err_relay(&c->err, FSDP_ETIMEDOUT, "channel '%s', call %llu: waited %.3g s for ",
                          c->tag, (unsigned long long)c->seq, waited);
}

static int wait_for_result(struct tree_chan *c, double deadline)
{
    struct boot_tree *tree = c->tree;
    char name[FSDP_HOST_NBYTES + 32];
    double began = fsdp_time_now();

    for (;;) {
        if (is_answered(c))
            return c->rc;
        if (atomic_load(&tree->lost))
            return lost_error(tree, &c->err);
        if (tree->root_left)
            return fsdp_err_set(&c->err, FSDP_EPEER, "channel '%s': %s has left the job", c->tag,
                                tree_name(tree, 0, name, sizeof name));
        if (!tree_wait(tree, deadline))
            return timed_out(c, fsdp_time_now() - began);
    }
}

int tree_allgather(struct tree_chan *c, const void *in, size_t nbytes, void *out, double deadline,
                   struct fsdp_err *err)
{
    struct boot_tree *tree = c->tree;
    int rc;

    if (nbytes > BOOT_FRAME_MAX_NBYTES / (uint64_t)tree->size)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "channel '%s': %zu bytes from each of %d ranks are too much for a "
                            "control channel",
                            c->tag, nbytes, tree->size);
    pthread_mutex_lock(&tree->lock);
    if (c->busy) {
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "channel '%s' is in use by another thread: give each thread its own dup",
                          c->tag);
        goto out;
    }
    if (c->err.status == FSDP_OK) {
        c->seq++;
        c->busy = true;
        c->done = c->told = false;
        c->in = in;
        c->out = out;
        c->nbytes = nbytes;
        send_piece(c);
        wait_for_result(c, deadline);
        c->busy = false;
    }
    rc = c->err.status;
    if (rc && err)
        *err = c->err;
out:
    pthread_mutex_unlock(&tree->lock);
    return rc;
}

static int chan_allgather(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                          struct fsdp_err *err)
{
    struct tree_chan *c = oob->ctx;
    return tree_allgather(c, in, nbytes, out, fsdp_time_now() + c->wait_s, err);
}

static void chan_set_wait(struct fsdp_oob *oob, double seconds)
{
    struct tree_chan *c = oob->ctx;
    c->wait_s = seconds;
}

/* ---- the rest of the table ---- */

struct dup_card {
    char tag[32];
    uint64_t index;
};

static int chan_dup(struct fsdp_oob *oob, const char *tag, struct fsdp_oob **out,
                    struct fsdp_err *err)
{
    struct tree_chan *c = oob->ctx, *made;
    struct boot_tree *tree = c->tree;
    struct dup_card mine = {.index = c->ndups}, *all = NULL;
    int rc;

    if (!tag || !tag[0] || strlen(tag) >= sizeof mine.tag)
        return fsdp_err_set(err, FSDP_EINVAL, "a channel's tag has 1 to %zu characters",
                            sizeof mine.tag - 1);
    snprintf(mine.tag, sizeof mine.tag, "%s", tag);
    all = fsdp_alloc((size_t)tree->size, sizeof *all, "channel tags", err);
    if (!all)
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(oob->allgather(oob, &mine, sizeof mine, all, err), out);
    for (int r = 0; r < tree->size; r++)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0) {
            rc = fsdp_err_set(err, FSDP_EMISMATCH,
                              "ranks open different channels at once: rank 0 '%.31s', rank %d "
                              "'%.31s'",
                              all[0].tag, r, all[r].tag);
            goto out;
        }
    /* The same on every rank without another exchange. */
    uint64_t id = fsdp_hash(fsdp_hash(FSDP_HASH_SEED, &c->id, sizeof c->id), &mine, sizeof mine);
    FSDP_TRY_GOTO(tree_chan_create(&made, tree, tag, id, err), out);
    c->ndups++;
    *out = &made->oob;
out:
    fsdp_free(all);
    return rc;
}

static int chan_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct tree_chan *c = oob->ctx;
    struct boot_tree *tree = c->tree;
    if (!atomic_load(&tree->lost))
        return FSDP_OK;
    pthread_mutex_lock(&tree->lock); /* the text may still be on its way */
    lost_error(tree, err);
    pthread_mutex_unlock(&tree->lock);
    return FSDP_EPEER;
}

static bool all_flushed(const struct boot_tree *tree)
{
    for (int r = 0; r < tree->size; r++)
        if (boot_link_pending(&tree->links[r].io))
            return false;
    return true;
}

/* "rank 1 on n0 gave up (code 1): <the reason>" */
static struct fsdp_err last_words(const struct boot_tree *tree, int code,
                                  const struct fsdp_err *why)
{
    char name[FSDP_HOST_NBYTES + 32], reason[FSDP_ERR_TEXT_NBYTES];
    struct fsdp_err words = FSDP_ERR_INIT;

    fsdp_err_set(&words, FSDP_EPEER, "%s", fsdp_err_reason(reason, why));
    words.kind = FSDP_ERR_GAVE_UP;
    words.rank = tree->rank;
    words.culprit = why->culprit;
    words.of_other = words.culprit == words.rank;
    fsdp_err_relay(&words, FSDP_EPEER,
                   "%s gave up (code %d): ", tree_name(tree, tree->rank, name, sizeof name), code);
    return words;
}

static void chan_abort(struct fsdp_oob *oob, int code, const struct fsdp_err *why)
{
    enum { FLUSH_S = 1 };
    struct tree_chan *c = oob->ctx;
    struct boot_tree *tree = c->tree;
    struct tree_words room;

    pthread_mutex_lock(&tree->lock);
    bool first = !atomic_load(&tree->lost);
    if (first) {
        const struct fsdp_err words = last_words(tree, code, why);
        tree_report(tree, &words);
        tree_set_verdict(tree, &words);
        /* Those below hear it from here: when this rank is gone, the root may be gone too. */
        const struct boot_frame verdict = tree_words_frame(&room, TREE_VERDICT, &words);
        if (tree->rank != 0)
            tree_flood(tree, &verdict);
        /* The caller may end the process next. */
        double until = fsdp_time_now() + FLUSH_S;
        while (!all_flushed(tree) && tree_wait(tree, until))
            ;
    }
    pthread_mutex_unlock(&tree->lock);
    if (first && tree->on_words)
        tree->on_words(tree->ctx, code, why->text + why->cause);
}

static void chan_close(struct fsdp_oob *oob)
{
    struct tree_chan *c = oob->ctx;
    struct boot_tree *tree = c->tree;
    if (c == NULL || c->id == FSDP_HASH_SEED) /* the first channel goes with the tree */
        return;
    pthread_mutex_lock(&tree->lock);
    tree_chan_free(c);
    tree_unref(tree);
}

int tree_chan_create(struct tree_chan **out, struct boot_tree *tree, const char *tag, uint64_t id,
                     struct fsdp_err *err)
{
    struct tree_chan *c = fsdp_alloc(1, sizeof *c, "boot channel", err);
    if (!c)
        return FSDP_ENOMEM;
    c->tree = tree;
    c->wait_s = tree->wait_s;
    c->id = id;
    snprintf(c->tag, sizeof c->tag, "%s", tag);
    c->oob = (struct fsdp_oob){.abi = FSDP_OOB_ABI,
                               .rank = tree->rank,
                               .size = tree->size,
                               .ctx = c,
                               .allgather = chan_allgather,
                               .dup = chan_dup,
                               .health = chan_health,
                               .abort = chan_abort,
                               .close = chan_close,
                               .set_wait = chan_set_wait};
    pthread_mutex_lock(&tree->lock);
    c->next = tree->chans;
    tree->chans = c;
    tree->refs++;
    pthread_mutex_unlock(&tree->lock);
    *out = c;
    return FSDP_OK;
}
