/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "thin.h"

/* The points of one column: x and y of the first, lowest, highest and last, and where they stood.
 */
struct column {
    int at; /* -1: none */
    size_t first, lowest, highest, last;
    double x[4], y[4];
};

enum { FIRST, LOWEST, HIGHEST, LAST };

static int push_point(struct thin_points *out, double x, double y, struct fsdp_err *err)
{
    double *xy = fsdp_alloc_grow(out->xy, out->npoints, &out->max, 2 * sizeof *xy, "points", err);

    if (!xy)
        return FSDP_ENOMEM;
    out->xy = xy;
    xy[2 * out->npoints] = x;
    xy[2 * out->npoints + 1] = y;
    out->npoints++;
    return FSDP_OK;
}

static int flush_column(struct thin_points *out, struct column *column, struct fsdp_err *err)
{
    const bool low_first = column->lowest < column->highest;
    const int order[4] = {FIRST, low_first ? LOWEST : HIGHEST, low_first ? HIGHEST : LOWEST, LAST};
    const size_t where[4] = {column->first, column->lowest, column->highest, column->last};

    if (column->at < 0)
        return FSDP_OK;
    column->at = -1;
    for (int i = 0; i < 4; i++)
        if (!i || where[order[i]] != where[order[i - 1]])
            FSDP_TRY(push_point(out, column->x[order[i]], column->y[order[i]], err));
    return FSDP_OK;
}

static void set_point(struct column *column, int which, double x, double y)
{
    column->x[which] = x;
    column->y[which] = y;
}

static void take_point(struct column *column, size_t index, double x, double y)
{
    if (y < column->y[LOWEST]) {
        column->lowest = index;
        set_point(column, LOWEST, x, y);
    }
    if (y > column->y[HIGHEST]) {
        column->highest = index;
        set_point(column, HIGHEST, x, y);
    }
    column->last = index;
    set_point(column, LAST, x, y);
}

static void begin_column(struct column *column, int at, size_t index, double x, double y)
{
    column->at = at;
    column->first = column->lowest = column->highest = column->last = index;
    for (int i = 0; i < 4; i++)
        set_point(column, i, x, y);
}

int thin_series(struct thin_points *out, const struct chart_series *series, const struct axis *x,
                const struct axis *y, int ncolumns, struct fsdp_err *err)
{
    struct column column = {.at = -1};

    *out = (struct thin_points){0};
    int rc = FSDP_OK;
    for (size_t i = 0; i < series->npoints && !rc; i++) {
        const double px = axis_place(x, series->x[i]), py = axis_place(y, series->y[i]);
        if (isnan(px) || isnan(py)) {
            rc = flush_column(out, &column, err);
            if (!rc && out->npoints && !isnan(out->xy[2 * out->npoints - 1]))
                rc = push_point(out, NAN, NAN, err);
            continue;
        }
        int at = (int)fmax(0, fmin(px * ncolumns, ncolumns));
        if (at == column.at) {
            take_point(&column, i, px, py);
            continue;
        }
        rc = flush_column(out, &column, err);
        begin_column(&column, at, i, px, py);
    }
    if (!rc)
        rc = flush_column(out, &column, err);
    if (rc) {
        fsdp_free(out->xy);
        *out = (struct thin_points){0};
    }
    return rc;
}
