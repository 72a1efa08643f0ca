/* SPDX-License-Identifier: Apache-2.0 */
/* SVG 1.1 without references to anything outside. Colours are classes, which a media query sets for
 * light and dark devices. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "canvas.h"

/* Text as XML holds it: markup is escaped, and what XML does not allow becomes '?'. */
static void put_escaped(FILE *to, const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;

    while (text < end) {
        const int len = fsdp_utf8_decode(&code, text, end);
        if (len < 1 || code < 0x20 || code == 0x7f || code == 0xfffe || code == 0xffff)
            fputc('?', to);
        else if (code == '&')
            fputs("&amp;", to);
        else if (code == '<')
            fputs("&lt;", to);
        else if (code == '>')
            fputs("&gt;", to);
        else if (code == '"')
            fputs("&quot;", to);
        else
            fwrite(text, 1, (size_t)len, to);
        text += len < 1 ? 1 : len;
    }
}

static void put_pen(FILE *to, const struct canvas_pen *pen)
{
    fprintf(to, "class=\"l%d\"", canvas_ink(pen->ink));
    if (pen->width != 1)
        fprintf(to, " stroke-width=\"%g\"", pen->width);
    if (pen->opacity != 1)
        fprintf(to, " stroke-opacity=\"%g\"", pen->opacity);
    if (pen->dash)
        fputs(pen->dash == DASH_LONG ? " stroke-dasharray=\"6 4\"" : " stroke-dasharray=\"2 3\"",
              to);
}

static void svg_path(void *arg, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    FILE *to = arg;
    bool is_new = true, any = false;

    for (size_t i = 0; i < npoints; i++) {
        const double *at = xy + 2 * i;
        if (isnan(at[0]) || isnan(at[1])) {
            is_new = true;
            continue;
        }
        if (!any) {
            fputs("<path ", to);
            put_pen(to, pen);
            fputs(" d=\"", to);
        }
        any = true;
        fprintf(to, is_new ? "M%.1f %.1f" : "L%.1f %.1f", at[0], at[1]);
        /* A point on its own shows as a dot: the ends of lines are round. */
        if (is_new && (i + 1 == npoints || isnan(at[2])))
            fputs("h0", to);
        is_new = false;
    }
    if (any)
        fputs("\"/>\n", to);
}

static void svg_area(void *arg, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    FILE *to = arg;

    fprintf(to, "<path class=\"f%d\"", canvas_ink(pen->ink));
    if (pen->opacity != 1)
        fprintf(to, " fill-opacity=\"%g\"", pen->opacity);
    fputs(" d=\"", to);
    for (size_t i = 0; i < npoints; i++)
        fprintf(to, "%c%.1f %.1f", i ? 'L' : 'M', xy[2 * i], xy[2 * i + 1]);
    fputs("Z\"/>\n", to);
}

static void svg_dots(void *arg, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    FILE *to = arg;

    for (size_t i = 0; i < npoints; i++)
        if (!isnan(xy[2 * i]) && !isnan(xy[2 * i + 1]))
            fprintf(to, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\"/>\n",
                    canvas_ink(pen->ink), xy[2 * i], xy[2 * i + 1], pen->width);
}

static void svg_text(void *arg, const struct canvas_text *text)
{
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    FILE *to = arg;

    fprintf(to, "<text class=\"f%d\" x=\"%.1f\" y=\"%.1f\" font-size=\"%d\"%s%s>",
            canvas_ink(text->ink), text->x, text->y, text->size, anchors[text->anchor],
            text->is_bold ? " font-weight=\"600\"" : "");
    put_escaped(to, text->text);
    fputs("</text>\n", to);
}

static const struct canvas_ops svg_ops = {
    .path = svg_path,
    .area = svg_area,
    .dots = svg_dots,
    .text = svg_text,
};

static void put_colours(FILE *to, bool is_dark)
{
    for (int i = 0; i < NINKS; i++) {
        const unsigned rgb = canvas_rgb(i < CHART_NCOLOURS ? i : CHART_NCOLOURS - 1 - i, is_dark);
        fprintf(to, ".chart .l%d{stroke:#%06x}.chart .f%d{fill:#%06x}\n", i, rgb, i, rgb);
    }
}

static void put_style(FILE *to, enum chart_theme theme)
{
    fputs("<style>\n"
          ".chart{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\n"
          ".chart path{fill:none;stroke-linejoin:round;stroke-linecap:round}\n",
          to);
    put_colours(to, theme == CHART_DARK);
    if (theme == CHART_AUTO) {
        fputs("@media (prefers-color-scheme:dark){\n", to);
        put_colours(to, true);
        fputs("}\n", to);
    }
    fputs("</style>\n", to);
}

int chart_svg(FILE *to, const struct chart *chart, const struct chart_page *given,
              struct fsdp_err *err)
{
    const struct canvas canvas = {&svg_ops, to};
    struct chart_page page = *given;

    FSDP_TRY(page_size(&page, chart, err));
    if (!page.inside)
        fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", to);
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\">\n",
            page.width, page.height, page.width, page.height);
    if (chart->title) {
        fputs("<title>", to);
        put_escaped(to, chart->title);
        fputs("</title>\n", to);
    }
    put_style(to, page.theme);
    if (!page.inside)
        fprintf(to, "<rect class=\"f%d\" width=\"100%%\" height=\"100%%\"/>\n",
                canvas_ink(INK_PAPER));
    FSDP_TRY(page_draw(&canvas, chart, &page, err));
    fputs("</svg>\n", to);
    if (ferror(to))
        return fsdp_err_sys(err, errno ? errno : EIO, "the picture cannot be written");
    return FSDP_OK;
}
