/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank alone. A rank that wrongly believes this trains a model of its own next to the others',
 * so the method is refused as soon as anything says that there are more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sys/boot_ops.h"

/* Set by launchers to the number of ranks, or to this rank's number. */
static const char *const sizes[] = {
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
    "WORLD_SIZE",           "BOOT_SIZE",    "FLUX_JOB_SIZE"};
static const char *const ranks[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK",
                                    "BOOT_RANK"};
enum { NSIZES = sizeof sizes / sizeof sizes[0], NRANKS = sizeof ranks / sizeof ranks[0] };

static const char *mend_for(const char *name)
{
    if (strncmp(name, "SLURM_", 6) == 0)
        return "start the ranks with `srun`, or here with `fsdp-launch -n N`";
    if (strncmp(name, "PMI", 3) == 0 || strncmp(name, "OMPI_", 5) == 0)
        return "this rank needs the `pmix` method (a build with PMIx, a launcher that serves it)";
    return "start the ranks with `fsdp-launch -n N`";
}

static bool single_probe(char *why, size_t why_nbytes)
{
    bool one = false;
    for (int i = 0; i < NSIZES; i++) {
        const char *text = getenv(sizes[i]);
        if (text && atoi(text) > 1) {
            snprintf(why, why_nbytes, "%s=%.20s says that there are more ranks; %s, or unset %s",
                     sizes[i], text, mend_for(sizes[i]), sizes[i]);
            return false;
        }
        one |= text && atoi(text) == 1;
    }
    for (int i = 0; i < NRANKS; i++) {
        const char *text = getenv(ranks[i]);
        if (text && (atoi(text) > 0 || !one)) {
            snprintf(why, why_nbytes,
                     "%s=%.20s says that this is one of several ranks; %s, or "
                     "unset %s",
                     ranks[i], text, mend_for(ranks[i]), ranks[i]);
            return false;
        }
    }
    snprintf(why, why_nbytes, "nothing says that there are more ranks");
    return true;
}

static int single_open(void **state, double deadline, struct fsdp_err *err)
{
    (void)deadline;
    (void)err;
    *state = NULL;
    return FSDP_OK;
}

static void single_info(void *state, struct boot_facts *out)
{
    (void)state;
    *out = (struct boot_facts){.size = 1, .loopback = true};
    if (gethostname(out->host, sizeof out->host - 1))
        snprintf(out->host, sizeof out->host, "localhost");
    snprintf(out->node_key, sizeof out->node_key, "%s", out->host);
}

static int single_put(void *state, const char *key, const void *data, size_t nbytes,
                      double deadline, struct fsdp_err *err)
{
    (void)state, (void)data, (void)nbytes, (void)deadline;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a single rank has nobody to put '%s' for", key);
}

static int single_fence(void *state, double deadline, struct fsdp_err *err)
{
    (void)state, (void)deadline, (void)err;
    return FSDP_OK;
}

static int single_get(void *state, int rank, const char *key, void *data, size_t nbytes,
                      double deadline, struct fsdp_err *err)
{
    (void)state, (void)rank, (void)data, (void)nbytes, (void)deadline;
    return fsdp_err_set(err, FSDP_ENOTFOUND, "a single rank has no '%s' of another", key);
}

static void single_close(void *state, bool clean)
{
    (void)state, (void)clean;
}

const struct boot_ops boot_single_ops = {
    .abi = BOOT_OPS_ABI,
    .name = "single",
    .probe = single_probe,
    .open = single_open,
    .info = single_info,
    .put = single_put,
    .fence = single_fence,
    .get = single_get,
    .close = single_close,
};
