/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing a bootstrap method: the order, the reasons, and what `single` refuses. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot.h"
#include "tap.h"

static char traced[4096];

static void trace(void *ctx, const char *method, const char *text)
{
    size_t len = strlen(traced);
    (void)ctx;
    snprintf(traced + len, sizeof traced - len, "%s: %s\n", method, text);
}

static const char *const vars[] = {"BOOT_METHODS",
                                   "BOOT_RENDEZVOUS",
                                   "BOOT_SECRET_FD",
                                   "BOOT_RANK",
                                   "BOOT_SIZE",
                                   "BOOT_NODE",
                                   "BOOT_HOST",
                                   "BOOT_JOB",
                                   "SLURM_NTASKS",
                                   "SLURM_NPROCS",
                                   "SLURM_STEP_NUM_TASKS",
                                   "PMIX_RANK",
                                   "PMIX_NAMESPACE",
                                   "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_RANK",
                                   "PMI_SIZE",
                                   "PMI_RANK",
                                   "WORLD_SIZE",
                                   "RANK",
                                   "FLUX_JOB_SIZE"};

static void clean(void)
{
    for (size_t i = 0; i < sizeof vars / sizeof vars[0]; i++)
        unsetenv(vars[i]);
}

static int try(const char *methods, struct fsdp_err *err)
{
    struct boot *boot = NULL;
    struct boot_opts opts = BOOT_OPTS_INIT;
    opts.methods = methods;
    opts.timeout_s = 2;
    opts.trace = trace;
    traced[0] = 0;
    *err = (struct fsdp_err)FSDP_ERR_INIT;
    int rc = boot_open(&boot, &opts, err);
    boot_close(boot);
    return rc;
}

static void check_single(void)
{
    struct boot *boot;
    struct fsdp_err err = FSDP_ERR_INIT;
    char byte = 5, got = 0;

    ok(boot_open(&boot, NULL, &err) == FSDP_OK, "alone: %s", err.text);
    const struct boot_info *info = boot_info(boot);
    struct fsdp_oob *oob = boot_oob(boot);
    ok(info->rank == 0 && info->size == 1 && info->local_size == 1 && info->nnodes == 1 &&
           !strcmp(info->method, "single") && info->host[0] && !strchr(info->job, '/') &&
           strlen(info->job) > 8,
       "it knows that: job %s on %s", info->job, info->host);
    ok(boot_nodes(boot)->nranks == 1 && !strcmp(boot_nodes(boot)->host[0], info->host),
       "node map of one");
    ok(oob->allgather(oob, &byte, 1, &got, &err) == FSDP_OK && got == 5, "channel of one");
    boot_close(boot);
    boot_close(NULL);
}

static void check_refusals(void)
{
    static const char *const many[][2] = {{"SLURM_NTASKS", "4"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"PMI_SIZE", "16"},
                                          {"WORLD_SIZE", "2"},
                                          {"PMIX_RANK", "0"},
                                          {"PMIX_RANK", "3"},
                                          {"RANK", "1"},
                                          {"PMI_RANK", "1"},
                                          {"FLUX_JOB_SIZE", "3"},
                                          {"SLURM_NPROCS", "7"},
                                          {"BOOT_SIZE", "2"}};
    struct fsdp_err err;
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++) {
        char named[64];
        snprintf(named, sizeof named, "%s=%s", many[i][0], many[i][1]);
        clean();
        setenv(many[i][0], many[i][1], 1);
        ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, named) && strstr(err.text, "unset"),
           "%s: no single", named);
    }
    clean();
    setenv("SLURM_NTASKS", "1", 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    ok(try(NULL, &err) == FSDP_OK, "one task of one is single");
    clean();
}

static void check_methods(void)
{
    struct fsdp_err err;
    ok(try(NULL, &err) == FSDP_OK && strstr(traced, "pmix: ") && strstr(traced, "local: ") &&
           strstr(traced, "BOOT_RENDEZVOUS") && strstr(traced, "single: "),
       "every method says why it does not apply");
    ok(try("single,local", &err) == FSDP_OK && !strstr(traced, "pmix") && !strstr(traced, "local"),
       "the caller's order counts");
    setenv("BOOT_METHODS", "local, pmix", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "local: ") && !strstr(err.text, "single"),
       "BOOT_METHODS replaces it: %s", err.text);
    setenv("BOOT_METHODS", "", 1);
    ok(try(NULL, &err) == FSDP_OK, "an empty BOOT_METHODS is none");
    ok(try("smoke", &err) == FSDP_EINVAL && strstr(err.text, "smoke") &&
           strstr(err.text, "pmix,slurm,local,single"),
       "unknown: %s", err.text);
    clean();
    struct boot_opts opts = BOOT_OPTS_INIT;
    struct boot *boot = NULL;
    opts.version = 99;
    ok(boot_open(&boot, &opts, &err) == FSDP_EINVAL, "unknown version: %s", err.text);
    opts.version = BOOT_OPTS_VERSION;
    opts.timeout_s = 0;
    ok(boot_open(&boot, &opts, &err) == FSDP_EINVAL && !boot, "no time at all: %s", err.text);
}

static void check_local_environment(void)
{
    struct fsdp_err err;
    setenv("BOOT_RENDEZVOUS", "127.0.0.1:1", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "BOOT_SIZE"), "local: %s", err.text);
    setenv("BOOT_SIZE", "2", 1);
    setenv("BOOT_RANK", "2", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "BOOT_RANK=2"), "local: %s", err.text);
    setenv("BOOT_RANK", "1", 1);
    setenv("BOOT_NODE", "x", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "BOOT_NODE=x"), "local: %s", err.text);
    setenv("BOOT_NODE", "0", 1);
    setenv("BOOT_SECRET_FD", "987", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "987"), "local: %s", err.text);
    char fd[16];
    snprintf(fd, sizeof fd, "%d", open("/dev/zero", O_RDONLY));
    setenv("BOOT_SECRET_FD", fd, 1);
    ok(try(NULL, &err) == FSDP_EPEER && strstr(err.text, "127.0.0.1:1"), "local: %s", err.text);
    setenv("BOOT_RENDEZVOUS", "nowhere", 1);
    ok(try(NULL, &err) == FSDP_EINVAL && strstr(err.text, "nowhere"), "local: %s", err.text);
    clean();
}

static void check_allocations(void)
{
    struct fsdp_err err;
    int nth = 0, rc;
    do {
        fsdp_alloc_fail_at((uint64_t)++nth);
        rc = try("single", &err);
    } while (rc == FSDP_ENOMEM && nth < 100);
    fsdp_alloc_fail_at(0);
    ok(rc == FSDP_OK && nth > 3, "each of %d allocations may fail", nth - 1);
}

int main(void)
{
    clean();
    check_single();
    check_refusals();
    check_methods();
    check_local_environment();
    check_allocations();
    return tap_done();
}
