/* SPDX-License-Identifier: Apache-2.0 */
/* line.h: the numbers of one line of metrics: a flat JSON object. Pure. */
#ifndef CURVES_LINE_H
#define CURVES_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* value: NAN for null, 1 and 0 for true and false. Texts, arrays and objects are passed over. */
typedef void line_number_f(void *ctx, const char *key, size_t key_nbytes, double value);

/* Calls `take` for each number. False: the line is no finished JSON object; `take` may then have
 * been called for some of it. line[nbytes] must be 0. */
bool line_read(const char *line, size_t nbytes, line_number_f *take, void *ctx);

#endif
