/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "card.h"
#include "util/crc.h"

#define SEAL_BEGIN "<!-- ckpt-merge wrote this card: "
#define SEAL_END ", a checksum. It replaces only a card that nobody has changed. -->\n"

static void seal_text(char out[160], const char *card, size_t nbytes)
{
    snprintf(out, 160, SEAL_BEGIN "%08x" SEAL_END, ckpt_crc32c(0, card, nbytes));
}

void ckpt_card_seal(struct ckpt_text *card)
{
    char seal[160];
    if (card->failed)
        return;
    seal_text(seal, card->data, card->nbytes);
    ckpt_text_add(card, seal, strlen(seal));
}

bool ckpt_card_is_ours(const char *card, size_t nbytes)
{
    char seal[160];
    const size_t most = sizeof SEAL_BEGIN - 1 + 8 + sizeof SEAL_END - 1;
    if (nbytes < most)
        return false;
    seal_text(seal, card, nbytes - most);
    return !memcmp(card + nbytes - most, seal, most);
}
