/* SPDX-License-Identifier: Apache-2.0 */
/* card.h: the model card of an output, README.md. Its last line has a checksum of all before it: a
 * card that somebody changed is no longer ours. */
#ifndef CKPT_CARD_H
#define CKPT_CARD_H

#include "format/hf/hf_names.h"
#include "util/text.h"

/* Adds the last line. */
void ckpt_card_seal(struct ckpt_text *card);
/* Is it a card as it was written? */
bool ckpt_card_is_ours(const char *card, size_t nbytes);

#endif
