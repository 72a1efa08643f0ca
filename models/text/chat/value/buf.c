/* SPDX-License-Identifier: Apache-2.0 */
/* Growing texts. */
#include "run.h"

static int reserve_buf(struct chat_run *r, struct chat_buf *b, size_t more)
{
    const size_t want = b->nbytes + more;
    size_t max = 2 * b->max > want ? 2 * b->max : want;
    char *at;

    if (want <= b->max)
        return FSDP_OK;
    max = max < 64 ? 64 : max;
    if (b->at && chat_extend_bytes(r, b->at + b->max, max - b->max)) {
        b->max = max;
        return FSDP_OK;
    }
    FSDP_TRY(chat_new_bytes(r, &at, max));
    if (b->nbytes)
        memcpy(at, b->at, b->nbytes);
    b->at = at;
    b->max = max;
    return FSDP_OK;
}

int chat_buf_add(struct chat_run *r, struct chat_buf *b, const char *data, size_t nbytes)
{
    FSDP_TRY(reserve_buf(r, b, nbytes));
    if (nbytes)
        memcpy(b->at + b->nbytes, data, nbytes);
    b->nbytes += nbytes;
    return FSDP_OK;
}

int chat_buf_add_code(struct chat_run *r, struct chat_buf *b, uint32_t code)
{
    char text[4];
    size_t nbytes = 0;

    if (code < 0x80) {
        text[nbytes++] = (char)code;
    } else if (code < 0x800) {
        text[nbytes++] = (char)(0xc0 | code >> 6);
    } else if (code < 0x10000) {
        text[nbytes++] = (char)(0xe0 | code >> 12);
        text[nbytes++] = (char)(0x80 | (code >> 6 & 0x3f));
    } else {
        text[nbytes++] = (char)(0xf0 | code >> 18);
        text[nbytes++] = (char)(0x80 | (code >> 12 & 0x3f));
        text[nbytes++] = (char)(0x80 | (code >> 6 & 0x3f));
    }
    if (code >= 0x80)
        text[nbytes++] = (char)(0x80 | (code & 0x3f));
    return chat_buf_add(r, b, text, nbytes);
}

int chat_buf_puts(struct chat_run *r, struct chat_buf *b, const char *text)
{
    return chat_buf_add(r, b, text, strlen(text));
}

int chat_buf_pad(struct chat_run *r, struct chat_buf *b, size_t nchars)
{
    if (nchars > CHAT_MAX_MEMORY_NBYTES)
        nchars = CHAT_MAX_MEMORY_NBYTES;
    FSDP_TRY(reserve_buf(r, b, nchars));
    if (nchars)
        memset(b->at + b->nbytes, ' ', nchars);
    b->nbytes += nchars;
    return FSDP_OK;
}

int chat_buf_str(struct chat_run *r, struct chat_val *out, const struct chat_buf *b)
{
    return chat_str_keep(r, out, b->at, b->nbytes);
}
