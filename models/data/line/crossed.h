/* SPDX-License-Identifier: Apache-2.0 */
/* crossed.h: counts the documents in which a token begins in the prompt and ends in the answer. */
#ifndef DATA_CROSSED_H
#define DATA_CROSSED_H

#include "line.h"

struct data_crossed_kind {
    uint64_t ncrossed, nlines;
    char first[200]; /* FILE:LINE of the first one */
};
struct data_crossed {
    struct data_crossed_kind chats, others;
};

/* Counts a line that was parsed. */
void data_crossed_add(struct data_crossed *crossed, const struct data_line *line);
/* Adds the counts of `behind`, whose lines come behind those of `crossed`. */
void data_crossed_join(struct data_crossed *crossed, const struct data_crossed *behind);
/* Logs a warning for each kind that was found, with the fix; text: how the lines were tokenized. */
void data_crossed_warn(const struct data_crossed *crossed, const struct data_text *text);

#endif
