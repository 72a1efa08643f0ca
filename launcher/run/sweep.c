/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks may leave behind. The launcher is a subreaper: orphans of its ranks become its
 * children. */
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

static pid_t parent_of(const char *pid)
{
    char path[64], line[512];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fgets(line, sizeof line, file)) {
        const char *after = strrchr(line, ')'); /* the name may hold anything */
        if (!after || sscanf(after, ") %*c %d", &parent) != 1)
            parent = 0;
    }
    fclose(file);
    return parent;
}

void launch_children_list(struct launch_children *out)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    enum { MOST = sizeof out->pids / sizeof out->pids[0] };

    out->npids = 0;
    while (proc && out->npids < MOST && (entry = readdir(proc)))
        if (isdigit((unsigned char)entry->d_name[0]) && parent_of(entry->d_name) == getpid())
            out->pids[out->npids++] = atoi(entry->d_name);
    if (proc)
        closedir(proc);
}

static bool contains(const struct launch_children *list, pid_t pid)
{
    for (int i = 0; i < list->npids; i++)
        if (list->pids[i] == pid)
            return true;
    return false;
}

void launch_sweep_processes(const struct launch_children *spare, pid_t guard)
{
    enum { ROUNDS = 200 };
    for (int round = 0; round < ROUNDS; round++) {
        struct launch_children now;
        int nkilled = 0;
        launch_children_list(&now);
        for (int i = 0; i < now.npids; i++) {
            if (now.pids[i] == guard || contains(spare, now.pids[i]))
                continue;
            nkilled++;
            kill(now.pids[i], SIGKILL);
            waitpid(now.pids[i], NULL, WNOHANG);
        }
        if (!nkilled)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

void launch_sweep_shm(const char *job)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (strstr(entry->d_name, job))
            shm_unlink(entry->d_name);
    if (dir)
        closedir(dir);
}
