/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "canvas.h"

/* Series first, then the inks from INK_TEXT down. The pairs keep a contrast of at least 3 to the
 * paper, and neighbours differ for readers who do not tell red from green. */
static const unsigned light[NINKS] = {0x2368c4, 0xd35f00, 0x1c8a56, 0xb5297e, 0x6d4bc0, 0x0a8794,
                                      0x8a6410, 0xc8321f, 0x1f2328, 0x656d76, 0xdfe3e8, 0xffffff};
static const unsigned dark[NINKS] = {0x6aa8ff, 0xff9a4d, 0x4fcb8d, 0xf07fc4, 0xaf93ff, 0x45cddb,
                                     0xd9ae58, 0xff7f6e, 0xe6edf3, 0x9aa4af, 0x30363d, 0x0d1117};

int canvas_ink(int ink)
{
    return ink < 0 ? CHART_NCOLOURS - 1 - ink : ink % CHART_NCOLOURS;
}

unsigned canvas_rgb(int ink, bool is_dark)
{
    return (is_dark ? dark : light)[canvas_ink(ink)];
}

double canvas_text_width(const char *text, int size)
{
    double width = 0;

    for (const char *at = text; *at; at++)
        if ((*at & 0xc0) != 0x80) /* not within a character of UTF-8 */
            width += strchr("iljtf.,:;|'!()[] ", *at) ? 0.36 : strchr("mwMW%@", *at) ? 0.9 : 0.6;
    return width * size;
}
