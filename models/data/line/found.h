/* SPDX-License-Identifier: Apache-2.0 */
/* found.h: describes the content of a JSON line for error messages: keys, types, columns. */
#ifndef DATA_FOUND_H
#define DATA_FOUND_H

#include <jansson.h>
#include <stddef.h>

/* Column, from 1 and in characters, at which the value of a top-level key begins in an object's
 * text; without the key (or with NULL), where the text itself begins. text is valid JSON. Pure. */
size_t data_found_column(const char *text, size_t nbytes, const char *key);
/* Writes the names of an object's first keys to out, such as "'content', 'id'"; for other values
 * their type, such as "a list". Returns out. Pure. */
const char *data_found_keys(char *out, size_t out_nbytes, const json_t *value);
/* "a list", "a number". Pure. */
const char *data_found_type(const json_t *value);

#endif
