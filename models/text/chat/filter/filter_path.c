/* SPDX-License-Identifier: Apache-2.0 */
/* What filters share. */
#include "filters.h"
#include "text/chat/value/unicode.h"

/* One part of a path: a number or a name. */
static int path_part(struct chat_run *r, struct chat_val *out, const struct chat_str *path,
                     const char *at, size_t nbytes)
{
    chat_int i = 0;

    for (size_t k = 0; k < nbytes && nbytes < 18; k++) {
        if (at[k] < '0' || at[k] > '9')
            return chat_str_part(r, out, path, at, nbytes);
        i = 10 * i + at[k] - '0';
    }
    if (!nbytes || nbytes >= 18)
        return chat_str_part(r, out, path, at, nbytes);
    *out = chat_integer(i);
    return FSDP_OK;
}

int chat_attribute_path(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                        const struct chat_val *path, const struct chat_val *otherwise)
{
    const bool has_other = otherwise && !chat_is_absent(otherwise) && otherwise->kind != CHAT_NONE;
    const char *at, *end, *dot;
    struct chat_val key, value = *of;

    if (path->kind == CHAT_MISSING || path->kind == CHAT_NONE) {
        *out = *of;
        return FSDP_OK;
    }
    if (path->kind != CHAT_STR) {
        FSDP_TRY(r->hooks->item(r, out, of, path));
        *out = has_other && out->kind == CHAT_UNDEF ? *otherwise : *out;
        return FSDP_OK;
    }
    at = path->s->at;
    end = at + path->s->nbytes;
    for (;; at = dot + 1) {
        dot = memchr(at, '.', (size_t)(end - at));
        FSDP_TRY(path_part(r, &key, path->s, at, (size_t)((dot ? dot : end) - at)));
        FSDP_TRY(r->hooks->item(r, &value, &value, &key));
        value = has_other && value.kind == CHAT_UNDEF ? *otherwise : value;
        if (!dot)
            break;
    }
    *out = value;
    return FSDP_OK;
}

int chat_ignore_case(struct chat_run *r, struct chat_val *out, const struct chat_val *v)
{
    if (v->kind == CHAT_STR)
        return chat_change_case(r, out, v->s, CHAT_LOWER);
    *out = *v;
    return FSDP_OK;
}
