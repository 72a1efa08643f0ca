/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: values, fences with deadlines, strangers, and what is said when it is gone. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../launcher/boot/kvs.h"
#include "tap.h"

enum { NRANKS = 4 };

static struct boot_kvs_server *server;
static struct boot_contact at;
static struct boot_secret secret;
static atomic_bool stop;
static pthread_t server_thread;

static const char *host_of(void *ctx, int rank)
{
    static char host[16];
    (void)ctx;
    snprintf(host, sizeof host, "h%d", rank);
    return host;
}

static void *serve(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        struct pollfd pf = {boot_kvs_server_fd(server), POLLIN, 0};
        poll(&pf, 1, 20);
        boot_kvs_server_step(server);
    }
    return NULL;
}

static void start_server(void)
{
    atomic_store(&stop, false);
    if (boot_secret_create(&secret, NULL) ||
        boot_kvs_server_create(&server, NRANKS, &secret, true, 0, host_of, NULL, NULL))
        abort();
    boot_kvs_server_contact(server, &at);
    pthread_create(&server_thread, NULL, serve, NULL);
}

static void stop_server(void)
{
    atomic_store(&stop, true);
    pthread_join(server_thread, NULL);
    boot_kvs_server_destroy(server);
}

static struct boot_kvs *client(int rank)
{
    struct boot_kvs *kvs = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    if (boot_kvs_open(&kvs, &at, &secret, rank, fsdp_time_now() + 20, &err))
        diag("client %d: %s", rank, err.text);
    return kvs;
}

static double soon(void)
{
    return fsdp_time_now() + 20;
}

static void check_values(void)
{
    struct boot_kvs *a = client(0), *b = client(1);
    struct fsdp_err err = FSDP_ERR_INIT;
    size_t big = BOOT_VALUE_MAX_NBYTES;
    char *sent = malloc(big + 1), *got = malloc(big), word[6];

    for (size_t i = 0; i < big; i++)
        sent[i] = (char)(i * 7 % 255);
    ok(boot_kvs_put(a, "0/word", "hello", 6, soon(), &err) == FSDP_OK &&
           boot_kvs_get(b, "0/word", word, 6, soon(), &err) == FSDP_OK && !strcmp(word, "hello"),
       "what one puts another gets");
    ok(boot_kvs_put(b, "0/word", "world", 6, soon(), &err) == FSDP_OK &&
           boot_kvs_get(a, "0/word", word, 6, soon(), &err) == FSDP_OK && !strcmp(word, "world"),
       "a second put replaces");
    ok(boot_kvs_put(a, "big", sent, big, soon(), &err) == FSDP_OK &&
           boot_kvs_get(b, "big", got, big, soon(), &err) == FSDP_OK && !memcmp(sent, got, big),
       "a value of %zu bytes", big);
    ok(boot_kvs_put(a, "none", NULL, 0, soon(), &err) == FSDP_OK &&
           boot_kvs_get(b, "none", got, 0, soon(), &err) == FSDP_OK,
       "an empty value");
    ok(boot_kvs_put(a, "huge", sent, big + 1, soon(), &err) == FSDP_EINVAL, "too big is refused");
    ok(boot_kvs_put(a, "", sent, 1, soon(), &err) == FSDP_EINVAL &&
           boot_kvs_put(a, "a key that is longer than what a key may be, which is sixty-four bytes",
                        sent, 1, soon(), &err) == FSDP_EINVAL,
       "empty and overlong keys are refused");
    ok(boot_kvs_get(b, "absent", word, 6, soon(), &err) == FSDP_ENOTFOUND &&
           strstr(err.text, "absent"),
       "a key that nobody put: %s", err.text);
    ok(boot_kvs_get(b, "0/word", word, 5, soon(), &err) == FSDP_EINVAL &&
           strstr(err.text, "6 bytes"),
       "another length than expected: %s", err.text);
    boot_kvs_close(a);
    boot_kvs_close(b);
    free(sent);
    free(got);
}

static void check_all_ranks(void)
{
    struct boot_kvs *kvs[NRANKS];
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t got[NRANKS];
    bool good = true;

    for (int32_t r = 0; r < NRANKS; r++) {
        kvs[r] = client(r);
        if (r == NRANKS - 1)
            ok(boot_kvs_get_ranks(kvs[0], "card", got, sizeof got, soon(), &err) == FSDP_ENOTFOUND,
               "all ranks' values, while one has put none: %s", err.text);
        good &= boot_kvs_put_rank(kvs[r], r, "card", &r, sizeof r, soon(), &err) == FSDP_OK;
    }
    for (int ask = 0; ask < NRANKS; ask++) {
        memset(got, 0xff, sizeof got);
        good &= boot_kvs_get_ranks(kvs[ask], "card", got, sizeof got, soon(), &err) == FSDP_OK;
        for (int32_t r = 0; r < NRANKS; r++)
            good &= got[r] == r;
    }
    ok(good, "all ranks' values in one message, in their order");
    int32_t other = 77;
    ok(boot_kvs_put_rank(kvs[1], 1, "card", &other, sizeof other, soon(), &err) == FSDP_OK &&
           boot_kvs_get_ranks(kvs[0], "card", got, sizeof got, soon(), &err) == FSDP_OK &&
           got[1] == 77 && got[2] == 2,
       "a value that is put again is seen");
    ok(boot_kvs_get_ranks(kvs[0], "card", got, sizeof got - 1, soon(), &err) == FSDP_EINVAL,
       "another length in all than expected: %s", err.text);
    for (int r = 0; r < NRANKS; r++)
        boot_kvs_close(kvs[r]);
}

struct fencer {
    struct boot_kvs *kvs;
    double seconds;
    int rc;
    struct fsdp_err err;
};

static void *fence(void *arg)
{
    struct fencer *f = arg;
    f->rc = boot_kvs_fence(f->kvs, fsdp_time_now() + f->seconds, &f->err);
    return NULL;
}

static bool fence_all(struct fencer *f, int first, int last, double seconds, int expect)
{
    pthread_t threads[NRANKS];
    bool good = true;
    for (int r = first; r < last; r++) {
        f[r].seconds = seconds;
        f[r].err = (struct fsdp_err)FSDP_ERR_INIT;
        pthread_create(&threads[r], NULL, fence, &f[r]);
    }
    for (int r = first; r < last; r++) {
        pthread_join(threads[r], NULL);
        good &= f[r].rc == expect;
        if (f[r].rc != expect)
            diag("rank %d: %d %s", r, f[r].rc, f[r].err.text);
    }
    return good;
}

static void check_fences(void)
{
    struct fencer f[NRANKS] = {{0}};
    for (int r = 0; r < NRANKS; r++)
        f[r].kvs = client(r);
    ok(fence_all(f, 0, NRANKS, 20, FSDP_OK) && fence_all(f, 0, NRANKS, 20, FSDP_OK),
       "fences let all through, more than once");
    ok(fence_all(f, 0, 2, 3, FSDP_ETIMEDOUT) && strstr(f[0].err.text, "rank 2 on h2 (connected") &&
           strstr(f[1].err.text, "rank 3 on h3 (connected") && !strstr(f[0].err.text, "rank 1 "),
       "the deadline names who is missing: %s", f[0].err.text);
    boot_kvs_close(f[3].kvs);
    ok(fence_all(f, 0, 3, 3, FSDP_ETIMEDOUT) && strstr(f[0].err.text, "rank 3 on h3 (has left)"),
       "one that has left: %s", f[0].err.text);
    f[3].kvs = client(3);
    ok(fence_all(f, 0, NRANKS, 20, FSDP_OK), "it comes again, and the fence opens");
    for (int r = 0; r < NRANKS; r++)
        boot_kvs_close(f[r].kvs);
}

static void check_strangers(void)
{
    struct boot_kvs *kvs = NULL;
    struct boot_secret other = secret;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_port = htons(at.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char junk[4096];

    other.bytes[31] ^= 1;
    ok(boot_kvs_open(&kvs, &at, &other, 0, soon(), &err) == FSDP_EMISMATCH && !kvs,
       "another secret is refused: %s", err.text);
    memset(junk, 'x', sizeof junk);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool dropped = connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0 &&
                   send(fd, junk, sizeof junk, MSG_NOSIGNAL) > 0 && recv(fd, junk, 1, 0) <= 0;
    ok(dropped, "junk is hung up on");
    close(fd);
    ok((kvs = client(0)) && boot_kvs_put(kvs, "after", "x", 1, soon(), &err) == FSDP_OK,
       "and the rendezvous continues");
    boot_kvs_close(kvs);
    kvs = NULL;
    ok(boot_kvs_open(&kvs, &at, &secret, NRANKS, fsdp_time_now() + 5, &err) == FSDP_OK &&
           boot_kvs_put(kvs, "x", "x", 1, soon(), &err) == FSDP_EPEER,
       "a rank beyond the job is hung up on");
    boot_kvs_close(kvs);
}

static void check_words(void)
{
    struct boot_kvs *kvs = client(2);
    boot_kvs_words(kvs, 3, "first");
    boot_kvs_words(kvs, 3, "second");
    boot_kvs_close(kvs);
    ok(boot_kvs_server_words(server, 2) && !strcmp(boot_kvs_server_words(server, 2), "first") &&
           !boot_kvs_server_words(server, 1) && !boot_kvs_server_words(server, 99),
       "the first last words are kept");
}

static void check_gone(void)
{
    struct boot_kvs *kvs = client(0), *late = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char byte;
    stop_server();
    ok(boot_kvs_get(kvs, "x", &byte, 1, soon(), &err) == FSDP_EPEER &&
           strstr(err.text, "127.0.0.1"),
       "a server that is gone: %s", err.text);
    ok(boot_kvs_put(kvs, "x", "x", 1, soon(), &err) == FSDP_EPEER, "and again");
    ok(boot_kvs_open(&late, &at, &secret, 0, soon(), &err) == FSDP_EPEER && !late,
       "nobody listens: %s", err.text);
    boot_kvs_close(kvs);
    boot_kvs_close(NULL);
    boot_kvs_server_destroy(NULL);
}

/* A server that accepts and then says nothing. */
static void check_mute(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    struct boot_contact mute = {.naddrs = 1, .addr = {"127.0.0.1"}};
    struct boot_kvs *kvs = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) || listen(fd, 4) ||
        getsockname(fd, (struct sockaddr *)&sa, &len))
        abort();
    mute.port = ntohs(sa.sin_port);
    ok(boot_kvs_open(&kvs, &mute, &secret, 0, fsdp_time_now() + 0.3, &err) == FSDP_ETIMEDOUT,
       "a server that says nothing: %s", err.text);
    mute.naddrs = 0;
    ok(boot_kvs_open(&kvs, &mute, &secret, 0, fsdp_time_now() + 0.3, &err) == FSDP_EPEER,
       "no address: %s", err.text);
    mute.naddrs = 1;
    snprintf(mute.addr[0], sizeof mute.addr[0], "not an address");
    ok(boot_kvs_open(&kvs, &mute, &secret, 0, fsdp_time_now() + 0.3, &err) == FSDP_EPEER,
       "no number: %s", err.text);
    close(fd);
}

int main(void)
{
    start_server();
    check_values();
    check_all_ranks();
    check_fences();
    check_strangers();
    check_words();
    check_gone();
    check_mute();
    return tap_done();
}
