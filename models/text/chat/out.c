/* SPDX-License-Identifier: Apache-2.0 */
/* What a rendering writes. */
#include "out.h"
#include "text/chat/value/print.h"

int chat_write(struct chat_run *r, const char *data, size_t nbytes)
{
    struct chat_out *out = r->out;
    const size_t want = out->nbytes + nbytes + 1;

    if (nbytes > CHAT_MAX_OUT_NBYTES - out->nbytes)
        return chat_fail(r, "the template writes more than %zu MiB", CHAT_MAX_OUT_NBYTES >> 20);
    if (want > out->max) {
        char *at = fsdp_alloc_reserve(out->at, out->nbytes, &out->max,
                                      want < 4096 ? 4096 : 2 * want, 1, "rendered chat", r->err);
        if (!at)
            return FSDP_ENOMEM;
        out->at = at;
    }
    if (nbytes)
        memcpy(out->at + out->nbytes, data, nbytes);
    out->nbytes += nbytes;
    return chat_step(r, 1 + (nbytes >> 8));
}

int chat_write_value(struct chat_run *r, const struct chat_val *v)
{
    struct chat_val text;

    FSDP_TRY(chat_to_str(r, &text, v));
    return chat_write(r, text.s->at, text.s->nbytes);
}

/* What is written from here on is not the template's own text. Returns where it begins. */
size_t chat_begin_capture(struct chat_run *r)
{
    if (r->out->ncaptures++ == 0)
        r->out->text_nbytes = r->out->nbytes;
    return r->out->nbytes;
}

/* Takes it away, as a value. */
int chat_end_capture(struct chat_run *r, struct chat_val *out, size_t first)
{
    struct chat_out *o = r->out;

    FSDP_TRY(chat_str_copy(r, out, o->at ? o->at + first : "", o->nbytes - first));
    o->nbytes = first;
    o->ncaptures--;
    return FSDP_OK;
}

/* As transformers counts: characters of the template's own text, to which what is written inside of
 * a macro or set block does not belong yet. */
static size_t count_text(struct chat_out *out)
{
    const size_t nbytes = out->text_nbytes;

    out->ncounted += chat_count_chars(out->at + out->counted_nbytes, nbytes - out->counted_nbytes);
    out->counted_nbytes = nbytes;
    return out->ncounted;
}

int chat_end_span(struct chat_run *r, size_t begin)
{
    struct chat_out *out = r->out;
    const size_t first = count_text(out);
    struct chat_chars *spans = fsdp_alloc_grow(out->spans, out->nspans, &out->max_spans,
                                               sizeof *spans, "generated spans", r->err);

    if (!spans)
        return FSDP_ENOMEM;
    out->spans = spans;
    spans[out->nspans++] =
        (struct chat_chars){first, first + chat_count_chars(out->at + begin, out->nbytes - begin)};
    out->ncaptures--;
    return FSDP_OK;
}
