/* SPDX-License-Identifier: Apache-2.0 */
/* PNG through cairo, which only programs that draw PNG are linked with. */
#include <errno.h>
#include <math.h>

#include "canvas.h"

#if HAVE_CAIRO
#include <cairo.h>

/* Pixels of the file for one of the page: text of a wide picture stays as large as it is in a small
 * one. */
static int scale_of(const struct chart_page *page)
{
    return !page->width || page->width > 1200 ? 2 : 1;
}

struct png {
    cairo_t *cairo;
    bool is_dark;
};

static void use_ink(const struct png *png, int ink, double opacity)
{
    const unsigned rgb = canvas_rgb(ink, png->is_dark);

    cairo_set_source_rgba(png->cairo, (rgb >> 16) / 255.0, (rgb >> 8 & 255) / 255.0,
                          (rgb & 255) / 255.0, opacity);
}

static void png_path(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    static const double long_dash[] = {6, 4}, short_dash[] = {2, 3};
    const struct png *png = to;
    bool is_new = true;

    use_ink(png, pen->ink, pen->opacity);
    cairo_set_line_width(png->cairo, pen->width);
    cairo_set_dash(png->cairo, pen->dash == DASH_LONG ? long_dash : short_dash, pen->dash ? 2 : 0,
                   0);
    for (size_t i = 0; i < npoints; i++) {
        const double *at = xy + 2 * i;
        const bool is_gap = isnan(at[0]) || isnan(at[1]);
        if (!is_gap && is_new)
            cairo_move_to(png->cairo, at[0], at[1]);
        if (!is_gap) /* to where it is, too: a point on its own shows as a dot */
            cairo_line_to(png->cairo, at[0], at[1]);
        is_new = is_gap;
    }
    cairo_stroke(png->cairo);
}

static void png_area(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    const struct png *png = to;

    use_ink(png, pen->ink, pen->opacity);
    cairo_new_path(png->cairo); /* text leaves a point */
    for (size_t i = 0; i < npoints; i++)
        cairo_line_to(png->cairo, xy[2 * i], xy[2 * i + 1]);
    cairo_close_path(png->cairo);
    cairo_fill(png->cairo);
}

static void png_dots(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints)
{
    const struct png *png = to;

    use_ink(png, pen->ink, 1);
    for (size_t i = 0; i < npoints; i++)
        if (!isnan(xy[2 * i]) && !isnan(xy[2 * i + 1])) {
            cairo_arc(png->cairo, xy[2 * i], xy[2 * i + 1], pen->width, 0, 2 * M_PI);
            cairo_fill(png->cairo);
        }
}

static void png_text(void *to, const struct canvas_text *text)
{
    const struct png *png = to;
    cairo_text_extents_t extents;

    use_ink(png, text->ink, 1);
    cairo_select_font_face(png->cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           text->is_bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(png->cairo, text->size);
    cairo_text_extents(png->cairo, text->text, &extents);
    cairo_move_to(png->cairo, text->x - extents.x_advance * text->anchor / 2, text->y);
    cairo_show_text(png->cairo, text->text);
}

static const struct canvas_ops png_ops = {
    .path = png_path,
    .area = png_area,
    .dots = png_dots,
    .text = png_text,
};

static cairo_status_t write_bytes(void *to, const unsigned char *bytes, unsigned nbytes)
{
    return fwrite(bytes, 1, nbytes, to) == nbytes ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static int finish_png(FILE *to, cairo_surface_t *surface, cairo_t *cairo, struct fsdp_err *err)
{
    const cairo_status_t drawn = cairo_status(cairo);

    if (drawn)
        return fsdp_err_set(err, FSDP_EINTERNAL, "cairo: %s", cairo_status_to_string(drawn));
    errno = 0;
    const cairo_status_t written = cairo_surface_write_to_png_stream(surface, write_bytes, to);
    if (written)
        return fsdp_err_sys(err, errno ? errno : EIO, "the picture cannot be written");
    return FSDP_OK;
}

int chart_png(FILE *to, const struct chart *chart, const struct chart_page *given,
              struct fsdp_err *err)
{
    struct chart_page page = *given;

    const int scale = scale_of(given);
    page.width /= scale;
    page.height /= scale;
    FSDP_TRY(page_size(&page, chart, err));
    if (page.width * scale > 16000 || page.height * scale > 16000)
        return fsdp_err_set(err, FSDP_EINVAL, "a PNG of %d x %d pixels: at most 16000 x 16000",
                            page.width * scale, page.height * scale);
    cairo_surface_t *surface =
        cairo_image_surface_create(CAIRO_FORMAT_RGB24, page.width * scale, page.height * scale);
    cairo_t *cairo = cairo_create(surface);
    struct png png = {cairo, page.theme == CHART_DARK};
    const struct canvas canvas = {&png_ops, &png};
    cairo_scale(cairo, scale, scale);
    cairo_set_line_join(cairo, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(cairo, CAIRO_LINE_CAP_ROUND);
    use_ink(&png, INK_PAPER, 1);
    cairo_paint(cairo);
    int rc = page_draw(&canvas, chart, &page, err);
    if (!rc)
        rc = finish_png(to, surface, cairo, err);
    cairo_destroy(cairo);
    cairo_surface_destroy(surface);
    return rc;
}

bool chart_has_png(void)
{
    return true;
}
#else
int chart_png(FILE *to, const struct chart *chart, const struct chart_page *page,
              struct fsdp_err *err)
{
    (void)to, (void)chart, (void)page;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "this build draws no PNG: it was made without cairo");
}

bool chart_has_png(void)
{
    return false;
}
#endif
