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
#include "tap.h"

enum { NCHANNELS = 16, MAX_RANKS = 64 };

struct board {
    atomic_int dead_rank; /* rank + 1 of the first */
    char text[MAX_RANKS][FSDP_ERR_TEXT_NBYTES];
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
    int rank = atomic_load(&c->board->dead_rank) - 1;
    return fsdp_err_set(err, FSDP_EPEER, "rank %d lost: %s", rank, c->board->text[rank]);
}

static int move(struct chan *c, bool send, void *data, size_t nbytes, struct fsdp_err *err)
{
    char *p = data;
    while (nbytes) {
        struct pollfd pf = {c->fd, send ? POLLOUT : POLLIN, 0};
        int n = poll(&pf, 1, 50);
        if (n == 0 || (n < 0 && errno == EINTR)) {
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

/* Several may be the first at the same time: each writes a text of its own. */
static void publish(struct board *board, int rank, const char *text)
{
    int none = 0;
    if (atomic_load(&board->dead_rank))
        return;
    snprintf(board->text[rank], sizeof board->text[rank], "%s", text);
    atomic_compare_exchange_strong(&board->dead_rank, &none, rank + 1);
}

static void chan_abort(struct fsdp_oob *oob, int code, const struct fsdp_err *why)
{
    struct chan *c = oob->ctx;
    (void)code;
    publish(c->board, oob->rank, why->text);
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

/* One round of a channel: from each rank its length, then its data. */
struct gather {
    uint64_t len, lens[MAX_RANKS];
    size_t got[MAX_RANKS]; /* bytes of both */
    char *data;
    int have;
};

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

static bool has_come(const struct gather *g, int rank)
{
    return g->data && g->got[rank] == sizeof g->len + g->len;
}

static void hang_up(int *fd)
{
    close(*fd);
    *fd = -1;
}

/* Takes what there is of a rank's message: the rank may be stopped or killed in the middle of it.
 * A rank that has given its part is not heard before the round ends. */
static void hear(struct gather *g, int *fd, int rank, int nranks)
{
    size_t *got = &g->got[rank];

    while (!has_come(g, rank)) {
        bool head = *got < sizeof g->len;
        char *to = head ? (char *)&g->lens[rank] + *got
                        : g->data + (size_t)rank * g->len + (*got - sizeof g->len);
        size_t want = (head ? sizeof g->len : sizeof g->len + g->len) - *got;
        ssize_t k = recv(*fd, to, want, MSG_DONTWAIT);
        if (k < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (k <= 0) {
            hang_up(fd);
            return;
        }
        *got += (size_t)k;
        if (*got != sizeof g->len)
            continue;
        if (!g->data) {
            g->len = g->lens[rank];
            g->data = malloc((size_t)g->len * (size_t)nranks + 1);
        }
        if (g->lens[rank] != g->len) { /* one that gave up, or a mistake: it is told either way */
            fprintf(stderr, "ranks: rank %d gathers %llu bytes, others %llu\n", rank,
                    (unsigned long long)g->lens[rank], (unsigned long long)g->len);
            hang_up(fd);
            return;
        }
    }
    g->have++;
}

/* No round ends after a death, also one to which the dead rank gave its part in time: else it would
 * hang on the moment whether the others succeed. */
static void serve(struct gather *g, int (*fd)[NCHANNELS], int ch, int rank, int nranks,
                  struct board *board)
{
    hear(g, &fd[rank][ch], rank, nranks);
    if (g->have < nranks || atomic_load(&board->dead_rank))
        return;
    for (int r = 0; r < nranks; r++)
        if (fd[r][ch] >= 0)
            write_all(fd[r][ch], g->data, (size_t)g->len * (size_t)nranks);
    free(g->data);
    *g = (struct gather){0};
}

/* The rank's ends of its channels are this process's until it has forked. */
static pid_t start_rank(int rank, int nranks, int (*fd)[NCHANNELS], struct board *board,
                        const struct fsdp_node_map *nodes, rank_main_f *fn, void *arg)
{
    int theirs[NCHANNELS];

    for (int c = 0; c < NCHANNELS; c++) {
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv)) {
            perror("socketpair");
            abort();
        }
        fd[rank][c] = sv[0];
        theirs[c] = sv[1];
    }
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        abort();
    }
    if (pid == 0) {
        for (int r = 0; r <= rank; r++)
            for (int c = 0; c < NCHANNELS; c++)
                if (fd[r][c] >= 0)
                    close(fd[r][c]);
        child(rank, nranks, theirs, board, nodes, fn, arg);
    }
    for (int c = 0; c < NCHANNELS; c++)
        close(theirs[c]);
    return pid;
}

/* Has the rank ended? Then its death, if it was one, is published. */
static bool reap(pid_t pid, int *status, int rank, const char *host, struct board *board)
{
    char text[64];

    if (waitpid(pid, status, WNOHANG) != pid)
        return false;
    snprintf(text, sizeof text, "%s %d on %.16s",
             WIFSIGNALED(*status) ? "killed by signal" : "exited with",
             WIFSIGNALED(*status) ? WTERMSIG(*status) : WEXITSTATUS(*status), host);
    if (*status)
        publish(board, rank, text);
    return true;
}

static void serve_all(struct gather *gathers, int (*fd)[NCHANNELS], int nranks, struct board *board)
{
    struct pollfd pf[MAX_RANKS * NCHANNELS];

    for (int r = 0; r < nranks; r++)
        for (int c = 0; c < NCHANNELS; c++)
            pf[r * NCHANNELS + c] =
                (struct pollfd){has_come(&gathers[c], r) ? -1 : fd[r][c], POLLIN, 0};
    if (poll(pf, (nfds_t)(nranks * NCHANNELS), 20) <= 0)
        return;
    for (int r = 0; r < nranks; r++)
        for (int c = 0; c < NCHANNELS; c++)
            if (pf[r * NCHANNELS + c].revents)
                serve(&gathers[c], fd, c, r, nranks, board);
}

int ranks_run(int nranks, int nnodes, double timeout_s, rank_main_f *fn, void *arg, int *statuses)
{
    static char hosts[MAX_RANKS][FSDP_HOST_NBYTES];
    static int node_of[MAX_RANKS];
    int fd[MAX_RANKS][NCHANNELS], st[MAX_RANKS], live = nranks, bad = 0;
    pid_t pid[MAX_RANKS];
    struct gather gathers[NCHANNELS] = {{0}};
    if (nranks < 1 || nranks > MAX_RANKS)
        abort();
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const bool slow = getenv("TEST_SANITIZER") || tap_emulated();
    double deadline = fsdp_time_now() + timeout_s * (slow ? 4 : 2);

    for (int r = 0; r < nranks; r++) {
        node_of[r] = (int)((long)r * nnodes / nranks);
        snprintf(hosts[r], sizeof hosts[r], "node%d", node_of[r]);
    }
    struct fsdp_node_map nodes = {
        nranks, nnodes, node_of, (const char(*)[FSDP_HOST_NBYTES])(void *)hosts, FSDP_STARTED_HERE};
    fflush(NULL);
    for (int r = 0; r < nranks; r++)
        pid[r] = start_rank(r, nranks, fd, board, &nodes, fn, arg);
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    while (live) {
        serve_all(gathers, fd, nranks, board);
        for (int r = 0; r < nranks; r++) {
            if (pid[r] > 0 && fsdp_time_now() > deadline)
                kill(pid[r], SIGKILL);
            if (pid[r] > 0 && reap(pid[r], &st[r], r, hosts[r], board)) {
                pid[r] = 0;
                live--;
            }
        }
    }
    signal(SIGPIPE, old_pipe);
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
