/* SPDX-License-Identifier: Apache-2.0 */
/* found.h: what stands in a line of JSON and where, for errors. */
#ifndef DATA_FOUND_H
#define DATA_FOUND_H

#include <jansson.h>
#include <stddef.h>

/* Column, from 1 and in characters, at which the value of a top-level key begins in an object's
 * text; without the key (or with NULL), where the text itself begins. text is valid JSON. Pure. */
size_t data_found_column(const char *text, size_t nbytes, const char *key);
/* The names of an object's keys, such as "'content', 'id'", of many of them the first; of other
 * values "a list", "a number". Into out, which is returned. Pure. */
const char *data_found_keys(char *out, size_t out_nbytes, const json_t *value);
/* "a list", "a number". Pure. */
const char *data_found_type(const json_t *value);

#endif
