/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#include "tap.h"

static int ntests, nfailed;

bool tap_ok(bool cond, const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    printf("%s %d - ", cond ? "ok" : "not ok", ++ntests);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    if (!cond) {
        nfailed++;
        printf(" (%s:%d)", file, line);
    }
    putchar('\n');
    fflush(stdout);
    return cond;
}

void tap_skip(const char *fmt, ...)
{
    va_list ap;
    printf("ok %d # SKIP ", ++ntests);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

bool tap_emulated(void)
{
    return getenv("TEST_EMULATOR") || getenv("QEMU_LD_PREFIX");
}

void tap_limit_cpu(int seconds)
{
    if (setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = seconds}, NULL)) {
        perror("setitimer");
        exit(1);
    }
}

void diag(const char *fmt, ...)
{
    va_list ap;
    printf("# ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

int tap_done(void)
{
    printf("1..%d\n", ntests);
    return ntests > 0 && nfailed == 0 ? 0 : 1;
}
