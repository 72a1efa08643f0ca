/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "impl.h"

/* ByteLevel writes a byte as a printable character: itself where it is one, else one from U+0100
 * on. */
static bool byte_is_printable(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

void byte_names_make(struct byte_names *names)
{
    unsigned next = 0x100;

    memset(names, 0xff, sizeof *names);
    for (unsigned byte = 0; byte < 256; byte++)
        names->bytes[byte_is_printable(byte) ? byte : next++] = (int16_t)byte;
}

int byte_names_read(char *out, const struct byte_names *names, const char *name, size_t nbytes)
{
    const char *end = name + nbytes;
    int n = 0;

    while (name < end) {
        uint32_t code;
        const int step = fsdp_utf8_decode(&code, name, end);
        if (!step || code >= BYTE_NAMES_CODES || names->bytes[code] < 0)
            return -1;
        out[n++] = (char)names->bytes[code];
        name += step;
    }
    return n;
}
