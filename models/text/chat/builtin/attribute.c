/* SPDX-License-Identifier: Apache-2.0 */
#include "attribute.h"
#include "text/chat/value/iterate.h"
#include "loop.h"
#include "methods.h"

/* ---- attributes ----------------------------------------------------------------------------- */

/* Methods that change a list or dictionary: the sandbox refuses them when they are called. */
static bool is_unsafe(const struct chat_val *of, const struct chat_str *name)
{
    static const char *const of_lists[] = {"append", "clear", "pop",    "reverse",
                                           "insert", "sort",  "extend", "remove"};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};

    for (size_t i = 0; of->kind == CHAT_LIST && i < sizeof of_lists / sizeof *of_lists; i++)
        if (chat_str_is(name, of_lists[i]))
            return true;
    for (size_t i = 0; of->kind == CHAT_DICT && i < sizeof of_dicts / sizeof *of_dicts; i++)
        if (chat_str_is(name, of_dicts[i]))
            return true;
    return false;
}

static int attribute_of_number(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                               const struct chat_str *name, bool *found)
{
    (void)r;
    *found = true;
    if (chat_str_is(name, "real") || (chat_is_int(of) && chat_str_is(name, "numerator")))
        *out = of->kind == CHAT_BOOL ? chat_integer(of->i) : *of;
    else if (chat_str_is(name, "imag"))
        *out = of->kind == CHAT_FLOAT ? chat_float(0) : chat_integer(0);
    else if (chat_is_int(of) && chat_str_is(name, "denominator"))
        *out = chat_integer(1);
    else
        *found = false;
    return FSDP_OK;
}

static int attribute_of_group(struct chat_val *out, const struct chat_val *of,
                              const struct chat_str *name, bool *found)
{
    *found = true;
    if (chat_str_is(name, "grouper"))
        *out = of->list->at[0];
    else if (chat_str_is(name, "list"))
        *out = of->list->at[1];
    else
        *found = false;
    return FSDP_OK;
}

/* What Python has under this name; items are not looked at. */
static int own_attribute(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                         const struct chat_str *name, bool *found)
{
    const struct chat_builtin *method;

    *found = false;
    if (chat_is_number(of))
        FSDP_TRY(attribute_of_number(r, out, of, name, found));
    if (chat_is_list(of) && of->list->is_group)
        FSDP_TRY(attribute_of_group(out, of, name, found));
    if (of->kind == CHAT_LOOP)
        FSDP_TRY(chat_loop_attribute(r, out, of->loop, name, found));
    if (of->kind == CHAT_CYCLER && chat_str_is(name, "current")) {
        *found = true;
        *out = of->cycler->items->at[of->cycler->at];
    }
    if (of->kind == CHAT_SPACE) {
        const struct chat_val key = chat_str_val(name), *v = chat_dict_get(of->dict, &key);
        *found = v != NULL;
        if (v)
            *out = *v;
    }
    if (*found)
        return FSDP_OK;
    if ((method = chat_method_find(of, name))) {
        *found = true;
        return chat_native_new(r, out, method, of);
    }
    if (is_unsafe(of, name)) {
        const struct chat_val v = chat_str_val(name);
        *found = true;
        return chat_undef_new(r, out, of, &v, "changes what it belongs to, which is unsafe");
    }
    return FSDP_OK;
}

int chat_attribute(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                   const struct chat_str *name)
{
    const struct chat_val key = chat_str_val(name), *v;
    bool found;

    if (of->kind == CHAT_UNDEF)
        return chat_undef_fail(r, of);
    FSDP_TRY(own_attribute(r, out, of, name, &found));
    if (found)
        return FSDP_OK;
    v = of->kind == CHAT_DICT ? chat_dict_get(of->dict, &key) : NULL;
    if (!v)
        return chat_undef_new(r, out, of, &key, NULL);
    *out = *v;
    return FSDP_OK;
}

/* ---- items ---------------------------------------------------------------------------------- */

static int char_at(struct chat_run *r, struct chat_val *out, const struct chat_str *s, size_t i)
{
    const size_t first = chat_str_offset(s, i), end = chat_str_offset(s, i + 1);

    FSDP_TRY(chat_step(r, s->nchars == s->nbytes ? 0 : s->nbytes >> 5));
    return chat_str_part(r, out, s, s->at + first, end - first);
}

/* An element by number; *found is false where there is none. */
static int element_at(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                      chat_int i, bool *found)
{
    chat_int nelem;

    *found = false;
    if (of->kind != CHAT_STR && !chat_is_list(of) && of->kind != CHAT_RANGE)
        return FSDP_OK;
    FSDP_TRY(chat_length(r, &nelem, of));
    if (i >= nelem || i < -nelem)
        return FSDP_OK;
    i += i < 0 ? nelem : 0;
    *found = true;
    if (of->kind == CHAT_STR)
        return char_at(r, out, of->s, (size_t)i);
    *out = of->kind == CHAT_RANGE ? chat_integer(of->range->first + i * of->range->step)
                                  : of->list->at[i];
    return FSDP_OK;
}

static bool is_hashable(const struct chat_val *v)
{
    return v->kind != CHAT_LIST && v->kind != CHAT_DICT;
}

int chat_item(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
              const struct chat_val *key)
{
    const struct chat_val *v = NULL;
    bool found = false;

    if (of->kind == CHAT_UNDEF)
        return chat_undef_fail(r, of);
    if (of->kind == CHAT_DICT && is_hashable(key)) {
        FSDP_TRY(chat_check_hashable(r, key));
        v = chat_dict_get(of->dict, key);
    }
    if (v) {
        *out = *v;
        return FSDP_OK;
    }
    if (chat_is_int(key))
        FSDP_TRY(element_at(r, out, of, key->i, &found));
    else if (key->kind == CHAT_STR)
        FSDP_TRY(own_attribute(r, out, of, key->s, &found));
    return found ? FSDP_OK : chat_undef_new(r, out, of, key, NULL);
}

/* ---- slices --------------------------------------------------------------------------------- */

static int want_bound(struct chat_run *r, chat_int *out, const struct chat_val *v, chat_int none)
{
    *out = none;
    if (v->kind == CHAT_UNDEF)
        return chat_undef_fail(r, v);
    if (v->kind == CHAT_NONE)
        return FSDP_OK;
    if (!chat_is_int(v))
        return chat_fail(r, "slice indices must be integers or None");
    *out = v->i;
    return FSDP_OK;
}

static chat_int clamp_bound(chat_int i, chat_int nelem, bool backward)
{
    const chat_int least = backward ? -1 : 0, most = backward ? nelem - 1 : nelem;

    if (i < 0)
        i = i < -nelem ? least : i + nelem;
    return i < least ? least : i > most ? most : i;
}

/* The characters of a step other than 1, one by one. */
static int slice_str(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                     const struct chat_range *range)
{
    const chat_int nchars = chat_range_length(range);
    struct chat_buf b = {0};
    struct chat_val c;

    if (range->step == 1) {
        const size_t first = nchars ? chat_str_offset(s, (size_t)range->first) : 0,
                     end = nchars ? chat_str_offset(s, (size_t)range->end) : 0;
        FSDP_TRY(chat_step(r, s->nchars == s->nbytes ? 0 : s->nbytes >> 5));
        return chat_str_part(r, out, s, s->at + first, end - first);
    }
    for (chat_int i = 0; i < nchars; i++) {
        FSDP_TRY(char_at(r, &c, s, (size_t)(range->first + i * range->step)));
        FSDP_TRY(chat_step(r, 1));
        FSDP_TRY(chat_buf_add(r, &b, c.s->at, c.s->nbytes));
    }
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = s->markup}, b.at,
                         b.nbytes);
}

static int slice_range(struct chat_run *r, struct chat_val *out, const struct chat_range *of,
                       const struct chat_range *part)
{
    struct chat_range *range;

    FSDP_TRY(chat_new(r, &range, 1, sizeof *range));
    range->first = of->first + part->first * of->step;
    range->end = of->first + part->end * of->step;
    range->step = of->step * part->step;
    *out = (struct chat_val){.kind = CHAT_RANGE, .range = range};
    return FSDP_OK;
}

int chat_slice(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
               const struct chat_val bounds[3])
{
    struct chat_range range;
    chat_int nelem;

    if (of->kind == CHAT_UNDEF)
        return chat_undef_fail(r, of);
    if (of->kind != CHAT_STR && !chat_is_list(of) && of->kind != CHAT_RANGE)
        return chat_fail(r, "'%s' object cannot be sliced", chat_type_name(of));
    FSDP_TRY(chat_length(r, &nelem, of));
    FSDP_TRY(want_bound(r, &range.step, &bounds[2], 1));
    if (!range.step)
        return chat_fail(r, "slice step cannot be zero");
    const bool backward = range.step < 0;
    range.step = range.step > nelem ? nelem + 1 : range.step < -nelem ? -nelem - 1 : range.step;
    FSDP_TRY(want_bound(r, &range.first, &bounds[0], backward ? nelem : 0));
    FSDP_TRY(want_bound(r, &range.end, &bounds[1], nelem));
    range.first = clamp_bound(range.first, nelem, backward);
    range.end =
        backward && bounds[1].kind == CHAT_NONE ? -1 : clamp_bound(range.end, nelem, backward);
    if (of->kind == CHAT_STR)
        return slice_str(r, out, of->s, &range);
    if (of->kind == CHAT_RANGE)
        return slice_range(r, out, of->range, &range);
    nelem = chat_range_length(&range);
    FSDP_TRY(chat_list_new(r, out, of->kind, (size_t)nelem));
    for (chat_int i = 0; i < nelem; i++)
        FSDP_TRY(chat_list_add(r, out->list, &of->list->at[range.first + i * range.step]));
    return FSDP_OK;
}
