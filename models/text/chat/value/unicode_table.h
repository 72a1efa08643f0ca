/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_UNICODE_TABLE_H
#define CHAT_UNICODE_TABLE_H

#include <stdint.h>

/* Where Python's class differs from the rule by category in unicode.c. Ends with zeros. */
struct chat_code_range {
    uint32_t first, last;
};
extern const struct chat_code_range chat_not_alpha[], chat_not_decimal[], chat_not_digit[],
    chat_not_numeric[], chat_not_printable[], chat_not_lower[], chat_not_upper[];

/* Where Python's case of a character differs from utf8proc's. Ends with zeros. */
struct chat_code_case {
    uint32_t code, to[3];
};
extern const struct chat_code_case chat_case_upper[], chat_case_lower[], chat_case_title[],
    chat_case_fold[];

#endif
