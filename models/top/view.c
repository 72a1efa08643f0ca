/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "terminal.h"
#include "view.h"

enum { FIND_EVERY = 5, HEAD_LINES = 2, FOOT_LINES = 2 };

struct view {
    const struct top_view_opts *opts;
    struct top_jobs jobs;
    enum top_sort sort;
    int selected, first; /* first: on the screen */
    bool is_detail;
    int columns, lines;
};

double top_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The selection stays on its run, wherever that is sorted to. */
static void sort_and_select(struct view *v, const char *path)
{
    top_sort(&v->jobs, v->sort);
    for (int i = 0; path && i < v->jobs.njobs; i++)
        if (!strcmp(v->jobs.job[i].path, path))
            v->selected = i;
    if (v->selected >= v->jobs.njobs)
        v->selected = v->jobs.njobs ? v->jobs.njobs - 1 : 0;
}

static char *selected_path(const struct view *v)
{
    return v->selected < v->jobs.njobs ? fsdp_strdup(v->jobs.job[v->selected].path, NULL) : NULL;
}

/* A folder that cannot be read for a while is no reason to end. */
static void look_at_runs(struct view *v, bool find)
{
    char *path = selected_path(v);
    struct top_jobs found;

    if (find && top_find(&found, v->opts->nfolders, v->opts->folders, top_now(), NULL) == FSDP_OK) {
        top_jobs_free(&v->jobs);
        v->jobs = found;
    } else {
        top_refresh(&v->jobs, top_now());
    }
    sort_and_select(v, path);
    fsdp_free(path);
}

/* ---- the screen ------------------------------------------------------------------------------ */

/* The folder loses its beginning, rather than the numbers of runs their end. */
static void draw_head(FILE *to, const struct top_style *style, const struct view *v)
{
    const int room = style->columns - (int)sizeof "  00:00:00" + 1;
    const char *folder = v->opts->folders[0], *cut = "";
    char summary[160], text[800], clock[16] = "";
    const time_t now = (time_t)style->now;
    struct tm tm;

    if (localtime_r(&now, &tm))
        strftime(clock, sizeof clock, "%H:%M:%S", &tm);
    top_show_summary(summary, sizeof summary, &v->jobs);
    const int left = room - (int)sizeof "fsdp-top    " - (int)strlen(summary);
    const int most = left > 12 ? left : 12, len = (int)strlen(folder);
    if (len > most) {
        folder += len - most + 1;
        cut = style->utf8 ? "…" : "~";
        while (((unsigned char)*folder & 0xc0) == 0x80)
            folder++;
    }
    snprintf(text, sizeof text, "fsdp-top  %s%s  %s", cut, folder, summary);
    top_ink(to, style, TOP_BOLD);
    top_put(to, style, text, room, true, false);
    top_plain(to, style);
    fprintf(to, "  %s\n", clock);
    top_cut_text(text, sizeof text, &v->jobs);
    if (!text[0])
        top_unread_text(text, sizeof text, &v->jobs);
    top_ink(to, style, TOP_YELLOW);
    top_put(to, style, text, style->columns, false, false);
    top_plain(to, style);
    fputc('\n', to);
}

static void draw_foot(FILE *to, const struct top_style *style, const struct view *v)
{
    char text[160];

    snprintf(text, sizeof text,
             v->is_detail
                 ? "q quit   Esc back   up/down another job"
                 : "q quit   up/down select   Enter detail   s sort (by %s)   r look again",
             top_sort_words[v->sort]);
    top_ink(to, style, TOP_DIM);
    top_put(to, style, text, style->columns, false, false);
    top_plain(to, style);
}

/* As few runs as possible are scrolled away, so that the selected one is seen. */
static void scroll(struct view *v, int room)
{
    int nlines = 1; /* the titles */

    if (v->first > v->selected)
        v->first = v->selected;
    for (int i = v->first; i <= v->selected && i < v->jobs.njobs; i++)
        nlines += top_show_nlines(&v->jobs.job[i]);
    while (nlines > room && v->first < v->selected)
        nlines -= top_show_nlines(&v->jobs.job[v->first++]);
}

/* Its lines end above the last line of the screen, which the keys have. */
static char *make_body(struct view *v, const struct top_style *style)
{
    const int room = v->lines - HEAD_LINES - FOOT_LINES;
    size_t nbytes;
    char *text = NULL;
    FILE *to = open_memstream(&text, &nbytes);

    if (!to)
        return NULL;
    draw_head(to, style, v);
    if (v->is_detail && v->selected < v->jobs.njobs) {
        top_show_detail(to, style, &v->jobs.job[v->selected]);
    } else if (v->jobs.njobs) {
        scroll(v, room);
        top_show_table(to, style, &v->jobs, v->first, v->selected, room);
    } else {
        fputs("No runs are here yet: fsdp-launch writes status.json into checkpoint.path.\n", to);
    }
    fclose(to);
    return text;
}

static bool draw_screen(struct view *v)
{
    struct top_style style = {.color = v->opts->color, .utf8 = v->opts->utf8, .now = top_now()};
    size_t nbytes;
    char *body, *text = NULL;

    terminal_size(&v->columns, &v->lines);
    style.columns = v->columns;
    body = make_body(v, &style);
    FILE *to = body ? open_memstream(&text, &nbytes) : NULL;
    if (!to) {
        free(body);
        return true; /* without memory this frame is left out */
    }
    const char *at = body;
    for (int i = 0; i < v->lines - 1; i++) {
        const size_t len = strcspn(at, "\n");
        fprintf(to, "%.*s\n", (int)len, at);
        at += len + (at[len] == '\n');
    }
    draw_foot(to, &style, v);
    fclose(to);
    const bool good = terminal_draw(text, v->lines);
    free(text);
    free(body);
    return good;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void move_to(struct view *v, int selected)
{
    const int last = v->jobs.njobs - 1;
    v->selected = selected > last ? last : selected;
    v->selected = v->selected < 0 ? 0 : v->selected;
}

static void sort_next(struct view *v)
{
    char *path = selected_path(v);

    v->sort = (v->sort + 1) % TOP_NSORTS;
    sort_and_select(v, path);
    fsdp_free(path);
}

/* False: the view ends. */
static bool take_key(struct view *v, enum terminal_key key)
{
    const int page = v->lines / 2 > 1 ? v->lines / 2 : 1;

    switch (key) {
    case KEY_QUIT:
    case KEY_SIGNAL:
    case KEY_GONE:
        return false;
    case KEY_UP:
        move_to(v, v->selected - 1);
        break;
    case KEY_DOWN:
        move_to(v, v->selected + 1);
        break;
    case KEY_PAGE_UP:
        move_to(v, v->selected - page);
        break;
    case KEY_PAGE_DOWN:
        move_to(v, v->selected + page);
        break;
    case KEY_FIRST:
        move_to(v, 0);
        break;
    case KEY_LAST:
        move_to(v, v->jobs.njobs - 1);
        break;
    case KEY_ENTER:
        v->is_detail = v->jobs.njobs > 0;
        break;
    case KEY_BACK:
        v->is_detail = false;
        break;
    case KEY_SORT:
        sort_next(v);
        break;
    case KEY_AGAIN:
        look_at_runs(v, true);
        break;
    case KEY_NONE:
    case KEY_REDRAW:
        break;
    }
    return true;
}

int top_view(const struct top_view_opts *opts, int *ended_by, struct fsdp_err *err)
{
    struct view v = {.opts = opts, .sort = opts->sort};
    bool good = true;

    FSDP_TRY(top_find(&v.jobs, opts->nfolders, opts->folders, top_now(), err));
    sort_and_select(&v, NULL);
    int rc = terminal_open(err);
    for (int round = 1; rc == FSDP_OK && good; round++) {
        const double next = fsdp_time_now() + opts->interval_s;
        double left = opts->interval_s;
        good = draw_screen(&v);
        while (good && (left = next - fsdp_time_now()) > 0) {
            const enum terminal_key key = terminal_key(left);
            good = take_key(&v, key) && (key == KEY_NONE || draw_screen(&v));
        }
        if (good)
            look_at_runs(&v, round % FIND_EVERY == 0);
    }
    terminal_close();
    top_jobs_free(&v.jobs);
    *ended_by = terminal_signal();
    return rc;
}
