/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' side of the rendezvous: one request at a time, each with its deadline. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "kvs_proto.h"

struct boot_kvs {
    pthread_mutex_t lock; /* one request at a time: last words come from any thread */
    struct boot_link link;
    char where[BOOT_ADDR_NBYTES + 8];
};

int boot_kvs_open(struct boot_kvs **out, const struct boot_contact *at,
                  const struct boot_secret *secret, int rank, double deadline, struct fsdp_err *err)
{
    struct boot_kvs *kvs = fsdp_alloc(1, sizeof *kvs, "rendezvous client", err);
    int fd, rc;
    if (!kvs)
        return FSDP_ENOMEM;
    rc = boot_dial(&fd, at, secret, (struct boot_hello){BOOT_FOR_KVS, rank, BOOT_TO_SERVER},
                   "the rendezvous", deadline, err);
    if (rc) {
        fsdp_free(kvs);
        return rc;
    }
    pthread_mutex_init(&kvs->lock, NULL);
    boot_link_init(&kvs->link, fd);
    snprintf(kvs->where, sizeof kvs->where, "%.*s:%u", BOOT_ADDR_NBYTES, at->addr[0], at->port);
    *out = kvs;
    return FSDP_OK;
}

void boot_kvs_close(struct boot_kvs *kvs)
{
    if (!kvs)
        return;
    boot_link_close(&kvs->link);
    pthread_mutex_destroy(&kvs->lock);
    fsdp_free(kvs);
}

/* Sends a frame and waits for its reply. Any failure but a reply's own status closes the link. */
static int call_locked(struct boot_kvs *kvs, const struct boot_frame *ask,
                       struct boot_frame **answer, double deadline, struct fsdp_err *err)
{
    struct boot_packet *packet = boot_packet_create(ask, err);
    int rc = packet ? boot_link_send(&kvs->link, packet, err) : FSDP_ENOMEM, why = 0;

    boot_packet_unref(packet);
    if (rc)
        return rc;
    while (kvs->link.fd >= 0) {
        boot_link_flush(&kvs->link);
        int got = boot_link_recv(&kvs->link, answer, &why);
        if (got > 0)
            return FSDP_OK;
        if (got < 0)
            break;
        if (boot_wait_fd(kvs->link.fd, POLLIN | (boot_link_pending(&kvs->link) ? POLLOUT : 0),
                         deadline)) {
            boot_link_close(&kvs->link);
            return fsdp_err_set(err, FSDP_ETIMEDOUT, "the rendezvous at %s did not answer in time",
                                kvs->where);
        }
    }
    boot_link_close(&kvs->link);
    return fsdp_err_set(err, FSDP_EPEER,
                        "the rendezvous at %s hung up%s%s: whoever started the "
                        "ranks has ended",
                        kvs->where, why ? ": " : "", why ? strerror(why) : "");
}

static int call(struct boot_kvs *kvs, const struct boot_frame *ask, const char *what,
                double deadline, void *data, size_t nbytes, struct fsdp_err *err)
{
    struct boot_frame *answer;
    pthread_mutex_lock(&kvs->lock);
    int rc = call_locked(kvs, ask, &answer, deadline, err);
    if (rc)
        goto out;
    rc = answer->rank;
    if (rc == FSDP_ENOTFOUND)
        fsdp_err_set(err, rc, "the rendezvous has no %s", what);
    else if (rc) {
        fsdp_err_set(err, rc, "%s", answer->nbytes ? (char *)answer->data : fsdp_status_name(rc));
        fsdp_err_prefix(err, rc, "%s: ", what);
    } else if (data && answer->nbytes != nbytes)
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s has %llu bytes, expected %zu", what,
                          (unsigned long long)answer->nbytes, nbytes);
    else if (data && nbytes)
        memcpy(data, answer->data, nbytes);
out:
    pthread_mutex_unlock(&kvs->lock);
    return rc;
}

int boot_kvs_put(struct boot_kvs *kvs, const char *key, const void *data, size_t nbytes,
                 double deadline, struct fsdp_err *err)
{
    size_t klen = strlen(key);
    if (klen == 0 || klen >= BOOT_KEY_NBYTES || nbytes > BOOT_VALUE_MAX_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "rendezvous: key '%.80s' or its value (%zu bytes) is "
                            "too long or empty",
                            key, nbytes);
    unsigned char *both = fsdp_alloc(klen + 1 + nbytes, 1, "rendezvous value", err);
    if (!both)
        return FSDP_ENOMEM;
    memcpy(both, key, klen + 1);
    if (nbytes)
        memcpy(both + klen + 1, data, nbytes);
    struct boot_frame ask = {.type = KVS_PUT, .nbytes = klen + 1 + nbytes, .data = both};
    int rc = call(kvs, &ask, key, deadline, NULL, 0, err);
    fsdp_free(both);
    return rc;
}

int boot_kvs_get(struct boot_kvs *kvs, const char *key, void *data, size_t nbytes, double deadline,
                 struct fsdp_err *err)
{
    struct boot_frame ask = {
        .type = KVS_GET, .nbytes = strlen(key) + 1, .data = (unsigned char *)(uintptr_t)key};
    return call(kvs, &ask, key, deadline, data, nbytes, err);
}

static int key_of(char out[BOOT_KEY_NBYTES], int rank, const char *key, struct fsdp_err *err)
{
    if (snprintf(out, BOOT_KEY_NBYTES, "%d/%s", rank, key) >= BOOT_KEY_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "bootstrap key '%.80s' is too long", key);
    return FSDP_OK;
}

int boot_kvs_put_rank(struct boot_kvs *kvs, int rank, const char *key, const void *data,
                      size_t nbytes, double deadline, struct fsdp_err *err)
{
    char full[BOOT_KEY_NBYTES];
    FSDP_TRY(key_of(full, rank, key, err));
    return boot_kvs_put(kvs, full, data, nbytes, deadline, err);
}

int boot_kvs_get_rank(struct boot_kvs *kvs, int rank, const char *key, void *data, size_t nbytes,
                      double deadline, struct fsdp_err *err)
{
    char full[BOOT_KEY_NBYTES];
    FSDP_TRY(key_of(full, rank, key, err));
    return boot_kvs_get(kvs, full, data, nbytes, deadline, err);
}

int boot_kvs_get_ranks(struct boot_kvs *kvs, const char *key, void *data, size_t nbytes,
                       double deadline, struct fsdp_err *err)
{
    struct boot_frame ask = {
        .type = KVS_GET_ALL, .nbytes = strlen(key) + 1, .data = (unsigned char *)(uintptr_t)key};
    return call(kvs, &ask, key, deadline, data, nbytes, err);
}

int boot_kvs_fence(struct boot_kvs *kvs, double deadline, struct fsdp_err *err)
{
    /* The server knows who is missing, so its answer is waited for a little longer. */
    enum { GRACE_S = 5 };
    double left = deadline - fsdp_time_now();
    struct boot_frame ask = {.type = KVS_FENCE, .seq = left > 0 ? (uint64_t)(left * 1e3) : 0};
    return call(kvs, &ask, "fence", deadline + GRACE_S, NULL, 0, err);
}

void boot_kvs_words(struct boot_kvs *kvs, int code, const char *text)
{
    struct boot_frame ask = {.type = KVS_WORDS,
                             .seq = (uint64_t)(int64_t)code,
                             .nbytes = strlen(text) + 1,
                             .data = (unsigned char *)(uintptr_t)text};
    call(kvs, &ask, "last words", fsdp_time_now() + 1, NULL, 0, NULL);
}
