/* SPDX-License-Identifier: Apache-2.0 */
/* The opaque device itself: work that is given the host's memory ends the program and says so; the
 * device's, page-locked and communicators' does not. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nn/nn.h"
#include "tap.h"

enum { NELEM = 64 };

struct given {
    struct fsdp_lane *lane;
    const struct nn_ops *nn;
    float *x, *odd; /* the device's; what is under test */
};

typedef int work_f(const struct given *g);

static int sumsq(const struct given *g)
{
    return fsdp_sumsq(g->lane, (double *)(void *)g->odd, g->x, NELEM, NULL);
}

static int adamw(const struct given *g)
{
    struct fsdp_adamw_args args = {.master = g->x,
                                   .exp_avg = g->x + NELEM,
                                   .exp_avg_sq = g->x + 2 * NELEM,
                                   .grad = g->x + 3 * NELEM,
                                   .grad_scale = g->odd,
                                   .nelem = NELEM,
                                   .nsteps = 1};
    return fsdp_adamw(g->lane, &args, NULL);
}

static int norm(const struct given *g)
{
    struct nn_rmsnorm args = {.y = g->x + 2 * NELEM,
                              .rstd = g->x + NELEM,
                              .x = g->x,
                              .w = g->odd,
                              .rows = 1,
                              .dim = NELEM};
    return g->nn->rmsnorm_forward(g->lane, &args, NULL);
}

static int copy(const struct given *g)
{
    return fsdp_copy(g->lane, g->x, g->odd, NELEM, NULL);
}

/* In a process of its own: -1 where it was ended and said why, else whether it went wrong. */
static int outcome(work_f *work, struct given *g, void *odd)
{
    char text[4096] = "";
    int fd[2], status = 0;

    if (pipe(fd))
        abort();
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDERR_FILENO);
        g->odd = odd;
        _exit(work(g) || fsdp_lane_sync(g->lane, NULL));
    }
    close(fd[1]);
    for (size_t len = 0; len < sizeof text - 1;) {
        ssize_t n = read(fd[0], text + len, sizeof text - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd[0]);
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, "memory of the host"))
        return -1;
    return status;
}

int main(void)
{
    static const struct {
        const char *name;
        work_f *work;
        int with_host;
    } works[] = {{"a sum of squares", sumsq, -1},
                 {"AdamW", adamw, -1},
                 {"a norm", norm, -1},
                 {"a copy", copy, 0}};
    static float fixed[NELEM];
    struct fsdp_device *device;
    struct given g;
    struct fsdp_err err = FSDP_ERR_INIT;
    char path[4096];
    float local[NELEM] = {0};

    snprintf(path, sizeof path, "%s/tests/libfsdp-opaque.so",
             getenv("BIN") ? getenv("BIN") : "build/bin");
    setenv("FSDP_CUDA_LIBRARY", path, 1);
    if (fsdp_device_open(&device, "cuda", 0, &err) ||
        fsdp_lane_create(&g.lane, device, "t", &err) || nn_ops_of(&g.nn, device, &err)) {
        ok(0, "the device: %s", err.text);
        return tap_done();
    }
    float *heap = calloc(NELEM, sizeof *heap);
    void *pinned = fsdp_host_alloc(device, sizeof local, "page-locked", &err);
    void *shared =
        mmap(NULL, sizeof local, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    g.x = fsdp_device_alloc(device, 4 * sizeof local, "x", &err);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        ok(outcome(works[i].work, &g, g.x) == 0 && outcome(works[i].work, &g, pinned) == 0 &&
               outcome(works[i].work, &g, shared) == 0,
           "%s in the device's, page-locked and shared memory", works[i].name);
        ok(outcome(works[i].work, &g, heap) == works[i].with_host &&
               outcome(works[i].work, &g, local) == works[i].with_host &&
               outcome(works[i].work, &g, fixed) == works[i].with_host,
           "%s in the host's: %s", works[i].name, works[i].with_host ? "refused" : "taken");
    }
    fsdp_host_free(device, pinned);
    ok(outcome(norm, &g, pinned) != 0, "what was given back is the host's again");
    munmap(shared, sizeof local);
    free(heap);
    fsdp_device_free(device, g.x);
    fsdp_lane_destroy(g.lane);
    fsdp_device_close(device);
    return tap_done();
}
