/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "boot/boot_env.h"
#include "impl.h"

extern char **environ;

/* What other launchers tell their ranks (a trailing * means any ending). A rank started here would
 * take it for its own. */
static const char *const strip[] = {
    "PMIX_*",
    "PMI_*",
    "PMI2_*",
    "OMPI_COMM_WORLD_*",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_NUM_APP_CTX",
    "OMPI_FIRST_RANKS",
    "OMPI_FILE_LOCATION",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_MCA_ess*",
    "OMPI_MCA_orte_*",
    "OMPI_MCA_pmix*",
    "PRTE_*",
    "MPI_LOCAL*",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS*",
    "SLURM_NPROCS",
    "SLURM_STEP_*",
    "SLURM_STEPID",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_PMIX*",
    "SLURM_SRUN_*",
    "FLUX_TASK_*",
    "FLUX_JOB_SIZE",
    "BOOT_RENDEZVOUS",
    "BOOT_SECRET_FD",
    "BOOT_RANK",
    "BOOT_SIZE",
    "BOOT_NODE",
    "BOOT_HOST",
    "BOOT_JOB",
    "BOOT_NNODES",
    "BOOT_NODE_RANK",
    "BOOT_MASTER_ADDR",
    "BOOT_MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
};
enum { NSTRIP = sizeof strip / sizeof strip[0], NSET = 24 };

static bool is_stripped(const char *var)
{
    size_t name = strcspn(var, "=");
    for (int i = 0; i < NSTRIP; i++) {
        size_t len = strlen(strip[i]);
        bool any = strip[i][len - 1] == '*';
        len -= any;
        if ((any ? name >= len : name == len) && memcmp(var, strip[i], len) == 0)
            return true;
    }
    return false;
}

/* Returns the port that was asked for, any free one for 0, or 0. */
static int try_port(int port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0 &&
        getsockname(fd, (struct sockaddr *)&sa, &len) == 0)
        port = ntohs(sa.sin_port);
    else
        port = 0;
    close(fd);
    return port;
}

int launch_free_port(int first)
{
    enum { NTRIES = 16 };
    int port = 0;
    for (int i = 0; first && i < NTRIES && first + i <= 65535 && !port; i++)
        port = try_port(first + i);
    return port ? port : try_port(0);
}

int launch_agent_of(const struct launch_job *job, int rank)
{
    int low = 0, high = job->agents->nranks;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        *(rank < job->firsts[middle] ? &high : &low) = middle;
    }
    return low;
}

int launch_node_of(const struct launch_job *job, int rank)
{
    return job->agents ? job->agents->node_of[launch_agent_of(job, rank)]
                       : rank / (job->nranks / job->nnodes);
}

const char *launch_host_of(const struct launch_job *job, int rank, char buf[FSDP_HOST_NBYTES])
{
    if (job->agents)
        snprintf(buf, FSDP_HOST_NBYTES, "%s", job->agents->host[launch_agent_of(job, rank)]);
    else if (job->nnodes > 1)
        snprintf(buf, FSDP_HOST_NBYTES, "%.50s/node%d", job->host, launch_node_of(job, rank));
    else
        snprintf(buf, FSDP_HOST_NBYTES, "%s", job->host);
    return buf;
}

/* Ranks that all start a thread per core would fight for the cores. */
static int threads_per_rank(int nranks)
{
    cpu_set_t set_variable;
    int cores = sched_getaffinity(0, sizeof set_variable, &set_variable) == 0
                    ? CPU_COUNT(&set_variable)
                    : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cores / nranks > 1 ? cores / nranks : 1;
}

static bool set_variable(char ***next, const char *name, const char *fmt, ...) FSDP_PRINTF(3, 4);
static bool set_variable(char ***next, const char *name, const char *fmt, ...)
{
    char value[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    **next = fsdp_sprintf(NULL, "%s=%s", name, value);
    return *(*next)++ != NULL;
}

static bool set_threads(char ***next, const struct launch_job *job)
{
    int threads = threads_per_rank(job->nlocal);
    /* OPENBLAS_NUM_THREADS goes before OMP_NUM_THREADS, so it must not override the user's. */
    if (!getenv("OPENBLAS_NUM_THREADS") && !getenv("OMP_NUM_THREADS") &&
        !set_variable(next, "OPENBLAS_NUM_THREADS", "%d", threads))
        return false;
    return getenv("OMP_NUM_THREADS") || set_variable(next, "OMP_NUM_THREADS", "%d", threads);
}

static bool set_rank(char ***next, const struct launch_job *job, int rank)
{
    char host[FSDP_HOST_NBYTES];
    int node = launch_node_of(job, rank), local_rank = 0, per_node = 0;

    for (int r = 0; r < job->nranks; r++)
        if (launch_node_of(job, r) == node) {
            local_rank += r < rank;
            per_node++;
        }
    return set_variable(next, "RANK", "%d", rank) &&
           set_variable(next, "WORLD_SIZE", "%d", job->nranks) &&
           set_variable(next, "LOCAL_RANK", "%d", local_rank) &&
           set_variable(next, "LOCAL_WORLD_SIZE", "%d", per_node) &&
           set_variable(next, "NODE_RANK", "%d", node) &&
           set_variable(next, "MASTER_ADDR", "%s", job->master_addr) &&
           set_variable(next, "MASTER_PORT", "%d", job->master_port) &&
           set_variable(next, BOOT_ENV_RENDEZVOUS, "%s", job->rendezvous) &&
           set_variable(next, BOOT_ENV_SECRET_FD, "%d", job->secret_fd) &&
           set_variable(next, BOOT_ENV_RANK, "%d", rank) &&
           set_variable(next, BOOT_ENV_SIZE, "%d", job->nranks) &&
           set_variable(next, BOOT_ENV_NODE, "%d", node) &&
           set_variable(next, BOOT_ENV_HOST, "%s", launch_host_of(job, rank, host)) &&
           set_variable(next, BOOT_ENV_JOB, "%s", job->name);
}

char **launch_env_create(const struct launch_job *job, int rank)
{
    size_t nvars = 0;
    while (environ[nvars])
        nvars++;
    char **env = fsdp_alloc(nvars + NSET, sizeof *env, "environment", NULL), **next = env;
    if (!env)
        return NULL;
    for (size_t i = 0; i < nvars; i++)
        if (!is_stripped(environ[i]) && !(*next++ = fsdp_strdup(environ[i], NULL)))
            goto out;
    if (set_threads(&next, job) && set_rank(&next, job, rank))
        return env;
out:
    launch_env_destroy(env);
    return NULL;
}

void launch_env_destroy(char **env)
{
    for (char **var = env; var && *var; var++)
        fsdp_free(*var);
    fsdp_free(env);
}
