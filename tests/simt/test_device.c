/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device, its kernels and its lanes, emulated on the CPU. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../device/device_suite.h"
#include "cuda_runtime_api.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

static int nothing(void *arg, struct fsdp_err *err)
{
    (void)arg;
    (void)err;
    return FSDP_OK;
}

/* The emulation itself: what no GPU allows must not pass here. */
static void test_closed_memory(const volatile char *memory)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        _exit(memory[0] ? 1 : 0);
    }
    waitpid(child, &status, 0);
    ok(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the host cannot read device memory");
}

/* In a process of its own: was it ended? */
static bool is_refused(struct fsdp_lane *lane, double *out, const double *in)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        _exit(fsdp_max_rows(lane, out, in, 1, 1, NULL) || fsdp_lane_sync(lane, NULL));
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void test_host_pointers(struct fsdp_device *device, double *x)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *lane = NULL;
    double *locked = fsdp_host_alloc(device, 2 * sizeof *locked, "locked", &err), local = 0;

    fsdp_lane_create(&lane, device, "pointers", &err);
    ok(!is_refused(lane, x, x) && !is_refused(lane, x, locked + 1) && is_refused(lane, x, &local) &&
           is_refused(lane, &local, x) && is_refused(lane, x, locked + 4096 / sizeof *locked),
       "a kernel is given the device's memory, or page-locked memory, and none other");
    fsdp_host_free(device, locked);
    fsdp_lane_destroy(lane);
}

static void *ask(void *event)
{
    bool done;
    return fsdp_event_done(event, &done, NULL) == FSDP_OK ? event : NULL;
}

/* A thread that polls, as those that watch communicators: it must not wake the first GPU. */
static void test_other_thread(struct fsdp_device *device)
{
    struct fsdp_event *event = NULL;
    pthread_t thread;
    void *asked = NULL;
    int before = simt_unchosen();

    if (fsdp_event_create(&event, device, NULL) == FSDP_OK &&
        pthread_create(&thread, NULL, ask, event) == 0)
        pthread_join(thread, &asked);
    fsdp_event_destroy(event);
    ok(asked && simt_unchosen() == before, "an event is asked for on its own GPU, on any thread");
}

/* What was told once is not the fault of who launches next on this thread. */
static void test_stale_error(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *lane = NULL;
    double *x = fsdp_device_alloc(device, sizeof *x, "x", &err);

    fsdp_lane_create(&lane, device, "sound", &err);
    ok(!fsdp_device_alloc(device, (size_t)1 << 50, "too much", &err) && err.status == FSDP_ENOMEM,
       "out of memory: %s", err.text);
    ok(fsdp_max_rows(lane, x, x, 1, 1, &err) == FSDP_OK && fsdp_lane_sync(lane, &err) == FSDP_OK,
       "and a sound lane continues");
    fsdp_lane_destroy(lane);
    fsdp_device_free(device, x);
}

/* Nor is what is still under way: a poll that finds it so, or a ring that is full. */
static void test_under_way(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *busy = NULL, *lane = NULL;
    struct fsdp_event *event = NULL;
    double *x = fsdp_device_alloc(device, sizeof *x, "x", &err);
    bool done = true;
    int rc = fsdp_lane_create(&busy, device, "busy", &err);

    rc = rc ? rc : fsdp_lane_create(&lane, device, "sound", &err);
    rc = rc ? rc : fsdp_event_create(&event, device, &err);
    rc = rc ? rc : fsdp_lane_call(busy, nothing, &rc, sizeof rc, &err);
    rc = rc ? rc : fsdp_event_record(event, busy, &err);
    rc = rc ? rc : fsdp_event_done(event, &done, &err);
    rc = rc ? rc : fsdp_max_rows(lane, x, x, 1, 1, &err);
    ok(!rc && !done, "a kernel behind a poll of what is under way is sound: %s", err.text);
    for (int i = 0; i < 1100 && !rc; i++)
        rc = fsdp_lane_call(busy, nothing, &i, sizeof i, &err);
    rc = rc ? rc : fsdp_max_rows(lane, x, x, 1, 1, &err);
    rc = rc ? rc : fsdp_lane_sync(lane, &err);
    ok(!rc, "and one behind a wait for a full ring: %s", err.text);
    fsdp_lane_destroy(busy);
    fsdp_lane_destroy(lane);
    fsdp_event_destroy(event);
    fsdp_device_free(device, x);
}

/* Two numbers of the device and one of the host; a graph copies the first to the second. */
struct graphs {
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    double *x, *host;
};

static bool set_first(const struct graphs *g, double first)
{
    g->host[0] = first;
    return !fsdp_copy(g->lane, g->x, g->host, sizeof *g->x, NULL) && !fsdp_lane_sync(g->lane, NULL);
}

static double read_second(const struct graphs *g)
{
    if (fsdp_copy(g->lane, g->host + 1, g->x + 1, sizeof *g->x, NULL) ||
        fsdp_lane_sync(g->lane, NULL))
        return -1;
    return g->host[1];
}

static void test_graph(const struct graphs *g)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_graph *graph = NULL;
    double seen[3];
    int rc;

    set_first(g, 5);
    rc = fsdp_capture_begin(g->lane, &err);
    rc = rc ? rc : fsdp_max_rows(g->lane, g->x + 1, g->x, 1, 1, &err);
    rc = rc ? rc : fsdp_capture_end(&graph, g->lane, &err);
    seen[0] = read_second(g);
    for (int i = 1; i < 3 && !rc; i++) {
        set_first(g, 5 + i);
        rc = fsdp_graph_launch(graph, g->lane, &err);
        seen[i] = read_second(g);
    }
    ok(!rc && seen[0] == 0, "what is captured does not run: %s", err.text);
    ok(!rc && seen[1] == 6 && seen[2] == 7, "a graph runs at each launch, on what memory holds");
    fsdp_graph_destroy(graph);
}

enum { SYNC, CALL, RECORD, WAIT, STAMP, ALLOC, FAIL, NREFUSED };

static int refused(const struct graphs *g, int what, struct fsdp_event *event, struct fsdp_err *err)
{
    double stamp;

    switch (what) {
    case SYNC:
        return fsdp_lane_sync(g->lane, err);
    case CALL:
        return fsdp_lane_call(g->lane, nothing, &stamp, sizeof stamp, err);
    case RECORD:
        return fsdp_event_record(event, g->lane, err);
    case WAIT:
        return fsdp_event_wait(event, g->lane, err);
    case STAMP:
        return fsdp_lane_stamp(g->lane, &stamp, err);
    case ALLOC:
        return fsdp_device_alloc(g->device, 8, "more", err) ? FSDP_OK : err->status;
    default:
        simt_fail_launch(cudaErrorLaunchFailure);
        return fsdp_max_rows(g->lane, g->x, g->x, 1, 1, err);
    }
}

/* The lane is as it was before. */
static void test_refused(const struct graphs *g, int what, struct fsdp_event *event)
{
    struct fsdp_err err = FSDP_ERR_INIT, ended = FSDP_ERR_INIT;
    struct fsdp_graph *graph = NULL;
    const int began = fsdp_capture_begin(g->lane, &err), rc = refused(g, what, event, &err);
    const int end = fsdp_capture_end(&graph, g->lane, &ended);

    fsdp_graph_destroy(graph);
    ok(!began && rc && (what != ALLOC || (end && !graph)), "refused in a graph: %s", err.text);
    ok(set_first(g, 9) && !fsdp_max_rows(g->lane, g->x + 1, g->x, 1, 1, NULL) &&
           read_second(g) == 9,
       "and the lane is sound");
}

static void test_graphs(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct graphs g = {.device = device};
    struct fsdp_event *event = NULL;

    g.x = fsdp_device_alloc(device, 2 * sizeof *g.x, "x", &err);
    g.host = fsdp_host_alloc(device, 2 * sizeof *g.host, "host", &err);
    fsdp_event_create(&event, device, &err);
    fsdp_lane_create(&g.lane, device, "graphs", &err);
    test_graph(&g);
    for (int what = 0; what < NREFUSED; what++)
        test_refused(&g, what, event);
    ok(simt_graphs().there == 0, "no graph is left");
    fsdp_lane_destroy(g.lane);
    fsdp_event_destroy(event);
    fsdp_host_free(device, g.host);
    fsdp_device_free(device, g.x);
}

static void test_lost_gpu(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *lane = NULL;
    int rc = fsdp_lane_create(&lane, device, "lost", &err);

    for (int i = 0; i < 1024 && !rc; i++)
        rc = fsdp_lane_call(lane, nothing, &i, sizeof i, &err);
    simt_lose_gpu(cudaErrorIllegalAddress);
    for (int i = 0; i < 2 && !rc; i++)
        rc = fsdp_lane_call(lane, nothing, &i, sizeof i, &err);
    ok(rc == FSDP_EINTERNAL && strstr(err.text, "cudaErrorIllegalAddress"),
       "a full ring of a GPU that has failed is not waited for: %s", err.text);
    simt_lose_gpu(cudaSuccess);
    fsdp_lane_destroy(lane);
}

static void test_own(struct fsdp_device *device)
{
    struct fsdp_lane *lane;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *small = fsdp_device_alloc(device, 5, "small", &err);
    char *page = fsdp_device_alloc(device, 4096, "page", &err);
    unsigned char *host = fsdp_host_alloc(device, 4096, "host", &err);
    int sum = 0;

    fsdp_lane_create_urgent(&lane, device, "own", &err);
    ok(small && page && (uintptr_t)small % 4096 == 0 && (uintptr_t)page % 4096 == 0,
       "memory begins at a page");
    memset(host, 1, 4096);
    fsdp_copy(lane, host, page, 4096, &err);
    fsdp_lane_sync(lane, &err);
    for (int i = 0; i < 4096; i++)
        sum += host[i];
    ok(sum == 0, "and is zeroed");
    test_closed_memory(page);
    test_host_pointers(device, (double *)page);
    int rc = FSDP_OK;
    for (int i = 0; i < 3000 && !rc; i++)
        rc = fsdp_lane_call(lane, nothing, &i, sizeof i, &err);
    ok(rc == FSDP_OK && fsdp_lane_sync(lane, &err) == FSDP_OK, "more calls than the ring holds");
    simt_fail_launch(cudaErrorLaunchFailure);
    rc = fsdp_max_rows(lane, (double *)page, (double *)page, 1, 1, &err);
    ok(rc == FSDP_EINTERNAL && strstr(err.text, "own: greatest of rows") &&
           strstr(err.text, "cudaErrorLaunchFailure"),
       "a kernel that cannot be launched: %s", err.text);
    ok(fsdp_copy(lane, page, small, 5, &err) == FSDP_EINTERNAL && fsdp_lane_sync(lane, &err),
       "fails the lane");
    fsdp_lane_destroy(lane);
    fsdp_device_free(device, small);
    fsdp_device_free(device, page);
    fsdp_host_free(device, host);
}

int main(void)
{
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_device_open_ops(&device, &fsdp_device_cuda_ops, 0, 0, &err) ||
        fsdp_lane_create(&lane, device, "test", &err))
        return 1;
    struct fsdp_device_look look;
    ok(fsdp_device_look(device, &look, &err) == FSDP_OK && !strcmp(look.model, "emulated") &&
           look.used_nbytes == 7 && look.total_nbytes == 10,
       "its model, and how full its memory is");
    run_arithmetic(lane);
    fsdp_lane_destroy(lane);
    test_lanes("simt", device, true);
    test_blocked(device);
    test_own(device);
    test_other_thread(device);
    test_stale_error(device);
    test_under_way(device);
    test_graphs(device);
    test_lost_gpu(device);
    fsdp_device_close(device);
    return tap_done();
}
