/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "fsdp/base.h"

double fsdp_time_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

uint64_t fsdp_hash(uint64_t seed, const void *data, size_t nbytes)
{
    const unsigned char *bytes = data;
    uint64_t hash = seed;
    for (size_t i = 0; i < nbytes; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

bool fsdp_glob_match(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

const char *fsdp_nbytes_text(char out[FSDP_NBYTES_TEXT], uint64_t nbytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    const int last = sizeof units / sizeof units[0] - 1;
    double value = (double)nbytes;
    int unit = 0;

    for (; value >= 1000 && unit < last; unit++)
        value /= 1024;
    snprintf(out, FSDP_NBYTES_TEXT, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return out;
}

const char *fsdp_count_text(char out[FSDP_COUNT_TEXT], uint64_t count)
{
    char digits[FSDP_COUNT_TEXT];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, count);
    char *to = out;

    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = 0;
    return out;
}

const char *fsdp_rate_text(char out[FSDP_COUNT_TEXT], double rate)
{
    if (rate >= 99.5 && rate < 1e18)
        return fsdp_count_text(out, (uint64_t)(rate + 0.5));
    snprintf(out, FSDP_COUNT_TEXT, "%.3g", rate);
    return out;
}

void fsdp_boot_id(char out[FSDP_BOOT_ID_NBYTES])
{
    FILE *from = fopen("/proc/sys/kernel/random/boot_id", "re");

    out[0] = 0;
    if (!from)
        return;
    if (!fgets(out, FSDP_BOOT_ID_NBYTES, from))
        out[0] = 0;
    fclose(from);
    out[strcspn(out, "\n")] = 0;
}

int fsdp_compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
