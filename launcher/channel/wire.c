/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"
#include "handshake.h"

int boot_random(void *out, size_t nbytes, struct fsdp_err *err)
{
    unsigned char *bytes = out;
    while (nbytes) {
        ssize_t got = getrandom(bytes, nbytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fsdp_err_sys(err, errno, "getrandom");
        bytes += got;
        nbytes -= (size_t)got;
    }
    return FSDP_OK;
}

int boot_secret_create(struct boot_secret *out, struct fsdp_err *err)
{
    return boot_random(out->bytes, sizeof out->bytes, err);
}

bool boot_handshake_mac(unsigned char out[BOOT_MAC_NBYTES], const struct boot_secret *secret,
                        const char *side, const struct boot_hello_msg *hello,
                        const unsigned char nonce[BOOT_NONCE_NBYTES])
{
    unsigned char text[16 + sizeof *hello + BOOT_NONCE_NBYTES] = {0};
    unsigned int len = BOOT_MAC_NBYTES;
    snprintf((char *)text, 16, "%s", side);
    memcpy(text + 16, hello, sizeof *hello);
    memcpy(text + 16 + sizeof *hello, nonce, BOOT_NONCE_NBYTES);
    return HMAC(EVP_sha256(), secret->bytes, sizeof secret->bytes, text, sizeof text, out, &len) &&
           len == BOOT_MAC_NBYTES;
}

bool boot_handshake_check(const unsigned char mac[BOOT_MAC_NBYTES],
                          const struct boot_secret *secret, const char *side,
                          const struct boot_hello_msg *hello,
                          const unsigned char nonce[BOOT_NONCE_NBYTES])
{
    unsigned char mine[BOOT_MAC_NBYTES];
    return boot_handshake_mac(mine, secret, side, hello, nonce) &&
           CRYPTO_memcmp(mine, mac, sizeof mine) == 0;
}

int boot_wait_fd(int fd, short events, double deadline)
{
    for (;;) {
        double left = deadline - fsdp_time_now();
        struct pollfd pf = {fd, events, 0};
        int ready = poll(&pf, 1, left <= 0 ? 0 : left > 3600 ? 3600000 : (int)(left * 1e3) + 1);
        if (ready > 0)
            return FSDP_OK;
        if (ready == 0 && fsdp_time_now() >= deadline)
            return FSDP_ETIMEDOUT;
    }
}

int boot_move(int fd, bool out, void *data, size_t nbytes, double deadline)
{
    char *pos = data;
    while (nbytes) {
        ssize_t done = out ? send(fd, pos, nbytes, MSG_NOSIGNAL) : recv(fd, pos, nbytes, 0);
        if (done == 0)
            return ECONNRESET;
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return errno;
        if (done < 0) {
            if (boot_wait_fd(fd, out ? POLLOUT : POLLIN, deadline))
                return ETIMEDOUT;
            continue;
        }
        pos += done;
        nbytes -= (size_t)done;
    }
    return 0;
}

void boot_socket_tune(int fd)
{
    /* Small messages go out at once, and a peer whose machine vanished is noticed within half a
     * minute: it sends no hang-up. */
    int on = 1, idle = 15, every = 5, tries = 3;
    unsigned int user_ms = 30000;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
}

static atomic_ullong nmessages;

void boot_message_count(int n)
{
    atomic_fetch_add(&nmessages, (unsigned long long)n);
}

uint64_t boot_messages_so_far(void)
{
    return atomic_load(&nmessages);
}

/* Both families through one path. Returns the length, 0 if the text is no numeric address. */
static socklen_t parse_addr(struct sockaddr_storage *out, const char *text, uint16_t port)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        return sizeof *v4;
    }
    if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        return sizeof *v6;
    }
    return 0;
}

/* Returns a connected socket, or -errno. */
static int connect_one(const char *addr, uint16_t port, double deadline)
{
    struct sockaddr_storage sa;
    socklen_t len = parse_addr(&sa, addr, port), optlen = sizeof(int);
    int why = 0;
    if (!len)
        return -EINVAL;
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&sa, len) && errno != EINPROGRESS)
        why = errno;
    else if (boot_wait_fd(fd, POLLOUT, deadline))
        why = ETIMEDOUT;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &optlen);
    if (why) {
        close(fd);
        return -why;
    }
    boot_socket_tune(fd);
    return fd;
}

/* The dialler's side of the drawing in wire.h. */
static int prove(int fd, const struct boot_secret *secret, struct boot_hello hello, const char *who,
                 const char *addr, double deadline, struct fsdp_err *err)
{
    struct boot_hello_msg msg = {.magic = htole32(BOOT_MAGIC),
                                 .purpose = htole32(hello.purpose),
                                 .rank = htole32((uint32_t)hello.rank),
                                 .to = htole32((uint32_t)hello.to)};
    struct boot_answer_msg answer;
    unsigned char mac[BOOT_MAC_NBYTES];
    uint32_t verdict = 0;
    int why;

    FSDP_TRY(boot_random(msg.nonce, sizeof msg.nonce, err));
    if ((why = boot_move(fd, true, &msg, sizeof msg, deadline)) ||
        (why = boot_move(fd, false, &answer, sizeof answer, deadline)))
        goto broken;
    if (!boot_handshake_check(answer.mac, secret, "acceptor", &msg, answer.nonce))
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s at %s does not know this job's secret: another job, or a stranger, "
                            "answers there",
                            who, addr);
    if (!boot_handshake_mac(mac, secret, "dialler", &msg, answer.nonce))
        return fsdp_err_set(err, FSDP_EINTERNAL, "HMAC-SHA256 is not available in libcrypto");
    if ((why = boot_move(fd, true, mac, sizeof mac, deadline)) ||
        (why = boot_move(fd, false, &verdict, sizeof verdict, deadline)))
        goto broken;
    if (le32toh(verdict) != BOOT_MAGIC)
        return fsdp_err_set(err, FSDP_EMISMATCH, "%s at %s refused this rank", who, addr);
    return FSDP_OK;
broken:
    return fsdp_err_set(err, why == ETIMEDOUT ? FSDP_ETIMEDOUT : FSDP_EPEER,
                        "%s at %s: the connection broke while proving the job's secret: %s", who,
                        addr, strerror(why));
}

int boot_dial(int *fd, const struct boot_contact *to, const struct boot_secret *secret,
              struct boot_hello hello, const char *who, double deadline, struct fsdp_err *err)
{
    enum { PER_ADDR_S = 5 };
    char tried[640] = "";
    int rc = FSDP_EPEER;

    for (int i = 0; i < to->naddrs && i < BOOT_MAX_ADDRS; i++) {
        char addr[BOOT_ADDR_NBYTES + 8];
        double until = fsdp_time_now() + PER_ADDR_S;
        size_t len = strlen(tried);
        struct fsdp_err why = FSDP_ERR_INIT;

        /* One black hole among several addresses must not eat the whole deadline. */
        until = until < deadline && i + 1 < to->naddrs ? until : deadline;
        snprintf(addr, sizeof addr, "%.*s:%u", BOOT_ADDR_NBYTES, to->addr[i], to->port);
        int sock = connect_one(to->addr[i], to->port, until);
        if (sock >= 0) {
            rc = prove(sock, secret, hello, who, addr, until, &why);
            if (rc == FSDP_OK) {
                boot_message_count(BOOT_HANDSHAKE_NMESSAGES);
                *fd = sock;
                return FSDP_OK;
            }
            close(sock);
        } else {
            rc = sock == -ETIMEDOUT ? FSDP_ETIMEDOUT : FSDP_EPEER;
            snprintf(why.text, sizeof why.text, "%s: %s", addr, strerror(-sock));
        }
        snprintf(tried + len, sizeof tried - len, "%s%.300s", len ? "; " : "", why.text);
    }
    return fsdp_err_set(err, rc, "rank %d cannot reach %s: %s", hello.rank, who,
                        tried[0] ? tried : "it gave no address");
}
