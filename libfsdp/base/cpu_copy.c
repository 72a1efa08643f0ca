/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "fsdp/sys/cpu.h"

enum { LINE = 64, GRAIN = 1 << 20 };

struct copying {
    char *dst;
    const char *src;
};

#ifdef __SSE2__
/* dst is aligned to a line, nbytes a multiple of it. */
static void copy_lines(char *dst, const char *src, size_t nbytes)
{
    for (size_t at = 0; at < nbytes; at += LINE) {
        __m128i part[LINE / sizeof(__m128i)];
        memcpy(part, src + at, LINE);
        for (size_t i = 0; i < LINE / sizeof *part; i++)
            _mm_stream_si128((__m128i *)(void *)(dst + at) + i, part[i]);
    }
    _mm_sfence(); /* before whoever is told that the bytes are there */
}
#elif defined(__aarch64__)
/* Such stores keep the order of others: what tells of them later needs no more than it has. */
static void copy_lines(char *dst, const char *src, size_t nbytes)
{
    for (size_t at = 0; at < nbytes; at += LINE) {
        uint8x16_t part[LINE / sizeof(uint8x16_t)];
        memcpy(part, src + at, LINE);
        __asm__ volatile("stnp %q0, %q1, [%4]\n\tstnp %q2, %q3, [%4, #32]"
                         :
                         : "w"(part[0]), "w"(part[1]), "w"(part[2]), "w"(part[3]), "r"(dst + at)
                         : "memory");
    }
}
#else
static void copy_lines(char *dst, const char *src, size_t nbytes)
{
    memcpy(dst, src, nbytes);
}
#endif

static void copy_some(void *arg, int worker, size_t from, size_t to)
{
    const struct copying *c = arg;
    (void)worker;
    copy_lines(c->dst + from, c->src + from, to - from);
}

void fsdp_cpu_copy_past(void *dst, const void *src, size_t nbytes)
{
    struct copying c = {dst, src};
    size_t head = (LINE - (uintptr_t)dst % LINE) % LINE, whole;

    if (nbytes < head + LINE) {
        memcpy(dst, src, nbytes);
        return;
    }
    memcpy(c.dst, c.src, head);
    c.dst += head;
    c.src += head;
    nbytes -= head;
    whole = nbytes - nbytes % LINE;
    fsdp_cpu_for(whole, GRAIN, copy_some, &c);
    memcpy(c.dst + whole, c.src + whole, nbytes - whole);
}
