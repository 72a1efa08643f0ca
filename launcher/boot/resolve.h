/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.h: the addresses of a host. */
#ifndef BOOT_RESOLVE_H
#define BOOT_RESOLVE_H

#include "channel/wire.h"

/* Adds an address to a contact that has room and does not have it yet. */
void boot_contact_add(struct boot_contact *to, const char *addr);

/* Adds what a name resolves to, of this machine's own loopback addresses only with `loopback`:
 * /etc/hosts of a node often has its own name as 127.0.1.1, and other nodes are none of those.
 * Whether there was any. Blocks. */
bool boot_resolve(struct boot_contact *to, const char *host, bool loopback);

/* Does this text name the machine that reads it? By the text alone: a machine often has its own
 * name as 127.0.1.1, and others reach it by that name. */
bool boot_host_is_loopback(const char *host);

/* Is one of the contact's addresses one of this machine? */
bool boot_contact_is_here(const struct boot_contact *at);

#endif
