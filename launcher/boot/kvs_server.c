/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "kvs_proto.h"

struct entry {
    struct entry *next;
    char key[BOOT_KEY_NBYTES];
    size_t nbytes;
    unsigned char data[];
};

struct client {
    struct boot_link link; /* fd -1: not connected */
    bool seen;             /* was connected at some time */
    bool fencing;
    double fence_deadline, fence_began;
    char *words;
};

struct boot_kvs_server {
    int nranks, ep_fd;
    struct boot_acceptor *acceptor;
    boot_host_of_f *host_of;
    void *ctx;
    const char *noun;
    boot_joiner_f *on_join; /* NULL: nobody asks to be let in */
    void *join_ctx;
    struct entry *entries;
    struct entry *all;      /* what ranks have put under one key, until somebody puts again */
    struct client *clients; /* [nranks] */
};

int boot_kvs_server_create(struct boot_kvs_server **out, int nranks,
                           const struct boot_secret *secret, bool loopback, uint16_t port,
                           boot_host_of_f *host_of, void *ctx, struct fsdp_err *err)
{
    struct boot_kvs_server *s = fsdp_alloc(1, sizeof *s, "rendezvous", err);
    int rc = FSDP_ENOMEM;

    if (!s)
        return rc;
    s->ep_fd = -1;
    s->noun = "rank";
    s->nranks = nranks;
    s->host_of = host_of;
    s->ctx = ctx;
    if (!(s->clients = fsdp_alloc((size_t)nranks, sizeof *s->clients, "rendezvous clients", err)))
        goto out;
    for (int r = 0; r < nranks; r++)
        boot_link_init(&s->clients[r].link, -1);
    FSDP_TRY_GOTO(boot_acceptor_create(&s->acceptor, secret, loopback, port, err), out);
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)nranks};
    s->ep_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->ep_fd < 0 || epoll_ctl(s->ep_fd, EPOLL_CTL_ADD, boot_acceptor_fd(s->acceptor), &ev)) {
        rc = fsdp_err_sys(err, errno, "epoll");
        goto out;
    }
    *out = s;
    return FSDP_OK;
out:
    boot_kvs_server_destroy(s);
    return rc;
}

void boot_kvs_server_destroy(struct boot_kvs_server *s)
{
    if (!s)
        return;
    for (int r = 0; s->clients && r < s->nranks; r++) {
        boot_link_close(&s->clients[r].link);
        fsdp_free(s->clients[r].words);
    }
    while (s->entries) {
        struct entry *e = s->entries;
        s->entries = e->next;
        fsdp_free(e);
    }
    fsdp_free(s->all);
    boot_acceptor_destroy(s->acceptor);
    if (s->ep_fd >= 0)
        close(s->ep_fd);
    fsdp_free(s->clients);
    fsdp_free(s);
}

void boot_kvs_server_contact(const struct boot_kvs_server *s, struct boot_contact *out)
{
    boot_acceptor_contact(s->acceptor, out);
}

int boot_kvs_server_fd(const struct boot_kvs_server *s)
{
    return s->ep_fd;
}

void boot_kvs_server_noun(struct boot_kvs_server *s, const char *noun)
{
    s->noun = noun;
}

void boot_kvs_server_on_join(struct boot_kvs_server *s, boot_joiner_f *fn, void *ctx)
{
    s->on_join = fn;
    s->join_ctx = ctx;
}

bool boot_kvs_server_seen(const struct boot_kvs_server *s)
{
    for (int r = 0; r < s->nranks; r++)
        if (s->clients[r].seen)
            return true;
    return false;
}

const char *boot_kvs_server_words(const struct boot_kvs_server *s, int rank)
{
    return rank >= 0 && rank < s->nranks ? s->clients[rank].words : NULL;
}

/* Keeps the descriptor's epoll interest equal to what the link still has to write. */
static void client_flush(struct boot_kvs_server *s, int rank)
{
    struct boot_link *link = &s->clients[rank].link;
    if (link->fd < 0)
        return;
    boot_link_flush(link);
    struct epoll_event ev = {.events = EPOLLIN | (boot_link_pending(link) ? EPOLLOUT : 0),
                             .data.u32 = (uint32_t)rank};
    epoll_ctl(s->ep_fd, EPOLL_CTL_MOD, link->fd, &ev);
}

static void reply(struct boot_kvs_server *s, int rank, int status, const void *data, size_t nbytes)
{
    struct boot_frame f = {.type = KVS_REPLY,
                           .rank = status,
                           .nbytes = nbytes,
                           .data = (unsigned char *)(uintptr_t)data};
    struct boot_packet *packet = boot_packet_create(&f, NULL);
    if (!packet || boot_link_send(&s->clients[rank].link, packet, NULL))
        boot_link_close(&s->clients[rank].link); /* the rank sees a hang-up instead of silence */
    boot_packet_unref(packet);
    client_flush(s, rank);
}

static struct entry **find_key(struct boot_kvs_server *s, const char *key)
{
    struct entry **e = &s->entries;
    while (*e && strcmp((*e)->key, key) != 0)
        e = &(*e)->next;
    return e;
}

/* Payload: key, a zero byte, value. */
static void do_put(struct boot_kvs_server *s, int rank, const struct boot_frame *f)
{
    const char *key = (const char *)f->data;
    size_t klen = strnlen(key, f->nbytes);
    if (klen == 0 || klen >= BOOT_KEY_NBYTES || klen == f->nbytes ||
        f->nbytes - klen - 1 > BOOT_VALUE_MAX_NBYTES) {
        reply(s, rank, FSDP_EINVAL, NULL, 0);
        return;
    }
    struct entry **at = find_key(s, key), *old = *at;
    struct entry *e = fsdp_alloc(1, sizeof *e + f->nbytes - klen - 1, "rendezvous entry", NULL);
    if (!e) {
        reply(s, rank, FSDP_ENOMEM, NULL, 0);
        return;
    }
    memcpy(e->key, key, klen + 1);
    e->nbytes = f->nbytes - klen - 1;
    memcpy(e->data, f->data + klen + 1, e->nbytes);
    e->next = old ? old->next : NULL;
    *at = e;
    fsdp_free(old);
    fsdp_free(s->all);
    s->all = NULL;
    reply(s, rank, FSDP_OK, NULL, 0);
}

static void do_get(struct boot_kvs_server *s, int rank, const struct boot_frame *f)
{
    const struct entry *e = *find_key(s, (const char *)f->data);
    if (e)
        reply(s, rank, FSDP_OK, e->data, e->nbytes);
    else
        reply(s, rank, FSDP_ENOTFOUND, NULL, 0);
}

/* What a rank has put under a key, NULL: nothing. */
static const struct entry *of_rank(struct boot_kvs_server *s, int rank, const char *key)
{
    char full[BOOT_KEY_NBYTES];
    int len = snprintf(full, sizeof full, "%d/%s", rank, key);
    return len < (int)sizeof full ? *find_key(s, full) : NULL;
}

/* One entry of what all ranks have put under a key; NULL: one of them has not, or no memory. */
static struct entry *join(struct boot_kvs_server *s, const char *key)
{
    const struct entry *e;
    size_t nbytes = 0;

    for (int r = 0; r < s->nranks; r++) {
        if (!(e = of_rank(s, r, key)))
            return NULL;
        nbytes += e->nbytes;
    }
    struct entry *all = fsdp_alloc(1, sizeof *all + nbytes, "rendezvous entries", NULL);
    if (!all)
        return NULL;
    snprintf(all->key, sizeof all->key, "%s", key);
    for (int r = 0; r < s->nranks; r++) {
        e = of_rank(s, r, key);
        memcpy(all->data + all->nbytes, e->data, e->nbytes);
        all->nbytes += e->nbytes;
    }
    return all;
}

static void do_get_all(struct boot_kvs_server *s, int rank, const struct boot_frame *f)
{
    const char *key = (const char *)f->data;

    if (!s->all || strcmp(s->all->key, key) != 0) {
        fsdp_free(s->all);
        s->all = join(s, key);
    }
    if (s->all)
        reply(s, rank, FSDP_OK, s->all->data, s->all->nbytes);
    else
        reply(s, rank, FSDP_ENOTFOUND, NULL, 0);
}

static void fence_try(struct boot_kvs_server *s)
{
    for (int r = 0; r < s->nranks; r++)
        if (!s->clients[r].fencing)
            return;
    for (int r = 0; r < s->nranks; r++) {
        s->clients[r].fencing = false;
        reply(s, r, FSDP_OK, NULL, 0);
    }
}

/* "rank 1 (HOST), rank 3 (HOST): never started or has ended", as far as the text has room. */
static void name_missing(struct boot_kvs_server *s, char *text, size_t nbytes)
{
    size_t len = 0;
    for (int r = 0; r < s->nranks && len < nbytes; r++) {
        const struct client *c = &s->clients[r];
        const char *host = s->host_of ? s->host_of(s->ctx, r) : NULL;
        if (c->fencing)
            continue;
        len += (size_t)snprintf(text + len, nbytes - len, "%s%s %d%s%s (%s)", len ? ", " : "",
                                s->noun, r, host ? " on " : "", host ? host : "",
                                c->link.fd >= 0 ? "connected, but not ready"
                                : c->seen       ? "has left"
                                                : "never connected");
    }
}

/* One rank's deadline ends the fence for all: the others would only wait longer for the same. */
static void fence_expire(struct boot_kvs_server *s)
{
    double now = fsdp_time_now(), waited = 0;
    char text[768] = "";
    size_t len;

    for (int r = 0; r < s->nranks; r++)
        if (s->clients[r].fencing && s->clients[r].fence_deadline <= now &&
            now - s->clients[r].fence_began > waited)
            waited = now - s->clients[r].fence_began;
    if (waited == 0)
        return;
    snprintf(text, sizeof text, "waited %.3g s at the rendezvous for ", waited);
    len = strlen(text);
    name_missing(s, text + len, sizeof text - len);
    for (int r = 0; r < s->nranks; r++) {
        if (!s->clients[r].fencing)
            continue;
        s->clients[r].fencing = false;
        reply(s, r, FSDP_ETIMEDOUT, text, strlen(text) + 1);
    }
}

static void do_fence(struct boot_kvs_server *s, int rank, const struct boot_frame *f)
{
    struct client *c = &s->clients[rank];
    c->fencing = true;
    c->fence_began = fsdp_time_now();
    c->fence_deadline = c->fence_began + (double)f->seq / 1e3;
    fence_try(s);
}

static void do_words(struct client *c, const struct boot_frame *f)
{
    if (c->words) /* the first are the cause, later ones follow from it */
        return;
    c->words = fsdp_strdup((const char *)f->data, NULL);
}

static void client_read(struct boot_kvs_server *s, int rank)
{
    struct client *c = &s->clients[rank];
    struct boot_frame *f;
    int why, got;

    while (c->link.fd >= 0 && (got = boot_link_recv(&c->link, &f, &why)) != 0) {
        if (got < 0) {
            boot_link_close(&c->link);
            c->fencing = false;
        } else if (f->type == KVS_PUT) {
            do_put(s, rank, f);
        } else if (f->type == KVS_GET) {
            do_get(s, rank, f);
        } else if (f->type == KVS_GET_ALL) {
            do_get_all(s, rank, f);
        } else if (f->type == KVS_FENCE) {
            do_fence(s, rank, f);
        } else if (f->type == KVS_WORDS) {
            do_words(c, f);
            reply(s, rank, FSDP_OK, NULL, 0);
        } else {
            reply(s, rank, FSDP_EUNSUPPORTED, NULL, 0);
        }
    }
}

static void welcome(struct boot_kvs_server *s)
{
    struct boot_hello hello;
    int fd;
    while (boot_acceptor_step(s->acceptor, &fd, &hello)) {
        if (hello.purpose == BOOT_FOR_JOIN && s->on_join) {
            s->on_join(s->join_ctx, fd, &hello);
            continue;
        }
        if (hello.purpose != BOOT_FOR_KVS || hello.rank < 0 || hello.rank >= s->nranks) {
            close(fd);
            continue;
        }
        /* A rank that comes again is a new program of the same rank. */
        struct client *c = &s->clients[hello.rank];
        struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)hello.rank};
        boot_link_close(&c->link);
        boot_link_init(&c->link, fd);
        c->seen = true;
        c->fencing = false;
        epoll_ctl(s->ep_fd, EPOLL_CTL_ADD, fd, &ev);
    }
}

void boot_kvs_server_step(struct boot_kvs_server *s)
{
    enum { NEVS = 64 };
    struct epoll_event evs[NEVS];
    int nevs;

    do {
        nevs = epoll_wait(s->ep_fd, evs, NEVS, 0);
        for (int i = 0; i < nevs; i++) {
            if (evs[i].data.u32 == (uint32_t)s->nranks) {
                welcome(s);
                continue;
            }
            client_flush(s, (int)evs[i].data.u32);
            client_read(s, (int)evs[i].data.u32);
        }
    } while (nevs == NEVS);
    fence_expire(s);
}
