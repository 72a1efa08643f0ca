/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"

double train_wall_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double train_exposed_comm(const struct fsdp *fsdp)
{
    struct fsdp_position at;

    fsdp_progress(fsdp, &at);
    return at.comm_seconds;
}

static double resident_nbytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file)
        return 0;
    if (fscanf(file, "%lu %lu", &all, &resident) != 2)
        resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

double train_memory_used(const struct fsdp_device *device)
{
    struct fsdp_device_look look;

    if (fsdp_device_is_host(device))
        return resident_nbytes();
    return fsdp_device_look(device, &look, NULL) == FSDP_OK ? (double)look.used_nbytes : 0;
}
