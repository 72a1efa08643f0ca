/* SPDX-License-Identifier: Apache-2.0 */
/* comm_meet.h: what backends share where ranks meet: how one is reached, and why it failed. */
#ifndef COMM_MEET_H
#define COMM_MEET_H

#include "fsdp/base.h"

enum { COMM_MAX_ADDRS = 8 };

struct comm_addr {
    int32_t family;
    uint8_t bytes[16];
};

/* Addresses of this host that mean something to another, IPv4 first, of the interfaces that
 * FSDP_COMM_IFNAME wants. Local. */
int comm_addrs_list(struct comm_addr out[COMM_MAX_ADDRS], int32_t *naddrs, struct fsdp_err *err);
/* A socket of this type (SOCK_STREAM, SOCK_DGRAM) that does not block, bound to a port of the
 * system's choice on all addresses: AF_INET6, which serves IPv4 too, else AF_INET. Returns 0 or
 * errno. Local. */
int comm_bind_any(int *out, int *family, int type, int32_t *port);
/* Equal for ranks that reach each other over loopback: same kernel, same network namespace. */
uint64_t comm_machine_id(void);
/* fsdp_oob_agree, where one that only waited for others in vain (FSDP_ETIMEDOUT) does not speak for
 * one that knows why. Collective. */
int comm_agree_on_cause(struct fsdp_oob *oob, int status, struct fsdp_err *err);

#endif
