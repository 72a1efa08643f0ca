/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h: the command line of fsdp-launch, without knowledge of what it launches. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "boot.h"
#include "fsdp/tunable.h"

/* Exit codes of a job. */
enum {
    LAUNCH_DONE = 0,
    LAUNCH_FAILED = 1,   /* do not requeue: the same would happen again */
    LAUNCH_USAGE = 2,    /* bad command line or configuration */
    LAUNCH_REQUEUE = 75, /* stopped on request with a checkpoint saved: requeue me (EX_TEMPFAIL) */
    LAUNCH_PEER_LOST = 76, /* another rank died; a requeue may help */
};

/* The program that fsdp-launch runs in every rank when it is given a configuration. */
struct launch_program {
    const char *name;
    /* Checks the command line before any rank starts: config path and overrides. Prints errors
     * itself to stderr. Returns an exit code, 0 to continue. */
    int (*check)(const char *config, int noverrides, char *const *overrides);
    /* The keys of its configuration, for completion. NULL: it has none. */
    const struct fsdp_tunable *(*keys)(int *nkeys);
    /* Prints every configuration key with default, help and the value after config (may be NULL)
     * and overrides. */
    int (*print_config)(const char *config, int noverrides, char *const *overrides);
    /* Prints what is reported of each step. NULL: nothing is. */
    int (*print_metrics)(void);
    /* Writes the planned schedule of nranks ranks on nnodes nodes, of which none is started; file
     * NULL: to standard output. NULL: the program has none. */
    int (*dump_schedule)(const char *config, int noverrides, char *const *overrides, int nranks,
                         int nnodes, const char *file);
    bool speaks;           /* its ranks print the reason of a failure themselves */
    const char *trace_key; /* what --trace FILE sets, "section.key"; NULL: nothing */
    /* Does this configuration use MPI, which needs the connection that ranks met through? NULL:
     * none does. */
    bool (*uses_mpi)(const char *config, int noverrides, char *const *overrides);
    /* A setting's value: the word of a choice, or checkpoint.path; key "section.key". False: there
     * is none, or the configuration cannot be read. NULL: the program has no settings. */
    bool (*setting)(char *out, size_t nbytes, const char *key, const char *config, int noverrides,
                    char *const *overrides);
    /* Warns of files that the configuration names and this machine does not have. NULL: it names
     * none. */
    void (*warn_missing)(const char *config, int noverrides, char *const *overrides);
    /* Does the configuration fit so many ranks? Prints what is wrong, or wasteful. Returns an exit
     * code, 0 to continue. NULL: any does. */
    int (*check_ranks)(const char *config, int noverrides, char *const *overrides, int nranks);
    /* Called before the ranks meet where it does: begins an MPI that would not begin afterwards. An
     * error must come back from run(), too, on all ranks. NULL: there is none. */
    int (*begin_mpi)(struct fsdp_err *err);
    /* Runs in every rank. Returns an exit code. */
    int (*run)(struct boot *boot, const char *config, int noverrides, char *const *overrides,
               bool verbose);
    /* Instead of run under --check: are the ranks' nodes fit? config may be NULL. NULL: the program
     * has no such check. */
    int (*check_nodes)(struct boot *boot, const char *config, int noverrides,
                       char *const *overrides, bool verbose);
    /* Writes the configuration that does what another program's file says, to a new file `to`,
     * NULL: standard output. Prints errors and remarks to stderr. Returns an exit code. NULL: it
     * knows none. */
    int (*convert)(const char *path, const char *to);
};

/* main() of fsdp-launch. Returns the exit code. */
int launch_main(int argc, char **argv, const struct launch_program *program);

/* Set by SIGINT, SIGTERM, SIGUSR1 or SIGUSR2 in a rank: save at the next step and leave. */
bool launch_stop_requested(void);

#endif
