/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot_ops.h: what a bootstrap method implements. boot.c has checked every argument; it calls
 * probe, open, info, put, fence, get, and close, in this order and from one thread.
 *
 * Deadlines are points in time of fsdp_time_now(). Every blocking function returns FSDP_ETIMEDOUT
 * at its deadline, with a text that names the ranks that did not come where the method can know
 * them.
 */
#ifndef BOOT_SYS_BOOT_OPS_H
#define BOOT_SYS_BOOT_OPS_H

#include "boot.h"

#define BOOT_OPS_ABI 1
#define BOOT_SECRET_NBYTES 32
#define BOOT_WHY_NBYTES 256

/* The job's secret: who knows it is a rank of the job. Never on a command line, never in a log. */
struct boot_secret {
    unsigned char bytes[BOOT_SECRET_NBYTES];
};

/* What a method knows about the rank it runs in. */
struct boot_facts {
    int rank, size;
    char host[FSDP_HOST_NBYTES]; /* as errors shall name it */
    char node_key[160];          /* equal on ranks of one node and only there */
    char job[64];                /* rank 0's counts for all; "": boot.c makes one */
    bool loopback;               /* all ranks are on this machine */
    bool has_secret;             /* else rank 0 makes one and hands it out through put/get */
    struct boot_secret secret;
};

struct boot_ops {
    uint32_t abi;
    const char *name;
    /* Does the method apply here? Local. `why` gets one line, whatever the answer. */
    bool (*probe)(char *why, size_t why_nbytes);
    /* *state is the method's own. */
    int (*open)(void **state, double deadline, struct fsdp_err *err);
    void (*info)(void *state, struct boot_facts *out);
    /* One small value of this rank under a short key. Seen by others after the next fence. */
    int (*put)(void *state, const char *key, const void *data, size_t nbytes, double deadline,
               struct fsdp_err *err);
    /* Collective. A true barrier that also makes earlier puts visible. */
    int (*fence)(void *state, double deadline, struct fsdp_err *err);
    /* What `rank` put; FSDP_EINVAL if it is not exactly nbytes long. */
    int (*get)(void *state, int rank, const char *key, void *data, size_t nbytes, double deadline,
               struct fsdp_err *err);
    /* (optional) What all ranks put, in rank order, out[size * nbytes], where that is one message
     * instead of one for each. */
    int (*get_all)(void *state, const char *key, void *out, size_t nbytes, double deadline,
                   struct fsdp_err *err);
    /* (optional) Last words to whoever started the ranks. A method that has it stays open for the
     * life of the job; the others are closed as soon as the control tree stands. Any thread. */
    void (*abort)(void *state, int code, const char *text);
    /* clean: the rank leaves in agreement with the others. */
    void (*close)(void *state, bool clean);
};

extern const struct boot_ops boot_pmix_ops, boot_slurm_ops, boot_nodes_ops, boot_local_ops,
    boot_single_ops;

#endif
