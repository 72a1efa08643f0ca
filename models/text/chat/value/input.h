/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_INPUT_H
#define CHAT_INPUT_H

#include <jansson.h>

#include "run.h"

int chat_from_json(struct chat_run *r, struct chat_val *out, const json_t *json);
/* A list of messages as transformers hands it to templates: null members left out, the text of a
 * reasoning under its several names. */
int chat_messages(struct chat_run *r, struct chat_val *out, const json_t *messages);

#endif
