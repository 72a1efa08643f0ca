/* SPDX-License-Identifier: Apache-2.0 */
/*
 * impl.h: the parts of fsdp-launch.
 *
 *     options.c  the table of options
 *     args.c   the command line
 *     say.c    messages
 *     env.c    the environment of a rank that is started here
 *     rank.c   being a rank: bootstrap, run, last words
 *     requeue.c  queueing the job again (slurm_job.c: what Slurm says of it)
 *     relay.c  output of ranks, line by line
 *     guard.c  a small process that outlives the launcher's sudden death
 *     sweep.c  what ranks may leave behind: processes, shared memory
 *     supervise.c     starting ranks here and watching over them
 *     batch.c  a batch script for this cluster (launcher/sbatch)
 *     agent.c  the same as one of several that srun or mpirun started, one on each node
 *     nodes.c  the same as one of several that the user started (--nnodes)
 *     pulse.c  what those tell each other while their ranks run
 */
#ifndef LAUNCH_IMPL_H
#define LAUNCH_IMPL_H

#include <sys/types.h>

#include "boot/boot_env.h"
#include "launch.h"
#include "sbatch/sbatch.h"

enum {
    LAUNCH_CANNOT_EXECUTE = 126, /* as a shell says it */
    LAUNCH_NOT_FOUND = 127,
};

struct launch_args {
    int nranks; /* 0: not given */
    int nnodes;
    int ranks_per_task; /* 0: this process, if somebody started it as one of several, is a rank */
    int ranks_per_gpu;  /* 0: not given */
    int by_hand;        /* --nnodes: this process starts one node's ranks; 0: not given */
    int node_rank;      /* -1: not given */
    int master_port;
    const char *master_addr;
    double timeout_s;
    bool requeue, reorder;
    bool verbose, print_config, print_metrics, prefix_output;
    int request, shell; /* help and the like instead (enum fsdp_cli_request) */
    bool uses_mpi;      /* the configuration does */
    bool check;         /* the nodes, instead of running */
    bool speaks;        /* the program's ranks print their last words themselves */
    bool dump_schedule;
    struct sbatch_request sbatch;
    const char *dump_file; /* NULL: standard output */
    const char *trace;     /* NULL: none */
    const char *from;      /* another program's configuration, NULL: none */
    const char *out;       /* with from; NULL: standard output */
    const char *config;    /* NULL where there is a program; may be with check */
    int noverrides;
    char **overrides;
    char **program; /* NULL, or argv of a foreign program */
};

/* ---- args.c ---- */

/* Parses and checks; prints what is wrong. Returns an exit code, 0 to continue. Pointers are into
 * argv, which is permuted. */
int launch_args_parse(struct launch_args *out, int argc, char **argv);

/* ---- say.c ---- */

/* "fsdp-launch: ..." and a newline on stderr, in one write. */
void launch_say(const char *fmt, ...) FSDP_PRINTF(1, 2);
/* Says that a program could not be run, and why (errno); and where ./ was left out, that. */
void launch_say_not_run(const char *program, int why);

/* ---- rank.c ---- */

/* Meets the others that were started with this process; says why where that fails. Returns an exit
 * code. earlier: an error of this rank that all will hear of once they have met, or NULL. */
int launch_open_boot(struct boot **out, const struct launch_args *args,
                     const struct fsdp_err *earlier);
/* Is this process a rank already (a resource manager or fsdp-launch started it)? */
bool launch_is_rank(void);
/* The configuration's check, and whether the file is there. Returns an exit code. */
int launch_check(const struct launch_args *args, const struct launch_program *program);
/* Returns the exit code of this process. */
int launch_run_rank(const struct launch_args *args, const struct launch_program *program);

/* ---- requeue.c ---- */

/* After a job that ended with `code`: asks Slurm to queue it again where --requeue and the code say
 * so. oob: the channel of all who call this at the job's end, one of whom does it; NULL: this
 * process is alone. Prints what went wrong. */
void launch_requeue(const struct launch_args *args, int code, struct fsdp_oob *oob);

/* After a start of ranks that did not meet. A job that has run before is queued again, a few times;
 * one that never met is not, since the same would happen. */
void launch_requeue_unmet(const struct launch_args *args, int code);

/* ---- batch.c ---- */

/* Do the options of --sbatch fit together, and with the others? Prints what is wrong. Returns an
 * exit code. */
int launch_sbatch_check(const struct launch_args *args);
/* Writes the script, and submits it where args say so. Prints what it did or why not. Returns an
 * exit code. */
int launch_sbatch(const struct launch_args *args, const struct launch_program *program);

/* ---- env.c ---- */

/* The ranks first .. first + nlocal - 1 of nranks are started here: all of them, or those of one
 * agent. */
struct launch_job {
    const struct launch_args *args;
    int nranks, first, nlocal;
    int nnodes;                         /* that the ranks here are presented as; no agents */
    const struct fsdp_node_map *agents; /* where they are; NULL: there are none */
    int *firsts;                        /* [agents + 1] the first rank of each agent, and nranks */
    char host[FSDP_HOST_NBYTES];        /* of this machine */
    char name[64];
    char rendezvous[BOOT_RENDEZVOUS_NBYTES];
    char master_addr[FSDP_HOST_NBYTES];
    int secret_fd, master_port;
};

/* A free TCP port of 127.0.0.1, from `first` on if that is not 0; or 0. */
int launch_free_port(int first);
int launch_node_of(const struct launch_job *job, int rank);
/* Name of a rank's (emulated) node: HOST, or HOST/node1. Returns buf. */
const char *launch_host_of(const struct launch_job *job, int rank, char buf[FSDP_HOST_NBYTES]);
/* The agent that starts a rank. */
int launch_agent_of(const struct launch_job *job, int rank);
/* The environment of a rank: this process's without the traces of other launchers, and what the
 * rank is to know. Freed with launch_env_destroy. NULL: out of memory. */
char **launch_env_create(const struct launch_job *job, int rank);
void launch_env_destroy(char **env);

/* ---- relay.c ---- */

/* Where output goes: stdout or stderr of the launcher. */
struct launch_sink {
    int fd;
    bool dead; /* nobody reads it any more */
    char *data;
    size_t nbytes, capacity;
};

/* Where it comes from: one pipe of one rank. */
struct launch_relay {
    int fd; /* -1: at its end */
    int rank;
    bool prefix;
    struct launch_sink *to;
    char *data; /* the beginning of a line */
    size_t nbytes, capacity;
};

/* Takes what the pipe has and passes on whole lines; at the end also the unfinished one. */
void launch_relay_read(struct launch_relay *relay);
void launch_relay_close(struct launch_relay *relay);
/* Is there room for more? Else the ranks wait, as they would on a slow terminal. */
bool launch_sink_hungry(const struct launch_sink *sink);
/* Writes what can be written without blocking. */
void launch_sink_flush(struct launch_sink *sink);

/* ---- guard.c ---- */

/* Ends all process groups that it was told of when the launcher dies without saying so. */
struct launch_guard {
    pid_t pid;
    int fd;
};

int launch_guard_start(struct launch_guard *out, const char *job, struct fsdp_err *err);
void launch_guard_add(struct launch_guard *guard, pid_t pgid);
void launch_guard_remove(struct launch_guard *guard, pid_t pgid);
/* The job has ended in order. */
void launch_guard_stop(struct launch_guard *guard);

/* ---- sweep.c ---- */

/* Processes that are this one's children before any rank is started; they are none of its business.
 */
struct launch_children {
    int npids;
    pid_t pids[64];
};
void launch_children_list(struct launch_children *out);
/* Kills and reaps every child that is not in `spare` or `guard`, grandchildren that have become
 * children included. */
void launch_sweep_processes(const struct launch_children *spare, pid_t guard);
/* Removes shared memory whose name contains the job's. */
void launch_sweep_shm(const char *job);

/* ---- supervise.c ---- */

/* agents: NULL, or the channel of all agents, with where they are. */
int launch_supervise(const struct launch_args *args, struct fsdp_oob *agents,
                     const struct fsdp_node_map *nodes);

/* ---- nodes.c ---- */

/* With --nnodes: fills in what the environment says, checks it, and tells the bootstrap. Returns an
 * exit code. */
int launch_nodes_prepare(struct launch_args *args);

/* ---- agent.c ---- */

/* With --ranks-per-task under a resource manager, or with --nnodes: meets the other agents, then
 * starts this one's ranks. */
int launch_run_agent(const struct launch_args *args);

#endif
