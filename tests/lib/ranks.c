/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent serves NCHANNELS star-shaped channels over socket pairs: it collects one message from
 * every rank and answers all with the concatenation. Deaths are published in a shared page that
 * health() reads.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { NCHANNELS = 16, MAX_RANKS = 64 };

struct board {
    atomic_int dead_rank; /* rank + 1 */
    char text[256];
};

struct chan {
    struct fsdp_oob oob;
    struct board *board;
    const int *fds; /* [NCHANNELS] of this rank */
    int *next;      /* shared among the dups of this rank */
    int fd;
};

static int lost(struct chan *c, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EPEER, "rank %d lost: %s", atomic_load(&c->board->dead_rank) - 1,
                        c->board->text);
}

static int move(struct chan *c, bool send, void *data, size_t nbytes, struct fsdp_err *err)
{
    char *p = data;
    while (nbytes) {
        struct pollfd pf = {c->fd, send ? POLLOUT : POLLIN, 0};
        int n = poll(&pf, 1, 50);
        if (n == 0) {
            if (atomic_load(&c->board->dead_rank))
                return lost(c, err);
            continue;
        }
        ssize_t k = send ? write(c->fd, p, nbytes) : read(c->fd, p, nbytes);
        if (k < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (k <= 0)
            return atomic_load(&c->board->dead_rank)
                       ? lost(c, err)
                       : fsdp_err_set(err, FSDP_EPEER, "test channel closed");
        p += k;
        nbytes -= (size_t)k;
    }
    return FSDP_OK;
}

static int chan_allgather(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                          struct fsdp_err *err)
{
    struct chan *c = oob->ctx;
    uint64_t len = nbytes;
    FSDP_TRY(move(c, true, &len, sizeof len, err));
    FSDP_TRY(move(c, true, (void *)(uintptr_t)in, nbytes, err));
    return move(c, false, out, nbytes * (size_t)oob->size, err);
}

static int chan_dup(struct fsdp_oob *oob, const char *tag, struct fsdp_oob **out,
                    struct fsdp_err *err)
{
    struct chan *c = oob->ctx;
    (void)tag;
    if (*c->next == NCHANNELS)
        return fsdp_err_set(err, FSDP_EINTERNAL, "test channels used up");
    struct chan *d = malloc(sizeof *d);
    *d = *c;
    d->fd = c->fds[(*c->next)++];
    d->oob.ctx = d;
    *out = &d->oob;
    return FSDP_OK;
}

static int chan_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct chan *c = oob->ctx;
    return atomic_load(&c->board->dead_rank) ? lost(c, err) : FSDP_OK;
}

static void publish(struct board *board, int rank, const char *text)
{
    int none = 0;
    if (atomic_load(&board->dead_rank))
        return;
    snprintf(board->text, sizeof board->text, "%s", text);
    atomic_compare_exchange_strong(&board->dead_rank, &none, rank + 1);
}

static void chan_abort(struct fsdp_oob *oob, int code, const char *text)
{
    struct chan *c = oob->ctx;
    (void)code;
    publish(c->board, oob->rank, text);
}

static void chan_close(struct fsdp_oob *oob)
{
    free(oob->ctx);
}

static void child(int rank, int nranks, const int fds[NCHANNELS], struct board *board,
                  const struct fsdp_node_map *nodes, rank_main_f *fn, void *arg)
{
    int next = 1;
    struct chan *c = malloc(sizeof *c);
    *c = (struct chan){.oob = {.abi = FSDP_OOB_ABI,
                               .rank = rank,
                               .size = nranks,
                               .allgather = chan_allgather,
                               .dup = chan_dup,
                               .health = chan_health,
                               .abort = chan_abort,
                               .close = chan_close},
                       .board = board,
                       .fds = fds,
                       .next = &next,
                       .fd = fds[0]};
    c->oob.ctx = c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    int status = fn(&c->oob, nodes, arg);
    free(c);
    fflush(NULL);
    exit(status);
}

struct gather {
    uint64_t len;
    char *data;
    int have;
    bool seen[MAX_RANKS];
};

static bool read_all(int fd, void *data, size_t nbytes)
{
    char *p = data;
    while (nbytes) {
        ssize_t k = read(fd, p, nbytes);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        nbytes -= (size_t)k;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t nbytes)
{
    const char *p = data;
    while (nbytes) {
        ssize_t k = write(fd, p, nbytes);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        nbytes -= (size_t)k;
    }
    return true;
}

static void serve(struct gather *g, int (*fd)[NCHANNELS], int ch, int rank, int nranks)
{
    uint64_t len;
    if (!read_all(fd[rank][ch], &len, sizeof len)) {
        close(fd[rank][ch]);
        fd[rank][ch] = -1;
        return;
    }
    if (!g->have) {
        free(g->data); /* of a rank that died between its length and its data */
        g->len = len;
        g->data = malloc((size_t)len * (size_t)nranks + 1);
    }
    if (len != g->len) {
        fprintf(stderr, "ranks: rank %d gathers %llu bytes, others %llu\n", rank,
                (unsigned long long)len, (unsigned long long)g->len);
        abort();
    }
    if (!read_all(fd[rank][ch], g->data + (size_t)rank * len, (size_t)len))
        return;
    g->have++;
    if (g->have == nranks) {
        for (int r = 0; r < nranks; r++)
            if (fd[r][ch] >= 0)
                write_all(fd[r][ch], g->data, (size_t)len * (size_t)nranks);
        free(g->data);
        *g = (struct gather){0};
    }
}

int ranks_run(int nranks, int nnodes, double timeout_s, rank_main_f *fn, void *arg, int *statuses)
{
    static char hosts[MAX_RANKS][FSDP_HOST_NBYTES];
    static int node_of[MAX_RANKS];
    int fd[MAX_RANKS][NCHANNELS], theirs[MAX_RANKS][NCHANNELS], st[MAX_RANKS], live = nranks;
    pid_t pid[MAX_RANKS];
    struct gather gathers[NCHANNELS] = {{0}};
    if (nranks < 1 || nranks > MAX_RANKS)
        abort();
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double deadline = fsdp_time_now() + timeout_s;

    for (int r = 0; r < nranks; r++) {
        node_of[r] = (int)((long)r * nnodes / nranks);
        snprintf(hosts[r], sizeof hosts[r], "node%d", node_of[r]);
        for (int c = 0; c < NCHANNELS; c++) {
            int sv[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv)) {
                perror("socketpair");
                abort();
            }
            fd[r][c] = sv[0];
            theirs[r][c] = sv[1];
        }
    }
    struct fsdp_node_map nodes = {
        nranks, nnodes, node_of, (const char(*)[FSDP_HOST_NBYTES])(void *)hosts, FSDP_STARTED_HERE};
    fflush(NULL);
    for (int r = 0; r < nranks; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            for (int q = 0; q < nranks; q++)
                for (int c = 0; c < NCHANNELS; c++) {
                    close(fd[q][c]);
                    if (q != r)
                        close(theirs[q][c]);
                }
            child(r, nranks, theirs[r], board, &nodes, fn, arg);
        }
    }
    for (int r = 0; r < nranks; r++)
        for (int c = 0; c < NCHANNELS; c++)
            close(theirs[r][c]);
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    bool killed = false;
    while (live) {
        struct pollfd pf[MAX_RANKS * NCHANNELS];
        for (int r = 0; r < nranks; r++)
            for (int c = 0; c < NCHANNELS; c++)
                pf[r * NCHANNELS + c] = (struct pollfd){fd[r][c], POLLIN, 0};
        poll(pf, (nfds_t)(nranks * NCHANNELS), 20);
        for (int r = 0; r < nranks; r++)
            for (int c = 0; c < NCHANNELS; c++)
                if (pf[r * NCHANNELS + c].revents && fd[r][c] >= 0)
                    serve(&gathers[c], fd, c, r, nranks);
        for (int r = 0; r < nranks; r++) {
            int status;
            if (pid[r] > 0 && waitpid(pid[r], &status, WNOHANG) == pid[r]) {
                char text[64];
                pid[r] = 0;
                st[r] = status;
                live--;
                snprintf(text, sizeof text, "%s %d on %.16s",
                         WIFSIGNALED(status) ? "killed by signal" : "exited with",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), hosts[r]);
                if (status)
                    publish(board, r, text);
            }
        }
        if (!killed && fsdp_time_now() > deadline) {
            killed = true;
            for (int r = 0; r < nranks; r++)
                if (pid[r] > 0)
                    kill(pid[r], SIGKILL);
        }
    }
    signal(SIGPIPE, old_pipe);
    int bad = 0;
    for (int r = 0; r < nranks; r++) {
        for (int c = 0; c < NCHANNELS; c++)
            if (fd[r][c] >= 0)
                close(fd[r][c]);
        bad += st[r] != 0;
        if (statuses)
            statuses[r] = st[r];
    }
    for (int c = 0; c < NCHANNELS; c++)
        free(gathers[c].data);
    munmap(board, sizeof *board);
    return bad;
}

const char *ranks_device(void)
{
    const char *kind = getenv("TEST_DEVICE");
    return kind ? kind : "cpu";
}
