/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of text about classes and cases of its characters. */
#include "methods.h"
#include "text/chat/value/unicode.h"

CHAT_BUILTIN(text_upper)
{
    return chat_change_case(r, out, a[0].s, CHAT_UPPER);
}

CHAT_BUILTIN(text_lower)
{
    return chat_change_case(r, out, a[0].s, CHAT_LOWER);
}

CHAT_BUILTIN(text_title)
{
    return chat_change_case(r, out, a[0].s, CHAT_TITLE);
}

CHAT_BUILTIN(text_capitalize)
{
    return chat_change_case(r, out, a[0].s, CHAT_CAPITALIZE);
}

CHAT_BUILTIN(text_swapcase)
{
    return chat_change_case(r, out, a[0].s, CHAT_SWAP);
}

CHAT_BUILTIN(text_casefold)
{
    return chat_change_case(r, out, a[0].s, CHAT_FOLD);
}

/* Is the text not empty, and every character of the class? */
static int all_are(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                   bool (*is)(uint32_t))
{
    bool all = s->nbytes > 0;
    int nbytes;

    for (const char *at = s->at; all && at < s->at + s->nbytes; at += nbytes)
        all = is(chat_decode(at, &nbytes));
    *out = chat_bool(all);
    return chat_step(r, s->nbytes >> 4);
}

static bool is_alnum(uint32_t code)
{
    return chat_is_alpha(code) || chat_is_decimal(code) || chat_is_digit(code) ||
           chat_is_numeric(code);
}

CHAT_BUILTIN(text_isalpha)
{
    return all_are(r, out, a[0].s, chat_is_alpha);
}

CHAT_BUILTIN(text_isalnum)
{
    return all_are(r, out, a[0].s, is_alnum);
}

CHAT_BUILTIN(text_isdigit)
{
    return all_are(r, out, a[0].s, chat_is_digit);
}

CHAT_BUILTIN(text_isdecimal)
{
    return all_are(r, out, a[0].s, chat_is_decimal);
}

CHAT_BUILTIN(text_isnumeric)
{
    return all_are(r, out, a[0].s, chat_is_numeric);
}

CHAT_BUILTIN(text_isspace)
{
    return all_are(r, out, a[0].s, chat_is_space);
}

CHAT_BUILTIN(text_isprintable)
{
    FSDP_TRY(all_are(r, out, a[0].s, chat_is_printable));
    out->i |= !a[0].s->nbytes;
    return FSDP_OK;
}

CHAT_BUILTIN(text_isascii)
{
    *out = chat_bool(a[0].s->nchars == a[0].s->nbytes);
    return chat_step(r, 1);
}

CHAT_BUILTIN(text_isidentifier)
{
    const struct chat_str *s = a[0].s;

    FSDP_TRY(all_are(r, out, s, chat_is_word));
    out->i = out->i && !(s->at[0] >= '0' && s->at[0] <= '9');
    return FSDP_OK;
}

/* Some are of this case, and none of the other. */
static int is_of_case(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                      bool upper)
{
    bool any = false, other = false;
    int nbytes;

    for (const char *at = s->at; !other && at < s->at + s->nbytes; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        const bool is_upper = chat_is_upper(code), is_lower = chat_is_lower(code);
        any |= upper ? is_upper : is_lower;
        other = (upper ? is_lower : is_upper) || chat_is_title(code);
    }
    *out = chat_bool(any && !other);
    return chat_step(r, s->nbytes >> 4);
}

CHAT_BUILTIN(text_islower)
{
    return is_of_case(r, out, a[0].s, false);
}

CHAT_BUILTIN(text_isupper)
{
    return is_of_case(r, out, a[0].s, true);
}

CHAT_BUILTIN(text_istitle)
{
    const struct chat_str *s = a[0].s;
    bool any = false, in_word = false, good = true;
    int nbytes;

    for (const char *at = s->at; good && at < s->at + s->nbytes; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        const bool first = chat_is_upper(code) || chat_is_title(code), lower = chat_is_lower(code);
        good = first ? !in_word : !lower || in_word;
        in_word = first || lower;
        any |= in_word;
    }
    *out = chat_bool(any && good);
    return chat_step(r, s->nbytes >> 4);
}

const struct chat_builtin chat_case_methods[] = {
    {"upper", text_upper, "", 0},
    {"lower", text_lower, "", 0},
    {"title", text_title, "", 0},
    {"capitalize", text_capitalize, "", 0},
    {"swapcase", text_swapcase, "", 0},
    {"casefold", text_casefold, "", 0},
    {"isalpha", text_isalpha, "", 0},
    {"isalnum", text_isalnum, "", 0},
    {"isdigit", text_isdigit, "", 0},
    {"isdecimal", text_isdecimal, "", 0},
    {"isnumeric", text_isnumeric, "", 0},
    {"isspace", text_isspace, "", 0},
    {"isprintable", text_isprintable, "", 0},
    {"isascii", text_isascii, "", 0},
    {"isidentifier", text_isidentifier, "", 0},
    {"islower", text_islower, "", 0},
    {"isupper", text_isupper, "", 0},
    {"istitle", text_istitle, "", 0},
    {0},
};
