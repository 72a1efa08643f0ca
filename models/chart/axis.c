/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "axis.h"

/* Beyond, the difference of two values may not be one. */
static const double most_value = 1e300;

static double clamp_number(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

struct axis axis_make(double lo, double hi, double pad, bool is_log, enum chart_unit unit)
{
    struct axis axis = {lo, hi, is_log, unit};

    if (!(lo <= hi)) {
        axis.lo = is_log ? 1 : 0;
        axis.hi = is_log ? 10 : 1;
        return axis;
    }
    if (is_log) {
        const double span = lo < hi ? pow(hi / lo, pad) : 1.5;
        axis.lo = fmax(lo / span, 1 / most_value);
        axis.hi = fmin(hi * span, most_value);
    } else {
        /* Less than 12 digits apart is one value: ticks could not tell them apart. */
        const double least = 1e-12 * fmax(fabs(lo), fabs(hi));
        const double margin = hi - lo > least ? (hi - lo) * pad
                              : lo == 0       ? 0.5
                              : unit          ? 0.5
                                              : 0.05 * fabs(lo);
        axis.lo = clamp_number(lo - margin, -most_value, most_value);
        axis.hi = clamp_number(hi + margin, -most_value, most_value);
    }
    return axis;
}

double axis_place(const struct axis *axis, double value)
{
    if (!isfinite(value) || (axis->is_log && value <= 0))
        return NAN;
    const double at = clamp_number(value, axis->is_log ? 1 / most_value : -most_value, most_value);
    const double place = axis->is_log ? (log(at) - log(axis->lo)) / (log(axis->hi) - log(axis->lo))
                                      : (at - axis->lo) / (axis->hi - axis->lo);
    return clamp_number(place, -1, 2); /* what is outside stays so, and has a whole number */
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* A value of an axis whose ticks are `step` apart: 0.25, 1,200, 15k, 2e-05. */
static void number_text(char out[AXIS_TEXT_NBYTES], double value, double step, double largest)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};

    if (fabs(value) < step * 1e-6)
        value = 0;
    if (largest >= 1e15 || (largest < 1e-3 && largest > 0)) {
        snprintf(out, AXIS_TEXT_NBYTES, value == 0 ? "0" : "%.3g", value);
        return;
    }
    for (int i = 0; largest >= 1e4 && i < 4; i++)
        if (largest >= units[i].unit) {
            const double in_unit = step / units[i].unit;
            const int decimals = (int)clamp_number(ceil(-log10(in_unit) - 1e-9), 0, 6);
            snprintf(out, AXIS_TEXT_NBYTES, value == 0 ? "0" : "%.*f%s", decimals,
                     value / units[i].unit, units[i].name);
            if (value == 0)
                strcpy(out, "0");
            return;
        }
    const int decimals = (int)clamp_number(ceil(-log10(step) - 1e-9), 0, 9);
    snprintf(out, AXIS_TEXT_NBYTES, value == 0 ? "0" : "%.*f", decimals, value);
    const size_t len = strlen(out);
    if (!decimals && fabs(value) >= 1000 && len + 1 < AXIS_TEXT_NBYTES) { /* 1,200 */
        memmove(out + len - 2, out + len - 3, 4);
        out[len - 3] = ',';
    }
}

static void seconds_text(char out[AXIS_TEXT_NBYTES], double value, double step)
{
    const long s = lround(clamp_number(value, -1e15, 1e15));

    if (step < 1)
        number_text(out, value, step, 1);
    else if (step < 60)
        snprintf(out, AXIS_TEXT_NBYTES, s < 60 ? "%lds" : "%ldm%02ld", s < 60 ? s : s / 60, s % 60);
    else if (step < 3600)
        snprintf(out, AXIS_TEXT_NBYTES, s < 3600 ? "%ldm" : "%ldh%02ld",
                 s < 3600 ? s / 60 : s / 3600, s / 60 % 60);
    else if (step < 86400)
        snprintf(out, AXIS_TEXT_NBYTES, "%ldh", s / 3600);
    else
        snprintf(out, AXIS_TEXT_NBYTES, "%.0fd", value / 86400);
    if (s == 0 && step >= 1)
        strcpy(out, "0");
}

/* No clock shows more than a million years. */
static time_t time_of(double wall)
{
    return (time_t)clamp_number(wall, -3e13, 3e13);
}

/* The day is told where it changes, and at the first tick of an axis of several days. */
static void clock_text(char out[AXIS_TEXT_NBYTES], double value, double step, bool tell_day)
{
    const time_t at = time_of(value);
    struct tm tm;

    if (!localtime_r(&at, &tm))
        snprintf(out, AXIS_TEXT_NBYTES, "%.0f", value);
    else
        strftime(out, AXIS_TEXT_NBYTES,
                 step >= 86400 ? "%b %d"
                 : tell_day    ? "%b %d %H:%M"
                 : step < 60   ? "%H:%M:%S"
                               : "%H:%M",
                 &tm);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static double round_step(double rough)
{
    const double power = pow(10, floor(log10(rough))), share = rough / power;
    return power * (share <= 1.0001 ? 1 : share <= 2.0001 ? 2 : share <= 5.0001 ? 5 : 10);
}

static double round_seconds(double rough)
{
    static const double steps[] = {1,     2,     5,     10,    15,     30,    60,
                                   120,   300,   600,   900,   1800,   3600,  7200,
                                   10800, 21600, 43200, 86400, 172800, 604800};

    if (rough < 1)
        return round_step(rough);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] >= rough * 0.999)
            return steps[i];
    return round_step(rough / 86400) * 86400;
}

static struct axis_tick *add_tick(struct axis_ticks *out, double value, bool is_minor)
{
    struct axis_tick *tick = &out->tick[out->nticks];

    if (out->nticks == AXIS_MAX_TICKS)
        return NULL;
    out->nticks++;
    *tick = (struct axis_tick){.value = value, .is_minor = is_minor};
    return tick;
}

/* Seconds between local time and UTC, so that ticks of hours and days fall on local ones. */
static double clock_offset(double at)
{
    const time_t seconds = time_of(at);
    struct tm tm;

    return localtime_r(&seconds, &tm) ? (double)tm.tm_gmtoff : 0;
}

static void linear_ticks(struct axis_ticks *out, const struct axis *axis, int want)
{
    const double rough = (axis->hi - axis->lo) / (want < 1 ? 1 : want);
    const bool is_time = axis->unit == CHART_SECONDS || axis->unit == CHART_CLOCK;
    const double rounded = is_time ? round_seconds(rough) : round_step(rough);
    const double step = axis->unit == CHART_COUNT && rounded < 1 ? 1 : rounded;
    const double offset = axis->unit == CHART_CLOCK ? clock_offset(axis->lo) : 0;
    const double largest = fmax(fabs(axis->lo), fabs(axis->hi));
    double last_day = -1;

    for (double k = ceil((axis->lo + offset) / step - 1e-9);
         k * step - offset <= axis->hi + step * 1e-9; k++) {
        struct axis_tick *tick = add_tick(out, k * step - offset, false);
        if (!tick)
            return;
        if (!is_time)
            number_text(tick->text, tick->value, step, largest);
        else if (axis->unit == CHART_SECONDS)
            seconds_text(tick->text, tick->value, step);
        else {
            const double day = floor(k * step / 86400);
            const bool several =
                floor((axis->lo + offset) / 86400) != floor((axis->hi + offset) / 86400);
            clock_text(tick->text, tick->value, step, several && day != last_day);
            last_day = day;
        }
    }
}

static void power_text(char out[AXIS_TEXT_NBYTES], double value)
{
    if (value >= 1e15 || value < 1e-3)
        snprintf(out, AXIS_TEXT_NBYTES, "%.0e", value);
    else if (value < 1)
        snprintf(out, AXIS_TEXT_NBYTES, "%g", value);
    else
        number_text(out, value, 1e-9 + pow(10, floor(log10(value) + 1e-9)), value);
}

/* Texts at 1, at 1 2 5 or at each digit of a decade, whichever gives enough of them. */
static bool has_text(int digit, int detail)
{
    return digit == 1 || (detail == 1 && (digit == 2 || digit == 5)) || detail == 2;
}

static int count_texts(const struct axis *axis, int first, int last, int detail)
{
    int ntexts = 0;

    for (int e = first; e <= last; e++)
        for (int digit = 1; digit < 10; digit++) {
            const double value = digit * pow(10, e);
            ntexts += has_text(digit, detail) && value >= axis->lo * (1 - 1e-9) &&
                      value <= axis->hi * (1 + 1e-9);
        }
    return ntexts;
}

static void log_ticks(struct axis_ticks *out, const struct axis *axis, int want)
{
    const int first = (int)floor(log10(axis->lo)), last = (int)floor(log10(axis->hi) + 1e-9);
    int detail = 0, every = 1;

    while (detail < 2 && count_texts(axis, first, last, detail) < 3 &&
           count_texts(axis, first, last, detail + 1) <= want + 2)
        detail++;
    if (count_texts(axis, first, last, detail) < 2) { /* less than a digit apart */
        linear_ticks(out, axis, want);
        return;
    }
    while ((last - first) / every > want)
        every++;
    for (int e = first; e <= last; e++)
        for (int digit = 1; digit < (last - first > 6 ? 2 : 10); digit++) {
            const double value = digit * pow(10, e);
            if (value < axis->lo * (1 - 1e-9) || value > axis->hi * (1 + 1e-9))
                continue;
            const bool told = has_text(digit, detail) && (e % every + every) % every == 0;
            struct axis_tick *tick = add_tick(out, value, !told);
            if (tick && told)
                power_text(tick->text, value);
        }
}

/* "16,384" */
static void whole_text(char out[AXIS_TEXT_NBYTES], long long value)
{
    if (value < 1000)
        snprintf(out, AXIS_TEXT_NBYTES, "%lld", value);
    else if (value < 1000000)
        snprintf(out, AXIS_TEXT_NBYTES, "%lld,%03lld", value / 1000, value % 1000);
    else
        snprintf(out, AXIS_TEXT_NBYTES, "%lldM", value / 1000000);
}

/* At powers of two, at every second or third where they would be more than `want`. */
static void doubling_ticks(struct axis_ticks *out, const struct axis *axis, int want)
{
    const int first = (int)fmax(0, ceil(log2(axis->lo) - 1e-9));
    const int last = (int)fmin(60, floor(log2(axis->hi) + 1e-9));
    const int every = want > 0 ? (last - first) / want + 1 : 1;

    for (int e = first; e <= last; e++) {
        const bool told = (e - first) % every == 0;
        struct axis_tick *tick = add_tick(out, ldexp(1, e), !told);
        if (tick && told)
            whole_text(tick->text, 1LL << e);
    }
}

void axis_ticks(struct axis_ticks *out, const struct axis *axis, int want)
{
    out->nticks = 0;
    if (axis->is_log && axis->unit == CHART_DOUBLINGS)
        doubling_ticks(out, axis, want);
    else if (axis->is_log)
        log_ticks(out, axis, want);
    else
        linear_ticks(out, axis, want);
}
