/* SPDX-License-Identifier: Apache-2.0 */
/* Charts: ticks, decimation, SVG that is XML, what a terminal shows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if HAVE_CURL
#include <expat.h>
#endif

#include "chart/axis.h"
#include "chart/chart.h"
#include "chart/thin.h"
#include "tap.h"

/* The texts of the ticks, separated by blanks. */
static const char *ticks_of(double lo, double hi, bool is_log, enum chart_unit unit, int want)
{
    static char text[1024];
    struct axis axis = axis_make(lo, hi, 0, is_log, unit);
    struct axis_ticks ticks;

    text[0] = 0;
    axis_ticks(&ticks, &axis, want);
    for (int i = 0; i < ticks.nticks; i++)
        if (!ticks.tick[i].is_minor)
            sprintf(text + strlen(text), "%s%s", text[0] ? " " : "", ticks.tick[i].text);
    return text;
}

static void check_ticks(void)
{
    static const struct {
        double lo, hi;
        bool is_log;
        enum chart_unit unit;
        int want;
        const char *texts;
    } cases[] = {
        {0, 10, false, CHART_NUMBER, 5, "0 2 4 6 8 10"},
        {0, 1, false, CHART_NUMBER, 4, "0 0.5 1.0"},
        {1.32, 5.9, false, CHART_NUMBER, 5, "2 3 4 5"},
        {0, 1500, false, CHART_COUNT, 3, "0 500 1,000 1,500"},
        {0, 15000, false, CHART_NUMBER, 3, "0 5k 10k 15k"},
        {0, 2.5e6, false, CHART_NUMBER, 5, "0 0.5M 1.0M 1.5M 2.0M 2.5M"},
        {0, 4e-5, false, CHART_NUMBER, 4, "0 1e-05 2e-05 3e-05 4e-05"},
        {-2, 2, false, CHART_NUMBER, 4, "-2 -1 0 1 2"},
        {1, 3, false, CHART_COUNT, 8, "1 2 3"},
        {0, 7200, false, CHART_SECONDS, 4, "0 30m 1h00 1h30 2h00"},
        {0, 120, false, CHART_SECONDS, 4, "0 30s 1m00 1m30 2m00"},
        {0, 400000, false, CHART_SECONDS, 5, "0 1d 2d 3d 4d"},
        {0.1, 1000, true, CHART_NUMBER, 5, "0.1 1 10 100 1,000"},
        {1, 20, true, CHART_NUMBER, 5, "1 2 5 10 20"},
        {1e-8, 1e8, true, CHART_NUMBER, 4, "1e-08 1e-04 1 10k 100M"},
        {0, 50400, false, CHART_CLOCK, 3, "00:00 06:00 12:00"},
        {50400, 136800, false, CHART_CLOCK, 3, "Jan 02 00:00 12:00"},
        {8, 2048, true, CHART_DOUBLINGS, 20, "8 16 32 64 128 256 512 1,024 2,048"},
        {6, 20000, true, CHART_DOUBLINGS, 4, "8 64 512 4,096"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *texts =
            ticks_of(cases[i].lo, cases[i].hi, cases[i].is_log, cases[i].unit, cases[i].want);
        if (!ok(!strcmp(texts, cases[i].texts), "ticks of %g to %g: %s", cases[i].lo, cases[i].hi,
                cases[i].texts))
            diag("they are %s", texts);
    }
}

/* Whatever the range, there are two ticks at least, in order, inside, and not too many. */
static void check_any_range(void)
{
    int nbad = 0, nran = 0;

    srand(7);
    for (int i = 0; i < 20000; i++) {
        const bool is_log = rand() % 2;
        const double scale = pow(10, rand() % 24 - 12);
        const double lo = scale * (1 + rand() % 1000 / 1000.0);
        const double hi = lo * (1 + pow(10, rand() % 10 - 5));
        const enum chart_unit unit = (enum chart_unit)(is_log ? 0 : rand() % 3);
        const struct axis axis = unit == CHART_COUNT
                                     ? axis_make(floor(lo), ceil(hi), 0.05, is_log, unit)
                                     : axis_make(lo, hi, 0.05, is_log, unit);
        struct axis_ticks ticks;
        axis_ticks(&ticks, &axis, 3 + rand() % 10);
        int ntexts = 0;
        bool fine = true;
        for (int t = 0; t < ticks.nticks; t++) {
            const double place = axis_place(&axis, ticks.tick[t].value);
            fine = fine && place > -1e-6 && place < 1 + 1e-6 &&
                   (!t || ticks.tick[t].value > ticks.tick[t - 1].value) &&
                   strlen(ticks.tick[t].text) < 16;
            ntexts += !ticks.tick[t].is_minor;
        }
        fine = fine && ntexts <= 16 && (ntexts >= 1 || unit == CHART_COUNT);
        nran++;
        if (!fine && !nbad++)
            diag("%.17g to %.17g, %s, unit %d: %d ticks", lo, hi, is_log ? "log" : "linear", unit,
                 ntexts);
    }
    ok(!nbad && nran, "20,000 ranges have ticks in order, inside the axis, and not too many");
}

static void check_axis(void)
{
    struct axis axis = axis_make(INFINITY, -INFINITY, 0.05, false, CHART_NUMBER);
    ok(axis.lo < axis.hi, "a range of nothing has a width");
    axis = axis_make(3, 3, 0.05, false, CHART_NUMBER);
    ok(axis.lo < 3 && axis.hi > 3, "and so has one of one value");
    axis = axis_make(0, 0, 0.05, false, CHART_NUMBER);
    ok(axis.lo < 0 && axis.hi > 0, "which may be 0");
    axis = axis_make(2, 2, 0.05, true, CHART_NUMBER);
    ok(axis.lo < 2 && axis.hi > 2, "or logarithmic");
    axis = axis_make(1, 100, 0, true, CHART_NUMBER);
    ok(fabs(axis_place(&axis, 10) - 0.5) < 1e-12 && isnan(axis_place(&axis, 0)) &&
           isnan(axis_place(&axis, -1)) && isnan(axis_place(&axis, NAN)),
       "10 is the middle of 1 to 100; what is not positive has no place there");
}

/* ---- fewer points ---------------------------------------------------------------------------- */

/* Values whose difference is no number: they are placed at the ends. */
static void check_widest(void)
{
    const struct axis axis = axis_make(-1.7e308, 1.7e308, 0.05, false, CHART_NUMBER);
    const struct axis far = axis_make(0, 1, 0.05, false, CHART_NUMBER);

    ok(axis_place(&axis, -1.7e308) >= 0 && axis_place(&axis, 1.7e308) <= 1 &&
           axis_place(&axis, 0) == 0.5,
       "the widest axis");
    ok(axis_place(&far, 1e308) > 1 && axis_place(&far, 1e308) < 10 &&
           axis_place(&far, -1e308) < 0 && axis_place(&far, -1e308) > -10,
       "what is far outside is outside, and near enough to count lines to it");
}

static void check_thin(void)
{
    enum { N = 100000, COLUMNS = 100 };
    static double x[N], y[N];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct thin_points points;
    const struct chart_series series = {.x = x, .y = y, .npoints = N};

    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = sin(i / 5000.0);
    }
    y[31234] = 5;
    y[77777] = -5;
    const struct axis ax = axis_make(0, N - 1, 0, false, CHART_NUMBER),
                      ay = axis_make(-5, 5, 0, false, CHART_NUMBER);
    ok(!thin_series(&points, &series, &ax, &ay, COLUMNS, &err) &&
           points.npoints <= 4 * (COLUMNS + 1),
       "100,000 points become 4 a column at most (%zu)", points.npoints);
    bool high = false, low = false, ordered = true;
    for (size_t i = 0; i < points.npoints; i++) {
        high = high || points.xy[2 * i + 1] == 1;
        low = low || points.xy[2 * i + 1] == 0;
        ordered = ordered && (!i || points.xy[2 * i] > points.xy[2 * i - 2]);
    }
    ok(high && low, "the one highest and the one lowest are among them");
    ok(ordered, "in order");
    ok(points.xy[0] == 0 && points.xy[2 * points.npoints - 2] == 1, "with the first and the last");
    fsdp_free(points.xy);

    for (int i = 500; i < 90000; i++)
        y[i] = NAN;
    thin_series(&points, &series, &ax, &ay, COLUMNS, &err);
    int ngaps = 0;
    for (size_t i = 0; i < points.npoints; i++)
        ngaps += isnan(points.xy[2 * i]) != 0;
    ok(ngaps == 1, "values that are not numbers are one gap");
    fsdp_free(points.xy);
}

/* ---- SVG ------------------------------------------------------------------------------------- */

static char *svg_of(const struct chart *chart, struct chart_page page, int *rc)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&text, &nbytes);

    *rc = chart_svg(to, chart, &page, &err);
    fclose(to);
    if (*rc)
        diag("%s", err.text);
    return text;
}

static bool is_xml(const char *text)
{
#if HAVE_CURL
    XML_Parser parser = XML_ParserCreate(NULL);
    const bool fine = XML_Parse(parser, text, (int)strlen(text), 1) == XML_STATUS_OK;

    if (!fine)
        diag("not XML: %s", XML_ErrorString(XML_GetErrorCode(parser)));
    XML_ParserFree(parser);
    return fine;
#else
    return text != NULL;
#endif
}

static const double steps[] = {1, 2, 3, 4, 5}, losses[] = {5, 4, NAN, 2.5, 2};
static const struct chart_series series[] = {
    {.label = "a <b> & \"c\" \x01 \xff 'd' ü", .x = steps, .y = losses, .npoints = 5},
    {.label = "points", .colour = 7, .style = CHART_POINTS, .x = steps, .y = losses, .npoints = 5}};
static const struct chart_level level = {2.2, "goal <1>"};
static const struct chart_panel panels[] = {
    {.title = "loss & more", .series = series, .nseries = 2, .levels = &level, .nlevels = 1},
    {.title = "log", .log_y = true, .series = series, .nseries = 1}};
static const struct chart_marker marks[] = {{2, "killed", 0, false}, {4.9, "resumed", 1, true}};
static const struct chart chart = {.title = "T <&> ]]>",
                                   .x_title = "step",
                                   .panels = panels,
                                   .npanels = 2,
                                   .markers = marks,
                                   .nmarkers = 2};

static void check_svg(void)
{
    int rc;
    char *text = svg_of(&chart, (struct chart_page){0}, &rc);

    ok(!rc && is_xml(text), "an SVG is XML, whatever the labels hold");
    ok(strstr(text, "a &lt;b&gt; &amp; &quot;c&quot; ? ? 'd' ü") != NULL,
       "markup is escaped, what XML does not allow is a ?");
    ok(strstr(text, "prefers-color-scheme:dark") && !strstr(text, "href") && !strstr(text, "url("),
       "it has colours for dark devices, and refers to nothing outside");
    ok(strstr(text, ">killed<") && strstr(text, ">resumed<") && strstr(text, ">goal &lt;1&gt;<"),
       "markers and levels have their labels");
    ok(!strstr(text, "nan") && !strstr(text, "inf"), "gaps leave no number that is none");
    free(text);
    text = svg_of(&chart, (struct chart_page){.theme = CHART_LIGHT}, &rc);
    ok(!strstr(text, "prefers-color-scheme"), "a light one is always light");
    free(text);

    struct fsdp_err err = FSDP_ERR_INIT;
    struct chart none = chart;
    none.npanels = 0;
    ok(chart_svg(stderr, &none, &(struct chart_page){0}, &err) == FSDP_EINVAL,
       "a chart of nothing is refused: %s", err.text);
    ok(chart_svg(stderr, &chart, &(struct chart_page){.width = 10, .height = 10}, &err) ==
           FSDP_EINVAL,
       "and so is one without room: %s", err.text);
}

/* Memory that runs out anywhere is an error, and nothing leaks (the address sanitizer looks). */
static void check_memory(void)
{
    int nfailed = 0;

    for (uint64_t nth = 1; nth < 100; nth++) {
        struct fsdp_err err = FSDP_ERR_INIT;
        char *text = NULL;
        size_t nbytes;
        FILE *to = open_memstream(&text, &nbytes);
        const struct chart_page page = {0};
        const struct chart_terminal terminal = {.ncolumns = 80, .nlines = 24};
        fsdp_alloc_fail_at(nth);
        const int rc = chart_svg(to, &chart, &page, &err),
                  other = chart_text(to, &chart, &terminal, &err);
        fsdp_alloc_fail_at(0);
        fclose(to);
        free(text);
        nfailed += rc == FSDP_ENOMEM || other == FSDP_ENOMEM;
        if (!rc && !other)
            break;
    }
    ok(nfailed >= 4, "every allocation may fail (%d did)", nfailed);
}

/* ---- a terminal ------------------------------------------------------------------------------ */

static const char *text_of(struct chart_terminal terminal)
{
    static char text[65536];
    struct fsdp_err err = FSDP_ERR_INIT;
    FILE *to = fmemopen(text, sizeof text, "w");

    memset(text, 0, sizeof text);
    if (chart_text(to, &chart, &terminal, &err))
        snprintf(text, sizeof text, "%s", err.text);
    fclose(to);
    return text;
}

static void longest_and_count(const char *text, int *longest, int *nlines)
{
    int width = 0;

    *longest = *nlines = 0;
    for (; *text; text++) {
        if (*text == '\n') {
            ++*nlines;
            width = 0;
        } else if ((*text & 0xc0) != 0x80 && ++width > *longest)
            *longest = width;
    }
}

static void check_terminal(void)
{
    int width, nlines;

    for (int columns = 40; columns <= 240; columns += 40) {
        longest_and_count(text_of((struct chart_terminal){columns, columns / 4 + 8, 0, false}),
                          &width, &nlines);
        ok(width <= columns && width > columns - 12 && nlines == columns / 4 + 8,
           "%d columns: %d by %d", columns, width, nlines);
    }
    const char *text = text_of((struct chart_terminal){80, 24, CHART_NO_COLOUR, true});
    bool plain = true;
    for (const char *at = text; *at; at++)
        plain = plain && (*at == '\n' || (*at >= ' ' && *at < 0x7f));
    ok(plain && strstr(text, "killed"), "without UTF-8 and colours, it is ASCII");
    ok(strstr(text_of((struct chart_terminal){80, 24, CHART_256_COLOURS, false}),
              "\033[38;5;33m") != NULL,
       "with colours, there are some");
    ok(strstr(text_of((struct chart_terminal){10, 24, 0, false}), "takes 30") != NULL,
       "a terminal that is too small is an error");
}

/* ---- bands, labels at ends ------------------------------------------------------------------- */

static int count_of(const char *text, const char *part)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

static void check_bands(void)
{
    static const double low[] = {4, 3, NAN, 2, 1}, high[] = {6, 5, NAN, 3, 40};
    static const double near[] = {5, 4, 3, 2.6, 2.05};
    static const struct chart_series lines[] = {
        {.label = "first", .x = steps, .y = losses, .npoints = 5},
        {.label = "second", .colour = 1, .x = steps, .y = near, .npoints = 5},
        {.label = "the band",
         .style = CHART_BAND,
         .x = steps,
         .y = low,
         .y_to = high,
         .npoints = 5}};
    static const struct chart_panel panel = {.series = lines, .nseries = 3};
    const struct chart with = {.panels = &panel, .npanels = 1, .end_labels = true};
    struct fsdp_err err = FSDP_ERR_INIT;
    double first, second;
    int rc;
    char *text = svg_of(&with, (struct chart_page){0}, &rc);

    ok(!rc && is_xml(text) && count_of(text, "fill-opacity=\"0.16\"") == 3,
       "a band with a gap is two areas, and one of the legend");
    ok(count_of(text, ">first<") == 1 && count_of(text, ">second<") == 1 &&
           count_of(text, ">the band<") == 1,
       "lines are labelled once, at their ends");
    ok(strstr(text, ">40<") != NULL, "the axis holds the band");
    ok(strstr(text, "fill-opacity") < strstr(text, "stroke-width=\"1.8\""),
       "which lies below lines");
    const char *at = strstr(text, ">first<"), *other = strstr(text, ">second<");
    while (*at != '<')
        at--;
    while (*other != '<')
        other--;
    ok(sscanf(strstr(at, " y="), " y=\"%lf", &first) == 1 &&
           sscanf(strstr(other, " y="), " y=\"%lf", &second) == 1 && fabs(first - second) > 12,
       "labels of lines that end together stand apart (%g, %g)", first, second);
    free(text);

    char *shown = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&shown, &nbytes);
    rc = chart_text(to, &with, &(struct chart_terminal){80, 24, 0, false}, &err);
    fclose(to);
    ok(!rc && strstr(shown, "second") && !strstr(shown, "the band"),
       "a terminal has a legend, and no band");
    free(shown);
}

/* ---- bars ------------------------------------------------------------------------------------ */

static const char *const bar_names[] = {"one <&>", "two"}, *const bar_notes[] = {"8 GiB", NULL};
static const struct chart_part parts[] = {{"a & b", 0}, {"unused", 1}, {"c", 2}, {"d", 3}};
static const double bar_values[] = {1, 0, 3, 4, 30, NAN, -2, 60};
static const struct chart_bars bars = {.names = bar_names,
                                       .notes = bar_notes,
                                       .nbars = 2,
                                       .parts = parts,
                                       .nparts = 4,
                                       .values = bar_values,
                                       .unit = "GiB",
                                       .limit = 10,
                                       .limit_label = "there is",
                                       .most = 20};
static const struct chart_panel bar_panels[] = {{.title = "memory", .bars = &bars},
                                                {.title = "again", .bars = &bars}};
static const struct chart bar_chart = {.title = "Bars", .panels = bar_panels, .npanels = 2};

static void check_bars(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc, width, height = 0;
    char *text = svg_of(&bar_chart, (struct chart_page){0}, &rc), *shown = NULL;
    size_t nbytes;

    ok(!rc && is_xml(text) && !strstr(text, "nan") && !strstr(text, "inf"), "bars are XML");
    ok(count_of(text, ">one &lt;&amp;&gt;<") == 2 && count_of(text, ">a &amp; b<") == 2 &&
           count_of(text, ">8 GiB<") == 2 && count_of(text, ">there is<") == 2,
       "each panel has names, parts, notes and limit");
    ok(!strstr(text, "unused"), "a part that no bar has is not in the legend");
    double far = 0;
    for (const char *at = text; (at = strstr(at, "<path class=\"f")); at++) {
        double x0, y0, x1;
        if (sscanf(strstr(at, " d=\""), " d=\"M%lf %lfL%lf", &x0, &y0, &x1) == 3)
            far = fmax(far, x1);
    }
    ok(far > 500 && far < 960, "a bar that is too long is cut (at %g)", far);
    sscanf(strstr(text, "height=\""), "height=\"%d", &height);
    free(text);
    FILE *to = open_memstream(&shown, &nbytes);
    ok(chart_svg(to, &bar_chart, &(struct chart_page){960, height - 1, CHART_AUTO, false}, &err) ==
           FSDP_EINVAL,
       "the height that it takes is the least: %s", err.text);
    fclose(to);
    free(shown);
    for (int columns = 60; columns <= 200; columns += 70) {
        to = open_memstream(&shown, &nbytes);
        rc = chart_text(to, &bar_chart,
                        &(struct chart_terminal){columns, 24, CHART_NO_COLOUR, true}, &err);
        fclose(to);
        int nlines;
        longest_and_count(shown, &width, &nlines);
        ok(!rc && width <= columns && count_of(shown, "AC") == 2 && count_of(shown, "CD") == 2 &&
               count_of(shown, "D 8 GiB") == 2 && count_of(shown, "AA>") == 2,
           "%d columns: letters for parts, and > where one is cut", columns);
        free(shown);
    }
    const struct chart_panel mixed[] = {bar_panels[0], panels[0], bar_panels[1]};
    for (int i = 0; i < 2; i++)
        ok(chart_svg(stderr, &(struct chart){.panels = mixed + i, .npanels = 2},
                     &(struct chart_page){0}, &err) == FSDP_EINVAL,
           "bars next to lines are refused: %s", err.text);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    check_ticks();
    check_any_range();
    check_axis();
    check_widest();
    check_thin();
    check_svg();
    check_memory();
    check_terminal();
    check_bands();
    check_bars();
    return tap_done();
}
