/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, as Python's. */
#include <math.h>

#include "arith.h"
#include "text/chat/value/iterate.h"
#include "methods.h"
#include "text/chat/value/print.h"

static const char *symbol_of(enum chat_op op)
{
    static const char *const symbols[] = {"+", "-", "*", "/", "//", "%", "**"};
    return symbols[op - CHAT_N_ADD];
}

static int unsupported(struct chat_run *r, enum chat_op op, const struct chat_val *a,
                       const struct chat_val *b)
{
    if (op == CHAT_N_ADD && a->kind == CHAT_STR)
        return chat_fail(r, "can only concatenate str (not \"%s\") to str", chat_type_name(b));
    return chat_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", symbol_of(op),
                     chat_type_name(a), chat_type_name(b));
}

static int overflow(struct chat_run *r)
{
    return chat_refuse(r, "an integer of more than 127 bits");
}

/* ---- integers ------------------------------------------------------------------------------- */

/* Rounded towards minus infinity. */
static int floor_divide(struct chat_run *r, chat_int *quotient, chat_int *rest, chat_int a,
                        chat_int b)
{
    if (!b)
        return chat_fail(r, "integer division or modulo by zero");
    if (b == -1 && __builtin_sub_overflow((chat_int)0, a, quotient))
        return overflow(r);
    *quotient = b == -1 ? -a : a / b;
    *rest = b == -1 ? 0 : a % b;
    if (*rest && (*rest < 0) != (b < 0)) {
        *rest += b;
        --*quotient;
    }
    return FSDP_OK;
}

static int int_power(struct chat_run *r, struct chat_val *out, chat_int a, chat_int b)
{
    chat_int power = 1;

    if (b < 0) {
        if (!a)
            return chat_fail(r, "zero cannot be raised to a negative power");
        *out = chat_float(pow((double)a, (double)b));
        return FSDP_OK;
    }
    if (a == 0 || a == 1 || a == -1) {
        *out = chat_integer(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
        return FSDP_OK;
    }
    for (; b; b--)
        if (__builtin_mul_overflow(power, a, &power))
            return overflow(r);
    *out = chat_integer(power);
    return FSDP_OK;
}

static int int_binary(struct chat_run *r, struct chat_val *out, enum chat_op op, chat_int a,
                      chat_int b)
{
    chat_int i = 0, rest = 0;
    bool over = false;

    switch (op) {
    case CHAT_N_ADD:
        over = __builtin_add_overflow(a, b, &i);
        break;
    case CHAT_N_SUB:
        over = __builtin_sub_overflow(a, b, &i);
        break;
    case CHAT_N_MUL:
        over = __builtin_mul_overflow(a, b, &i);
        break;
    case CHAT_N_DIV:
        if (!b)
            return chat_fail(r, "division by zero");
        *out = chat_float((double)a / (double)b);
        return FSDP_OK;
    case CHAT_N_POW:
        return int_power(r, out, a, b);
    default:
        FSDP_TRY(floor_divide(r, &i, &rest, a, b));
        i = op == CHAT_N_MOD ? rest : i;
    }
    *out = chat_integer(i);
    return over ? overflow(r) : FSDP_OK;
}

/* ---- floats --------------------------------------------------------------------------------- */

static int float_binary(struct chat_run *r, struct chat_val *out, enum chat_op op, double a,
                        double b)
{
    double rest;

    if (b == 0 && (op == CHAT_N_DIV || op == CHAT_N_FLOORDIV || op == CHAT_N_MOD))
        return chat_fail(r, "float division by zero");
    switch (op) {
    case CHAT_N_ADD:
        *out = chat_float(a + b);
        break;
    case CHAT_N_SUB:
        *out = chat_float(a - b);
        break;
    case CHAT_N_MUL:
        *out = chat_float(a * b);
        break;
    case CHAT_N_DIV:
        *out = chat_float(a / b);
        break;
    case CHAT_N_POW:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            return chat_fail(r, "a power that is no real number");
        *out = chat_float(pow(a, b));
        break;
    default:
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0))
            rest += b;
        *out = chat_float(op == CHAT_N_MOD ? rest : floor((a - rest) / b + 0.5));
    }
    return FSDP_OK;
}

/* ---- texts and lists ------------------------------------------------------------------------ */

int chat_concat(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                const struct chat_val *b)
{
    struct chat_val x = *a, y = *b;
    struct chat_str *s;
    char *at;

    if (x.s->markup || y.s->markup) {
        FSDP_TRY(chat_escape_html(r, &x, a));
        FSDP_TRY(chat_escape_html(r, &y, b));
    }
    const size_t nx = x.s->nbytes, ny = y.s->nbytes;
    if (ny && nx && chat_extend_bytes(r, x.s->at + nx, ny)) {
        at = (char *)(uintptr_t)x.s->at;
        FSDP_TRY(chat_step(r, ny >> 8));
    } else {
        FSDP_TRY(chat_new_bytes(r, &at, nx + ny));
        memcpy(at, x.s->at, nx);
    }
    memcpy(at + nx, y.s->at, ny);
    FSDP_TRY(chat_new(r, &s, 1, sizeof *s));
    *s = (struct chat_str){at, nx + ny, x.s->nchars + y.s->nchars, x.s->markup || y.s->markup};
    *out = chat_str_val(s);
    return FSDP_OK;
}

static int join_lists(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                      const struct chat_val *b)
{
    FSDP_TRY(chat_list_new(r, out, a->kind, a->list->nelem + b->list->nelem));
    for (size_t i = 0; i < a->list->nelem; i++)
        FSDP_TRY(chat_list_add(r, out->list, &a->list->at[i]));
    for (size_t i = 0; i < b->list->nelem; i++)
        FSDP_TRY(chat_list_add(r, out->list, &b->list->at[i]));
    return FSDP_OK;
}

static int repeat(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                  chat_int times)
{
    struct chat_buf b = {0};
    const size_t unit = a->kind == CHAT_STR ? a->s->nbytes : a->list->nelem;

    if (times < 0 || !unit)
        times = 0;
    if (times > (chat_int)(CHAT_MAX_MEMORY_NBYTES / (unit ? unit : 1)))
        return chat_fail(r, "a repetition takes more than %zu MiB of memory",
                         CHAT_MAX_MEMORY_NBYTES >> 20);
    if (a->kind == CHAT_STR) {
        for (chat_int i = 0; i < times; i++)
            FSDP_TRY(chat_buf_add(r, &b, a->s->at, unit));
        FSDP_TRY(chat_step(r, (uint64_t)times >> 4));
        return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = a->s->markup}, b.at,
                             b.nbytes);
    }
    FSDP_TRY(chat_list_new(r, out, a->kind, 0));
    for (chat_int i = 0; i < times; i++)
        for (size_t k = 0; k < unit; k++) {
            FSDP_TRY(chat_step(r, 1));
            FSDP_TRY(chat_list_add(r, out->list, &a->list->at[k]));
        }
    return FSDP_OK;
}

static bool can_repeat(const struct chat_val *v)
{
    return v->kind == CHAT_STR || chat_is_list(v);
}

int chat_binary(struct chat_run *r, struct chat_val *out, enum chat_op op, const struct chat_val *a,
                const struct chat_val *b)
{
    if (op == CHAT_N_MOD && a->kind == CHAT_STR)
        return chat_percent(r, out, a->s, b);
    if (a->kind == CHAT_UNDEF || b->kind == CHAT_UNDEF)
        return chat_undef_fail(r, a->kind == CHAT_UNDEF ? a : b);
    if (chat_is_int(a) && chat_is_int(b))
        return int_binary(r, out, op, a->i, b->i);
    if (chat_is_number(a) && chat_is_number(b))
        return float_binary(r, out, op, chat_as_double(a), chat_as_double(b));
    if (op == CHAT_N_ADD && a->kind == CHAT_STR && b->kind == CHAT_STR)
        return chat_concat(r, out, a, b);
    if (op == CHAT_N_ADD && chat_is_list(a) && a->kind == b->kind)
        return join_lists(r, out, a, b);
    if (op == CHAT_N_MUL && can_repeat(a) && chat_is_int(b))
        return repeat(r, out, a, b->i);
    if (op == CHAT_N_MUL && can_repeat(b) && chat_is_int(a))
        return repeat(r, out, b, a->i);
    return unsupported(r, op, a, b);
}

int chat_unary(struct chat_run *r, struct chat_val *out, enum chat_op op, const struct chat_val *a)
{
    const bool minus = op == CHAT_N_NEG;

    if (a->kind == CHAT_UNDEF)
        return chat_undef_fail(r, a);
    if (a->kind == CHAT_FLOAT) {
        *out = chat_float(minus ? -a->f : a->f);
        return FSDP_OK;
    }
    if (!chat_is_int(a))
        return chat_fail(r, "bad operand type for unary %s: '%s'", minus ? "-" : "+",
                         chat_type_name(a));
    *out = chat_integer(a->i);
    return minus && __builtin_sub_overflow((chat_int)0, a->i, &out->i) ? overflow(r) : FSDP_OK;
}

int chat_compare(struct chat_run *r, bool *out, enum chat_compare how, const struct chat_val *a,
                 const struct chat_val *b)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">="};
    int order;

    switch (how) {
    case CHAT_EQ:
    case CHAT_NE:
        FSDP_TRY(chat_equal(r, out, a, b));
        *out ^= how == CHAT_NE;
        return FSDP_OK;
    case CHAT_IN:
    case CHAT_NOT_IN:
        FSDP_TRY(chat_contains(r, out, b, a));
        *out ^= how == CHAT_NOT_IN;
        return FSDP_OK;
    default:
        FSDP_TRY(chat_order(r, &order, a, b, names[how]));
        *out = order != 2 && (how == CHAT_LT   ? order < 0
                              : how == CHAT_LE ? order <= 0
                              : how == CHAT_GT ? order > 0
                                               : order >= 0);
        return FSDP_OK;
    }
}
