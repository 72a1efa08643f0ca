/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

const char *answer_whole(char out[ANSWER_TEXT_NBYTES], double value)
{
    char digits[ANSWER_TEXT_NBYTES];
    const int len = snprintf(digits, sizeof digits, "%.0f", fabs(value) < 1e18 ? value : 1e18);
    size_t at = 0;

    for (int i = 0; i < len && at + 2 < ANSWER_TEXT_NBYTES; i++) {
        if (i && (len - i) % 3 == 0 && digits[i - 1] != '-')
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

const char *answer_count(char out[ANSWER_TEXT_NBYTES], double value)
{
    static const struct {
        double from;
        const char *letter;
    } scales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}};

    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (value >= scales[i].from) {
            snprintf(out, ANSWER_TEXT_NBYTES, "%.3g%s", value / scales[i].from, scales[i].letter);
            return out;
        }
    snprintf(out, ANSWER_TEXT_NBYTES, "%.3g", value);
    return out;
}

const char *answer_seconds(char out[ANSWER_TEXT_NBYTES], double seconds)
{
    if (seconds >= 100)
        snprintf(out, ANSWER_TEXT_NBYTES, "%.0f s", seconds);
    else if (seconds >= 1)
        snprintf(out, ANSWER_TEXT_NBYTES, "%.3g s", seconds);
    else if (seconds >= 1e-3)
        snprintf(out, ANSWER_TEXT_NBYTES, "%.3g ms", seconds * 1e3);
    else
        snprintf(out, ANSWER_TEXT_NBYTES, "%.3g us", seconds * 1e6);
    return out;
}

const char *answer_long(char out[ANSWER_TEXT_NBYTES], double seconds)
{
    static const struct {
        double from, unit;
        const char *name;
    } scales[] = {
        {2 * 365.25 * 86400, 365.25 * 86400, "years"},
        {3 * 86400, 86400, "days"},
        {2 * 3600, 3600, "h"},
        {120, 60, "min"},
    };

    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (seconds >= scales[i].from) {
            const double value = seconds / scales[i].unit;
            snprintf(out, ANSWER_TEXT_NBYTES, value < 10 ? "%.1f %s" : "%.0f %s", value,
                     scales[i].name);
            return out;
        }
    return answer_seconds(out, seconds);
}
