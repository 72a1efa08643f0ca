/* SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdlib.h>
#include <time.h>

#include "chat.h"
#include "text/chat/builtin/functions.h"

/* YYYY-MM-DD, perhaps with Thh:mm:ss. */
static bool parse_date(struct tm *out, const char *date)
{
    int n = 0, time = 0;

    if (sscanf(date, "%4d-%2d-%2d%n", &out->tm_year, &out->tm_mon, &out->tm_mday, &n) < 3)
        return false;
    if (date[n] &&
        (sscanf(date + n, "T%2d:%2d:%2d%n", &out->tm_hour, &out->tm_min, &out->tm_sec, &time) < 3 ||
         date[n + time]))
        return false;
    out->tm_year -= 1900;
    out->tm_mon--;
    if (out->tm_mon < 0 || out->tm_mon > 11 || out->tm_mday < 1 || out->tm_mday > 31)
        return false;
    const int mday = out->tm_mday;
    timegm(out); /* the days of the week and of the year */
    return out->tm_mday == mday;
}

bool chat_date_is_valid(const char *date)
{
    struct tm tm = {0};
    return parse_date(&tm, date);
}

static int find_time(struct chat_run *r, struct tm *out)
{
    const time_t now = time(NULL);

    memset(out, 0, sizeof *out);
    if (!r->date) {
        localtime_r(&now, out);
        return FSDP_OK;
    }
    if (!parse_date(out, r->date))
        return chat_fail(r, "'%.40s' is no date, such as 2026-01-31", r->date);
    return FSDP_OK;
}

/* The format with what a datetime without a zone gives for %f, %z and %Z. */
static int replace_fields(struct chat_run *r, struct chat_buf *b, const struct chat_str *format)
{
    for (size_t i = 0; i < format->nbytes; i++) {
        const char *at = &format->at[i];
        const char next = i + 1 < format->nbytes ? at[1] : 0;
        if (*at != '%' || !next) {
            FSDP_TRY(chat_buf_add(r, b, at, 1));
            continue;
        }
        if (next == 'f')
            FSDP_TRY(chat_buf_puts(r, b, "000000"));
        else if (next != 'z' && next != 'Z')
            FSDP_TRY(chat_buf_add(r, b, at, 2));
        i++;
    }
    return chat_buf_add(r, b, "", 1);
}

int chat_strftime(struct chat_run *r, struct chat_val *out, const struct chat_str *format)
{
    enum { MAX_FORMAT = 1000, MAX_TEXT = 16000 };
    struct chat_buf b = {0};
    struct tm when;
    char *text;
    size_t nbytes;
    locale_t plain;

    FSDP_TRY(find_time(r, &when));
    if (format->nbytes > MAX_FORMAT || memchr(format->at, 0, format->nbytes))
        return chat_fail(r, "the format of a date is longer than %d bytes", MAX_FORMAT);
    FSDP_TRY(replace_fields(r, &b, format));
    FSDP_TRY(chat_new_bytes(r, &text, MAX_TEXT));
    if (!(plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)))
        return chat_fail(r, "the C locale is not available");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    nbytes = strftime_l(text, MAX_TEXT, b.at, &when, plain);
#pragma GCC diagnostic pop
    freelocale(plain);
    return chat_str_keep(r, out, text, nbytes);
}
