/* SPDX-License-Identifier: Apache-2.0 */
/* screen.h: what a run says at its start, in one screen of 24 lines and 80 columns. */
#ifndef TRAIN_SCREEN_H
#define TRAIN_SCREEN_H

#include "tables.h"

/* By rank 0. Local. */
void train_show_screen(struct report *report, const struct train_parts *p,
                       const struct train_begun *begun);

#endif
