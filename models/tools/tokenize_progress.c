/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "interrupt.h"
#include "tokenize.h"

enum { COLUMNS = 79, REPORT_S = 10 };

void tokenize_progress_begin(struct tokenize_progress *p)
{
    *p = (struct tokenize_progress){.is_terminal = isatty(STDERR_FILENO)};
}

/* 1234567 as "1.23 M": a number for people, of at most 8 characters. */
static const char *short_number(char out[16], uint64_t n)
{
    static const char units[] = " kMGTPE";
    double value = (double)n;
    int unit = 0;

    for (; value >= 999.5; unit++)
        value /= 1000;
    if (unit)
        snprintf(out, 16, "%.*f %c", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value, units[unit]);
    else
        snprintf(out, 16, "%.0f", value);
    return out;
}

static void make_line(char *out, size_t nbytes, const struct encode_progress *now)
{
    const double done = (double)now->done, all = (double)now->nbytes;
    const double rate = now->seconds > 0 ? done / now->seconds : 0;
    char tokens[16], documents[16], share[8] = "", left[32] = "";

    if (all > 0)
        snprintf(share, sizeof share, "%3.0f%%  ", done < all ? 100 * done / all : 100);
    if (all > done && rate > 0) {
        const uint64_t s = (uint64_t)((all - done) / rate) + 1;
        snprintf(left, sizeof left, "  %" PRIu64 ":%02" PRIu64 ":%02" PRIu64 " left", s / 3600,
                 s / 60 % 60, s % 60);
    }
    snprintf(out, nbytes, "%s%.1f MB/s  %s documents  %s tokens%s", share, rate / 1e6,
             short_number(documents, now->ndocuments), short_number(tokens, now->ntokens), left);
}

int tokenize_progress_tell(void *progress, const struct encode_progress *now, struct fsdp_err *err)
{
    struct tokenize_progress *p = progress;
    char line[COLUMNS + 1];

    if (interrupt_came)
        return fsdp_err_set(err, FSDP_ECANCELED, "stopped by a signal");
    if (!p->is_terminal && now->seconds < p->told + REPORT_S)
        return FSDP_OK;
    p->told = now->seconds;
    make_line(line, sizeof line, now);
    if (p->is_terminal)
        fprintf(stderr, "\r%-*s", COLUMNS, line);
    else
        fprintf(stderr, "fsdp-tokenize: %s\n", line);
    p->is_shown = p->is_terminal;
    return FSDP_OK;
}

void tokenize_progress_end(struct tokenize_progress *p)
{
    if (p->is_shown)
        fprintf(stderr, "\r%*s\r", COLUMNS, "");
    p->is_shown = false;
}
