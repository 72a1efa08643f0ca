/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap of nodes that the user started by hand (fsdp-launch --nnodes): one process on each,
 * which starts that node's ranks.
 *
 * Node 0 serves the rendezvous on the port that all were told; the others look for it at the
 * address that all were told. The secret comes from the user's key (keyfile.h), which every node
 * has. A node knocks (door.h) before it goes to the rendezvous, so that a number that two nodes
 * have, or counts that differ, are refused at once instead of being waited for. The door stays open
 * for the life of the job: who comes too late hears why.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "boot_env.h"
#include "door.h"
#include "keyfile.h"
#include "resolve.h"
#include "serve.h"

struct nodes {
    struct boot_facts facts;
    const char *master;
    int port;
    char key_path[1024];
    struct boot_contact root;
    struct boot_kvs *kvs;
    int door_fd; /* kept open while this node lives */
    /* node 0 */
    struct boot_serve serve;
    struct boot_door *door;
};

static bool nodes_probe(char *why, size_t why_nbytes)
{
    const char *count = getenv(BOOT_ENV_NNODES);
    if (count)
        snprintf(why, why_nbytes, "node %.20s of %.20s started by hand", getenv(BOOT_ENV_NODE_RANK),
                 count);
    else
        snprintf(why, why_nbytes, "fsdp-launch has no --nnodes");
    return count != NULL;
}

/* ---- what this node is ---- */

static int env_int(int *out, const char *name, int hi, struct fsdp_err *err)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    if (value < 0 || value > hi || !end || end == text || *end)
        return fsdp_err_set(err, FSDP_EINVAL, "%s=%.40s: expected a number, set by fsdp-launch",
                            name, text ? text : "(unset)");
    *out = (int)value;
    return FSDP_OK;
}

/* Node 0 makes the user's first key. On another node a new key would only differ, unless the
 * nodes share a home folder; then node 0's appears in a moment. */
static int await_key(struct nodes *s, double deadline, struct fsdp_err *err)
{
    enum { AWAIT_S = 5 };
    double until = fsdp_time_now() + AWAIT_S;
    bool here = false;

    until = until < deadline ? until : deadline;
    for (;;) {
        FSDP_TRY(boot_keyfile_find(&here, s->key_path, sizeof s->key_path, err));
        if (here || s->facts.rank == 0)
            return FSDP_OK;
        if (fsdp_time_now() > until)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "node %d, %s, has no key: copy the file %s of node 0 (%s) to here "
                                "and chmod 600 it; node 0 makes one when it starts",
                                s->facts.rank, s->facts.host, s->key_path, s->master);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static int read_facts(struct nodes *s, double deadline, struct fsdp_err *err)
{
    char name[64];

    FSDP_TRY(env_int(&s->facts.size, BOOT_ENV_NNODES, 1 << 16, err));
    FSDP_TRY(env_int(&s->facts.rank, BOOT_ENV_NODE_RANK, s->facts.size - 1, err));
    FSDP_TRY(env_int(&s->port, BOOT_ENV_MASTER_PORT, 65535, err));
    s->master = getenv(BOOT_ENV_MASTER_ADDR);
    s->root.port = (uint16_t)s->port;
    s->facts.loopback = boot_host_is_loopback(s->master);
    if (gethostname(s->facts.host, sizeof s->facts.host - 1))
        snprintf(s->facts.host, sizeof s->facts.host, "node%d", s->facts.rank);
    /* A node is what the user calls one: several on one machine are for tests. */
    snprintf(s->facts.node_key, sizeof s->facts.node_key, "node%d", s->facts.rank);
    FSDP_TRY(await_key(s, deadline, err));
    snprintf(name, sizeof name, "nodes %d", s->port);
    FSDP_TRY(boot_keyfile_secret(&s->facts.secret, s->key_path, sizeof s->key_path, name, err));
    s->facts.has_secret = true;
    return FSDP_OK;
}

/* Resolved anew at each try: a name server may be slow to learn of a node. */
static bool find_root(struct nodes *s)
{
    s->root.naddrs = 0;
    if (s->facts.loopback)
        boot_contact_add(&s->root, "127.0.0.1");
    return s->facts.loopback || boot_resolve(&s->root, s->master, true);
}

/* ---- node 0 serves ---- */

static void on_refused(void *ctx, const char *text)
{
    (void)ctx;
    fsdp_log(FSDP_LOG_WARN, "%s", text);
}

static void step_door(void *ctx)
{
    boot_door_step(ctx);
}

static int start_server(struct nodes *s, const struct boot_guest *me, struct fsdp_err *err)
{
    if (!find_root(s))
        return fsdp_err_set(err, FSDP_EINVAL, "--master-addr %.200s does not resolve on %s",
                            s->master, s->facts.host);
    if (!boot_contact_is_here(&s->root))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--node-rank 0 belongs on the machine that --master-addr names, and "
                            "%.200s is not an address of this one, %s",
                            s->master, s->facts.host);
    FSDP_TRY(boot_door_create(&s->door, me, on_refused, NULL, err));
    int rc =
        boot_kvs_server_create(&s->serve.server, s->facts.size, &s->facts.secret, s->facts.loopback,
                               s->root.port, boot_door_host_of, s->door, err);
    if (rc == FSDP_EEXIST)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "TCP port %d of %s is in use; give all nodes another --master-port",
                            s->port, s->facts.host);
    FSDP_TRY(rc);
    boot_kvs_server_noun(s->serve.server, "node");
    boot_kvs_server_on_join(s->serve.server, boot_door_take, s->door);
    s->serve.other_fd = boot_door_fd(s->door);
    s->serve.other_step = step_door;
    s->serve.ctx = s->door;
    return boot_serve_start(&s->serve, err);
}

/* ---- all look for it ---- */

static int explain_failure(const struct nodes *s, int status, const struct fsdp_err *last,
                           struct fsdp_err *err)
{
    const int me = s->facts.rank;
    const char *host = s->facts.host;

    if (!s->root.naddrs)
        return fsdp_err_set(err, FSDP_EPEER,
                            "node %d, %s, cannot find node 0: --master-addr %.200s does not "
                            "resolve here",
                            me, host, s->master);
    if (status == FSDP_EMISMATCH)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "node %d, %s: what answers on port %d of %.200s has another key; copy "
                            "node 0's %s to this node (another job on that port? --master-port)",
                            me, host, s->port, s->master, s->key_path);
    if (status == FSDP_EINVAL)
        return fsdp_err_set(err, status, "node %d, %s, was refused: %.600s", me, host, last->text);
    return fsdp_err_set(err, FSDP_ETIMEDOUT,
                        "node %d, %s, found no node 0 at port %d of %.200s: %.500s; has "
                        "fsdp-launch --node-rank 0 been started there, and may nodes reach each "
                        "other on that TCP port?",
                        me, host, s->port, s->master, last->text);
}

static int knock(struct nodes *s, const struct boot_guest *me, double deadline,
                 struct fsdp_err *err)
{
    enum { TRY_S = 5 };
    struct fsdp_err last = FSDP_ERR_INIT;
    double pause = 0.02;
    int rc = FSDP_EPEER;

    do {
        double until = fsdp_time_now() + TRY_S;
        if (find_root(s))
            rc = boot_door_knock(&s->door_fd, &s->root, &s->facts.secret, me,
                                 until < deadline ? until : deadline, &last);
        if (rc == FSDP_OK)
            return rc;
        if (rc == FSDP_EINVAL || rc == FSDP_EMISMATCH)
            break;
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause * 1e9)}, NULL);
        pause = pause < 0.5 ? pause * 1.5 : pause;
    } while (fsdp_time_now() < deadline);
    return explain_failure(s, rc, &last, err);
}

/* ---- the table ---- */

static void nodes_close(void *state, bool clean)
{
    struct nodes *s = state;
    (void)clean;
    boot_kvs_close(s->kvs);
    if (s->door_fd >= 0)
        close(s->door_fd);
    boot_serve_stop(&s->serve);
    boot_door_destroy(s->door);
    fsdp_free(s);
}

static int nodes_open(void **state, double deadline, struct fsdp_err *err)
{
    struct nodes *s = fsdp_alloc(1, sizeof *s, "boot nodes", err);
    struct boot_guest me = {.nbytes = sizeof me};
    int rc = FSDP_ENOMEM;

    if (!s)
        return rc;
    s->serve = (struct boot_serve)BOOT_SERVE_INIT;
    s->door_fd = -1;
    FSDP_TRY_GOTO(read_facts(s, deadline, err), out);
    snprintf(me.version, sizeof me.version, "%s", FSDP_VERSION_STRING);
    memcpy(me.host, s->facts.host, sizeof me.host);
    me.rank = s->facts.rank;
    me.nnodes = s->facts.size;
    if (s->facts.rank == 0)
        FSDP_TRY_GOTO(start_server(s, &me, err), out);
    FSDP_TRY_GOTO(knock(s, &me, deadline, err), out);
    FSDP_TRY_GOTO(boot_kvs_open(&s->kvs, &s->root, &s->facts.secret, s->facts.rank, deadline, err),
                  out);
    *state = s;
    return FSDP_OK;
out:
    nodes_close(s, false);
    return rc;
}

static void nodes_info(void *state, struct boot_facts *out)
{
    const struct nodes *s = state;
    *out = s->facts;
}

static int nodes_put(void *state, const char *key, const void *data, size_t nbytes, double deadline,
                     struct fsdp_err *err)
{
    struct nodes *s = state;
    return boot_kvs_put_rank(s->kvs, s->facts.rank, key, data, nbytes, deadline, err);
}

static int nodes_fence(void *state, double deadline, struct fsdp_err *err)
{
    struct nodes *s = state;
    FSDP_TRY(boot_kvs_fence(s->kvs, deadline, err));
    if (s->door)
        boot_door_begin(s->door);
    return FSDP_OK;
}

static int nodes_get(void *state, int rank, const char *key, void *data, size_t nbytes,
                     double deadline, struct fsdp_err *err)
{
    struct nodes *s = state;
    return boot_kvs_get_rank(s->kvs, rank, key, data, nbytes, deadline, err);
}

static int nodes_get_all(void *state, const char *key, void *out, size_t nbytes, double deadline,
                         struct fsdp_err *err)
{
    struct nodes *s = state;
    return boot_kvs_get_ranks(s->kvs, key, out, (size_t)s->facts.size * nbytes, deadline, err);
}

const struct boot_ops boot_nodes_ops = {
    .abi = BOOT_OPS_ABI,
    .name = "nodes",
    .probe = nodes_probe,
    .open = nodes_open,
    .info = nodes_info,
    .put = nodes_put,
    .fence = nodes_fence,
    .get = nodes_get,
    .get_all = nodes_get_all,
    .close = nodes_close,
};
