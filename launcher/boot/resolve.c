/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "resolve.h"

static bool is_loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

void boot_contact_add(struct boot_contact *to, const char *addr)
{
    for (int i = 0; i < to->naddrs; i++)
        if (strcmp(to->addr[i], addr) == 0)
            return;
    if (to->naddrs < BOOT_MAX_ADDRS && strlen(addr) < BOOT_ADDR_NBYTES)
        snprintf(to->addr[to->naddrs++], BOOT_ADDR_NBYTES, "%s", addr);
}

bool boot_resolve(struct boot_contact *to, const char *host, bool loopback)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    char text[INET6_ADDRSTRLEN];
    int before = to->naddrs;

    if (getaddrinfo(host, NULL, &hints, &all))
        return false;
    for (struct addrinfo *a = all; a; a = a->ai_next)
        if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) ==
                0 &&
            (loopback || !is_loopback(text)))
            boot_contact_add(to, text);
    freeaddrinfo(all);
    return to->naddrs > before;
}

bool boot_host_is_loopback(const char *host)
{
    return is_loopback(host) || strcmp(host, "localhost") == 0;
}

static bool contact_has(const struct boot_contact *at, const char *addr)
{
    for (int i = 0; i < at->naddrs; i++)
        if (is_loopback(at->addr[i]) || strcmp(at->addr[i], addr) == 0)
            return true;
    return false;
}

bool boot_contact_is_here(const struct boot_contact *at)
{
    struct ifaddrs *all = NULL;
    char text[INET6_ADDRSTRLEN];
    bool here = false;

    if (getifaddrs(&all))
        return true; /* who cannot know must not refuse */
    for (const struct ifaddrs *ifa = all; ifa && !here; ifa = ifa->ifa_next) {
        const int family = ifa->ifa_addr ? ifa->ifa_addr->sa_family : AF_UNSPEC;
        const socklen_t len =
            family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        if ((family == AF_INET || family == AF_INET6) &&
            getnameinfo(ifa->ifa_addr, len, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0)
            here = contact_has(at, text);
    }
    freeifaddrs(all);
    return here;
}
