/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h: framed messages over one authenticated connection, without blocking.
 *
 * A frame is a header of 32 bytes, little-endian, and its payload:
 *
 *     type u32 | rank i32 | chan u64 | seq u64 | nbytes u64 | payload ...
 */
#ifndef BOOT_LINK_H
#define BOOT_LINK_H

#include "wire.h"

#define BOOT_FRAME_MAX_NBYTES (UINT64_C(1) << 30)

struct boot_frame {
    uint32_t type;
    int32_t rank;
    uint64_t chan, seq, nbytes;
    unsigned char *data; /* received: nbytes and a terminating zero byte, owned by the link */
};

/* An encoded frame, shared by all links that it goes out on. */
struct boot_packet;
struct boot_packet *boot_packet_create(const struct boot_frame *frame, struct fsdp_err *err);
void boot_packet_unref(struct boot_packet *packet);

struct boot_link {
    int fd; /* owned; -1 when closed */
    /* out */
    struct boot_queued *first, **last;
    size_t first_pos;
    bool broken; /* nothing more can be written; what came in can still be read */
    /* in */
    unsigned char head[32];
    size_t have;
    bool in_payload;
    struct boot_frame frame;
};

/* Takes fd. */
void boot_link_init(struct boot_link *link, int fd);
/* Closes the connection and drops what is queued. */
void boot_link_close(struct boot_link *link);
/* Ends the connection for both sides; the descriptor stays until boot_link_close. */
void boot_link_shutdown(struct boot_link *link);
/* Queues a packet (takes its own reference). FSDP_ENOMEM only; on a broken link it is dropped. */
int boot_link_send(struct boot_link *link, struct boot_packet *packet, struct fsdp_err *err);
/* Writes what the socket takes now. Returns false where it broke. */
bool boot_link_flush(struct boot_link *link);
bool boot_link_pending(const struct boot_link *link);
/* 1: *out is a whole frame, valid until the next call; 0: nothing yet; -1: the other end is gone or
 * talks nonsense, `why` (an errno, 0 for an orderly end) says which. */
int boot_link_recv(struct boot_link *link, struct boot_frame **out, int *why);

#endif
