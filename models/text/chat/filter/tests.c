/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind `is`. */
#include "text/chat/builtin/arith.h"
#include "filters.h"
#include "text/chat/value/iterate.h"
#include "text/chat/value/print.h"
#include "text/chat/value/unicode.h"

/* A test whose answer the value's kind tells. */
#define TEST(name, answer)                                                                         \
    CHAT_BUILTIN(name)                                                                             \
    {                                                                                              \
        *out = chat_bool(answer);                                                                  \
        return chat_step(r, 1);                                                                    \
    }

TEST(test_defined, a[0].kind != CHAT_UNDEF)
TEST(test_undefined, a[0].kind == CHAT_UNDEF)
TEST(test_none, a[0].kind == CHAT_NONE)
TEST(test_boolean, a[0].kind == CHAT_BOOL)
TEST(test_true, a[0].kind == CHAT_BOOL && a[0].i)
TEST(test_false, a[0].kind == CHAT_BOOL && !a[0].i)
TEST(test_integer, a[0].kind == CHAT_INT)
TEST(test_float, a[0].kind == CHAT_FLOAT)
TEST(test_number, chat_is_number(&a[0]))
TEST(test_string, a[0].kind == CHAT_STR)
TEST(test_mapping, a[0].kind == CHAT_DICT)
TEST(test_iterable, chat_can_iterate(&a[0]) || a[0].kind == CHAT_LOOP)
TEST(test_sequence, a[0].kind == CHAT_UNDEF || a[0].kind == CHAT_STR || chat_is_list(&a[0]) ||
                        a[0].kind == CHAT_DICT || a[0].kind == CHAT_RANGE)
TEST(test_callable, a[0].kind == CHAT_UNDEF || a[0].kind == CHAT_NATIVE ||
                        a[0].kind == CHAT_MACRO || a[0].kind == CHAT_LOOP)
TEST(test_escaped, a[0].kind == CHAT_STR && a[0].s->markup)

static int rest_of(struct chat_run *r, struct chat_val *out, const struct chat_val *v,
                   const struct chat_val *by)
{
    return chat_binary(r, out, CHAT_N_MOD, v, by);
}

static int test_rest(struct chat_run *r, struct chat_val *out, const struct chat_val *v,
                     const struct chat_val *by, int want)
{
    const struct chat_val wanted = chat_integer(want);
    struct chat_val rest;
    bool same;

    FSDP_TRY(rest_of(r, &rest, v, by));
    FSDP_TRY(chat_equal(r, &same, &rest, &wanted));
    *out = chat_bool(same);
    return FSDP_OK;
}

CHAT_BUILTIN(test_odd)
{
    const struct chat_val two = chat_integer(2);
    return test_rest(r, out, &a[0], &two, 1);
}

CHAT_BUILTIN(test_even)
{
    const struct chat_val two = chat_integer(2);
    return test_rest(r, out, &a[0], &two, 0);
}

CHAT_BUILTIN(test_divisibleby)
{
    return test_rest(r, out, &a[0], &a[1], 0);
}

static int test_compare(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                        enum chat_compare how)
{
    bool holds;

    FSDP_TRY(chat_compare(r, &holds, how, &a[0], &a[1]));
    *out = chat_bool(holds);
    return FSDP_OK;
}

CHAT_BUILTIN(test_eq)
{
    return test_compare(r, out, a, CHAT_EQ);
}

CHAT_BUILTIN(test_ne)
{
    return test_compare(r, out, a, CHAT_NE);
}

CHAT_BUILTIN(test_lt)
{
    return test_compare(r, out, a, CHAT_LT);
}

CHAT_BUILTIN(test_le)
{
    return test_compare(r, out, a, CHAT_LE);
}

CHAT_BUILTIN(test_gt)
{
    return test_compare(r, out, a, CHAT_GT);
}

CHAT_BUILTIN(test_ge)
{
    return test_compare(r, out, a, CHAT_GE);
}

CHAT_BUILTIN(test_in)
{
    return test_compare(r, out, a, CHAT_IN);
}

/* Small values are the same object where they are equal and of one type. */
CHAT_BUILTIN(test_sameas)
{
    bool same = a[0].kind == a[1].kind;

    if (same && chat_is_list(&a[0]))
        same = a[0].list == a[1].list;
    else if (same)
        FSDP_TRY(chat_equal(r, &same, &a[0], &a[1]));
    *out = chat_bool(same);
    return FSDP_OK;
}

static int test_case(struct chat_run *r, struct chat_val *out, const struct chat_val *v, bool upper)
{
    bool any = false, other = false;
    struct chat_val text;
    int nbytes;

    FSDP_TRY(chat_to_str(r, &text, v));
    for (const char *at = text.s->at; at < text.s->at + text.s->nbytes; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        any |= upper ? chat_is_upper(code) : chat_is_lower(code);
        other |= chat_is_title(code) || (upper ? chat_is_lower(code) : chat_is_upper(code));
    }
    *out = chat_bool(any && !other);
    return chat_step(r, 1 + (text.s->nbytes >> 4));
}

CHAT_BUILTIN(test_lower)
{
    return test_case(r, out, &a[0], false);
}

CHAT_BUILTIN(test_upper)
{
    return test_case(r, out, &a[0], true);
}

static int test_known(struct chat_run *r, struct chat_val *out, const struct chat_val *v,
                      const struct chat_builtin *(*find)(const struct chat_str *))
{
    FSDP_TRY(chat_check_hashable(r, v));
    *out = chat_bool(v->kind == CHAT_STR && find(v->s));
    return FSDP_OK;
}

CHAT_BUILTIN(test_filter)
{
    return test_known(r, out, &a[0], r->hooks->filter);
}

CHAT_BUILTIN(test_test)
{
    return test_known(r, out, &a[0], r->hooks->test);
}

static const struct chat_builtin tests[] = {
    {"defined", test_defined, "", 0},    {"undefined", test_undefined, "", 0},
    {"none", test_none, "", 0},          {"boolean", test_boolean, "", 0},
    {"true", test_true, "", 0},          {"false", test_false, "", 0},
    {"integer", test_integer, "", 0},    {"float", test_float, "", 0},
    {"number", test_number, "", 0},      {"string", test_string, "", 0},
    {"mapping", test_mapping, "", 0},    {"iterable", test_iterable, "", 0},
    {"sequence", test_sequence, "", 0},  {"callable", test_callable, "", 0},
    {"escaped", test_escaped, "", 0},    {"odd", test_odd, "", 0},
    {"even", test_even, "", 0},          {"divisibleby", test_divisibleby, "num", 1},
    {"eq", test_eq, "other", 1},         {"equalto", test_eq, "other", 1},
    {"==", test_eq, "other", 1},         {"ne", test_ne, "other", 1},
    {"!=", test_ne, "other", 1},         {"lt", test_lt, "other", 1},
    {"lessthan", test_lt, "other", 1},   {"<", test_lt, "other", 1},
    {"le", test_le, "other", 1},         {"<=", test_le, "other", 1},
    {"gt", test_gt, "other", 1},         {"greaterthan", test_gt, "other", 1},
    {">", test_gt, "other", 1},          {"ge", test_ge, "other", 1},
    {">=", test_ge, "other", 1},         {"in", test_in, "seq", 1},
    {"sameas", test_sameas, "other", 1}, {"lower", test_lower, "", 0},
    {"upper", test_upper, "", 0},        {"filter", test_filter, "", 0},
    {"test", test_test, "", 0},          {0},
};

const struct chat_builtin *chat_test_find(const struct chat_str *name)
{
    return chat_builtin_find(tests, name);
}
