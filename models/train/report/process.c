/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process.h"
#include "fsdp/base.h"

/* The 22nd word of /proc/PID/stat, counted behind the name, which may hold anything; -1: no such
 * process, or one that has ended and that nobody has asked for. */
static int64_t begun_of(int pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *in = fopen(path, "r");
    size_t nbytes = in ? fread(text, 1, sizeof text - 1, in) : 0;

    if (in)
        fclose(in);
    text[nbytes] = 0;
    const char *at = strrchr(text, ')');
    if (at && (strncmp(at, ") Z", 3) == 0 || strncmp(at, ") X", 3) == 0))
        return -1;
    for (int word = 2; at && word < 22; word++)
        at = strchr(at + 1, ' ');
    return at ? atoll(at) : -1;
}

static void read_place(char *out, size_t out_nbytes)
{
    char boot[FSDP_BOOT_ID_NBYTES], names[64] = "";

    fsdp_boot_id(boot);
    ssize_t len = readlink("/proc/self/ns/pid", names, sizeof names - 1);
    names[len > 0 ? len : 0] = 0;
    if (boot[0] && names[0])
        snprintf(out, out_nbytes, "%s %s", boot, names);
}

void process_self(struct process *out)
{
    *out = (struct process){.pid = (int)getpid()};
    gethostname(out->host, sizeof out->host - 1);
    read_place(out->place, sizeof out->place);
    out->begun = begun_of(out->pid);
}

bool process_is_same(const struct process *a, const struct process *b)
{
    return a->pid == b->pid && a->begun == b->begun && !strcmp(a->place, b->place) &&
           !strcmp(a->host, b->host);
}

bool process_is_near(const struct process *p)
{
    char here[sizeof p->place] = "";

    read_place(here, sizeof here);
    return here[0] && !strcmp(here, p->place);
}

bool process_runs(const struct process *p)
{
    return p->begun >= 0 && begun_of(p->pid) == p->begun;
}
