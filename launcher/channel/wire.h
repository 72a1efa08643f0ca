/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h: authenticated TCP connections.
 *
 * Both ends prove that they know the job's secret before either says anything else:
 *
 *     dialler   hello:  magic, purpose, rank, to, nonce D      48 bytes
 *     acceptor  answer: nonce A, MAC("acceptor", D, A, hello)  64 bytes
 *     dialler   proof:  MAC("dialler", D, A, hello)            32 bytes
 *     acceptor  verdict: magic                                  4 bytes
 *
 * `to` is whom the dialler means: ports are the same on many machines and so may be addresses, and
 * a rank that is not meant hangs up instead of the last line. The MAC is HMAC-SHA256 keyed with the
 * secret. What follows is neither signed nor encrypted: the secret keeps strangers and other jobs
 * out, the network is trusted like that of any MPI job.
 */
#ifndef BOOT_WIRE_H
#define BOOT_WIRE_H

#include "sys/boot_ops.h"

enum { BOOT_ADDR_NBYTES = 48, BOOT_MAX_ADDRS = 8 };

/* Where a process listens: addresses in the order they should be tried. */
struct boot_contact {
    uint16_t port, naddrs;
    char addr[BOOT_MAX_ADDRS][BOOT_ADDR_NBYTES]; /* numeric */
};

enum boot_purpose { BOOT_FOR_KVS = 1, BOOT_FOR_TREE = 2, BOOT_FOR_JOIN = 3 };

enum { BOOT_TO_SERVER = -1 }; /* the rendezvous, which is no rank */

struct boot_hello {
    uint32_t purpose;
    int32_t rank; /* who dials */
    int32_t to;   /* whom: a rank or BOOT_TO_SERVER */
};

int boot_secret_create(struct boot_secret *out, struct fsdp_err *err);
/* nbytes of randomness from the kernel. */
int boot_random(void *out, size_t nbytes, struct fsdp_err *err);

/* Blocks until fd is ready for `events` (poll's) or the deadline: FSDP_OK or FSDP_ETIMEDOUT. */
int boot_wait_fd(int fd, short events, double deadline);
/* Sends (out) or receives exactly nbytes on a socket that does not block. 0, or an errno:
 * ETIMEDOUT at the deadline, ECONNRESET where the other side has ended. */
int boot_move(int fd, bool out, void *data, size_t nbytes, double deadline);

/* Connects and authenticates. *fd is non-blocking, close-on-exec and the caller's. `who` names the
 * other end in errors. FSDP_EPEER: nobody answers; FSDP_EMISMATCH: it does not know the secret. */
int boot_dial(int *fd, const struct boot_contact *to, const struct boot_secret *secret,
              struct boot_hello hello, const char *who, double deadline, struct fsdp_err *err);

/* A listening socket that lets in who proves to know the secret. A stranger who connects and says
 * nothing holds up nobody. */
struct boot_acceptor;
/* Listens on every address of this machine, or with `loopback` on 127.0.0.1 alone; port 0: any free
 * one. FSDP_EEXIST: somebody else listens on that port. */
int boot_acceptor_create(struct boot_acceptor **out, const struct boot_secret *secret,
                         bool loopback, uint16_t port, struct fsdp_err *err);
void boot_acceptor_destroy(struct boot_acceptor *acceptor);
/* For who learns the secret later; before the first step. */
void boot_acceptor_set_secret(struct boot_acceptor *acceptor, const struct boot_secret *secret);
/* Who it is that others dial here, BOOT_TO_SERVER unless said; before the first step. */
void boot_acceptor_set_rank(struct boot_acceptor *acceptor, int rank);
/* Where others reach it: with loopback only 127.0.0.1, else every address of this machine. */
void boot_acceptor_contact(const struct boot_acceptor *acceptor, struct boot_contact *out);
/* Readable when boot_acceptor_step has something to do. */
int boot_acceptor_fd(const struct boot_acceptor *acceptor);
/* Does not block, but pauses for a moment where the process has no free descriptor. True: *fd
 * (non-blocking, the caller's) is an authenticated connection. */
bool boot_acceptor_step(struct boot_acceptor *acceptor, int *fd, struct boot_hello *hello);

/* Messages that this process has sent and received over connections of a job: frames, and those of
 * handshakes. Any thread. */
void boot_message_count(int n);
uint64_t boot_messages_so_far(void);

#endif
