/* SPDX-License-Identifier: Apache-2.0 */
/* The page: one file without scripts or references to anything outside. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "chart/chart.h"
#include "curves/curves.h"
#include "curves/story.h"
#include "html.h"

enum { MAX_MEMORY_ROWS = 32, MAX_STARTS = 50 };

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1f2328;--dim:#656d76;--line:#dfe3e8;--paper:#fff;"
    "--card:#f6f8fa;--good:#1a7f37;--bad:#c8321f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa4af;--line:#30363d;"
    "--paper:#0d1117;--card:#161b22;--good:#4fcb8d;--bad:#ff7f6e}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1000px;padding:20px;background:var(--paper);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\n"
    "h1{font-size:1.5em;margin:0;overflow-wrap:anywhere}\n"
    "h2{font-size:1.1em;margin:1.8em 0 .5em;border-bottom:1px solid var(--line)}\n"
    ".dim,th{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;"
    "margin:16px 0}\n"
    ".tile{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:8px "
    "12px}\n"
    ".tile b{display:block;font-size:1.25em}\n"
    ".scroll{overflow-x:auto}.scroll td,.scroll th{white-space:nowrap}\n"
    "table{border-collapse:collapse;width:100%}\n"
    "th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--line);"
    "vertical-align:top;font-weight:400}\n"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".facts th{white-space:nowrap;width:1%}.facts td{overflow-wrap:anywhere}\n"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:12px;"
    "overflow-x:auto;font-size:13px;line-height:1.4}\n"
    "svg{max-width:100%;height:auto}.narrow{display:none}\n"
    "@media(max-width:640px){body{padding:12px}.wide{display:none}.narrow{display:block}}\n";

/* ---- texts ----------------------------------------------------------------------------------- */

static void put_text(FILE *to, const char *text)
{
    for (; *text; text++)
        if (*text == '&')
            fputs("&amp;", to);
        else if (*text == '<')
            fputs("&lt;", to);
        else if (*text == '>')
            fputs("&gt;", to);
        else if (*text == '"')
            fputs("&quot;", to);
        else if ((unsigned char)*text >= 0x20 || *text == '\n' || *text == '\t')
            fputc(*text, to);
        else
            fputc('?', to);
}

static void put_time(FILE *to, double wall)
{
    const time_t at = (time_t)wall;
    struct tm tm;
    char text[48];

    if (wall > 0 && localtime_r(&at, &tm) && strftime(text, sizeof text, "%F %T %Z", &tm))
        put_text(to, text);
}

static void put_seconds(FILE *to, double seconds)
{
    const int64_t s = seconds > 0 && seconds < 1e15 ? llround(seconds) : 0;

    if (s < 60)
        fprintf(to, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
    else if (s < 3600)
        fprintf(to, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else if (s < 86400)
        fprintf(to, "%" PRId64 " h %02" PRId64 " min", s / 3600, s / 60 % 60);
    else
        fprintf(to, "%" PRId64 " d %" PRId64 " h", s / 86400, s / 3600 % 24);
}

static void put_fact(FILE *to, const char *what, const char *fmt, ...) FSDP_PRINTF(3, 4);
static void put_fact(FILE *to, const char *what, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(to, "<tr><th>%s</th><td>", what);
    put_text(to, text);
    fputs("</td></tr>\n", to);
}

static void put_heading(FILE *to, const char *text)
{
    fprintf(to, "<h2>%s</h2>\n", text);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* The last part of the model's path. */
static const char *model_name(const struct html *html)
{
    const char *path = html->run->config->model.path, *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static int64_t step_now(const struct html *html)
{
    return html->last.step ? html->last.step : html->run->step;
}

static void put_state(FILE *to, const struct html *html)
{
    const int64_t steps = html->run->config->train.steps;

    if (!html->has_ended)
        fprintf(to, "<span class=\"good\">training</span>, step %" PRId64 " of %" PRId64,
                step_now(html), steps);
    else if (html->end == SINK_FAILED)
        fprintf(to, "<span class=\"bad\">failed</span> after step %" PRId64 " of %" PRId64,
                step_now(html), steps);
    else
        fprintf(to, "<span class=\"good\">%s</span> step %" PRId64 " of %" PRId64,
                html->end == SINK_DONE ? "finished" : "stopped, resumable", step_now(html), steps);
    if (html->has_ended && !html->last.step)
        fputs(", without a step in this start", to);
    fputs(" <span class=\"dim\">as of ", to);
    put_time(to, (double)time(NULL));
    fputs("</span>", to);
    if (html->has_ended && html->why && html->why[0]) {
        fputs("<br><span class=\"bad\">", to);
        put_text(to, html->why);
        fputs("</span>", to);
    }
}

static void put_tile(FILE *to, const char *what, const char *text)
{
    fprintf(to, "<div class=\"tile\"><span class=\"dim\">%s</span><b>%s</b></div>\n", what, text);
}

static void tile_loss(FILE *to, const char *what, double loss)
{
    char text[32];

    snprintf(text, sizeof text, "%.4f", loss);
    if (isfinite(loss))
        put_tile(to, what, text);
}

static void tile_left(FILE *to, const struct html *html)
{
    const struct metrics_row *last = &html->last;
    const int64_t left = html->run->config->train.steps - last->step;
    const int64_t done = last->step - html->run->step;

    if (html->has_ended || left <= 0 || done <= 0 || last->wall <= html->run->wall)
        return;
    fputs("<div class=\"tile\"><span class=\"dim\">time left</span><b>", to);
    put_seconds(to, (last->wall - html->run->wall) / (double)done * (double)left);
    fputs("</b></div>\n", to);
}

static void put_tiles(FILE *to, const struct html *html)
{
    const struct metrics_row *last = &html->last;
    char text[FSDP_COUNT_TEXT];

    if (!last->step)
        return;
    fputs("<div class=\"tiles\">\n", to);
    tile_loss(to, "loss", last->loss);
    tile_loss(to, "held-out loss", html->eval_loss);
    put_tile(to, "tokens/s", fsdp_rate_text(text, last->tokens_per_s));
    snprintf(text, sizeof text, "%.1f %%", 100 * last->mfu);
    if (last->mfu > 0)
        put_tile(to, "MFU", text);
    put_tile(to, "tokens", fsdp_count_text(text, (uint64_t)last->tokens));
    tile_left(to, html);
    fputs("</div>\n", to);
}

static void put_head(FILE *to, const struct html *html)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" HTML_MARK "\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
          to);
    put_text(to, model_name(html));
    fprintf(to, ": step %" PRId64 "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>",
            step_now(html), style);
    put_text(to, model_name(html));
    fputs("</h1>\n<p>", to);
    put_state(to, html);
    fputs("</p>\n", to);
    put_tiles(to, html);
}

/* ---- curves ---------------------------------------------------------------------------------- */

static int put_curves(FILE *to, const struct html *html, struct fsdp_err *err)
{
    static const char *const keys[] = {"loss", "tokens_per_s", "grad_norm", "lr"};
    static const struct chart_page wide = {960, 760, CHART_AUTO, true};
    static const struct chart_page narrow = {370, 720, CHART_AUTO, true};
    const struct curves_ask ask = {.keys = keys, .nkeys = 4, .skip_empty = true};
    struct curves *curves;

    put_heading(to, "Curves");
    if (html->steps.nrows < 1) {
        fputs(html->run->config->train.steps > 0
                  ? "<p class=\"dim\">No step yet.</p>\n"
                  : "<p class=\"dim\">No step: train.steps is 0.</p>\n",
              to);
        return FSDP_OK;
    }
    if (curves_create(&curves, &html->steps, 1, &ask, err)) {
        fputs("<p class=\"dim\">No step has a finite value.</p>\n", to);
        return FSDP_OK;
    }
    fputs("<div class=\"wide\">\n", to);
    int rc = chart_svg(to, curves_chart(curves), &wide, err);
    fputs("</div>\n<div class=\"narrow\">\n", to);
    if (!rc)
        rc = chart_svg(to, curves_chart(curves), &narrow, err);
    fputs("</div>\n", to);
    curves_destroy(curves);
    return rc;
}

/* ---- starts and faults ----------------------------------------------------------------------- */

static void put_start(FILE *to, const struct html *html, const struct story *story, int index)
{
    const struct story_attempt *attempt = &story->attempt[index];
    const bool is_last = index + 1 == story->nattempts;
    const size_t nlost = attempt->nrows - attempt->nkept;

    fprintf(to, "<tr><td class=\"n\">%d</td><td class=\"n\">", attempt->number);
    if (attempt->ranks)
        fprintf(to, "%d", attempt->ranks);
    fprintf(to, "</td><td class=\"n\">%.0f to %.0f</td><td>", attempt->row[0]->value[RUN_STEP],
            attempt->row[attempt->nrows - 1]->value[RUN_STEP]);
    put_time(to, attempt->row[0]->value[RUN_WALL]);
    fputs("</td><td>", to);
    if (!is_last && nlost)
        fprintf(to,
                "<span class=\"bad\">killed</span>; the steps after %.0f were lost and done again",
                story->restart[index].from ? story->restart[index].from->value[RUN_STEP] : 0);
    else if (!is_last)
        fputs("stopped after a save", to);
    else
        fputs(!html->has_ended            ? "running"
              : html->end == SINK_FAILED  ? "<span class=\"bad\">failed</span>"
              : html->end == SINK_STOPPED ? "stopped after a save"
                                          : "<span class=\"good\">finished</span>",
              to);
    fputs("</td></tr>\n", to);
}

static int put_faults(FILE *to, const struct html *html, struct fsdp_err *err)
{
    struct story story;

    put_heading(to, "Starts and faults");
    if (html->steps.nrows) {
        FSDP_TRY(story_make(&story, &html->steps, err));
        fputs("<div class=\"scroll\"><table>\n<tr><th class=\"n\">start</th><th "
              "class=\"n\">ranks</th><th class=\"n\">steps</th><th>first step "
              "at</th><th>ended</th></tr>\n",
              to);
        for (int a = story.nattempts > MAX_STARTS ? story.nattempts - MAX_STARTS : 0;
             a < story.nattempts; a++)
            put_start(to, html, &story, a);
        fputs("</table></div>\n", to);
        story_destroy(&story);
    }
    if (html->nskipped)
        fprintf(to,
                "<p>Steps skipped because gradients overflowed: <b class=\"bad\">%" PRIu64
                "</b>.</p>\n",
                html->nskipped);
    else
        fputs("<p class=\"dim\">No step was skipped.</p>\n", to);
    return FSDP_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void put_checkpoints(FILE *to, const struct html *html)
{
    const uint64_t n = html->nsaved, first = n > HTML_MAX_SAVED ? n - HTML_MAX_SAVED : 0;
    char size[FSDP_NBYTES_TEXT];

    put_heading(to, "Checkpoints");
    if (html->run->resumed && html->run->resumed[0]) {
        fputs("<p>This start resumed from <code>", to);
        put_text(to, html->run->resumed);
        fputs("</code>.</p>\n", to);
    }
    if (!n) {
        fputs("<p class=\"dim\">None was saved since this start.</p>\n", to);
        return;
    }
    fputs("<div class=\"scroll\"><table>\n<tr><th class=\"n\">step</th><th>saved at</th><th "
          "class=\"n\">size</th><th class=\"n\">took</th><th>where</th></tr>\n",
          to);
    for (uint64_t i = n; i-- > first;) {
        const struct html_saved *saved = &html->saved[i % HTML_MAX_SAVED];
        fprintf(to, "<tr><td class=\"n\">%" PRId64 "</td><td>", saved->step);
        put_time(to, saved->wall);
        fprintf(to, "</td><td class=\"n\">%s</td><td class=\"n\">",
                saved->nbytes ? fsdp_nbytes_text(size, saved->nbytes) : "");
        put_seconds(to, saved->seconds);
        fputs("</td><td>", to);
        put_text(to, saved->path);
        fputs(saved->staged ? " (staged)</td></tr>\n" : "</td></tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

/* ---- what runs where ------------------------------------------------------------------------- */

static void put_mesh(FILE *to, const struct html *html)
{
    const struct sink_run *run = html->run;
    const struct config *c = run->config;
    char word[32], other[32];

    put_heading(to, "Mesh");
    fputs("<table class=\"facts\">\n", to);
    put_fact(to, "ranks", "%d on %d node%s", run->ranks, run->nodes, run->nodes == 1 ? "" : "s");
    if (run->mesh)
        put_fact(to, "mesh", "%d x %d (replicate x shard)", run->mesh->replicate_size,
                 run->mesh->shard_size);
    put_fact(to, "strategy", "%s", config_word(word, sizeof word, c, "fsdp.sharding_strategy"));
    if (run->mesh && run->mesh->world)
        put_fact(to, "backend", "%s", fsdp_comm_backend(run->mesh->world));
    if (run->fsdp)
        put_fact(to, "units", "%d", fsdp_unit_count(run->fsdp));
    put_fact(to, "types", "parameters %s, gradients reduced in %s",
             config_word(word, sizeof word, c, "fsdp.param_dtype"),
             config_word(other, sizeof other, c, "fsdp.reduce_dtype"));
    fputs("</table>\n", to);
}

static void put_memory(FILE *to, const struct html *html)
{
    struct fsdp_memory_row rows[MAX_MEMORY_ROWS];
    char size[FSDP_NBYTES_TEXT];
    uint64_t total[3] = {0, 0, 0};

    if (!html->run->fsdp)
        return;
    const int nrows = fsdp_memory_plan(html->run->fsdp, rows, MAX_MEMORY_ROWS);
    put_heading(to, "Memory of a rank, as planned");
    fputs("<table>\n", to);
    for (int i = 0; i < nrows && i < MAX_MEMORY_ROWS; i++) {
        total[!rows[i].counts + rows[i].file] += rows[i].nbytes;
        fputs("<tr><td>", to);
        put_text(to, rows[i].what);
        fprintf(to, "%s</td><td class=\"n\">%s</td></tr>\n",
                !rows[i].counts && !rows[i].file ? " (host)" : "",
                fsdp_nbytes_text(size, rows[i].nbytes));
    }
    fprintf(to, "<tr><td><b>in all</b></td><td class=\"n\"><b>%s</b></td></tr>\n",
            fsdp_nbytes_text(size, total[0]));
    if (total[1])
        fprintf(to, "<tr><td><b>in host memory</b></td><td class=\"n\"><b>%s</b></td></tr>\n",
                fsdp_nbytes_text(size, total[1]));
    if (total[2])
        fprintf(to, "<tr><td><b>in a file</b></td><td class=\"n\"><b>%s</b></td></tr>\n",
                fsdp_nbytes_text(size, total[2]));
    fputs("</table>\n", to);
}

static void put_environment(FILE *to, const struct html *html)
{
    const struct html_host *host = &html->host;
    char size[FSDP_NBYTES_TEXT];

    put_heading(to, "Environment");
    fputs("<table class=\"facts\">\n", to);
    put_fact(to, "host of rank 0", "%s", html->run->host ? html->run->host : "not known");
    if (html->run->device)
        put_fact(to, "device", "%s", fsdp_device_name(html->run->device));
    put_fact(to, "processor", "%s, %d online", host->cpu[0] ? host->cpu : "not known", host->ncpus);
    if (host->memory_nbytes)
        put_fact(to, "memory", "%s", fsdp_nbytes_text(size, host->memory_nbytes));
    put_fact(to, "system", "%s, %s", host->system[0] ? host->system : "not known", host->kernel);
    put_fact(to, "build", "libfsdp %s, %s", fsdp_version(), fsdp_build_text());
    fputs("<tr><th>this start began</th><td>", to);
    put_time(to, html->run->wall);
    fputs("</td></tr>\n</table>\n", to);
}

static void put_configuration(FILE *to, const struct html *html)
{
    if (!html->run->settings)
        return;
    put_heading(to, "Configuration");
    fputs("<pre>", to);
    put_text(to, html->run->settings);
    fputs("</pre>\n", to);
}

int html_page(FILE *to, const struct html *html, struct fsdp_err *err)
{
    put_head(to, html);
    FSDP_TRY(put_curves(to, html, err));
    FSDP_TRY(put_faults(to, html, err));
    put_checkpoints(to, html);
    put_mesh(to, html);
    put_memory(to, html);
    put_environment(to, html);
    put_configuration(to, html);
    fputs("</body>\n</html>\n", to);
    return FSDP_OK;
}
