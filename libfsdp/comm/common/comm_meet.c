/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm_meet.h"

/* FSDP_COMM_IFNAME: comma-separated beginnings of the interface names that may be used. */
static bool interface_wanted(const char *name)
{
    const char *list = getenv("FSDP_COMM_IFNAME");

    if (!list || !*list)
        return true;
    while (*list) {
        size_t len = strcspn(list, ",");
        if (len && !strncmp(name, list, len))
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

static void addr_add(struct comm_addr out[COMM_MAX_ADDRS], int32_t *naddrs,
                     const struct sockaddr *sa)
{
    struct comm_addr *addr = &out[*naddrs];

    if (*naddrs == COMM_MAX_ADDRS)
        return;
    if (sa->sa_family == AF_INET) {
        memcpy(addr->bytes, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
    } else {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(in6)) /* means nothing to another host */
            return;
        memcpy(addr->bytes, in6, 16);
    }
    addr->family = sa->sa_family;
    (*naddrs)++;
}

/* IPv4 first: where a host has both, IPv6 is the one more often left without a route. */
int comm_addrs_list(struct comm_addr out[COMM_MAX_ADDRS], int32_t *naddrs, struct fsdp_err *err)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *list;

    *naddrs = 0;
    if (getifaddrs(&list))
        return fsdp_err_sys(err, errno, "listing network interfaces");
    for (int f = 0; f < 2; f++)
        for (struct ifaddrs *i = list; i; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == families[f] && (i->ifa_flags & IFF_UP) &&
                !(i->ifa_flags & IFF_LOOPBACK) && interface_wanted(i->ifa_name))
                addr_add(out, naddrs, i->ifa_addr);
    freeifaddrs(list);
    return FSDP_OK;
}

static int bind_family(int *out, int family, int type, int32_t *port)
{
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    } addr = {.sa.sa_family = (sa_family_t)family};
    socklen_t len = family == AF_INET ? sizeof addr.in : sizeof addr.in6;
    int off = 0, fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno;
    if (family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, &addr.sa, len) || getsockname(fd, &addr.sa, &len)) {
        int errnum = errno;
        close(fd);
        return errnum;
    }
    *port = ntohs(family == AF_INET ? addr.in.sin_port : addr.in6.sin6_port);
    *out = fd;
    return 0;
}

int comm_bind_any(int *out, int *family, int type, int32_t *port)
{
    *family = AF_INET6;
    int errnum = bind_family(out, *family, type, port);
    if (errnum) {
        *family = AF_INET;
        errnum = bind_family(out, *family, type, port);
    }
    return errnum;
}

uint64_t comm_machine_id(void)
{
    char text[128] = "";
    struct stat ns = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, text, sizeof text) : -1;

    if (fd >= 0)
        close(fd);
    if (len <= 0) {
        gethostname(text, sizeof text - 1);
        len = (ssize_t)strlen(text);
    }
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, text, (size_t)len);
    if (stat("/proc/self/ns/net", &ns) == 0)
        hash = fsdp_hash(hash, &ns.st_ino, sizeof ns.st_ino);
    return hash;
}

int comm_agree_on_cause(struct fsdp_oob *oob, int status, struct fsdp_err *err)
{
    int32_t mine = status;
    bool cause = false;
    int32_t *all = fsdp_alloc((size_t)oob->size, sizeof *all, "comm status", err);

    if (!all)
        return FSDP_ENOMEM;
    int rc = oob->allgather(oob, &mine, sizeof mine, all, err);
    for (int r = 0; r < oob->size && rc == FSDP_OK; r++)
        cause |= all[r] != FSDP_OK && all[r] != FSDP_ETIMEDOUT;
    fsdp_free(all);
    if (rc)
        return rc;
    return fsdp_oob_agree(oob, cause && status == FSDP_ETIMEDOUT ? FSDP_OK : status, err);
}
