/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "show.h"
#include "train/report/report.h"

enum { CELL = 64 };

/* ---- text ------------------------------------------------------------------------------------ */

void top_ink(FILE *to, const struct top_style *style, enum top_ink ink)
{
    static const char *const codes[] = {
        [TOP_BOLD] = "1",  [TOP_DIM] = "2",     [TOP_REVERSE] = "7", [TOP_GREEN] = "32",
        [TOP_CYAN] = "36", [TOP_YELLOW] = "33", [TOP_RED] = "31"};
    if (style->color)
        fprintf(to, "\033[%sm", codes[ink]);
}

void top_plain(FILE *to, const struct top_style *style)
{
    if (style->color)
        fputs("\033[0m", to);
}

/* Bytes of the character at text; one that is no UTF-8, or that this terminal cannot show, is 1. */
static int char_nbytes(const char *text, bool utf8)
{
    uint32_t code;
    const int nbytes =
        utf8 && (*text & 0x80) ? fsdp_utf8_decode(&code, text, text + strnlen(text, 4)) : 1;

    return nbytes ? nbytes : 1;
}

static int width_of(const char *text, bool utf8)
{
    int width = 0;

    for (; *text; text += char_nbytes(text, utf8))
        width++;
    return width;
}

/* Names and reasons are other people's texts: none of them commands the terminal, not even by a
 * control character of two bytes. */
static void put_char(FILE *to, const char *text, int nbytes)
{
    char clean[8];

    snprintf(clean, sizeof clean, "%.*s", nbytes, text);
    fputs(fsdp_text_clean(clean), to);
}

void top_put(FILE *to, const struct top_style *style, const char *text, int columns, bool is_padded,
             bool keep_end)
{
    const char *cut = style->utf8 ? "…" : "~";
    const int width = width_of(text, style->utf8);
    const bool is_cut = width > columns;
    int room = is_cut ? columns - 1 : width, skip = is_cut && keep_end ? width - room : 0;

    if (columns < 1)
        return;
    if (is_cut && keep_end)
        fputs(cut, to);
    for (int nbytes; *text && (skip > 0 || room > 0); text += nbytes) {
        nbytes = char_nbytes(text, style->utf8);
        if (skip > 0) {
            skip--;
            continue;
        }
        put_char(to, text, nbytes);
        room--;
    }
    if (is_cut && !keep_end)
        fputs(cut, to);
    for (int i = is_cut ? columns : width; is_padded && i < columns; i++)
        fputc(' ', to);
}

/* ---- cells ----------------------------------------------------------------------------------- */

static void cell_state(char out[CELL], const struct top_job *job)
{
    snprintf(out, CELL, "%s", top_state_word(job->state));
}

static void cell_step(char out[CELL], const struct top_job *job)
{
    if (job->status.steps > 0)
        snprintf(out, CELL, "%" PRId64 "/%" PRId64, job->status.step, job->status.steps);
    else
        snprintf(out, CELL, "%" PRId64, job->status.step);
}

static void cell_percent(char out[CELL], const struct top_job *job)
{
    if (job->status.steps > 0)
        snprintf(out, CELL, "%.0f%%", 100 * (double)job->status.step / (double)job->status.steps);
}

static void cell_loss(char out[CELL], const struct top_job *job)
{
    const double loss = job->status.loss;

    if (isfinite(loss))
        snprintf(out, CELL, fabs(loss) < 100 ? "%.4f" : "%.4g", loss);
}

static void cell_rate(char out[CELL], const struct top_job *job)
{
    if (job->status.tokens_per_s > 0)
        report_rate_short(out, job->status.tokens_per_s);
}

static void put_seconds(char out[CELL], double seconds)
{
    if (isfinite(seconds))
        report_left(out, seconds);
}

static void cell_left(char out[CELL], const struct top_job *job)
{
    put_seconds(out, job->left_s);
}

static void cell_saved(char out[CELL], const struct top_job *job)
{
    put_seconds(out, job->saved_s);
}

static void cell_seen(char out[CELL], const struct top_job *job)
{
    put_seconds(out, job->seen_s);
}

static void cell_ranks(char out[CELL], const struct top_job *job)
{
    const struct status *st = &job->status;

    if (st->nodes > 1)
        snprintf(out, CELL, "%d on %d", st->ranks, st->nodes);
    else if (st->ranks > 0)
        snprintf(out, CELL, "%d", st->ranks);
}

static void cell_slowest(char out[CELL], const struct top_job *job)
{
    if (job->status.slowest.rank >= 0)
        snprintf(out, CELL, "rank %d, %.3gs", job->status.slowest.rank,
                 job->status.slowest.seconds);
}

static void cell_host(char out[CELL], const struct top_job *job)
{
    snprintf(out, CELL, "%.*s", CELL - 1, job->status.process.host);
}

static void cell_process(char out[CELL], const struct top_job *job)
{
    if (job->status.job[0])
        snprintf(out, CELL, "job %.*s", CELL - 5, job->status.job);
    else if (job->status.process.pid > 0)
        snprintf(out, CELL, "%d", job->status.process.pid);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *title;
    void (*cell)(char out[CELL], const struct top_job *job);
    bool is_left;
    int from; /* columns of a terminal that has room for it */
} columns[] = {
    {"STATE", cell_state, true, 0},     {"STEP", cell_step, false, 0},
    {"DONE", cell_percent, false, 100}, {"LOSS", cell_loss, false, 0},
    {"TOK/S", cell_rate, false, 0},     {"LEFT", cell_left, false, 0},
    {"SAVED", cell_saved, false, 0},    {"RANKS", cell_ranks, false, 0},
    {"SEEN", cell_seen, false, 0},      {"SLOWEST", cell_slowest, true, 110},
    {"HOST", cell_host, true, 130},     {"PROCESS", cell_process, true, 130},
};
enum { NCOLUMNS = sizeof columns / sizeof columns[0], LEAST_NAME = 8, GAP = 2 };

struct layout {
    int name;            /* columns of the name */
    int width[NCOLUMNS]; /* 0: not shown */
    int last;            /* that is shown */
};

static struct layout lay_out(const struct top_style *style, const struct top_jobs *jobs)
{
    struct layout l = {.name = 3};
    int used = 0;

    for (int c = 0; c < NCOLUMNS; c++) {
        if (columns[c].from > style->columns)
            continue;
        l.width[c] = (int)strlen(columns[c].title);
        for (int i = 0; i < jobs->njobs; i++) {
            char text[CELL] = "";
            columns[c].cell(text, &jobs->job[i]);
            const int width = width_of(text, style->utf8);
            l.width[c] = width > l.width[c] ? width : l.width[c];
        }
        used += l.width[c] + GAP;
        l.last = c;
    }
    for (int i = 0; i < jobs->njobs; i++) {
        const int width = width_of(jobs->job[i].name, style->utf8);
        l.name = width > l.name ? width : l.name;
    }
    if (l.name > style->columns - used)
        l.name = style->columns - used > LEAST_NAME ? style->columns - used : LEAST_NAME;
    return l;
}

static enum top_ink ink_of(int state)
{
    if (top_state_is_bad(state))
        return TOP_RED;
    return state == STATUS_RUNNING || state == STATUS_STARTING ? TOP_GREEN
           : top_state_is_active(state)                        ? TOP_CYAN
           : state == STATUS_STOPPED                           ? TOP_YELLOW
                                                               : TOP_DIM;
}

static void put_cell(FILE *to, const struct top_style *style, const char *text, int width,
                     bool is_left, bool is_last)
{
    if (!is_left)
        fprintf(to, "%*s", width - width_of(text, style->utf8), "");
    top_put(to, style, text, width, is_left && !is_last, false);
}

/* job NULL: the titles. */
static void show_line(FILE *to, const struct top_style *style, const struct layout *l,
                      const struct top_job *job, bool is_selected)
{
    top_put(to, style, job ? job->name : "JOB", l->name, true, true);
    for (int c = 0; c < NCOLUMNS; c++) {
        char text[CELL] = "-";
        if (!l->width[c])
            continue;
        if (job)
            columns[c].cell(text, job);
        else
            snprintf(text, sizeof text, "%s", columns[c].title);
        fprintf(to, "%*s", GAP, "");
        const bool has_ink = job && columns[c].cell == cell_state && !is_selected;
        if (has_ink)
            top_ink(to, style, ink_of(job->state));
        put_cell(to, style, text, l->width[c], columns[c].is_left, c == l->last);
        if (has_ink)
            top_plain(to, style);
    }
}

int top_show_nlines(const struct top_job *job)
{
    return 1 + (job->note[0] != 0);
}

int top_show_table(FILE *to, const struct top_style *style, const struct top_jobs *jobs, int first,
                   int selected, int max_lines)
{
    const struct layout l = lay_out(style, jobs);
    int nlines = 1, i = first;

    top_ink(to, style, TOP_BOLD);
    show_line(to, style, &l, NULL, false);
    top_plain(to, style);
    fputc('\n', to);
    for (; i < jobs->njobs; i++) {
        const struct top_job *job = &jobs->job[i];
        nlines += top_show_nlines(job);
        if (max_lines && nlines > max_lines)
            break;
        if (i == selected)
            top_ink(to, style, TOP_REVERSE);
        show_line(to, style, &l, job, i == selected);
        if (i == selected)
            top_plain(to, style);
        fputc('\n', to);
        if (!job->note[0])
            continue;
        fputs("  ", to);
        top_ink(to, style, TOP_RED);
        top_put(to, style, job->note, style->columns - 2, false, false);
        top_plain(to, style);
        fputc('\n', to);
    }
    return i;
}

void top_show_summary(char *out, size_t out_nbytes, const struct top_jobs *jobs)
{
    int counts[TOP_NSTATES] = {0}, nshown = 0;
    size_t len;

    for (int i = 0; i < jobs->njobs; i++)
        counts[jobs->job[i].state]++;
    len = (size_t)snprintf(out, out_nbytes, "%d job%s", jobs->njobs, jobs->njobs == 1 ? "" : "s");
    /* What is bad comes first. */
    for (int k = 0; k < 2 * TOP_NSTATES && len < out_nbytes; k++) {
        const int state = k % TOP_NSTATES;
        if (counts[state] && top_state_is_bad(state) == (k < TOP_NSTATES))
            len += (size_t)snprintf(out + len, out_nbytes - len, "%s%d %s", nshown++ ? ", " : ": ",
                                    counts[state], top_state_word(state));
    }
}
