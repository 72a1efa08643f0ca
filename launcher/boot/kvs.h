/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvs.h: the rendezvous. One process serves a small key-value store over TCP; the ranks of the
 * job put, fence and get. Strangers are kept out by the job's secret.
 *
 * The server never blocks and owns no thread: whoever holds it polls boot_kvs_server_fd and calls
 * boot_kvs_server_step.
 */
#ifndef BOOT_KVS_H
#define BOOT_KVS_H

#include "channel/wire.h"

enum { BOOT_KEY_NBYTES = 64, BOOT_VALUE_MAX_NBYTES = 1 << 20, BOOT_WORDS_NBYTES = 512 };

struct boot_kvs_server;

/* host_of(rank) names a rank's host in errors; NULL: unknown. */
typedef const char *boot_host_of_f(void *ctx, int rank);

/* Listens at once, so that the contact can be handed to ranks before they start; loopback and port
 * as in boot_acceptor_create. */
int boot_kvs_server_create(struct boot_kvs_server **out, int nranks,
                           const struct boot_secret *secret, bool loopback, uint16_t port,
                           boot_host_of_f *host_of, void *ctx, struct fsdp_err *err);
void boot_kvs_server_destroy(struct boot_kvs_server *server);
void boot_kvs_server_contact(const struct boot_kvs_server *server, struct boot_contact *out);
int boot_kvs_server_fd(const struct boot_kvs_server *server);
/* What a rank is called in errors, "rank" unless said. `noun` is static. */
void boot_kvs_server_noun(struct boot_kvs_server *server, const char *noun);
/* Who takes connections that ask to be let in (BOOT_FOR_JOIN); else they are closed. */
typedef void boot_joiner_f(void *ctx, int fd, const struct boot_hello *hello);
void boot_kvs_server_on_join(struct boot_kvs_server *server, boot_joiner_f *fn, void *ctx);
/* Does what there is to do. Call it when the descriptor is readable and at least every half second
 * (deadlines of fences). */
void boot_kvs_server_step(struct boot_kvs_server *server);
/* Has any rank ever come? */
bool boot_kvs_server_seen(const struct boot_kvs_server *server);
/* Last words of a rank: their text, NULL if it has not said any. */
const char *boot_kvs_server_words(const struct boot_kvs_server *server, int rank);

struct boot_kvs;

int boot_kvs_open(struct boot_kvs **out, const struct boot_contact *at,
                  const struct boot_secret *secret, int rank, double deadline,
                  struct fsdp_err *err);
void boot_kvs_close(struct boot_kvs *kvs);
int boot_kvs_put(struct boot_kvs *kvs, const char *key, const void *data, size_t nbytes,
                 double deadline, struct fsdp_err *err);
/* FSDP_ENOTFOUND: nobody has put it; FSDP_EINVAL: it is not exactly nbytes long. */
int boot_kvs_get(struct boot_kvs *kvs, const char *key, void *data, size_t nbytes, double deadline,
                 struct fsdp_err *err);
/* The same under a key that each rank has of its own. */
int boot_kvs_put_rank(struct boot_kvs *kvs, int rank, const char *key, const void *data,
                      size_t nbytes, double deadline, struct fsdp_err *err);
int boot_kvs_get_rank(struct boot_kvs *kvs, int rank, const char *key, void *data, size_t nbytes,
                      double deadline, struct fsdp_err *err);
/* What all ranks have put, in rank order, in one message. FSDP_EINVAL: not nbytes in all. */
int boot_kvs_get_ranks(struct boot_kvs *kvs, const char *key, void *data, size_t nbytes,
                       double deadline, struct fsdp_err *err);
/* Collective. FSDP_ETIMEDOUT names the ranks that did not come. */
int boot_kvs_fence(struct boot_kvs *kvs, double deadline, struct fsdp_err *err);
/* Thread safe; waits at most a second. */
void boot_kvs_words(struct boot_kvs *kvs, int code, const char *text);

#endif
