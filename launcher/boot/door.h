/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.h: who may join a job whose nodes were started by hand.
 *
 * Nobody but the user says which machine is which node, so that two may be given one number, or one
 * waits for other nodes than come. Before a node goes to the rendezvous it knocks: it says who it
 * is, and node 0 lets it in or says what is wrong. Its connection stays open as long as it lives
 * and keeps its number taken.
 */
#ifndef BOOT_DOOR_H
#define BOOT_DOOR_H

#include "channel/wire.h"

/* What a node says of itself. The first two members are the same in every version. */
struct boot_guest {
    uint32_t nbytes;
    char version[28];
    int32_t rank, nnodes;
    char host[FSDP_HOST_NBYTES];
};

struct boot_door;

/* me: node 0. refused(ctx, text) hears of each refusal, from the thread that steps. */
typedef void boot_refused_f(void *ctx, const char *text);
int boot_door_create(struct boot_door **out, const struct boot_guest *me, boot_refused_f *refused,
                     void *ctx, struct fsdp_err *err);
void boot_door_destroy(struct boot_door *door);
/* A connection that asks to be let in (boot_joiner_f). Takes fd. */
void boot_door_take(void *door, int fd, const struct boot_hello *hello);
int boot_door_fd(const struct boot_door *door);
/* Does not block; boot_serve_step_f. */
void boot_door_step(void *door);
/* All nodes have come. Any thread. */
void boot_door_begin(struct boot_door *door);
/* The host of a node that has been let in, NULL: none has (boot_host_of_f). */
const char *boot_door_host_of(void *door, int rank);

/* The other side: asks once. *fd is the caller's and stays open. FSDP_EPEER, FSDP_ETIMEDOUT: worth
 * another try. FSDP_EMISMATCH: another key. FSDP_EINVAL: node 0 says no. Blocks. */
int boot_door_knock(int *fd, const struct boot_contact *at, const struct boot_secret *secret,
                    const struct boot_guest *me, double deadline, struct fsdp_err *err);

#endif
