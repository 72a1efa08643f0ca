/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h: jobs of forked ranks that bootstrap through `local` against a rendezvous that the test
 * itself serves, and what each rank saw.
 */
#ifndef JOB_H
#define JOB_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../launcher/boot/boot_env.h"
#include "../../launcher/boot/kvs.h"
#include "boot.h"
#include "tap.h"

enum { JOB_MAX_RANKS = 16 };

/* In memory shared with the ranks. */
struct job_seen {
    int status; /* of the call that the case is about */
    struct fsdp_err err;
    int health;
    struct fsdp_err health_err;
    int flag;
};

struct job {
    int nranks, nnodes;
    bool cyclic;  /* ranks dealt out over nodes in turn instead of in blocks */
    bool reorder; /* rank 0 asks for new numbers */
    int absent;   /* rank that is not started, -1: none */
    int stranger; /* rank that has another secret, -1: none */
    int nsilent;  /* connections that say nothing, made before the ranks start */
    double timeout_s, wait_s;
    double patience_s; /* the test gives up and kills */
    /* results */
    struct job_seen *seen;
    int status[JOB_MAX_RANKS];
    char words[JOB_MAX_RANKS][256];
};
#define JOB_INIT                                                                                   \
    {                                                                                              \
        .nranks = 4, .nnodes = 2, .absent = -1, .stranger = -1, .timeout_s = 30, .wait_s = 30,     \
        .patience_s = 60                                                                           \
    }

/* Runs in the rank after boot_open, which put its outcome into job->seen[rank].status. boot is NULL
 * where it failed. The return value is the exit code. */
typedef int job_main_f(struct job *job, int rank, struct boot *boot);

static int job_node(const struct job *job, int rank)
{
    return job->cyclic ? rank % job->nnodes : rank * job->nnodes / job->nranks;
}

static int job_secret_fd(const struct boot_secret *secret)
{
    int fd = memfd_create("test-secret", 0);
    if (write(fd, secret->bytes, sizeof secret->bytes) != (ssize_t)sizeof secret->bytes)
        abort();
    return fd;
}

static void job_setenv(const char *name, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void job_child(struct job *job, int rank, const struct boot_contact *at, int secret_fd,
                      job_main_f *fn)
{
    char text[80];
    struct boot *boot = NULL;
    struct boot_opts opts = BOOT_OPTS_INIT;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    opts.timeout_s = job->timeout_s;
    opts.wait_s = job->wait_s;
    opts.methods = "local";
    opts.reorder = job->reorder && rank == 0;
    snprintf(text, sizeof text, "%s:%u", at->addr[0], at->port);
    setenv(BOOT_ENV_RENDEZVOUS, text, 1);
    job_setenv(BOOT_ENV_SECRET_FD, secret_fd);
    job_setenv(BOOT_ENV_RANK, rank);
    job_setenv(BOOT_ENV_SIZE, job->nranks);
    job_setenv(BOOT_ENV_NODE, job_node(job, rank));
    snprintf(text, sizeof text, "box/node%d", job_node(job, rank));
    setenv(BOOT_ENV_HOST, text, 1);
    setenv(BOOT_ENV_JOB, "test-job", 1);
    job->seen[rank].status = boot_open(&boot, &opts, &job->seen[rank].err);
    exit(fn(job, rank, boot));
}

static int job_reap(struct job *job, pid_t *pids)
{
    int nlive = 0;
    for (int r = 0; r < job->nranks; r++) {
        if (pids[r] > 0 && waitpid(pids[r], &job->status[r], WNOHANG) == pids[r])
            pids[r] = 0;
        nlive += pids[r] > 0;
    }
    return nlive;
}

static const char *job_host_of(void *ctx, int rank)
{
    static char host[32];
    snprintf(host, sizeof host, "box/node%d", job_node(ctx, rank));
    return host;
}

/* Connections that say nothing. */
static void job_stand_around(const struct boot_contact *at, int nsilent, int *fds)
{
    for (int i = 0; i < nsilent; i++) {
        struct sockaddr_in sa = {.sin_family = AF_INET,
                                 .sin_port = htons(at->port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (struct sockaddr *)&sa, sizeof sa))
            diag("silent connection %d: %m", i);
    }
}

/* Returns false if it had to kill. */
static bool job_run(struct job *job, job_main_f *fn)
{
    struct boot_kvs_server *kvs;
    struct boot_secret secret, other;
    struct boot_contact at;
    pid_t pids[JOB_MAX_RANKS] = {0};
    int silent[256];
    double until = fsdp_time_now() + job->patience_s;
    bool killed = false;

    job->seen = mmap(NULL, JOB_MAX_RANKS * sizeof *job->seen, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (boot_secret_create(&secret, NULL) || boot_secret_create(&other, NULL) ||
        boot_kvs_server_create(&kvs, job->nranks, &secret, true, 0, job_host_of, job, NULL))
        abort();
    boot_kvs_server_contact(kvs, &at);
    job_stand_around(&at, job->nsilent, silent);
    int fd = job_secret_fd(&secret), wrong_fd = job_secret_fd(&other);
    fflush(NULL);
    for (int r = 0; r < job->nranks; r++) {
        pids[r] = r == job->absent ? 0 : fork();
        if (pids[r] == 0 && r != job->absent)
            job_child(job, r, &at, r == job->stranger ? wrong_fd : fd, fn);
    }
    while (job_reap(job, pids)) {
        struct pollfd pf = {boot_kvs_server_fd(kvs), POLLIN, 0};
        poll(&pf, 1, 20);
        boot_kvs_server_step(kvs);
        for (int r = 0; fsdp_time_now() > until && r < job->nranks; r++)
            if (pids[r] > 0) {
                kill(pids[r], SIGKILL);
                killed = true;
            }
    }
    boot_kvs_server_step(kvs);
    for (int r = 0; r < job->nranks; r++)
        snprintf(job->words[r], sizeof job->words[r], "%s",
                 boot_kvs_server_words(kvs, r) ? boot_kvs_server_words(kvs, r) : "");
    boot_kvs_server_destroy(kvs);
    for (int i = 0; i < job->nsilent; i++)
        close(silent[i]);
    close(fd);
    close(wrong_fd);
    return !killed;
}

static void job_free(struct job *job)
{
    munmap(job->seen, JOB_MAX_RANKS * sizeof *job->seen);
}

#endif
