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

/* Three digits, never with an exponent: 999.6 is "1000". */
static void three_digits(char out[ANSWER_TEXT_NBYTES], double value, const char *unit)
{
    const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
    snprintf(out, ANSWER_TEXT_NBYTES, "%.*f%s", decimals, value, unit);
}

const char *answer_number(char out[ANSWER_TEXT_NBYTES], double value)
{
    if (value >= 99.95)
        return answer_whole(out, value);
    three_digits(out, value, "");
    return out;
}

const char *answer_count(char out[ANSWER_TEXT_NBYTES], double value)
{
    static const struct {
        double from;
        const char *letter;
    } scales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};

    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (value >= 0.9995 * scales[i].from || scales[i].from <= 1) {
            snprintf(out, ANSWER_TEXT_NBYTES, value < 999.5 * scales[i].from ? "%.3g%s" : "%.0f%s",
                     value / scales[i].from, scales[i].letter);
            break;
        }
    return out;
}

const char *answer_seconds(char out[ANSWER_TEXT_NBYTES], double seconds)
{
    if (seconds >= 0.9995)
        three_digits(out, seconds, " s");
    else if (seconds >= 0.9995e-3)
        three_digits(out, seconds * 1e3, " ms");
    else
        three_digits(out, seconds * 1e6, " us");
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
