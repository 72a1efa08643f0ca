// SPDX-License-Identifier: Apache-2.0
// What the instructions of PTX compute (NVIDIA, "Parallel Thread Execution ISA", 9.0). Approximate
// ones are computed exactly and rounded once.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "fsdp/base.h"
#include "ptx.h"
#include "ptx_compute.h"

namespace ptx
{

uint16_t bf16_of(float x)
{
    uint32_t bits;
    if (std::isnan(x))
        return 0x7fff;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

namespace
{

typedef uint64_t word;

template <class T> T get(word w)
{
    T x;
    memcpy(&x, &w, sizeof x);
    return x;
}
template <class T> word put(T x)
{
    word w = 0;
    memcpy(&w, &x, sizeof x);
    return w;
}
template <> bool get<bool>(word w)
{
    return w != 0;
}
template <> word put<bool>(bool x)
{
    return x;
}

std::map<std::string, value_f *> table;

// ---- integers

template <class T> struct wide_of;
template <> struct wide_of<uint16_t> {
    typedef uint32_t type;
};
template <> struct wide_of<int16_t> {
    typedef int32_t type;
};
template <> struct wide_of<uint32_t> {
    typedef uint64_t type;
};
template <> struct wide_of<int32_t> {
    typedef int64_t type;
};
template <> struct wide_of<uint64_t> {
    typedef unsigned __int128 type;
};
template <> struct wide_of<int64_t> {
    typedef __int128 type;
};

template <class T> T shifted_left(T x, uint32_t by)
{
    return by >= sizeof(T) * 8 ? 0 : (T)((typename std::make_unsigned<T>::type)x << by);
}
template <class T> T shifted_right(T x, uint32_t by)
{
    if (by >= sizeof(T) * 8)
        return std::is_signed<T>::value && x < 0 ? (T)-1 : 0;
    return (T)(x >> by);
}

// Without overflow, which C++ does not define.
template <class T> void add_integers(const std::string &t)
{
    typedef typename std::make_unsigned<T>::type U;
    typedef typename wide_of<T>::type W;
    table["add." + t] = [](word a, word b, word, word) {
        return put<U>((U)(get<U>(a) + get<U>(b)));
    };
    table["sub." + t] = [](word a, word b, word, word) {
        return put<U>((U)(get<U>(a) - get<U>(b)));
    };
    table["mul.lo." + t] = [](word a, word b, word, word) {
        return put<U>((U)((W)get<T>(a) * (W)get<T>(b)));
    };
    table["mul.hi." + t] = [](word a, word b, word, word) {
        return put<T>((T)(((W)get<T>(a) * (W)get<T>(b)) >> sizeof(T) * 8));
    };
    table["mad.lo." + t] = [](word a, word b, word c, word) {
        return put<U>((U)((U)((W)get<T>(a) * (W)get<T>(b)) + get<U>(c)));
    };
    table["mad.hi." + t] = [](word a, word b, word c, word) {
        return put<U>((U)((U)(((W)get<T>(a) * (W)get<T>(b)) >> sizeof(T) * 8) + get<U>(c)));
    };
    table["div." + t] = [](word a, word b, word, word) {
        return get<T>(b) == 0 ? put<U>((U)-1) : put<T>((T)((W)get<T>(a) / (W)get<T>(b)));
    };
    table["rem." + t] = [](word a, word b, word, word) {
        return get<T>(b) == 0 ? a : put<T>((T)((W)get<T>(a) % (W)get<T>(b)));
    };
    table["min." + t] = [](word a, word b, word, word) {
        return put<T>(get<T>(a) < get<T>(b) ? get<T>(a) : get<T>(b));
    };
    table["max." + t] = [](word a, word b, word, word) {
        return put<T>(get<T>(a) > get<T>(b) ? get<T>(a) : get<T>(b));
    };
    table["shr." + t] = [](word a, word b, word, word) {
        return put<T>(shifted_right(get<T>(a), get<uint32_t>(b)));
    };
    table["bfe." + t] = [](word a, word b, word c, word) {
        const unsigned at = (unsigned)b & 255, len = (unsigned)c & 255, width = sizeof(T) * 8;
        U out = 0;
        bool sign = false;
        if (std::is_signed<T>::value && len)
            sign = get<U>(a) >> (at + len - 1 < width - 1 ? at + len - 1 : width - 1) & 1;
        for (unsigned i = 0; i < width; i++) {
            const bool bit = i < len && at + i < width ? get<U>(a) >> (at + i) & 1 : sign;
            out |= (U)((U)bit << i);
        }
        return put<U>(out);
    };
    if (std::is_signed<T>::value) {
        table["neg." + t] = [](word a, word, word, word) { return put<U>((U)(0 - get<U>(a))); };
        table["abs." + t] = [](word a, word, word, word) {
            return put<U>(get<T>(a) < 0 ? (U)(0 - get<U>(a)) : get<U>(a));
        };
    }
}

template <class T> void add_wide(const std::string &t)
{
    typedef typename wide_of<T>::type W;
    typedef typename std::make_unsigned<W>::type U;
    table["mul.wide." + t] = [](word a, word b, word, word) {
        return put<W>((W)get<T>(a) * (W)get<T>(b));
    };
    table["mad.wide." + t] = [](word a, word b, word c, word) {
        return put<U>((U)((U)((W)get<T>(a) * (W)get<T>(b)) + get<U>(c)));
    };
}

template <class T> void add_bits(const std::string &t)
{
    table["and." + t] = [](word a, word b, word, word) {
        return put<T>((T)(get<T>(a) & get<T>(b)));
    };
    table["or." + t] = [](word a, word b, word, word) {
        return put<T>((T)(get<T>(a) | get<T>(b)));
    };
    table["xor." + t] = [](word a, word b, word, word) {
        return put<T>((T)(get<T>(a) ^ get<T>(b)));
    };
    table["not." + t] = [](word a, word, word, word) { return put<T>((T)(get<T>(a) ^ (T)-1)); };
}

template <class T> void add_shifts(const std::string &t)
{
    table["shl." + t] = [](word a, word b, word, word) {
        return put<T>(shifted_left(get<T>(a), get<uint32_t>(b)));
    };
    table["shr." + t] = [](word a, word b, word, word) {
        return put<T>(shifted_right(get<T>(a), get<uint32_t>(b)));
    };
    table["bfi." + t] = [](word a, word b, word c, word d) {
        const unsigned at = (unsigned)c & 255, len = (unsigned)d & 255;
        T out = get<T>(b);
        for (unsigned i = 0; i < len && at + i < sizeof(T) * 8; i++)
            out = (T)((out & ~((T)1 << (at + i))) | (get<T>(a) >> i & 1) << (at + i));
        return put<T>(out);
    };
}

// Sums of 32 bits with the carry of an earlier one (d), and their own carry.
void add_carries()
{
#define CARRY(name, sum)                                                                           \
    table[name ".u32"] = [](word a, word b, word c, word d) -> word {                              \
        (void)a, (void)b, (void)c, (void)d;                                                        \
        return (sum)&0xffffffffu;                                                                  \
    };                                                                                             \
    table["carry of " name ".u32"] = [](word a, word b, word c, word d) -> word {                  \
        (void)a, (void)b, (void)c, (void)d;                                                        \
        return (sum) >> 32 & 1;                                                                    \
    }
#define LOW(x) ((x)&0xffffffffu)
#define HIGH(x) ((x) >> 32)
    CARRY("add.cc", LOW(a) + LOW(b));
    CARRY("addc", LOW(a) + LOW(b) + d);
    CARRY("addc.cc", LOW(a) + LOW(b) + d);
    CARRY("sub.cc", LOW(a) - LOW(b));
    CARRY("subc", LOW(a) - LOW(b) - d);
    CARRY("subc.cc", LOW(a) - LOW(b) - d);
    CARRY("mad.lo.cc", LOW(LOW(a) * LOW(b)) + LOW(c));
    CARRY("madc.lo", LOW(LOW(a) * LOW(b)) + LOW(c) + d);
    CARRY("madc.lo.cc", LOW(LOW(a) * LOW(b)) + LOW(c) + d);
    CARRY("mad.hi.cc", HIGH(LOW(a) * LOW(b)) + LOW(c));
    CARRY("madc.hi", HIGH(LOW(a) * LOW(b)) + LOW(c) + d);
    CARRY("madc.hi.cc", HIGH(LOW(a) * LOW(b)) + LOW(c) + d);
}

// ---- moves and choices

template <class T> void add_moves(const std::string &t)
{
    table["mov." + t] = [](word a, word, word, word) { return put<T>(get<T>(a)); };
    table["selp." + t] = [](word a, word b, word c, word) { return put<T>(get<T>(c & 1 ? a : b)); };
}

template <class T> bool unordered(T a, T b)
{
    return std::is_floating_point<T>::value && (a != a || b != b);
}
#define COMPARISON(name, expression)                                                               \
    struct is_##name {                                                                             \
        template <class T> static bool of(T a, T b)                                                \
        {                                                                                          \
            (void)a, (void)b;                                                                      \
            return expression;                                                                     \
        }                                                                                          \
    }
COMPARISON(eq, a == b);
COMPARISON(ne, a != b && !unordered(a, b));
COMPARISON(lt, a < b);
COMPARISON(le, a <= b);
COMPARISON(gt, a > b);
COMPARISON(ge, a >= b);
COMPARISON(equ, a == b || unordered(a, b));
COMPARISON(neu, a != b);
COMPARISON(ltu, a < b || unordered(a, b));
COMPARISON(leu, a <= b || unordered(a, b));
COMPARISON(gtu, a > b || unordered(a, b));
COMPARISON(geu, a >= b || unordered(a, b));
COMPARISON(num, !unordered(a, b));
COMPARISON(nan, unordered(a, b));

template <class T, class C> void add_comparison(const std::string &name, const std::string &t)
{
    const std::string stem = "setp." + name + ".";
    table[stem + t] = [](word a, word b, word, word) -> word {
        return C::of(get<T>(a), get<T>(b));
    };
    table[stem + "and." + t] = [](word a, word b, word c, word) -> word {
        return C::of(get<T>(a), get<T>(b)) && c;
    };
    table[stem + "or." + t] = [](word a, word b, word c, word) -> word {
        return C::of(get<T>(a), get<T>(b)) || c;
    };
    table[stem + "xor." + t] = [](word a, word b, word c, word) -> word {
        return C::of(get<T>(a), get<T>(b)) != (c != 0);
    };
}
template <class T> void add_comparisons(const std::string &t)
{
    add_comparison<T, is_eq>("eq", t);
    add_comparison<T, is_ne>("ne", t);
    add_comparison<T, is_lt>("lt", t);
    add_comparison<T, is_le>("le", t);
    add_comparison<T, is_gt>("gt", t);
    add_comparison<T, is_ge>("ge", t);
    if (std::is_unsigned<T>::value) {
        add_comparison<T, is_lt>("lo", t);
        add_comparison<T, is_le>("ls", t);
        add_comparison<T, is_gt>("hi", t);
        add_comparison<T, is_ge>("hs", t);
    }
    if (std::is_floating_point<T>::value) {
        add_comparison<T, is_equ>("equ", t);
        add_comparison<T, is_neu>("neu", t);
        add_comparison<T, is_ltu>("ltu", t);
        add_comparison<T, is_leu>("leu", t);
        add_comparison<T, is_gtu>("gtu", t);
        add_comparison<T, is_geu>("geu", t);
        add_comparison<T, is_num>("num", t);
        add_comparison<T, is_nan>("nan", t);
    }
}

// ---- floating point

float flushed(float x)
{
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}
// Of exact + rest, where the rest is less than a unit in the last place of exact.
float rounded_down(double exact, double rest = 0)
{
    const float x = (float)exact;
    return (double)x > exact || ((double)x == exact && rest < 0) ? std::nextafter(x, -INFINITY) : x;
}
float rounded_up(double exact, double rest = 0)
{
    return -rounded_down(-exact, -rest);
}
float rounded_to_zero(double exact, double rest = 0)
{
    return exact < 0 ? rounded_up(exact, rest) : rounded_down(exact, rest);
}

// a b + c as a sum and its rest; the product of two floats is exact. (Knuth's sum of two numbers.)
struct exact_sum {
    double sum, rest;
    exact_sum(float a, float b, float c)
    {
        const double product = (double)a * b, x = (double)c;
        sum = product + x;
        const double part = sum - product;
        rest = std::isfinite(sum) ? (product - (sum - part)) + (x - part) : 0;
        negative_zero = sum == 0 && (std::signbit(product) || std::signbit(x));
    }
    bool negative_zero; // of a zero that is rounded down
};
float fma_down(float a, float b, float c)
{
    const exact_sum s(a, b, c);
    return s.negative_zero ? -0.0f : rounded_down(s.sum, s.rest);
}
float fma_up(float a, float b, float c)
{
    const exact_sum s(a, b, c);
    return rounded_up(s.sum, s.rest);
}
float fma_to_zero(float a, float b, float c)
{
    const exact_sum s(a, b, c);
    return rounded_to_zero(s.sum, s.rest);
}
template <class T> T lesser(T a, T b)
{
    return a != a ? b : b != b ? a : a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T> T greater(T a, T b)
{
    return a != a ? b : b != b ? a : a > b || (a == b && !std::signbit(a)) ? a : b;
}

#define UNARY(name, T, expression)                                                                 \
    table[name] = [](word a_, word, word, word) {                                                  \
        const T a = get<T>(a_);                                                                    \
        return put((T)(expression));                                                               \
    }
#define BINARY(name, T, expression)                                                                \
    table[name] = [](word a_, word b_, word, word) {                                               \
        const T a = get<T>(a_), b = get<T>(b_);                                                    \
        return put((T)(expression));                                                               \
    }
#define TERNARY(name, T, expression)                                                               \
    table[name] = [](word a_, word b_, word c_, word) {                                            \
        const T a = get<T>(a_), b = get<T>(b_), c = get<T>(c_);                                    \
        return put((T)(expression));                                                               \
    }

template <class T> void add_floats(const std::string &t)
{
    for (const char *rn : {".", ".rn."}) {
        BINARY("add" + (rn + t), T, a + b);
        BINARY("sub" + (rn + t), T, a - b);
        BINARY("mul" + (rn + t), T, a * b);
    }
    TERNARY("fma.rn." + t, T, std::fma(a, b, c));
    BINARY("div.rn." + t, T, a / b);
    UNARY("rcp.rn." + t, T, 1 / a);
    UNARY("sqrt.rn." + t, T, std::sqrt(a));
    UNARY("neg." + t, T, -a);
    UNARY("abs." + t, T, std::fabs(a));
    BINARY("min." + t, T, lesser(a, b));
    BINARY("max." + t, T, greater(a, b));
    BINARY("min.NaN." + t, T, a != a || b != b ? (T)NAN : lesser(a, b));
    BINARY("max.NaN." + t, T, a != a || b != b ? (T)NAN : greater(a, b));
    BINARY("copysign." + t, T, std::copysign(b, a)); // the sign of a
}

// With .ftz, operands and results that are not normal numbers are zero.
void add_approximations()
{
    BINARY("div.approx.f32", float, a / b);
    BINARY("div.full.f32", float, a / b);
    UNARY("rcp.approx.f32", float, 1 / a);
    UNARY("sqrt.approx.f32", float, std::sqrt(a));
    UNARY("rsqrt.approx.f32", float, 1 / std::sqrt((double)a));
    UNARY("ex2.approx.f32", float, std::exp2((double)a));
    UNARY("lg2.approx.f32", float, std::log2((double)a));
    UNARY("sin.approx.f32", float, std::sin((double)a));
    UNARY("cos.approx.f32", float, std::cos((double)a));
    UNARY("tanh.approx.f32", float, std::tanh((double)a));
    TERNARY("fma.rm.f32", float, fma_down(a, b, c));
    TERNARY("fma.rp.f32", float, fma_up(a, b, c));
    TERNARY("fma.rz.f32", float, fma_to_zero(a, b, c));
    UNARY("ex2.approx.ftz.f32", float, flushed((float)std::exp2((double)flushed(a))));
    UNARY("lg2.approx.ftz.f32", float, std::log2((double)flushed(a)));
    UNARY("rcp.approx.ftz.f32", float, flushed(1 / flushed(a)));
    UNARY("rsqrt.approx.ftz.f32", float, 1 / std::sqrt((double)flushed(a)));
    BINARY("add.ftz.f32", float, flushed(flushed(a) + flushed(b)));
    BINARY("mul.ftz.f32", float, flushed(flushed(a) * flushed(b)));
    TERNARY("fma.rn.ftz.f32", float, flushed(std::fma(flushed(a), flushed(b), flushed(c))));
    // Of the upper half of a; the lower half of the result is zeros.
    table["rcp.approx.ftz.f64"] = [](word a, word, word, word) {
        return put(1 / get<double>(a >> 32 << 32)) >> 32 << 32;
    };
    table["rsqrt.approx.ftz.f64"] = [](word a, word, word, word) {
        return put(1 / std::sqrt(get<double>(a >> 32 << 32))) >> 32 << 32;
    };
}

// ---- conversions

// Out of range: the nearest. NaN: 0, but the highest bit alone where one of both types has 64 bits.
template <class I, class F> I clamped(F x)
{
    if (x != x)
        return sizeof(I) < 8 && sizeof(F) < 8 ? 0 : (I)((uint64_t)1 << (sizeof(I) * 8 - 1));
    if (x <= (F)std::numeric_limits<I>::min())
        return std::numeric_limits<I>::min();
    if (x >= (F)std::numeric_limits<I>::max())
        return std::numeric_limits<I>::max();
    return (I)x;
}

template <class I, class F> void add_float_integer(const std::string &i, const std::string &f)
{
    table["cvt.rzi." + i + "." + f] = [](word a, word, word, word) {
        return put(clamped<I>(std::trunc(get<F>(a))));
    };
    table["cvt.rni." + i + "." + f] = [](word a, word, word, word) {
        return put(clamped<I>(std::nearbyint(get<F>(a))));
    };
    table["cvt.rmi." + i + "." + f] = [](word a, word, word, word) {
        return put(clamped<I>(std::floor(get<F>(a))));
    };
    table["cvt.rpi." + i + "." + f] = [](word a, word, word, word) {
        return put(clamped<I>(std::ceil(get<F>(a))));
    };
    table["cvt.rn." + f + "." + i] = [](word a, word, word, word) { return put((F)get<I>(a)); };
}
template <class I, class O> word saturated(word a)
{
    const __int128 x = get<I>(a), least = std::numeric_limits<O>::min(),
                   most = std::numeric_limits<O>::max();
    return put((O)(x < least ? least : x > most ? most : x));
}
template <class I, class O> void add_integer_conversion(const std::string &i, const std::string &o)
{
    table["cvt." + o + "." + i] = [](word a, word, word, word) { return put((O)get<I>(a)); };
    table["cvt.sat." + o + "." + i] = [](word a, word, word, word) { return saturated<I, O>(a); };
}
template <class I> void add_integer_conversions(const std::string &i)
{
    add_float_integer<I, float>(i, "f32");
    add_float_integer<I, double>(i, "f64");
    add_integer_conversion<I, uint64_t>(i, "u64");
    add_integer_conversion<I, int64_t>(i, "s64");
    add_integer_conversion<I, uint32_t>(i, "u32");
    add_integer_conversion<I, int32_t>(i, "s32");
    add_integer_conversion<I, uint16_t>(i, "u16");
    add_integer_conversion<I, int16_t>(i, "s16");
    add_integer_conversion<I, uint8_t>(i, "u8");
    add_integer_conversion<I, int8_t>(i, "s8");
}

template <class F> void add_roundings(const std::string &f)
{
    const std::string same = f + "." + f;
    UNARY("cvt." + same, F, a);
    UNARY("cvt.rni." + same, F, std::nearbyint(a));
    UNARY("cvt.rmi." + same, F, std::floor(a));
    UNARY("cvt.rpi." + same, F, std::ceil(a));
    UNARY("cvt.rzi." + same, F, std::trunc(a));
    UNARY("cvt.sat." + same, F, a > 0 ? (a < 1 ? a : (F)1) : (F)0);
}

void add_conversions()
{
    add_integer_conversions<uint8_t>("u8");
    add_integer_conversions<int8_t>("s8");
    add_integer_conversions<uint16_t>("u16");
    add_integer_conversions<int16_t>("s16");
    add_integer_conversions<uint32_t>("u32");
    add_integer_conversions<int32_t>("s32");
    add_integer_conversions<uint64_t>("u64");
    add_integer_conversions<int64_t>("s64");
    // Both are exact.
    for (const char *i : {"u8", "s8", "u16", "s16", "u32", "s32"})
        table[std::string("cvt.f64.") + i] = table[std::string("cvt.rn.f64.") + i];
    add_roundings<float>("f32");
    add_roundings<double>("f64");
    table["cvt.f64.f32"] = [](word a, word, word, word) { return put((double)get<float>(a)); };
    table["cvt.rn.f32.f64"] = [](word a, word, word, word) { return put((float)get<double>(a)); };
    table["cvt.rz.f32.f64"] = [](word a, word, word, word) {
        return put(rounded_to_zero(get<double>(a)));
    };
    table["cvt.f32.bf16"] = [](word a, word, word, word) {
        return put(float_of_bf16((uint16_t)a));
    };
    table["cvt.rn.bf16.f32"] = [](word a, word, word, word) { return put(bf16_of(get<float>(a))); };
    table["cvt.rn.bf16x2.f32"] = [](word a, word b, word, word) -> word { // a is the upper one
        return (word)bf16_of(get<float>(a)) << 16 | bf16_of(get<float>(b));
    };
    table["cvt.f32.f16"] = [](word a, word, word, word) {
        return put(fsdp_f16_to_f32((uint16_t)a));
    };
    table["cvt.rn.f16.f32"] = [](word a, word, word, word) -> word {
        return std::isnan(get<float>(a)) ? 0x7fff : fsdp_f32_to_f16(get<float>(a));
    };
}

// ---- bits of words

void add_words()
{
    table["popc.b32"] = [](word a, word, word, word) -> word {
        return (word)__builtin_popcountll(a);
    };
    table["popc.b64"] = table["popc.b32"];
    table["second"] = [](word, word b, word, word) { return b; };
    table["clz.b32"] = [](word a, word, word, word) -> word {
        return a ? (word)__builtin_clz((unsigned)a) : 32;
    };
    table["clz.b64"] = [](word a, word, word, word) -> word {
        return a ? (word)__builtin_clzll(a) : 64;
    };
    table["brev.b32"] = [](word a, word, word, word) -> word {
        word out = 0;
        for (int i = 0; i < 32; i++)
            out |= (a >> i & 1) << (31 - i);
        return out;
    };
    table["shf.l.wrap.b32"] = [](word a, word b, word c, word) -> word {
        return ((b << 32 | (a & 0xffffffffu)) << (c & 31)) >> 32 & 0xffffffffu;
    };
    table["shf.r.wrap.b32"] = [](word a, word b, word c, word) -> word {
        return (b << 32 | (a & 0xffffffffu)) >> (c & 31) & 0xffffffffu;
    };
    table["shf.l.clamp.b32"] = [](word a, word b, word c, word) -> word {
        const unsigned by = (unsigned)c > 32 ? 32 : (unsigned)c;
        return (word)((unsigned __int128)(b << 32 | (a & 0xffffffffu)) << by >> 32) & 0xffffffffu;
    };
    table["shf.r.clamp.b32"] = [](word a, word b, word c, word) -> word {
        return (b << 32 | (a & 0xffffffffu)) >> ((unsigned)c > 32 ? 32 : (unsigned)c) & 0xffffffffu;
    };
    table["prmt.b32"] = [](word a, word b, word c, word) -> word {
        const word both = (a & 0xffffffffu) | b << 32;
        word out = 0;
        for (int i = 0; i < 4; i++) {
            const unsigned chosen = (unsigned)(c >> 4 * i) & 15;
            word byte = both >> 8 * (chosen & 7) & 255;
            if (chosen & 8)
                byte = byte & 128 ? 255 : 0;
            out |= byte << 8 * i;
        }
        return out;
    };
    // The table of a, b, c is the fourth operand.
    table["lop3.b32"] = [](word a, word b, word c, word d) -> word {
        word out = 0;
        for (int i = 0; i < 32; i++)
            out |= (d >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i;
        return out;
    };
    // Addresses: a window of the generic space.
    const char *const windows[] = {"shared", "local", "param"};
    table["cvta.to.global.u64"] = table["mov.u64"];
    table["cvta.global.u64"] = table["mov.u64"];
    table["cvta.const.u64"] = table["mov.u64"];
    for (const char *w : windows)
        table[std::string("cvta.to.") + w + ".u64"] = [](word a, word, word, word) {
            return a & (WINDOW - 1);
        };
    table["cvta.shared.u64"] = [](word a, word, word, word) { return a | SHARED_WINDOW; };
    table["cvta.local.u64"] = [](word a, word, word, word) { return a | LOCAL_WINDOW; };
    table["cvta.param.u64"] = [](word a, word, word, word) { return a | PARAM_WINDOW; };
}

void fill_table()
{
    add_integers<uint16_t>("u16");
    add_integers<int16_t>("s16");
    add_integers<uint32_t>("u32");
    add_integers<int32_t>("s32");
    add_integers<uint64_t>("u64");
    add_integers<int64_t>("s64");
    add_wide<uint16_t>("u16");
    add_wide<int16_t>("s16");
    add_wide<uint32_t>("u32");
    add_wide<int32_t>("s32");
    add_bits<uint16_t>("b16");
    add_bits<uint32_t>("b32");
    add_bits<uint64_t>("b64");
    add_bits<bool>("pred");
    add_shifts<uint16_t>("b16");
    add_shifts<uint32_t>("b32");
    add_shifts<uint64_t>("b64");
    for (const char *sign : {"b", "u", "s", "f"}) {
        add_moves<uint16_t>(std::string(sign) + "16");
        add_moves<uint32_t>(std::string(sign) + "32");
        add_moves<uint64_t>(std::string(sign) + "64");
    }
    add_moves<bool>("pred");
    add_comparisons<uint16_t>("u16");
    add_comparisons<uint16_t>("b16");
    add_comparisons<int16_t>("s16");
    add_comparisons<uint32_t>("u32");
    add_comparisons<uint32_t>("b32");
    add_comparisons<int32_t>("s32");
    add_comparisons<uint64_t>("u64");
    add_comparisons<uint64_t>("b64");
    add_comparisons<int64_t>("s64");
    add_comparisons<float>("f32");
    add_comparisons<double>("f64");
    add_floats<float>("f32");
    add_floats<double>("f64");
    add_carries();
    add_approximations();
    add_conversions();
    add_words();
}

} // namespace

value_f *compute_of(const std::string &name)
{
    if (table.empty())
        fill_table();
    const auto at = table.find(name);
    return at == table.end() ? nullptr : at->second;
}

} // namespace ptx

int simt_ptx_compute(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t *out)
{
    ptx::value_f *compute = ptx::compute_of(name);
    *out = compute ? compute(a, b, c, 0) : 0;
    return compute ? 0 : -1;
}
