/* SPDX-License-Identifier: Apache-2.0 */
#include "pointers.h"

#include <execinfo.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct pointers_range {
    uintptr_t from, end;
};

enum { POINTERS_MOST = 4096 };
static struct {
    pthread_mutex_t lock;
    struct pointers_range range[POINTERS_MOST];
    int n;
} pointers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool pointers_known(uintptr_t at)
{
    for (int i = 0; i < pointers.n; i++)
        if (at >= pointers.range[i].from && at < pointers.range[i].end)
            return true;
    return false;
}

void pointers_add(const void *at, size_t nbytes)
{
    if (!at)
        return;
    pthread_mutex_lock(&pointers.lock);
    if (pointers.n == POINTERS_MOST)
        abort();
    pointers.range[pointers.n++] = (struct pointers_range){(uintptr_t)at, (uintptr_t)at + nbytes};
    pthread_mutex_unlock(&pointers.lock);
}

void pointers_remove(const void *at)
{
    pthread_mutex_lock(&pointers.lock);
    for (int i = 0; i < pointers.n; i++)
        if (pointers.range[i].from == (uintptr_t)at) {
            pointers.range[i] = pointers.range[--pointers.n];
            break;
        }
    pthread_mutex_unlock(&pointers.lock);
}

/* The mapping around an address, if ranks share it: memory of a communicator. */
static bool pointers_shared(struct pointers_range *out, uintptr_t at)
{
    char line[512], rights[8];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &out->from, &out->end, rights) == 3 &&
                at >= out->from && at < out->end;
    if (maps)
        fclose(maps);
    return found && rights[3] == 's';
}

void pointers_check(const char *op, const void *const *all, size_t n)
{
    struct pointers_range range;
    void *frames[16];

    for (size_t i = 0; i < n; i++) {
        const uintptr_t at = (uintptr_t)all[i];
        pthread_mutex_lock(&pointers.lock);
        bool good = !at || pointers_known(at);
        pthread_mutex_unlock(&pointers.lock);
        if (good)
            continue;
        if (!pointers_shared(&range, at)) {
            fprintf(stderr, "%s was given memory of the host, %p, as its pointer %zu\n", op, all[i],
                    i + 1);
            backtrace_symbols_fd(frames, backtrace(frames, 16), STDERR_FILENO);
            abort();
        }
        pointers_add((const void *)range.from, range.end - range.from);
    }
}
