/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "json.h"
#include "text.h"

struct ckpt_json_key {
    const char *data;
    uint32_t nbytes;
    uint32_t pos; /* behind it in the input, for errors */
};

enum { FEW_KEYS = 8 }; /* are compared pairwise, more by a hash table */

void ckpt_json_read_begin(struct ckpt_json_reader *r, const char *data, size_t nbytes,
                          const char *path, const char *part, struct fsdp_err *err)
{
    memset(r, 0, offsetof(struct ckpt_json_reader, levels));
    r->begin = r->at = data;
    r->end = data + nbytes;
    r->path = path;
    r->part = part;
    r->err = err;
}

static bool fail_at(struct ckpt_json_reader *r, const char *at, const char *why)
{
    int line = 1, column = 0;
    if (r->rc)
        return false;
    for (const char *p = r->begin; p < at; p++) {
        column = *p == '\n' ? 0 : column + 1;
        line += *p == '\n';
    }
    r->rc = fsdp_err_set(r->err, FSDP_ECORRUPT, "'%s'%s is not valid JSON: %s (line %d, column %d)",
                         r->path, r->part, why, line, column);
    r->at = r->end;
    return false;
}

static bool fail_reader(struct ckpt_json_reader *r, const char *why)
{
    return fail_at(r, r->at, r->at == r->end ? "premature end of input" : why);
}

static bool fail_memory(struct ckpt_json_reader *r)
{
    if (!r->rc)
        r->rc = FSDP_ENOMEM;
    r->at = r->end;
    return false;
}

/* The next byte that is no white space; 0 at the end. */
static char peek(struct ckpt_json_reader *r)
{
    const char *p = r->at;
    if (p < r->end && (unsigned char)*p > ' ')
        return *p;
    while (p < r->end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r'))
        p++;
    r->at = p;
    return p < r->end ? *p : 0;
}

int ckpt_json_read_end(struct ckpt_json_reader *r, int rc)
{
    peek(r);
    if (!rc && r->at < r->end)
        fail_reader(r, "end of file expected");
    fsdp_free(r->decoded);
    fsdp_free(r->keys);
    r->decoded = NULL;
    r->keys = NULL;
    return rc ? rc : r->rc;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* How many of the WIDE bytes at p begin a run of plain ASCII: neither quote nor backslash. */
#ifdef __SSE2__
enum { WIDE = 16 };
static inline int plain_bytes(const char *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
    __m128i slash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    __m128i low = _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20)); /* signed: from 0x80 on, too */
    int other = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), low));
    return other ? __builtin_ctz((unsigned)other) : WIDE;
}
#elif defined(__aarch64__)
enum { WIDE = 16 };
static inline int plain_bytes(const char *p)
{
    uint8x16_t bytes = vld1q_u8((const uint8_t *)p);
    uint8x16_t quote = vceqq_u8(bytes, vdupq_n_u8('"')), slash = vceqq_u8(bytes, vdupq_n_u8('\\'));
    uint8x16_t low = vcltq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(0x20)); /* signed, as above */
    uint8x16_t other = vorrq_u8(vorrq_u8(quote, slash), low);
    /* Four bits of each byte, in one word. */
    uint8x8_t fours = vshrn_n_u16(vreinterpretq_u16_u8(other), 4);
    uint64_t word = vget_lane_u64(vreinterpret_u64_u8(fours), 0);
    return word ? __builtin_ctzll(word) / 4 : WIDE;
}
#else
enum { WIDE = 8 };
/* Bytes behind the first other may be taken for others, too; the machine is little-endian. */
static inline int plain_bytes(const char *p)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones << 7;
    uint64_t word;
    memcpy(&word, p, 8);
    uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
    uint64_t other = (word | (word - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
    return other ? __builtin_ctzll(other) / 8 : WIDE;
}
#endif

static inline bool is_plain(char c)
{
    return (unsigned char)c >= 0x20 && (unsigned char)c < 0x80 && c != '"' && c != '\\';
}

static const char *plain_end(const char *p, const char *end)
{
    while (end - p >= WIDE) {
        int nbytes = plain_bytes(p);
        p += nbytes;
        if (nbytes < WIDE)
            return p;
    }
    while (p < end && is_plain(*p))
        p++;
    return p;
}

/* plain_end, and copies. *to has room for end - p bytes. */
static const char *plain_copy(char **to, const char *p, const char *end)
{
    while (end - p >= WIDE) {
        int nbytes = plain_bytes(p);
        memcpy(*to, p, WIDE);
        *to += nbytes;
        p += nbytes;
        if (nbytes < WIDE)
            return p;
    }
    while (p < end && is_plain(*p))
        *(*to)++ = *p++;
    return p;
}

/* Length of the UTF-8 sequence at p; 0: it is none. */
static int utf8_nbytes(const char *p, const char *end)
{
    uint32_t code;
    return fsdp_utf8_decode(&code, p, end);
}

static char *utf8_put(char *to, uint32_t code)
{
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | code >> (6 * more));
    while (more-- > 0)
        *to++ = (char)(0x80 | (code >> (6 * more) & 0x3f));
    return to;
}

/* Four digits at p; -1: they are none. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++, p++) {
        if (p >= end)
            return -1;
        char lower = (char)(*p | 0x20);
        if (*p >= '0' && *p <= '9')
            code = code << 4 | (*p - '0');
        else if (lower >= 'a' && lower <= 'f')
            code = code << 4 | (lower - 'a' + 10);
        else
            return -1;
    }
    return code;
}

/* At "\u". */
static bool unicode_escape(struct ckpt_json_reader *r, char **to)
{
    int32_t code = hex4(r->at + 2, r->end), low;
    if (code < 0)
        return fail_reader(r, "invalid escape");
    if (code == 0 && !r->takes_nul)
        return fail_reader(r, "\\u0000 is not allowed");
    r->at += 6;
    if (code >= 0xd800 && code < 0xe000) {
        bool pair = code < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u';
        low = pair ? hex4(r->at + 2, r->end) : -1;
        if (low < 0xdc00 || low >= 0xe000)
            return fail_reader(r, "invalid Unicode escape");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        r->at += 6;
    }
    *to = utf8_put(*to, (uint32_t)code);
    return true;
}

static bool escape(struct ckpt_json_reader *r, char **to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char name = r->end - r->at > 1 ? r->at[1] : 0;
    if (name == 'u')
        return unicode_escape(r, to);
    const char *found = name == '"' ? names : name ? strchr(names, name) : NULL;
    if (!found)
        return fail_reader(r, "invalid escape");
    *(*to)++ = values[found - names];
    r->at += 2;
    return true;
}

/* Behind the opening quote, at the first escape. What is decoded is never longer than it was. */
static bool text_decode(struct ckpt_json_reader *r, struct ckpt_json_text *out, const char *begin)
{
    if (!r->decoded) {
        r->decoded = fsdp_alloc_unset((size_t)(r->end - begin), 1, "JSON", r->err);
        r->decoded_end = r->decoded;
        if (!r->decoded)
            return fail_memory(r);
    }
    char *to = r->decoded_end;
    out->data = to;
    r->at = begin;
    for (;;) {
        r->at = plain_copy(&to, r->at, r->end);
        if (r->at == r->end || *r->at == '"')
            break;
        int n = (unsigned char)*r->at >= 0x80 ? utf8_nbytes(r->at, r->end) : 0;
        if (!n && *r->at != '\\')
            return fail_reader(r, "control character or bad UTF-8");
        if (!n && !escape(r, &to))
            return false;
        for (; n; n--)
            *to++ = *r->at++;
    }
    if (r->at == r->end)
        return fail_reader(r, "");
    out->nbytes = (size_t)(to - out->data);
    r->decoded_end = to;
    r->at++;
    return true;
}

/* At the opening quote. */
static bool text_scan(struct ckpt_json_reader *r, struct ckpt_json_text *out)
{
    const char *begin = ++r->at;
    for (;;) {
        r->at = plain_end(r->at, r->end);
        if (r->at == r->end)
            return fail_reader(r, "");
        if (*r->at == '"') {
            *out = (struct ckpt_json_text){begin, (size_t)(r->at++ - begin)};
            return true;
        }
        if (*r->at == '\\')
            return text_decode(r, out, begin);
        int n = (unsigned char)*r->at >= 0x80 ? utf8_nbytes(r->at, r->end) : 0;
        if (!n)
            return fail_reader(r, "control character or bad UTF-8");
        r->at += n;
    }
}

/* ---- containers ------------------------------------------------------------------------------ */

static bool same_keys(const struct ckpt_json_key *a, const struct ckpt_json_key *b)
{
    return a->nbytes == b->nbytes && (!a->nbytes || *a->data == *b->data) &&
           !memcmp(a->data, b->data, a->nbytes);
}

static bool fail_twice(struct ckpt_json_reader *r, const struct ckpt_json_key *key)
{
    char why[200];
    snprintf(why, sizeof why, "duplicate object key '%.*s'",
             (int)(key->nbytes < 100 ? key->nbytes : 100), key->data);
    return fail_at(r, r->begin + key->pos, why);
}

/* No two of the innermost object's keys are the same. */
static bool keys_check(struct ckpt_json_reader *r)
{
    uint32_t count = (uint32_t)(r->nkeys - r->levels[r->depth].first_key), size = 4 * FEW_KEYS;
    if (count < 2) /* there may be no list yet */
        return true;
    const struct ckpt_json_key *keys = r->keys + r->levels[r->depth].first_key;
    for (uint32_t i = 1; count <= FEW_KEYS && i < count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (same_keys(&keys[i], &keys[k]))
                return fail_twice(r, &keys[i]);
    if (count <= FEW_KEYS)
        return true;
    while (size < 2 * count)
        size *= 2;
    uint32_t *table = fsdp_alloc(size, sizeof *table, "JSON keys", r->err); /* index + 1; 0: free */
    if (!table)
        return fail_memory(r);
    bool fine = true;
    for (uint32_t i = 0; fine && i < count; i++) {
        uint32_t at = (uint32_t)ckpt_hash((uintptr_t)table, keys[i].data, keys[i].nbytes);
        for (at &= size - 1; fine && table[at]; at = (at + 1) & (size - 1))
            fine = !same_keys(&keys[i], &keys[table[at] - 1]) || fail_twice(r, &keys[i]);
        table[at] = i + 1;
    }
    fsdp_free(table);
    return fine;
}

static bool key_push(struct ckpt_json_reader *r, const struct ckpt_json_text *key)
{
    if (r->nkeys == r->max_keys) {
        size_t more = r->max_keys ? 4 * r->max_keys : 64;
        struct ckpt_json_key *grown = fsdp_alloc_unset(more, sizeof *grown, "JSON keys", r->err);
        if (!grown)
            return fail_memory(r);
        if (r->nkeys)
            memcpy(grown, r->keys, r->nkeys * sizeof *grown);
        fsdp_free(r->keys);
        r->keys = grown;
        r->max_keys = more;
    }
    r->keys[r->nkeys++] =
        (struct ckpt_json_key){key->data, (uint32_t)key->nbytes, (uint32_t)(r->at - r->begin)};
    return true;
}

static bool enter(struct ckpt_json_reader *r, bool is_object)
{
    if (r->depth + 1 == CKPT_JSON_DEPTH)
        return fail_reader(r, "maximum parsing depth reached");
    r->at++;
    r->depth++;
    r->levels[r->depth].first_key = r->nkeys;
    r->levels[r->depth].is_object = is_object;
    return r->fresh = true;
}

/* At the innermost container's next element: true; at its end, which is then left: false. */
static bool next_element(struct ckpt_json_reader *r, char close)
{
    char c = peek(r);
    if (r->rc)
        return false;
    if (c == close) {
        r->at++;
        if (close == '}' && !keys_check(r))
            return false;
        r->nkeys = r->levels[r->depth--].first_key;
        r->fresh = false;
        return false;
    }
    if (!r->fresh && c != ',')
        return fail_reader(r, close == '}' ? "'}' or ',' expected" : "']' or ',' expected");
    if (!r->fresh)
        r->at++;
    r->fresh = false;
    return true;
}

bool ckpt_json_read_object(struct ckpt_json_reader *r)
{
    if (peek(r) == '{')
        return enter(r, true);
    ckpt_json_read_skip(r, NULL);
    return false;
}

bool ckpt_json_read_array(struct ckpt_json_reader *r)
{
    if (peek(r) == '[')
        return enter(r, false);
    ckpt_json_read_skip(r, NULL);
    return false;
}

bool ckpt_json_read_item(struct ckpt_json_reader *r)
{
    return next_element(r, ']');
}

bool ckpt_json_read_key(struct ckpt_json_reader *r, struct ckpt_json_text *key)
{
    if (!next_element(r, '}'))
        return false;
    if (peek(r) != '"')
        return fail_reader(r, "string expected");
    if (!text_scan(r, key) || !key_push(r, key))
        return false;
    if (peek(r) != ':')
        return fail_reader(r, "':' expected");
    r->at++;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_digit(const struct ckpt_json_reader *r)
{
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

/* True for an integer that is not negative. */
static bool number_scan(struct ckpt_json_reader *r, uint64_t *out)
{
    bool negative = *r->at == '-', fits = true, real = false;
    const char *begin = r->at += negative;
    uint64_t value = 0;
    const char *p = begin;
    for (; p < r->end && *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (p - begin >= 18) /* fewer always fit */
            fits &= value <= (INT64_MAX + (uint64_t)negative - digit) / 10;
        value = value * 10 + digit;
    }
    r->at = p;
    *out = value;
    if (p == begin)
        return fail_reader(r, "invalid token");
    if (*begin == '0' && r->at > begin + 1)
        return fail_reader(r, "invalid token");
    if (r->at < r->end && *r->at == '.') {
        real = true;
        for (r->at++, begin = r->at; is_digit(r); r->at++)
            ;
        if (r->at == begin)
            return fail_reader(r, "invalid token");
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        real = true;
        r->at++;
        r->at += r->at < r->end && (*r->at == '+' || *r->at == '-');
        for (begin = r->at; is_digit(r); r->at++)
            ;
        if (r->at == begin)
            return fail_reader(r, "invalid token");
    }
    if (!real && !fits)
        return fail_at(r, r->at, "too big integer");
    return !real && (!negative || value == 0);
}

static bool word_scan(struct ckpt_json_reader *r, const char *word)
{
    size_t nbytes = strlen(word);
    if ((size_t)(r->end - r->at) < nbytes || memcmp(r->at, word, nbytes))
        return fail_reader(r, "invalid token");
    r->at += nbytes;
    return true;
}

/* A value, or the opening of a container. */
static void value_scan(struct ckpt_json_reader *r)
{
    struct ckpt_json_text text;
    uint64_t number;
    char c = peek(r);
    if (c == '{' || c == '[')
        enter(r, c == '{');
    else if (c == '"')
        text_scan(r, &text);
    else if (c == '-' || (c >= '0' && c <= '9'))
        number_scan(r, &number);
    else
        word_scan(r, c == 't' ? "true" : c == 'f' ? "false" : "null");
}

void ckpt_json_read_skip(struct ckpt_json_reader *r, struct ckpt_json_text *raw)
{
    struct ckpt_json_text key;
    int depth = r->depth;
    peek(r);
    const char *begin = r->at;
    value_scan(r);
    while (r->depth > depth && !r->rc)
        if (r->levels[r->depth].is_object ? ckpt_json_read_key(r, &key) : ckpt_json_read_item(r))
            value_scan(r);
    if (raw)
        *raw = (struct ckpt_json_text){begin, (size_t)(r->at - begin)};
}

bool ckpt_json_read_text(struct ckpt_json_reader *r, struct ckpt_json_text *out)
{
    if (peek(r) == '"')
        return text_scan(r, out);
    ckpt_json_read_skip(r, NULL);
    return false;
}

bool ckpt_json_read_u64(struct ckpt_json_reader *r, uint64_t *out)
{
    char c = peek(r);
    if (c == '-' || (c >= '0' && c <= '9'))
        return number_scan(r, out);
    ckpt_json_read_skip(r, NULL);
    return false;
}

/* The common form, [1,2,3] with at most a blank after commas and numbers that always fit; at any
 * other the array is left as it was. */
static bool dims_scan(struct ckpt_json_reader *r, uint64_t *dims, int *ndim)
{
    enum { DIGITS = 18 };
    const char *p = r->at;
    int count = 0;

    if (r->end - p < 3 || *p++ != '[')
        return false;
    const char *last = r->end - 1; /* beyond it no number continues */
    while (count < FSDP_MAX_DIMS) {
        const char *begin = p;
        uint64_t value = 0;
        for (; p < last && p - begin <= DIGITS && *p >= '0' && *p <= '9'; p++)
            value = value * 10 + (uint64_t)(*p - '0');
        if (p == begin || p - begin > DIGITS || (*begin == '0' && p - begin > 1))
            return false;
        dims[count++] = value;
        if (*p == ']') {
            r->at = p + 1;
            *ndim = count;
            return true;
        }
        if (*p++ != ',')
            return false;
        p += p < last && *p == ' ';
    }
    return false;
}

bool ckpt_json_read_dims(struct ckpt_json_reader *r, uint64_t *dims, int *ndim)
{
    bool fine = true;
    peek(r);
    if (dims_scan(r, dims, ndim))
        return true;
    *ndim = 0;
    if (!ckpt_json_read_array(r))
        return false;
    while (ckpt_json_read_item(r)) {
        uint64_t value;
        fine &= ckpt_json_read_u64(r, &value);
        if (fine && *ndim < FSDP_MAX_DIMS)
            dims[*ndim] = value;
        ++*ndim;
    }
    *ndim = fine ? *ndim : 0;
    return fine && *ndim <= FSDP_MAX_DIMS && !r->rc;
}

bool ckpt_json_read_hex(struct ckpt_json_reader *r, uint64_t *out, int ndigits)
{
    struct ckpt_json_text text;
    *out = 0;
    if (!ckpt_json_read_text(r, &text) || text.nbytes != (size_t)ndigits)
        return false;
    for (const char *p = text.data; p < text.data + text.nbytes; p++) {
        bool digit = *p >= '0' && *p <= '9';
        if (!digit && (*p < 'a' || *p > 'f'))
            return false;
        *out = *out << 4 | (uint64_t)(digit ? *p - '0' : *p - 'a' + 10);
    }
    return true;
}
