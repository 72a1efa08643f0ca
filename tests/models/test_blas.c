/* SPDX-License-Identifier: Apache-2.0 */
/* A process without memory for OpenBLAS, which would try for it without end, is told so before. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "fsdp/sys/cpu.h"

#include "nn/nn.h"
#include "tap.h"

static size_t address_space(void)
{
    char line[128];
    size_t nkib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmSize: %zu", &nkib) == 1)
            break;
    if (file)
        fclose(file);
    return nkib << 10;
}

static bool has(size_t nbytes)
{
    void *room = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return room != MAP_FAILED && munmap(room, nbytes) == 0;
}

/* What is kept for the library is nobody else's until its first product. */
static void test_room(struct fsdp_device *device, const struct rlimit *before)
{
    const size_t mib = 1 << 20, kept = 128 * mib * (size_t)fsdp_cpu_threads();
    struct rlimit limit = *before;
    struct fsdp_err err = FSDP_ERR_INIT;
    const struct nn_ops *nn;

    limit.rlim_cur = address_space() + kept + 32 * mib;
    setrlimit(RLIMIT_AS, &limit);
    const int rc = nn_ops_of(&nn, device, &err);
    const bool before_product = has(64 * mib);
    nn_blas_leave_room();
    const bool then = has(64 * mib);
    setrlimit(RLIMIT_AS, before);
    ok(rc == FSDP_OK && !before_product && then, "room is kept until the first product: %s",
       err.text);
}

int main(void)
{
    const struct nn_ops *nn;
    struct fsdp_device *device;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct rlimit before, small;

    if (getrlimit(RLIMIT_AS, &before) || before.rlim_cur != RLIM_INFINITY) {
        tap_skip("address space is limited here");
        return tap_done();
    }
    ok(fsdp_device_open(&device, "cpu", 0, &err) == FSDP_OK, "the CPU: %s", err.text);
    ok(nn_ops_of(&nn, device, &err) == FSDP_OK, "without a limit there is room");
    small = before;
    small.rlim_cur = 1 << 20; /* less than is in use: no more is to be had */
    setrlimit(RLIMIT_AS, &small);
    int rc = nn_ops_of(&nn, device, &err);
    setrlimit(RLIMIT_AS, &before);
    ok(rc == FSDP_ENOMEM && strstr(err.text, "limited to 1 MiB (ulimit -v)"), "with one: %s",
       err.text);
    test_room(device, &before);
    fsdp_device_close(device);
    return tap_done();
}
