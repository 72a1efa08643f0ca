/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_NUMBER_H
#define CHAT_NUMBER_H

#include "run.h"

/* int(text, base) and float(text) of Python. False: the text is no such number. */
bool chat_text_to_int(chat_int *out, const struct chat_str *s, int base);
bool chat_text_to_float(double *out, const struct chat_str *s);
/* An integer from a float, towards zero. False: it has none of 127 bits. */
bool chat_float_to_int(chat_int *out, double f);
/* round(f, ndigits): half to even, of the exact value. */
double chat_round(double f, int ndigits);

#endif
