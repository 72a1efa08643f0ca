/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"

enum { HEAD_NBYTES = 32 };

struct boot_packet {
    atomic_int refs;
    size_t nbytes;
    unsigned char data[];
};

struct boot_queued {
    struct boot_queued *next;
    struct boot_packet *packet;
};

static void put64(unsigned char *to, uint64_t x)
{
    x = htole64(x);
    memcpy(to, &x, sizeof x);
}

static uint64_t get64(const unsigned char *from)
{
    uint64_t x;
    memcpy(&x, from, sizeof x);
    return le64toh(x);
}

struct boot_packet *boot_packet_create(const struct boot_frame *frame, struct fsdp_err *err)
{
    struct boot_packet *packet =
        fsdp_alloc(1, sizeof *packet + HEAD_NBYTES + frame->nbytes, "boot packet", err);
    if (!packet)
        return NULL;
    atomic_init(&packet->refs, 1);
    packet->nbytes = HEAD_NBYTES + frame->nbytes;
    put64(packet->data, frame->type | (uint64_t)(uint32_t)frame->rank << 32);
    put64(packet->data + 8, frame->chan);
    put64(packet->data + 16, frame->seq);
    put64(packet->data + 24, frame->nbytes);
    if (frame->nbytes)
        memcpy(packet->data + HEAD_NBYTES, frame->data, frame->nbytes);
    return packet;
}

void boot_packet_unref(struct boot_packet *packet)
{
    if (packet && atomic_fetch_sub(&packet->refs, 1) == 1)
        fsdp_free(packet);
}

void boot_link_init(struct boot_link *link, int fd)
{
    memset(link, 0, sizeof *link);
    link->fd = fd;
    link->last = &link->first;
}

static void drop_queue(struct boot_link *link)
{
    while (link->first) {
        struct boot_queued *q = link->first;
        link->first = q->next;
        boot_packet_unref(q->packet);
        fsdp_free(q);
    }
    link->last = &link->first;
    link->first_pos = 0;
}

void boot_link_close(struct boot_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    drop_queue(link);
    fsdp_free(link->frame.data);
    link->frame.data = NULL;
}

void boot_link_shutdown(struct boot_link *link)
{
    if (link->fd >= 0)
        shutdown(link->fd, SHUT_RDWR);
    link->broken = true;
    drop_queue(link);
}

int boot_link_send(struct boot_link *link, struct boot_packet *packet, struct fsdp_err *err)
{
    if (link->fd < 0 || link->broken)
        return FSDP_OK;
    struct boot_queued *q = fsdp_alloc(1, sizeof *q, "boot queue", err);
    if (!q)
        return FSDP_ENOMEM;
    atomic_fetch_add(&packet->refs, 1);
    q->packet = packet;
    *link->last = q;
    link->last = &q->next;
    boot_message_count(1);
    return FSDP_OK;
}

bool boot_link_pending(const struct boot_link *link)
{
    return link->first != NULL;
}

bool boot_link_flush(struct boot_link *link)
{
    while (link->first) {
        struct boot_queued *q = link->first;
        ssize_t done = send(link->fd, q->packet->data + link->first_pos,
                            q->packet->nbytes - link->first_pos, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EAGAIN)
            return true;
        if (done < 0) {
            link->broken = true;
            drop_queue(link);
            return false;
        }
        link->first_pos += (size_t)done;
        if (link->first_pos < q->packet->nbytes)
            continue;
        link->first_pos = 0;
        if (!(link->first = q->next))
            link->last = &link->first;
        boot_packet_unref(q->packet);
        fsdp_free(q);
    }
    return true;
}

/* The header is whole: makes room for the payload. Returns 0 or an errno. */
static int begin_payload(struct boot_link *link)
{
    struct boot_frame *f = &link->frame;
    uint64_t first = get64(link->head);

    fsdp_free(f->data);
    *f = (struct boot_frame){.type = (uint32_t)first,
                             .rank = (int32_t)(first >> 32),
                             .chan = get64(link->head + 8),
                             .seq = get64(link->head + 16),
                             .nbytes = get64(link->head + 24)};
    if (f->nbytes > BOOT_FRAME_MAX_NBYTES)
        return EPROTO;
    f->data = fsdp_alloc(f->nbytes + 1, 1, "boot frame", NULL);
    if (!f->data)
        return ENOMEM;
    link->in_payload = true;
    link->have = 0;
    return 0;
}

int boot_link_recv(struct boot_link *link, struct boot_frame **out, int *why)
{
    *why = 0;
    for (;;) {
        size_t want = link->in_payload ? link->frame.nbytes : HEAD_NBYTES;
        unsigned char *to = link->in_payload ? link->frame.data : link->head;
        if (link->have == want && link->in_payload) {
            link->in_payload = false;
            link->have = 0;
            boot_message_count(1);
            *out = &link->frame;
            return 1;
        }
        ssize_t got = recv(link->fd, to + link->have, want - link->have, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0) {
            *why = got < 0 ? errno : link->have || link->in_payload ? ECONNRESET : 0;
            return -1;
        }
        link->have += (size_t)got;
        if (!link->in_payload && link->have == want && (*why = begin_payload(link)))
            return -1;
    }
}
