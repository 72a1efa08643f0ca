/* SPDX-License-Identifier: Apache-2.0 */
/* The programs that know the cluster. Their commands are fixed texts: no name from outside reaches
 * the shell. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"

/* MOST_S and KILL_S are those of the command in ask, too. */
enum {
    MOST_NBYTES = 16 << 20,
    NOT_FOUND = 127,
    TIMED_OUT = 124,
    KILLED = 137,
    MOST_S = 20,
    KILL_S = 5
};

static int refuse_silent(const char *what, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EIO,
                        "--sbatch: %s did not answer within %d s. Try again when 'sinfo' answers",
                        what, MOST_S);
}

/* Everything that it prints, until all that hold its output have closed it. Freed with fsdp_free.
 */
static int read_all(char **out, FILE *from, const char *what, struct fsdp_err *err)
{
    struct pollfd wait = {.fd = fileno(from), .events = POLLIN};
    const double until = fsdp_time_now() + MOST_S + KILL_S;
    size_t nbytes = 0;
    ssize_t got = 1;
    char *text = fsdp_alloc(MOST_NBYTES + 1, 1, "a program's output", err);

    if (!text)
        return FSDP_ENOMEM;
    while (nbytes < MOST_NBYTES && got > 0) {
        const double left = until - fsdp_time_now();
        const int ready = poll(&wait, 1, left > 0 ? (int)(1000 * left) + 1 : 0);
        if (ready == 0 && left <= 0) {
            fsdp_free(text);
            return refuse_silent(what, err); /* a child of its has the pipe */
        }
        got = ready > 0 ? read(wait.fd, text + nbytes, MOST_NBYTES - nbytes) : 1;
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0 && ready > 0)
            nbytes += (size_t)got;
    }
    text[nbytes] = '\0';
    for (size_t i = 0; i < nbytes; i++) /* a text that ends early would look complete */
        if (!text[i])
            text[i] = '?';
    *out = text;
    if (nbytes < MOST_NBYTES)
        return FSDP_OK;
    fsdp_free(text);
    *out = NULL;
    return fsdp_err_set(err, FSDP_EINVAL, "%s prints more than %d MiB", what, MOST_NBYTES >> 20);
}

static void last_line(char *out, size_t nbytes, char *text)
{
    size_t len = strlen(text);

    while (len && text[len - 1] == '\n')
        text[--len] = '\0';
    const char *line = strrchr(text, '\n');
    snprintf(out, nbytes, "%s", line ? line + 1 : text);
    fsdp_text_clean(out);
}

/* `command` is of a program that `what` names. */
static int ask(char **out, const char *what, const char *command, struct fsdp_err *err)
{
    char line[256] = "", full[256];

    snprintf(full, sizeof full, "LC_ALL=C timeout -k %d %d %s 2>&1", KILL_S, MOST_S, command);
    FILE *from = popen(full, "re");
    if (!from)
        return fsdp_err_sys(err, errno, "cannot start %s", what);
    int rc = read_all(out, from, what, err);
    const int status = pclose(from);
    if (rc == FSDP_OK && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return FSDP_OK;
    if (rc == FSDP_OK)
        last_line(line, sizeof line, *out);
    fsdp_free(*out);
    *out = NULL;
    if (rc != FSDP_OK)
        return rc;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == NOT_FOUND)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "--sbatch: no %s on PATH, so this is no machine of a Slurm cluster. "
                            "Type it on the cluster's login node, after 'module load slurm' where "
                            "the site has such a module",
                            what);
    if (code == TIMED_OUT || code == KILLED)
        return refuse_silent(what, err);
    return fsdp_err_set(err, FSDP_EIO, "--sbatch: %s: %s. Try again when 'sinfo' answers", what,
                        line[0] ? line : "no answer");
}

int slurm_cluster_ask(struct slurm_cluster *out, struct fsdp_err *err)
{
    char *text = NULL;
    int rc;

    *out = (struct slurm_cluster){.most_tasks = SLURM_UNLIMITED};
    FSDP_TRY_GOTO(ask(&text, "sinfo", "sinfo -h -N -o '" SLURM_NODE_FORMAT "'", err), out);
    FSDP_TRY_GOTO(slurm_shapes_parse(out, text, err), out);
    fsdp_free(text);
    text = NULL;
    FSDP_TRY_GOTO(ask(&text, "scontrol", "scontrol -o show partition", err), out);
    FSDP_TRY_GOTO(slurm_partitions_parse(out, text, err), out);
    fsdp_free(text);
    text = NULL;
    FSDP_TRY_GOTO(ask(&text, "scontrol", "scontrol show config", err), out);
    slurm_config_parse(out, text);
    fsdp_free(text);
    text = NULL;
    FSDP_TRY_GOTO(ask(&text, "srun", "srun --mpi=list", err), out);
    out->has_pmix = slurm_mpi_has_pmix(text);
out:
    fsdp_free(text);
    if (rc != FSDP_OK)
        slurm_cluster_destroy(out);
    return rc;
}
