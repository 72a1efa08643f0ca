/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's side of fsdp-launch -n N: everything is in the environment, the rendezvous is its. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot_env.h"
#include "kvs.h"

struct local {
    struct boot_facts facts;
    struct boot_kvs *kvs;
};

static bool local_probe(char *why, size_t why_nbytes)
{
    const char *at = getenv(BOOT_ENV_RENDEZVOUS);
    if (at)
        snprintf(why, why_nbytes, "fsdp-launch serves a rendezvous at %.100s", at);
    else
        snprintf(why, why_nbytes,
                 BOOT_ENV_RENDEZVOUS " is not set: fsdp-launch -n did not start this process");
    return at != NULL;
}

/* A number in [lo, hi] from the environment. */
static int env_int(int *out, const char *name, int lo, int hi, struct fsdp_err *err)
{
    const char *text = getenv(name);
    char *end;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : 0;
    if (!text || !*text || *end || errno || value < lo || value > hi)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s=%.40s: expected a number from %d to %d, set by fsdp-launch", name,
                            text ? text : "(unset)", lo, hi);
    *out = (int)value;
    return FSDP_OK;
}

static int env_contact(struct boot_contact *out, struct fsdp_err *err)
{
    const char *text = getenv(BOOT_ENV_RENDEZVOUS);
    const char *colon = text ? strrchr(text, ':') : NULL;
    long port = colon ? strtol(colon + 1, NULL, 10) : 0;
    memset(out, 0, sizeof *out);
    for (const char *addr = text, *end; addr && addr < colon; addr = end + 1) {
        end = memchr(addr, ',', (size_t)(colon - addr));
        end = end ? end : colon;
        if (end == addr || end - addr >= BOOT_ADDR_NBYTES || out->naddrs == BOOT_MAX_ADDRS)
            goto bad;
        memcpy(out->addr[out->naddrs++], addr, (size_t)(end - addr));
    }
    out->port = (uint16_t)port;
    if (out->naddrs && port >= 1 && port <= 65535)
        return FSDP_OK;
bad:
    return fsdp_err_set(err, FSDP_EINVAL,
                        BOOT_ENV_RENDEZVOUS "=%.80s: expected address[,address...]:port",
                        text ? text : "(unset)");
}

static int read_secret(struct boot_secret *out, struct fsdp_err *err)
{
    int fd = -1;
    FSDP_TRY(env_int(&fd, BOOT_ENV_SECRET_FD, 0, 1 << 20, err));
    ssize_t got = pread(fd, out->bytes, sizeof out->bytes, 0);
    if (got != (ssize_t)sizeof out->bytes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "descriptor %d (" BOOT_ENV_SECRET_FD ") does not give the job's "
                            "secret: %s; does a program between fsdp-launch and this one close it?",
                            fd, got < 0 ? strerror(errno) : "it is something else");
    return FSDP_OK;
}

static int read_facts(struct boot_facts *facts, struct fsdp_err *err)
{
    int node = 0;
    const char *host = getenv(BOOT_ENV_HOST), *job = getenv(BOOT_ENV_JOB);
    FSDP_TRY(env_int(&facts->size, BOOT_ENV_SIZE, 1, 1 << 20, err));
    FSDP_TRY(env_int(&facts->rank, BOOT_ENV_RANK, 0, facts->size - 1, err));
    FSDP_TRY(env_int(&node, BOOT_ENV_NODE, 0, facts->size - 1, err));
    FSDP_TRY(read_secret(&facts->secret, err));
    facts->has_secret = true;
    snprintf(facts->node_key, sizeof facts->node_key, "node%d", node);
    snprintf(facts->host, sizeof facts->host, "%s", host ? host : "this machine");
    snprintf(facts->job, sizeof facts->job, "%s", job ? job : "");
    return FSDP_OK;
}

static int local_open(void **state, double deadline, struct fsdp_err *err)
{
    struct boot_contact at;
    struct local *local = fsdp_alloc(1, sizeof *local, "boot local", err);
    int rc = FSDP_ENOMEM;
    if (!local)
        return rc;
    FSDP_TRY_GOTO(read_facts(&local->facts, err), out);
    FSDP_TRY_GOTO(env_contact(&at, err), out);
    /* Else an agent on each node started its ranks. */
    local->facts.loopback = at.naddrs == 1 && strcmp(at.addr[0], "127.0.0.1") == 0;
    FSDP_TRY_GOTO(
        boot_kvs_open(&local->kvs, &at, &local->facts.secret, local->facts.rank, deadline, err),
        out);
    *state = local;
    return FSDP_OK;
out:
    fsdp_free(local);
    return rc;
}

static void local_info(void *state, struct boot_facts *out)
{
    const struct local *local = state;
    *out = local->facts;
}

static int local_put(void *state, const char *key, const void *data, size_t nbytes, double deadline,
                     struct fsdp_err *err)
{
    struct local *local = state;
    return boot_kvs_put_rank(local->kvs, local->facts.rank, key, data, nbytes, deadline, err);
}

static int local_fence(void *state, double deadline, struct fsdp_err *err)
{
    struct local *local = state;
    return boot_kvs_fence(local->kvs, deadline, err);
}

static int local_get(void *state, int rank, const char *key, void *data, size_t nbytes,
                     double deadline, struct fsdp_err *err)
{
    struct local *local = state;
    return boot_kvs_get_rank(local->kvs, rank, key, data, nbytes, deadline, err);
}

static int local_get_all(void *state, const char *key, void *out, size_t nbytes, double deadline,
                         struct fsdp_err *err)
{
    struct local *local = state;
    return boot_kvs_get_ranks(local->kvs, key, out, (size_t)local->facts.size * nbytes, deadline,
                              err);
}

static void local_abort(void *state, int code, const char *text)
{
    struct local *local = state;
    boot_kvs_words(local->kvs, code, text);
}

static void local_close(void *state, bool clean)
{
    struct local *local = state;
    (void)clean;
    boot_kvs_close(local->kvs);
    fsdp_free(local);
}

const struct boot_ops boot_local_ops = {
    .abi = BOOT_OPS_ABI,
    .name = "local",
    .probe = local_probe,
    .open = local_open,
    .info = local_info,
    .put = local_put,
    .fence = local_fence,
    .get = local_get,
    .get_all = local_get_all,
    .abort = local_abort,
    .close = local_close,
};
