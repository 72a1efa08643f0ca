/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "legend.h"

static bool is_same(const struct chart_series *a, const struct chart_series *b)
{
    return a->label && b->label && !strcmp(a->label, b->label) && a->colour == b->colour &&
           a->dashed == b->dashed && a->style == b->style;
}

bool legend_is_told(const struct chart *chart, int panel, int index)
{
    const struct chart_series *series = &chart->panels[panel].series[index];

    for (int p = 0; p <= panel; p++)
        for (int s = 0; s < (p < panel ? chart->panels[p].nseries : index); s++)
            if (is_same(&chart->panels[p].series[s], series))
                return true;
    return false;
}
