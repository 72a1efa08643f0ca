/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap inside a Slurm step that serves no PMIx (srun --mpi=none or pmi2).
 *
 * Slurm tells every task its rank, the number of tasks and the list of nodes. Task 0 serves the
 * rendezvous (boot_kvs) on its node, on one of a few ports that follow from the names of job, step
 * and restart; the others look for it there, and the job's secret tells it from whoever else
 * listens. The secret comes from the user's key (keyfile.h).
 *
 * Where task 0's node is: the addresses that its name resolves to; else what `scontrol` says; else
 * where srun runs, which in a batch job is the same node.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "keyfile.h"
#include "kvs.h"
#include "node.h"
#include "hostlist.h"
#include "resolve.h"
#include "serve.h"

enum { NPORTS = 4, FIRST_PORT = 10000, LAST_PORT = 32000 };

struct slurm {
    struct boot_facts facts;
    struct boot_contact root; /* its port changes while it is looked for */
    char root_host[FSDP_HOST_NBYTES];
    char key_path[1024];
    char (*hosts)[FSDP_HOST_NBYTES]; /* [size] "" where Slurm does not say */
    uint16_t ports[NPORTS];
    struct boot_kvs *kvs;
    /* task 0 */
    struct boot_serve serve;
};

/* ---- what Slurm says ---- */

static const char *var(const char *name, const char *other)
{
    const char *text = getenv(name);
    text = text && text[0] ? text : getenv(other);
    return text && text[0] ? text : NULL;
}

static bool parse_number(int *out, const char *text)
{
    char *end;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : -1;
    if (value < 0 || value > 1 << 20 || errno || *end)
        return false;
    *out = (int)value;
    return true;
}

static bool slurm_probe(char *why, size_t why_nbytes)
{
    int rank, size;
    const char *job = var("SLURM_JOB_ID", "SLURM_JOBID"), *step = getenv("SLURM_STEP_ID");
    if (!job) {
        snprintf(why, why_nbytes, "SLURM_JOB_ID is not set: not a Slurm job");
        return false;
    }
    if (!step || !getenv("SLURM_STEP_NODELIST") ||
        !parse_number(&size, getenv("SLURM_STEP_NUM_TASKS")) ||
        !parse_number(&rank, getenv("SLURM_PROCID")) || rank >= size) {
        snprintf(why, why_nbytes, "in Slurm job %.20s, but not started by srun", job);
        return false;
    }
    snprintf(why, why_nbytes, "task %d of %d of step %.20s.%.20s", rank, size, job, step);
    return true;
}

/* Names of the hosts of all ranks, as far as the distribution is one of the simple ones. */
static void place_ranks(struct slurm *s, const int *counts, int nnodes, const char *nodes)
{
    const char *how = getenv("SLURM_DISTRIBUTION");
    bool cyclic = how && strncmp(how, "cyclic", 6) == 0;
    int rank = 0;

    if (how && !cyclic && strncmp(how, "block", 5) != 0)
        return;
    for (int turn = 0; rank < s->facts.size && turn < s->facts.size; turn++)
        for (int node = 0; node < nnodes && rank < s->facts.size; node++) {
            int more = cyclic ? turn < counts[node] : turn ? 0 : counts[node];
            while (more-- > 0 && rank < s->facts.size)
                hostlist_get(s->hosts[rank++], sizeof *s->hosts, nodes, node, NULL);
        }
}

static int read_nodes(struct slurm *s, struct fsdp_err *err)
{
    const char *nodes = getenv("SLURM_STEP_NODELIST"), *me = getenv("SLURMD_NODENAME");
    const char *tasks = getenv("SLURM_STEP_TASKS_PER_NODE");
    int nnodes = 0, node = 0, *counts = NULL;

    FSDP_TRY(hostlist_get(s->root_host, sizeof s->root_host, nodes, 0, err));
    if (parse_number(&node, getenv("SLURM_NODEID")) && !me)
        FSDP_TRY(hostlist_get(s->facts.host, sizeof s->facts.host, nodes, node, err));
    else
        snprintf(s->facts.host, sizeof s->facts.host, "%s", me ? me : s->root_host);
    boot_node_key(s->facts.node_key, sizeof s->facts.node_key, s->facts.host);
    if (!(s->hosts = fsdp_alloc((size_t)s->facts.size, sizeof *s->hosts, "host names", err)))
        return FSDP_ENOMEM;
    if (!parse_number(&nnodes, getenv("SLURM_STEP_NUM_NODES")) || nnodes < 1 || !tasks)
        return FSDP_OK;
    s->facts.loopback = nnodes == 1;
    if (!(counts = fsdp_alloc((size_t)nnodes, sizeof *counts, "tasks per node", err)))
        return FSDP_ENOMEM;
    if (hostlist_counts(counts, nnodes, tasks, NULL) == FSDP_OK)
        place_ranks(s, counts, nnodes, nodes);
    fsdp_free(counts);
    return FSDP_OK;
}

static int read_facts(struct slurm *s, struct fsdp_err *err)
{
    const char *again = getenv("SLURM_RESTART_COUNT");
    char unique[128];
    int rc = fsdp_err_set(err, FSDP_EINVAL, "Slurm's environment contradicts itself");

    if (!parse_number(&s->facts.size, getenv("SLURM_STEP_NUM_TASKS")) ||
        !parse_number(&s->facts.rank, getenv("SLURM_PROCID")) || s->facts.rank >= s->facts.size)
        return rc;
    snprintf(s->facts.job, sizeof s->facts.job, "slurm-%.16s.%.16s.%.8s",
             var("SLURM_JOB_ID", "SLURM_JOBID"), getenv("SLURM_STEP_ID"), again ? again : "0");
    const char *cluster = getenv("SLURM_CLUSTER_NAME");
    snprintf(unique, sizeof unique, "%.60s %s", cluster ? cluster : "", s->facts.job);
    FSDP_TRY(boot_keyfile_secret(&s->facts.secret, s->key_path, sizeof s->key_path, unique, err));
    s->facts.has_secret = true;
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, unique, strlen(unique));
    const char *given = getenv("BOOT_PORT");
    int first;
    for (int i = 0; i < NPORTS; i++, hash = fsdp_hash(hash, &i, sizeof i))
        s->ports[i] = (uint16_t)(FIRST_PORT + hash % (LAST_PORT - FIRST_PORT));
    if (given && (!parse_number(&first, given) || first < 1 || first > 65535 - NPORTS))
        return fsdp_err_set(err, FSDP_EINVAL, "BOOT_PORT=%.40s: expected a port number", given);
    for (int i = 0; given && i < NPORTS; i++)
        s->ports[i] = (uint16_t)(first + i);
    return read_nodes(s, err);
}

/* ---- where task 0's node is ---- */

/* NodeAddr of `scontrol show node`, where there is one: a container often has none. */
static void ask_scontrol(struct boot_contact *to, const char *host, bool loopback)
{
    char command[FSDP_HOST_NBYTES + 80], line[2048], *at;

    if (strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") !=
        strlen(host))
        return;
    snprintf(command, sizeof command, "timeout 10 scontrol -o show node %s 2>/dev/null", host);
    FILE *from = popen(command, "re");
    if (!from)
        return;
    if (fgets(line, sizeof line, from) && (at = strstr(line, "NodeAddr="))) {
        at[strcspn(at, " \n")] = 0;
        boot_resolve(to, at + strlen("NodeAddr="), loopback);
    }
    pclose(from);
}

static void find_root(struct slurm *s)
{
    bool here = strcmp(s->root_host, s->facts.host) == 0;
    const char *launch = getenv("SLURM_LAUNCH_NODE_IPADDR");

    s->root = (struct boot_contact){.port = 0};
    if (here || s->facts.loopback)
        boot_contact_add(&s->root, "127.0.0.1");
    else if (!boot_resolve(&s->root, s->root_host, false))
        ask_scontrol(&s->root, s->root_host, true);
    if (launch && launch[0])
        boot_contact_add(&s->root, launch);
}

/* ---- task 0 serves ---- */

static const char *host_of(void *ctx, int rank)
{
    const struct slurm *s = ctx;
    return s->hosts[rank][0] ? s->hosts[rank] : NULL;
}

static int start_server(struct slurm *s, struct fsdp_err *err)
{
    int rc = FSDP_EEXIST;

    for (int i = 0; i < NPORTS && rc == FSDP_EEXIST; i++)
        rc = boot_kvs_server_create(&s->serve.server, s->facts.size, &s->facts.secret,
                                    s->facts.loopback, s->ports[i], host_of, s, err);
    if (rc == FSDP_EEXIST)
        return fsdp_err_set(err, rc,
                            "rank 0 on %s cannot serve the rendezvous: TCP ports %u, %u, %u and %u "
                            "are in use; BOOT_PORT chooses the first of %d others",
                            s->facts.host, s->ports[0], s->ports[1], s->ports[2], s->ports[3],
                            NPORTS);
    FSDP_TRY(rc);
    return boot_serve_start(&s->serve, err);
}

/* ---- the others look for it ---- */

/* Once around all ports. */
static int try_ports(struct slurm *s, double deadline, struct fsdp_err *err)
{
    int rc = FSDP_EPEER, worst = FSDP_EPEER;
    for (int i = 0; i < NPORTS && rc != FSDP_OK; i++) {
        struct fsdp_err why = FSDP_ERR_INIT;
        s->root.port = s->ports[i];
        rc = boot_kvs_open(&s->kvs, &s->root, &s->facts.secret, s->facts.rank, deadline, &why);
        /* A stranger's port tells less than the one that only nobody has opened yet, and both less
         * than one that knows another secret. */
        if (rc && err && (i == 0 || (rc == FSDP_EMISMATCH && worst != FSDP_EMISMATCH))) {
            *err = why;
            worst = rc;
        }
    }
    return rc == FSDP_OK ? rc : worst;
}

static int explain_failure(const struct slurm *s, int status, const struct fsdp_err *last,
                           struct fsdp_err *err)
{
    const char *fix = "is rank 0 running, and may nodes reach each other on TCP ports above 10000 "
                      "(BOOT_PORT, BOOT_INTERFACE)?";
    if (!s->root.naddrs)
        return fsdp_err_set(err, FSDP_EPEER,
                            "rank %d on %s cannot find rank 0: the name of its node, %s, does not "
                            "resolve here",
                            s->facts.rank, s->facts.host, s->root_host);
    if (status == FSDP_EMISMATCH)
        return fsdp_err_set(err, status,
                            "rank %d on %s: %.500s; is %.200s the same file on all nodes?",
                            s->facts.rank, s->facts.host, last->text, s->key_path);
    return fsdp_err_set(err, FSDP_ETIMEDOUT, "rank %d on %s found no rank 0 on %s: %.500s; %s",
                        s->facts.rank, s->facts.host, s->root_host, last->text, fix);
}

static int look_for_root(struct slurm *s, double deadline, struct fsdp_err *err)
{
    enum { TRY_S = 3 };
    struct fsdp_err last = FSDP_ERR_INIT;
    double pause = 0.02;
    int rc = FSDP_EPEER;

    find_root(s);
    while (s->root.naddrs && fsdp_time_now() < deadline) {
        double until = fsdp_time_now() + TRY_S;
        rc = try_ports(s, until < deadline ? until : deadline, &last);
        if (rc == FSDP_OK)
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause * 1e9)}, NULL);
        pause = pause < 0.5 ? pause * 1.5 : pause;
    }
    return explain_failure(s, rc, &last, err);
}

/* ---- the table ---- */

static void slurm_close(void *state, bool clean)
{
    struct slurm *s = state;
    (void)clean;
    boot_kvs_close(s->kvs);
    boot_serve_stop(&s->serve);
    fsdp_free(s->hosts);
    fsdp_free(s);
}

static int slurm_open(void **state, double deadline, struct fsdp_err *err)
{
    struct slurm *s = fsdp_alloc(1, sizeof *s, "boot slurm", err);
    int rc = FSDP_ENOMEM;
    if (!s)
        return rc;
    s->serve = (struct boot_serve)BOOT_SERVE_INIT;
    FSDP_TRY_GOTO(read_facts(s, err), out);
    if (s->facts.rank == 0 && s->facts.size > 1)
        FSDP_TRY_GOTO(start_server(s, err), out);
    if (s->facts.size > 1)
        FSDP_TRY_GOTO(look_for_root(s, deadline, err), out);
    *state = s;
    return FSDP_OK;
out:
    slurm_close(s, false);
    return rc;
}

static void slurm_info(void *state, struct boot_facts *out)
{
    const struct slurm *s = state;
    *out = s->facts;
}

static int slurm_put(void *state, const char *key, const void *data, size_t nbytes, double deadline,
                     struct fsdp_err *err)
{
    struct slurm *s = state;
    return boot_kvs_put_rank(s->kvs, s->facts.rank, key, data, nbytes, deadline, err);
}

static int slurm_fence(void *state, double deadline, struct fsdp_err *err)
{
    struct slurm *s = state;
    return boot_kvs_fence(s->kvs, deadline, err);
}

static int slurm_get(void *state, int rank, const char *key, void *data, size_t nbytes,
                     double deadline, struct fsdp_err *err)
{
    struct slurm *s = state;
    return boot_kvs_get_rank(s->kvs, rank, key, data, nbytes, deadline, err);
}

static int slurm_get_all(void *state, const char *key, void *out, size_t nbytes, double deadline,
                         struct fsdp_err *err)
{
    struct slurm *s = state;
    return boot_kvs_get_ranks(s->kvs, key, out, (size_t)s->facts.size * nbytes, deadline, err);
}

const struct boot_ops boot_slurm_ops = {
    .abi = BOOT_OPS_ABI,
    .name = "slurm",
    .probe = slurm_probe,
    .open = slurm_open,
    .info = slurm_info,
    .put = slurm_put,
    .fence = slurm_fence,
    .get = slurm_get,
    .get_all = slurm_get_all,
    .close = slurm_close,
};
