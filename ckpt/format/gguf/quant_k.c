/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of 256 elements in parts. For each part a search tries scales around the one that fits the
 * range, rounds the elements by each, and fits scale and minimum to the integers by least squares;
 * the least squared error wins. Then the parts' scales become integers, of which the neighbours are
 * tried too, as an integer scale that is off changes which rounding is best.
 */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "util/convert.h"

enum { BLOCK = 256, PART = 32, NPARTS = BLOCK / PART, PART6 = 16, NPARTS6 = BLOCK / PART6 };
enum { NTRIES = 12 }; /* to each side of the range's scale */

/* Rounded to what the file holds. */
static float put_f16(uint8_t *dst, float value)
{
    ckpt_convert(dst, FSDP_F16, &value, FSDP_F32, 1);
    ckpt_convert(&value, FSDP_F32, dst, FSDP_F16, 1);
    return value;
}

/* NaN becomes least. */
static float nearest(float value, float least, float most)
{
    value = rintf(value);
    return value > most ? most : value > least ? value : least;
}

/* ---- scale and minimum: q4_k, q5_k ----------------------------------------------------------- */

/* An element is scale * q - under, where q is 0 to most, and neither is negative. */
struct line {
    float scale, under;
};

/* The squared error of a part whose elements are rounded by the line. */
static float line_error(const struct line *line, const float *src, float most)
{
    const float inverse = line->scale > 0 ? 1 / line->scale : 0;
    float sum = 0;
    for (int i = 0; i < PART; i++) {
        const float q = nearest((src[i] + line->under) * inverse, 0, most);
        const float off = line->scale * q - line->under - src[i];
        sum += off * off;
    }
    return sum;
}

/* Least squares for the integers that the elements become by this line. */
static struct line fit_line(const struct line *by, const float *src, float most)
{
    float sum_q = 0, sum_qq = 0, sum_x = 0, sum_xq = 0;
    for (int i = 0; i < PART; i++) {
        const float q = nearest((src[i] + by->under) / by->scale, 0, most);
        sum_q += q;
        sum_qq += q * q;
        sum_x += src[i];
        sum_xq += src[i] * q;
    }
    const float det = PART * sum_qq - sum_q * sum_q;
    struct line line = *by;
    if (det > 0) {
        line.scale = (PART * sum_xq - sum_x * sum_q) / det;
        line.under = (sum_q * sum_xq - sum_qq * sum_x) / det;
    }
    if (line.under < 0 && sum_qq > 0) {
        line.under = 0;
        line.scale = sum_xq / sum_qq;
    }
    line.scale = line.scale < 0 ? 0 : line.scale;
    line.under = line.under < 0 ? 0 : line.under;
    return line;
}

static struct line find_line(const float *src, float most)
{
    float low = 0, high = src[0];
    for (int i = 0; i < PART; i++) {
        low = src[i] < low ? src[i] : low;
        high = src[i] > high ? src[i] : high;
    }
    struct line best = {(high - low) / most, -low};
    if (!(high > low)) {
        best.scale = 0;
        return best;
    }
    const float range = high - low;
    float least = line_error(&best, src, most);
    for (int i = -NTRIES; i <= NTRIES; i++) {
        const struct line by = {range / (most + 0.15f * (float)i), -low};
        const struct line line = fit_line(&by, src, most);
        const float error = line_error(&line, src, most);
        if (error < least) {
            least = error;
            best = line;
        }
    }
    return best;
}

/* Of the part's integers and their neighbours, those with the least error. */
static void choose_integers(float *scale, float *under, const struct line *unit, const float *src,
                            float most)
{
    const float first_scale = *scale, first_under = *under;
    float least = INFINITY;
    for (int a = -1; a <= 1; a++)
        for (int b = -1; b <= 1; b++) {
            const float s = first_scale + (float)a, u = first_under + (float)b;
            if (s < 0 || s > 63 || u < 0 || u > 63)
                continue;
            const struct line line = {unit->scale * s, unit->under * u};
            const float error = line_error(&line, src, most);
            if (error < least) {
                least = error;
                *scale = s;
                *under = u;
            }
        }
}

/* Six bits each: of the first four parts in bytes 0 to 3 (scales) and 4 to 7 (minima), above which
 * lie the upper two of the last four, whose lower four are the nibbles of bytes 8 to 11. */
static void put_integers(uint8_t *out, const float *scales, const float *unders)
{
    for (int i = 0; i < 4; i++) {
        const unsigned scale = (unsigned)scales[i + 4], under = (unsigned)unders[i + 4];
        out[i] = (uint8_t)((unsigned)scales[i] | (scale >> 4) << 6);
        out[i + 4] = (uint8_t)((unsigned)unders[i] | (under >> 4) << 6);
        out[i + 8] = (uint8_t)((scale & 15) | (under & 15) << 4);
    }
}

/* Writes scales and minima (16 bytes), and the elements' integers to q. */
static void quantize_lines(uint8_t *out, uint8_t *q, const float *src, float most)
{
    struct line lines[NPARTS], unit = {0, 0};
    float scales[NPARTS], unders[NPARTS];
    for (int p = 0; p < NPARTS; p++) {
        lines[p] = find_line(src + (size_t)p * PART, most);
        unit.scale = lines[p].scale > unit.scale ? lines[p].scale : unit.scale;
        unit.under = lines[p].under > unit.under ? lines[p].under : unit.under;
    }
    unit.scale = put_f16(out, unit.scale / 63);
    unit.under = put_f16(out + 2, unit.under / 63);
    for (int p = 0; p < NPARTS; p++) {
        const float *part = src + (size_t)p * PART;
        scales[p] = unit.scale > 0 ? nearest(lines[p].scale / unit.scale, 0, 63) : 0;
        unders[p] = unit.under > 0 ? nearest(lines[p].under / unit.under, 0, 63) : 0;
        choose_integers(&scales[p], &unders[p], &unit, part, most);
        const float scale = unit.scale * scales[p], under = unit.under * unders[p];
        const float inverse = scale > 0 ? 1 / scale : 0;
        for (int i = 0; i < PART; i++)
            q[p * PART + i] = (uint8_t)nearest((part[i] + under) * inverse, 0, most);
    }
    put_integers(out + 4, scales, unders);
}

/* Of each 64 elements, the second half in the upper nibbles. */
static void put_nibbles(uint8_t *out, const uint8_t *q)
{
    for (int at = 0; at < BLOCK; at += 2 * PART, out += PART)
        for (int i = 0; i < PART; i++)
            out[i] = (uint8_t)((q[at + i] & 15) | (q[at + PART + i] & 15) << 4);
}

static void encode_q4_k(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 16 + BLOCK / 2) {
        quantize_lines(out, q, src, 15);
        put_nibbles(out + 16, q);
    }
}

static void encode_q5_k(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 48 + BLOCK / 2) {
        quantize_lines(out, q, src, 31);
        for (int i = 0; i < PART; i++) { /* fifth bits of elements i, i + 32, ... */
            unsigned bits = 0;
            for (int p = 0; p < NPARTS; p++)
                bits |= (unsigned)(q[p * PART + i] >> 4 & 1) << p;
            out[16 + i] = (uint8_t)bits;
        }
        put_nibbles(out + 48, q);
    }
}

/* ---- scale alone: q6_k ----------------------------------------------------------------------- */

static float scale_error(float scale, const float *src)
{
    const float inverse = scale != 0 ? 1 / scale : 0;
    float sum = 0;
    for (int i = 0; i < PART6; i++) {
        const float off = scale * nearest(src[i] * inverse, -32, 31) - src[i];
        sum += off * off;
    }
    return sum;
}

static float find_scale(const float *src)
{
    float most = src[0];
    for (int i = 1; i < PART6; i++)
        most = fabsf(src[i]) > fabsf(most) ? src[i] : most;
    if (most == 0)
        return 0;
    float best = most / -32, least = scale_error(best, src);
    for (int k = -NTRIES; k <= NTRIES; k++) {
        const float by = most / (-32 + 0.1f * (float)k);
        float sum_xq = 0, sum_qq = 0;
        for (int i = 0; i < PART6; i++) {
            const float q = nearest(src[i] / by, -32, 31);
            sum_xq += src[i] * q;
            sum_qq += q * q;
        }
        const float scale = sum_qq > 0 ? sum_xq / sum_qq : by, error = scale_error(scale, src);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

static float choose_integer(float unit, float first, const float *src)
{
    float best = first, least = INFINITY;
    for (int a = -1; a <= 1; a++) {
        const float scale = first + (float)a;
        const float error = scale < -128 || scale > 127 ? INFINITY : scale_error(unit * scale, src);
        if (error < least) {
            least = error;
            best = scale;
        }
    }
    return best;
}

/* Of each 128 elements: their lower nibbles, those of the second 64 above those of the first; and
 * their upper two bits, four elements that are 32 apart in a byte. */
static void put_six_bits(uint8_t *low, uint8_t *high, const uint8_t *q)
{
    for (int at = 0; at < BLOCK; at += 128, low += 64, high += 32, q += 128) {
        for (int i = 0; i < 64; i++)
            low[i] = (uint8_t)((q[i] & 15) | (q[i + 64] & 15) << 4);
        for (int i = 0; i < 32; i++)
            high[i] = (uint8_t)(q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 |
                                q[i + 96] >> 4 << 6);
    }
}

static void encode_q6_k(void *dst, const float *src, size_t src_nelem)
{
    enum { LOW = BLOCK / 2, HIGH = BLOCK / 4, NBYTES = LOW + HIGH + NPARTS6 + 2 };
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += NBYTES) {
        float scales[NPARTS6], most = 0;
        for (int p = 0; p < NPARTS6; p++) {
            scales[p] = find_scale(src + (size_t)p * PART6);
            most = fabsf(scales[p]) > fabsf(most) ? scales[p] : most;
        }
        const float unit = put_f16(out + LOW + HIGH + NPARTS6, most / -128);
        for (int p = 0; p < NPARTS6; p++) {
            const float *part = src + (size_t)p * PART6;
            const float first = unit != 0 ? nearest(scales[p] / unit, -128, 127) : 0;
            const float integer = choose_integer(unit, first, part);
            const float inverse = unit * integer != 0 ? 1 / (unit * integer) : 0;
            out[LOW + HIGH + p] = (uint8_t)(int8_t)integer;
            for (int i = 0; i < PART6; i++)
                q[p * PART6 + i] = (uint8_t)(nearest(part[i] * inverse, -32, 31) + 32);
        }
        put_six_bits(out, out + LOW, q);
    }
}

const struct ckpt_encoding ckpt_quant_q4_k = {"q4_k", BLOCK, 16 + BLOCK / 2, encode_q4_k};
const struct ckpt_encoding ckpt_quant_q5_k = {"q5_k", BLOCK, 48 + BLOCK / 2, encode_q5_k};
const struct ckpt_encoding ckpt_quant_q6_k = {"q6_k", BLOCK, BLOCK / 2 + BLOCK / 4 + NPARTS6 + 2,
                                              encode_q6_k};
