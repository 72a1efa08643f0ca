/* SPDX-License-Identifier: Apache-2.0 */
/*
 * supervise.h: the state of a job whose ranks this process starts.
 *
 *     supervise.c         the loop: signals, exits, output, rendezvous
 *     supervise_start.c   starting: secret, rendezvous, processes
 *     supervise_verdict.c judging exits: what is a failure, which was first, what to say of it
 *
 * Phases: RUNNING until a rank fails; FAILING while the others may still find out and say so;
 * ENDING after SIGTERM; KILLING after SIGKILL.
 */
#ifndef SUPERVISE_H
#define SUPERVISE_H

#include <signal.h>

#include "boot/kvs.h"
#include "impl.h"

enum launch_phase { LAUNCH_RUNNING, LAUNCH_FAILING, LAUNCH_ENDING, LAUNCH_KILLING };

struct launch_proc {
    pid_t pid; /* and process group */
    bool live;
    bool group_gone; /* its number may be a stranger's by now */
    int status;      /* as waitpid gives it */
    struct launch_relay out, err;
};

struct launch_super {
    struct launch_job job;
    struct launch_proc *procs; /* [job.nlocal] of the ranks from job.first on */
    int nstarted, nlive;
    struct launch_sink sinks[2]; /* stdout, stderr */
    struct launch_guard guard;
    struct launch_children spare;
    struct boot_kvs_server *kvs; /* NULL: another agent's */
    struct fsdp_oob *agents;     /* NULL: there are none */
    bool loopback;               /* they are all on this machine */
    struct launch_pulse *pulse;  /* NULL: a request to stop reaches them by other ways */
    int sig_fd;
    sigset_t old_mask;
    struct sigaction old_pipe, old_child;

    enum launch_phase phase;
    double next;     /* when the phase goes over into the next */
    int cause;       /* index of the first rank here that failed, -1: none */
    bool agent_lost; /* another agent is gone, or its ranks failed */
    struct fsdp_err agent_err;
    int nstops;      /* requests to stop, by signal */
    int stop_signal; /* the last of them */
    double stopped;  /* when it came */
};

/* ---- supervise_start.c ---- */

/* agents: NULL, or the agents' channel, with where they are. */
int launch_super_init(struct launch_super *s, const struct launch_args *args,
                      struct fsdp_oob *agents, const struct fsdp_node_map *nodes,
                      struct fsdp_err *err);
void launch_super_destroy(struct launch_super *s);
/* Starts all ranks. Returns an exit code; on failure prints why, and some may be running. */
int launch_super_start(struct launch_super *s);

/* ---- pulse.c ---- */

/* A request to stop comes to one of the nodes that were started by hand, and is meant for all.
 * Their launchers tell each other a few times a second, on a thread of their own, how many requests
 * they have had. */
struct launch_pulse;
int launch_pulse_start(struct launch_pulse **out, struct fsdp_oob *agents, struct fsdp_err *err);
/* Says how many there have been here; returns the most that any node has had. */
int launch_pulse_tell(struct launch_pulse *pulse, int nstops);
/* Ends it on all nodes. */
void launch_pulse_stop(struct launch_pulse *pulse);

/* ---- supervise_verdict.c ---- */

/* Process i has ended: notes whether and how the job fails by it. */
void launch_judge(struct launch_super *s, int i);
/* Another agent's ranks have failed, or it is gone. */
void launch_judge_agents(struct launch_super *s);
/* No rank is left here: what failed here, and nobody has told the other agents yet, is told. */
void launch_judge_end(struct launch_super *s);
/* The job's exit code, after printing the last line where there is something to say. */
int launch_conclude(const struct launch_super *s);

#endif
