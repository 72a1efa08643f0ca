/* SPDX-License-Identifier: Apache-2.0 */
/* text.h: numbers as people read them. Each writes into out, which is returned. */
#ifndef ANSWER_TEXT_H
#define ANSWER_TEXT_H

#include "fsdp/base.h"

enum { ANSWER_TEXT_NBYTES = 32 };
/* "7,711", "1,024": whole, in groups of three. */
const char *answer_whole(char out[ANSWER_TEXT_NBYTES], double value);
/* The same with three digits where there would be fewer: "7,711", "12.5", "0.031". */
const char *answer_number(char out[ANSWER_TEXT_NBYTES], double value);
/* "8.03B", "1.2T", "350M": of parameters, tokens. */
const char *answer_count(char out[ANSWER_TEXT_NBYTES], double value);
/* "1.062 s", "34.1 ms", "12.5 us". */
const char *answer_seconds(char out[ANSWER_TEXT_NBYTES], double seconds);
/* "35 h", "12 days", "4 min": a long time. */
const char *answer_long(char out[ANSWER_TEXT_NBYTES], double seconds);

#endif
