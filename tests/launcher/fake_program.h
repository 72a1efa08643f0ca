/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_program.h: a program for launch_main whose ranks do on request what real ones do by
 * accident. Overrides choose: fake.mode=NAME, fake.rank=R (who does it), fake.text=...,
 * fake.code=C.
 */
#ifndef FAKE_PROGRAM_H
#define FAKE_PROGRAM_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fsdp/comm.h"
#include "launch.h"
#include "why.h"

struct fake {
    const char *mode, *text;
    int rank, code;
    bool say;
    struct boot *boot;
    struct fsdp_oob *oob;
};

static void fake_parse(struct fake *f, int noverrides, char *const *overrides)
{
    *f = (struct fake){.mode = "ok", .text = "", .rank = 1, .code = 3};
    for (int i = 0; i < noverrides; i++) {
        const char *value = strchr(overrides[i], '=') + 1;
        if (strncmp(overrides[i], "fake.mode=", 10) == 0)
            f->mode = value;
        else if (strncmp(overrides[i], "fake.text=", 10) == 0)
            f->text = value;
        else if (strncmp(overrides[i], "fake.rank=", 10) == 0)
            f->rank = atoi(value);
        else if (strncmp(overrides[i], "fake.say=", 9) == 0)
            f->say = true;
        else if (strncmp(overrides[i], "fake.code=", 10) == 0)
            f->code = atoi(value);
    }
}

static int fake_check(const char *config, int noverrides, char *const *overrides)
{
    struct fake f;
    fake_parse(&f, noverrides, overrides);
    if (strcmp(f.mode, "refuse") != 0)
        return 0;
    fprintf(stderr, "%s:1: mode refuse is refused\n", config);
    return LAUNCH_USAGE;
}

static int fake_print_config(const char *config, int noverrides, char *const *overrides)
{
    printf("config %s, %d overrides", config ? config : "none", noverrides);
    for (int i = 0; i < noverrides; i++)
        printf(" %s", overrides[i]);
    printf("\n");
    return 0;
}

/* Tells the test its process: file `text`.RANK. */
static void fake_tell_pid(const struct fake *f)
{
    char path[512], done[512 + 8];
    snprintf(path, sizeof path, "%s.%d", f->text, f->oob->rank);
    snprintf(done, sizeof done, "%s.tmp", path);
    FILE *file = f->text[0] ? fopen(done, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%d\n", (int)getpid());
    fclose(file);
    rename(done, path);
}

/* Meets the others again and again until one is lost. */
static int fake_until_lost(struct fake *f)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    while (f->oob->allgather(f->oob, NULL, 0, NULL, &err) == FSDP_OK)
        usleep(1000);
    fprintf(stderr, "rank %d noticed: %s\n", f->oob->rank, err.text);
    return LAUNCH_PEER_LOST;
}

static int fake_until_stopped(struct fake *f)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t all[64], any = 0;
    fake_tell_pid(f);
    if (f->say && f->oob->rank == 0)
        printf("running\n");
    while (!any) {
        int32_t mine = launch_stop_requested();
        if (f->oob->allgather(f->oob, &mine, sizeof mine, all, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return LAUNCH_PEER_LOST;
        }
        for (int r = 0; r < f->oob->size; r++)
            any |= all[r];
        usleep(1000);
    }
    printf("rank %d saved\n", f->oob->rank);
    return LAUNCH_REQUEUE;
}

static void fake_lines(struct fake *f)
{
    for (int i = 0; i < 300; i++)
        printf("out %d %d abcdefghijklmnopqrstuvwxyz\n", f->oob->rank, i);
    fflush(stdout);
    for (int i = 0; i < 300; i++)
        fprintf(stderr, "err %d %d abcdefghijklmnopqrstuvwxyz\n", f->oob->rank, i);
    printf("last %d", f->oob->rank); /* no newline */
}

/* A child in the rank's group, and one that left it. They sleep for `text`, which names them. */
static void fake_children(const struct fake *f)
{
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            if (i)
                setsid();
            execlp("sleep", "sleep", f->text, NULL);
            _exit(1);
        }
    usleep(200000);
}

static void fake_shm(struct fake *f)
{
    char name[128];
    snprintf(name, sizeof name, "/%s-test-%s-%d", boot_info(f->boot)->job, f->text, f->oob->rank);
    close(shm_open(name, O_RDWR | O_CREAT, 0600));
}

static bool fake_segment_kills;

/* Stands in for the C library's: a communicator's shared memory has its name, and no more. */
int posix_fallocate(int fd, off_t offset, off_t nbytes)
{
    if (fake_segment_kills)
        raise(SIGKILL);
    return ftruncate(fd, offset + nbytes) ? errno : 0;
}

/* A communicator whose leader is killed while it makes the shared memory. */
static int fake_segment(struct fake *f)
{
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp_comm *comm = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    fake_segment_kills = true;
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    opts.nodes = boot_nodes(f->boot);
    if (fsdp_device_open(&device, "cpu", 0, &err) == FSDP_OK &&
        fsdp_comm_create(&comm, &opts, f->oob, device, &err) == FSDP_OK)
        return LAUNCH_DONE;
    fprintf(stderr, "%s\n", err.text);
    return LAUNCH_PEER_LOST;
}

static int fake_fault(struct fake *f)
{
    if (strcmp(f->mode, "kill") == 0 || strcmp(f->mode, "deaf") == 0)
        raise(SIGKILL);
    if (strcmp(f->mode, "segv") == 0)
        raise(SIGSEGV);
    if (strcmp(f->mode, "exit") == 0)
        _exit(f->code);
    if (strcmp(f->mode, "shm") == 0) {
        fake_children(f);
        raise(SIGKILL);
    }
    f->oob->abort(f->oob, 1, why(f->text));
    return LAUNCH_FAILED;
}

/* All fail; the last rank, late, says why, and is the last to leave. */
static int fake_together(struct fake *f)
{
    if (f->oob->rank != f->oob->size - 1)
        return LAUNCH_FAILED;
    usleep(20000);
    f->oob->abort(f->oob, LAUNCH_FAILED, why(f->text));
    usleep(500000);
    return LAUNCH_FAILED;
}

static int fake_run(struct boot *boot, const char *config, int noverrides, char *const *overrides,
                    bool verbose)
{
    const struct boot_info *info = boot_info(boot);
    struct fake f;
    struct fsdp_err err = FSDP_ERR_INIT;

    (void)config;
    fake_parse(&f, noverrides, overrides);
    f.boot = boot;
    f.oob = boot_oob(boot);
    if (strcmp(f.mode, "ok") == 0)
        printf("rank %d of %d, local %d of %d, node %d of %d, host %s, method %s%s\n", info->rank,
               info->size, info->local_rank, info->local_size, info->node, info->nnodes, info->host,
               info->method, verbose ? ", verbose" : "");
    if (strcmp(f.mode, "lines") == 0)
        fake_lines(&f);
    if (strcmp(f.mode, "children") == 0)
        fake_children(&f);
    if (strcmp(f.mode, "stop") == 0)
        return fake_until_stopped(&f);
    if (strcmp(f.mode, "return") == 0)
        return info->rank == f.rank ? f.code : fake_until_lost(&f);
    if (strcmp(f.mode, "segment") == 0)
        return fake_segment(&f);
    if (strcmp(f.mode, "shm") == 0)
        fake_shm(&f);
    if (f.oob->allgather(f.oob, NULL, 0, NULL, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return LAUNCH_PEER_LOST;
    }
    fake_tell_pid(&f);
    while (strcmp(f.mode, "long") == 0) /* a set-up that does not look at requests to stop */
        pause();
    if (strcmp(f.mode, "together") == 0)
        return fake_together(&f);
    if (strcmp(f.mode, "ok") == 0 || strcmp(f.mode, "lines") == 0 ||
        strcmp(f.mode, "children") == 0)
        return LAUNCH_DONE;
    if (info->rank == f.rank)
        return fake_fault(&f);
    while (strcmp(f.mode, "deaf") == 0) /* hears neither its channel nor requests to stop */
        pause();
    return fake_until_lost(&f);
}

static const struct launch_program fake_program = {
    .name = "fake", .check = fake_check, .print_config = fake_print_config, .run = fake_run};

#endif
