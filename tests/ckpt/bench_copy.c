/* SPDX-License-Identifier: Apache-2.0 */
/* bench_copy MIB RANKS: seconds that RANKS processes take to copy MIB in all from memory to memory
 * at the same time: the slowest, the median of some rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fsdp/base.h"

enum { ROUNDS = 7, MAX_RANKS = 64 };

/* Begins when the pipe closes. */
static void copy(int begin, size_t nbytes, double *seconds)
{
    char *from = malloc(nbytes), *to = malloc(nbytes), byte;
    if (!from || !to)
        _exit(1);
    memset(from, 1, nbytes);
    memset(to, 2, nbytes);
    if (read(begin, &byte, 1) != 0)
        _exit(1);
    double began = fsdp_time_now();
    memcpy(to, from, nbytes);
    *seconds = fsdp_time_now() - began;
    _exit(to[nbytes - 1] != 1);
}

static double round_of(int nranks, size_t nbytes, double *seconds)
{
    int begin[2], status;
    double slowest = 0;
    if (pipe(begin))
        exit(1);
    for (int r = 0; r < nranks; r++)
        if (fork() == 0) {
            close(begin[1]);
            copy(begin[0], nbytes, &seconds[r]);
        }
    sleep(1); /* until all have touched their memory */
    close(begin[0]);
    close(begin[1]);
    for (int r = 0; r < nranks; r++)
        if (wait(&status) < 0 || status)
            exit(1);
    for (int r = 0; r < nranks; r++)
        slowest = seconds[r] > slowest ? seconds[r] : slowest;
    return slowest;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int nranks = argc > 2 ? atoi(argv[2]) : 2;
    size_t mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 1024;
    double times[ROUNDS], *seconds = mmap(NULL, MAX_RANKS * sizeof *seconds, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seconds == MAP_FAILED || nranks < 1 || nranks > MAX_RANKS || !mib)
        return 1;
    for (int i = 0; i < ROUNDS; i++)
        times[i] = round_of(nranks, (mib << 20) / (size_t)nranks, seconds);
    qsort(times, ROUNDS, sizeof *times, ascending);
    printf("%.4f\n", times[ROUNDS / 2]);
    return 0;
}
