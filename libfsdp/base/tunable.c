/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fsdp/tunable.h"

/* One alternative of `allowed`, not zero-terminated. */
struct piece {
    const char *text;
    size_t len;
};

static bool next_piece(struct piece *piece, const char **rest)
{
    if (!*rest)
        return false;
    const char *end = strchr(*rest, '|');
    *piece = (struct piece){*rest, end ? (size_t)(end - *rest) : strlen(*rest)};
    *rest = end ? end + 1 : NULL;
    return true;
}

static bool piece_is(struct piece piece, const char *word)
{
    return strlen(word) == piece.len && strncasecmp(word, piece.text, piece.len) == 0;
}

/* "word=value" or a range; a range has no word. */
static bool piece_word(struct piece *word, int64_t *value, struct piece piece)
{
    const char *eq = memchr(piece.text, '=', piece.len);
    if (!eq)
        return false;
    *word = (struct piece){piece.text, (size_t)(eq - piece.text)};
    *value = strtoll(eq + 1, NULL, 10);
    return true;
}

struct range {
    double lo, hi;
    bool has_lo, has_hi, lo_open, hi_open;
};

static struct range piece_range(struct piece piece)
{
    struct range r = {.lo = -INFINITY, .hi = INFINITY};
    const char *dots = memmem(piece.text, piece.len, "..", 2);
    const char *end = piece.text + piece.len;

    if (!dots)
        return r;
    if (dots > piece.text) {
        r.has_lo = true;
        r.lo = strtod(piece.text, NULL);
        r.lo_open = dots[-1] == '<';
    }
    dots += 2;
    if (dots < end) {
        r.has_hi = true;
        r.hi_open = *dots == '<';
        r.hi = strtod(dots + r.hi_open, NULL);
    }
    return r;
}

static bool range_has(struct range r, double x)
{
    return (r.lo_open ? x > r.lo : x >= r.lo) && (r.hi_open ? x < r.hi : x <= r.hi);
}

/* ---- what is allowed, in words --------------------------------------------------------------- */

static void append_text(char *out, size_t out_nbytes, const char *fmt, ...) FSDP_PRINTF(3, 4);

static void append_text(char *out, size_t out_nbytes, const char *fmt, ...)
{
    size_t len = strlen(out);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + len, out_nbytes - len, fmt, ap);
    va_end(ap);
}

static void describe_range(char *out, size_t out_nbytes, const char *noun, const char *allowed,
                           size_t len)
{
    struct range r = piece_range((struct piece){allowed, len});
    append_text(out, out_nbytes, "%s", noun);
    if (r.has_lo && r.has_hi && !r.lo_open && !r.hi_open) {
        append_text(out, out_nbytes, " from %.10g to %.10g", r.lo, r.hi);
        return;
    }
    if (r.has_lo)
        append_text(out, out_nbytes, r.lo_open ? " above %.10g" : " of at least %.10g", r.lo);
    if (r.has_hi)
        append_text(out, out_nbytes, r.hi_open ? "%s below %.10g" : "%s up to %.10g",
                    r.has_lo ? " and" : "", r.hi);
}

static void describe_alternatives(char *out, size_t out_nbytes, const struct fsdp_tunable *row)
{
    const char *noun = row->type == FSDP_TUNABLE_FLOAT ? "a number" : "a whole number";
    const char *rest = row->allowed;
    struct piece piece, word;
    int64_t value;

    while (next_piece(&piece, &rest)) {
        if (out[0])
            append_text(out, out_nbytes, rest ? ", " : ", or ");
        if (row->type == FSDP_TUNABLE_CHOICE)
            append_text(out, out_nbytes, "%.*s", (int)piece.len, piece.text);
        else if (piece_word(&word, &value, piece))
            append_text(out, out_nbytes, "%.*s", (int)word.len, word.text);
        else
            describe_range(out, out_nbytes, noun, piece.text, piece.len);
    }
}

static int floats_nelem(const struct fsdp_tunable *row)
{
    int nelem = 1;
    for (const char *p = row->def; p && *p; p++)
        nelem += *p == ',';
    return nelem;
}

void fsdp_tunable_allowed(char *out, size_t out_nbytes, const struct fsdp_tunable *row)
{
    const char *allowed = row->allowed ? row->allowed : "";
    out[0] = 0;
    switch (row->type) {
    case FSDP_TUNABLE_STRING:
        append_text(out, out_nbytes, "a text");
        break;
    case FSDP_TUNABLE_LIST:
        append_text(out, out_nbytes, "a text or a list of texts");
        break;
    case FSDP_TUNABLE_MAPS:
        append_text(out, out_nbytes, "a list of mappings");
        break;
    case FSDP_TUNABLE_BOOL:
        append_text(out, out_nbytes, "true or false");
        break;
    case FSDP_TUNABLE_CHOICE:
        describe_alternatives(out, out_nbytes, row);
        break;
    case FSDP_TUNABLE_INT:
        if (row->allowed)
            describe_alternatives(out, out_nbytes, row);
        else
            append_text(out, out_nbytes, "a whole number");
        break;
    case FSDP_TUNABLE_FLOAT:
        if (row->allowed)
            describe_alternatives(out, out_nbytes, row);
        else
            append_text(out, out_nbytes, "a number");
        break;
    case FSDP_TUNABLE_FLOATS:
        append_text(out, out_nbytes, "a list of %d numbers, each ", floats_nelem(row));
        describe_range(out, out_nbytes, "a number", allowed, strlen(allowed));
        break;
    }
}

static int refuse_value(const struct fsdp_tunable *row, const char *where, const char *value,
                        struct fsdp_err *err)
{
    char allowed[400];
    fsdp_tunable_allowed(allowed, sizeof allowed, row);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: %s: '%.100s' is not allowed; allowed: %s", where,
                        row->name, value, allowed);
}

/* ---- names ----------------------------------------------------------------------------------- */

enum { NAME_MAX_LEN = 63 };

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

int fsdp_text_distance(const char *a, const char *b)
{
    int la = (int)strnlen(a, NAME_MAX_LEN), lb = (int)strnlen(b, NAME_MAX_LEN);
    int d[3][NAME_MAX_LEN + 1];

    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *now = d[i % 3], *last = d[(i + 2) % 3], *before = d[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= lb; j++) {
            now[j] = least(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return d[la % 3][lb];
}

static const char *leaf(const char *name)
{
    const char *dot = strchr(name, '.');
    return dot ? dot + 1 : name;
}

/* The key that was probably meant, NULL if none is near: the same word in another section counts.
 */
static const char *nearest(const struct fsdp_tunable *table, int nrows, const char *name)
{
    const char *best = NULL;
    int best_distance = (int)strnlen(name, NAME_MAX_LEN) / 4 + 1;

    for (int i = 0; i < nrows; i++) {
        int d = strcmp(leaf(table[i].name), leaf(name)) == 0
                    ? 0
                    : fsdp_text_distance(name, table[i].name);
        if (d <= best_distance && (!best || d < best_distance)) {
            best = table[i].name;
            best_distance = d;
        }
    }
    return best;
}

static bool same_section(const char *a, size_t len, const char *b)
{
    return strncmp(a, b, len) == 0 && b[len] == '.';
}

/* The keys of the section that `name` is in, or, where there is no such section, the sections. */
static void list_known(char *out, size_t out_nbytes, const struct fsdp_tunable *table, int nrows,
                       const char *name)
{
    size_t len = strcspn(name, ".");
    bool known = false;

    for (int i = 0; i < nrows; i++)
        known |= same_section(name, len, table[i].name);
    append_text(out, out_nbytes, known ? "section %.*s has" : "sections are", (int)len, name);
    const char *separator = " ", *last = "";
    for (int i = 0; i < nrows; i++) {
        size_t table_len = strcspn(table[i].name, ".");
        if (known ? !same_section(name, len, table[i].name)
                  : same_section(table[i].name, table_len, last))
            continue;
        last = table[i].name;
        append_text(out, out_nbytes, "%s%.*s", separator, known ? NAME_MAX_LEN : (int)table_len,
                    known ? leaf(last) : last);
        separator = ", ";
    }
}

int fsdp_tunable_find(int *out, const struct fsdp_tunable *table, int nrows, const char *where,
                      const char *name, struct fsdp_err *err)
{
    char known[700] = "";
    for (int i = 0; i < nrows; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *out = i;
            return FSDP_OK;
        }
    }
    list_known(known, sizeof known, table, nrows, name);
    const char *near = nearest(table, nrows, name);
    if (near)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: unknown key '%.100s'; did you mean %s? (%s)",
                            where, name, near, known);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: unknown key '%.100s'; %s", where, name, known);
}

/* ---- setting --------------------------------------------------------------------------------- */

/* YAML's "|" adds one, which no path or word of a setting has. */
static int refuse_newline(const struct fsdp_tunable *row, const char *where, const char *value,
                          struct fsdp_err *err)
{
    const size_t len = strlen(value);

    if (!len || value[len - 1] != '\n')
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%s: %s: the value '%.*s' ends with a newline; write it on the line of its "
                        "key, or after '|-' instead of '|'",
                        where, row->name, (int)(len < 100 ? len - 1 : 100), value);
}

static int set_string(const struct fsdp_tunable *row, void *field, const char *where,
                      const char *value, struct fsdp_err *err)
{
    if (strlen(value) >= FSDP_TUNABLE_STRING_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: %s: longer than %d bytes", where, row->name,
                            FSDP_TUNABLE_STRING_NBYTES - 1);
    FSDP_TRY(refuse_newline(row, where, value, err));
    strcpy(field, value);
    return FSDP_OK;
}

static int set_int(const struct fsdp_tunable *row, int64_t *field, const char *where,
                   const char *value, struct fsdp_err *err)
{
    const char *rest = row->allowed;
    struct piece piece, word;
    int64_t named;
    char *end;

    errno = 0;
    long long x = strtoll(value, &end, 10);
    bool number = end != value && !*end && !errno && !isspace((unsigned char)value[0]);
    bool fits = number && !rest;
    while (!fits && next_piece(&piece, &rest)) {
        if (!piece_word(&word, &named, piece)) {
            fits = number && range_has(piece_range(piece), (double)x);
        } else if (piece_is(word, value)) {
            x = named;
            fits = true;
        }
    }
    if (!fits)
        return refuse_value(row, where, value, err);
    *field = x;
    return FSDP_OK;
}

static int set_float(const struct fsdp_tunable *row, double *field, const char *where,
                     const char *value, struct fsdp_err *err)
{
    const char *rest = row->allowed;
    struct piece piece, word;
    int64_t named;
    char *end;
    errno = 0;
    double x = strtod(value, &end);
    const bool vanishes = errno == ERANGE && x == 0;
    bool number = end != value && !*end && !isspace((unsigned char)value[0]) && isfinite(x) &&
                  !strpbrk(value, "xX");
    bool fits = number && !rest;

    if (number && vanishes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: %s: '%.100s' is too small for a number here and would be 0; "
                            "type 0, or at least 1e-300",
                            where, row->name, value);
    while (!fits && next_piece(&piece, &rest)) {
        if (!piece_word(&word, &named, piece)) {
            fits = number && range_has(piece_range(piece), x);
        } else if (piece_is(word, value)) {
            x = (double)named;
            fits = true;
        }
    }
    if (!fits)
        return refuse_value(row, where, value, err);
    *field = x;
    return FSDP_OK;
}

static int set_bool(const struct fsdp_tunable *row, bool *field, const char *where,
                    const char *value, struct fsdp_err *err)
{
    if (strcasecmp(value, "true") && strcasecmp(value, "false"))
        return refuse_value(row, where, value, err);
    *field = strcasecmp(value, "true") == 0;
    return FSDP_OK;
}

static int set_choice(const struct fsdp_tunable *row, int *field, const char *where,
                      const char *value, struct fsdp_err *err)
{
    const char *rest = row->allowed;
    struct piece piece;

    for (int i = 0; next_piece(&piece, &rest); i++) {
        if (piece_is(piece, value)) {
            *field = i;
            return FSDP_OK;
        }
    }
    return refuse_value(row, where, value, err);
}

static int set_floats(const struct fsdp_tunable *row, double *field, const char *where,
                      const char *const *values, int nvalues, struct fsdp_err *err)
{
    double x[FSDP_TUNABLE_FLOATS_NELEM];
    char allowed[400];

    if (nvalues != floats_nelem(row)) {
        fsdp_tunable_allowed(allowed, sizeof allowed, row);
        return fsdp_err_set(err, FSDP_EINVAL, "%s: %s: %d values given; allowed: %s", where,
                            row->name, nvalues, allowed);
    }
    for (int i = 0; i < nvalues; i++)
        FSDP_TRY(set_float(row, &x[i], where, values[i], err));
    memcpy(field, x, (size_t)nvalues * sizeof x[0]);
    return FSDP_OK;
}

static int set_list(const struct fsdp_tunable *row, struct fsdp_tunable_list *field,
                    const char *where, const char *const *values, int nvalues, struct fsdp_err *err)
{
    size_t nbytes = 0;
    for (int i = 0; i < nvalues; i++) {
        FSDP_TRY(refuse_newline(row, where, values[i], err));
        nbytes += strlen(values[i]) + 1;
    }
    if (nbytes > sizeof field->text)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: %s: the list is longer than %zu bytes; name a "
                            "folder instead of its files",
                            where, row->name, sizeof field->text);
    field->nelem = nvalues;
    field->nbytes = nbytes;
    for (char *to = field->text; nvalues > 0; nvalues--, values++)
        to = stpcpy(to, *values) + 1;
    return FSDP_OK;
}

static int set_row(const struct fsdp_tunable *row, void *field, const char *where,
                   const char *const *values, int nvalues, struct fsdp_err *err)
{
    switch (row->type) {
    case FSDP_TUNABLE_STRING:
        return set_string(row, field, where, values[0], err);
    case FSDP_TUNABLE_INT:
        return set_int(row, field, where, values[0], err);
    case FSDP_TUNABLE_FLOAT:
        return set_float(row, field, where, values[0], err);
    case FSDP_TUNABLE_BOOL:
        return set_bool(row, field, where, values[0], err);
    case FSDP_TUNABLE_CHOICE:
        return set_choice(row, field, where, values[0], err);
    case FSDP_TUNABLE_FLOATS:
        return set_floats(row, field, where, values, nvalues, err);
    case FSDP_TUNABLE_LIST:
        return set_list(row, field, where, values, nvalues, err);
    case FSDP_TUNABLE_MAPS:
        return nvalues ? refuse_value(row, where, values[0], err) : FSDP_OK;
    }
    return fsdp_err_set(err, FSDP_EINTERNAL, "%s: %s has no type", where, row->name);
}

/* The comma that ends the value at text, or NULL; one inside quotes ends nothing. */
static char *value_end(char *text)
{
    if (*text == '"' || *text == '\'') {
        char *close = strchr(text + 1, *text);
        if (close && strchr(", \t", close[1])) /* also the end of the text */
            text = close;
    }
    return strchr(text, ',');
}

/* Splits "[a, b]" or "a, b" at its commas, in place. Returns the count, at most `most`. */
static int split_list(char *text, const char **values, int most)
{
    int nvalues = 0;
    size_t len = strlen(text);

    if (text[0] == '[' && text[len - 1] == ']') {
        text[len - 1] = 0;
        text++;
    }
    text += strspn(text, " \t");
    while (*text && nvalues < most) {
        char *comma = value_end(text), *end = comma ? comma : text + strlen(text);
        char *next = comma ? comma + 1 : end;
        while (end > text && isspace((unsigned char)end[-1]))
            end--;
        if (end - text >= 2 && (*text == '"' || *text == '\'') && end[-1] == *text) {
            text++;
            end--;
        }
        *end = 0;
        values[nvalues++] = text;
        text = next + strspn(next, " \t");
    }
    return nvalues;
}

enum { MAX_VALUES = 1024 };

static bool takes_none(const struct fsdp_tunable *row)
{
    return row->type == FSDP_TUNABLE_LIST || row->type == FSDP_TUNABLE_MAPS;
}

int fsdp_tunable_set(const struct fsdp_tunable *table, int nrows, void *base, const char *where,
                     const char *name, const char *value, struct fsdp_err *err)
{
    int i;
    FSDP_TRY(fsdp_tunable_find(&i, table, nrows, where, name, err));
    void *field = (char *)base + table[i].offset;
    if (table[i].type != FSDP_TUNABLE_FLOATS &&
        (table[i].type != FSDP_TUNABLE_LIST || value[0] != '[')) {
        /* An empty text is an empty list. */
        return set_row(&table[i], field, where, &value, !value[0] && takes_none(&table[i]) ? 0 : 1,
                       err);
    }

    if (value[0] == '[' && value[strlen(value) - 1] != ']')
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: %s: '%.200s' begins a list and does not end it; "
                            "write [a, b]",
                            where, name, value);
    const char **values = fsdp_alloc(MAX_VALUES, sizeof *values, "list of values", err);
    char *copy = values ? fsdp_strdup(value, err) : NULL;
    int rc = FSDP_ENOMEM;
    if (copy)
        rc = set_row(&table[i], field, where, values, split_list(copy, values, MAX_VALUES), err);
    fsdp_free(copy);
    fsdp_free(values);
    return rc;
}

int fsdp_tunable_set_list(const struct fsdp_tunable *table, int nrows, void *base,
                          const char *where, const char *name, const char *const *values,
                          int nvalues, struct fsdp_err *err)
{
    int i;
    char allowed[400];

    FSDP_TRY(fsdp_tunable_find(&i, table, nrows, where, name, err));
    if (table[i].type == FSDP_TUNABLE_FLOATS || takes_none(&table[i]))
        return set_row(&table[i], (char *)base + table[i].offset, where, values, nvalues, err);
    fsdp_tunable_allowed(allowed, sizeof allowed, &table[i]);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: %s: a list is not allowed; allowed: %s", where, name,
                        allowed);
}

int fsdp_tunable_defaults(const struct fsdp_tunable *table, int nrows, void *base,
                          struct fsdp_err *err)
{
    for (int i = 0; i < nrows; i++)
        if (table[i].def)
            FSDP_TRY(
                fsdp_tunable_set(table, nrows, base, "default", table[i].name, table[i].def, err));
    return FSDP_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

void fsdp_tunable_word(char *out, size_t out_nbytes, const struct fsdp_tunable *row, int index)
{
    const char *rest = row->allowed;
    struct piece piece;

    snprintf(out, out_nbytes, "?");
    for (int i = 0; next_piece(&piece, &rest); i++)
        if (i == index)
            snprintf(out, out_nbytes, "%.*s", (int)piece.len, piece.text);
}

const char *fsdp_tunable_list_at(const struct fsdp_tunable_list *list, int index)
{
    const char *text = list->text;
    if (index < 0 || index >= list->nelem)
        return NULL;
    while (index-- > 0)
        text += strlen(text) + 1;
    return text;
}

/* Plain where YAML cannot take it for something else, else in double quotes. */
static char *format_string(char *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
    bool is_plain = text[0] && strchr("-+.", text[0]) == NULL && !text[strspn(text, plain)];
    static const char *const words[] = {"null", "~"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        is_plain &= strcasecmp(text, words[i]) != 0;
    if (text[0] == '.' && text[1] == '/' && !text[strspn(text, plain)])
        is_plain = true;
    if (is_plain)
        return stpcpy(out, text);
    *out++ = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            *out++ = '\\';
        if (*p < 0x20)
            out += sprintf(out, "\\x%02x", *p);
        else
            *out++ = (char)*p;
    }
    return stpcpy(out, "\"");
}

/* The shortest text that reads back as the same number. */
static char *format_float(char *out, double x)
{
    int len = 0;
    if (fabs(x) < 1e6 && x == floor(x)) /* 600, not 6e+02 */
        return out + sprintf(out, "%.0f", x);
    for (int digits = 1; digits <= 17; digits++) {
        len = sprintf(out, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            break;
    }
    return out + len;
}

/* The word for a value that no range holds. */
static bool format_word(char *out, const struct fsdp_tunable *row, double x)
{
    const char *rest = row->allowed;
    struct piece piece, word, found = {NULL, 0};
    int64_t value;

    while (next_piece(&piece, &rest)) {
        if (!piece_word(&word, &value, piece)) {
            if (range_has(piece_range(piece), x))
                found = (struct piece){NULL, 1};
        } else if ((double)value == x && !found.len) {
            found = word;
        }
    }
    if (found.text)
        sprintf(out, "%.*s", (int)found.len, found.text);
    return found.text;
}

void fsdp_tunable_format(char *out, const struct fsdp_tunable *row, const void *base)
{
    const void *field = (const char *)base + row->offset;
    const struct fsdp_tunable_list *list = field;
    const double *floats = field;

    switch (row->type) {
    case FSDP_TUNABLE_STRING:
        format_string(out, field);
        break;
    case FSDP_TUNABLE_INT:
        if (!format_word(out, row, (double)*(const int64_t *)field))
            sprintf(out, "%" PRId64, *(const int64_t *)field);
        break;
    case FSDP_TUNABLE_FLOAT:
        if (!format_word(out, row, *floats))
            format_float(out, *floats);
        break;
    case FSDP_TUNABLE_BOOL:
        strcpy(out, *(const bool *)field ? "true" : "false");
        break;
    case FSDP_TUNABLE_CHOICE:
        fsdp_tunable_word(out, FSDP_TUNABLE_FORMAT_NBYTES, row, *(const int *)field);
        break;
    case FSDP_TUNABLE_FLOATS:
        *out++ = '[';
        for (int i = 0; i < floats_nelem(row); i++)
            out = format_float(i ? stpcpy(out, ", ") : out, floats[i]);
        strcpy(out, "]");
        break;
    case FSDP_TUNABLE_LIST:
        *out++ = '[';
        for (int i = 0; i < list->nelem; i++)
            out = format_string(i ? stpcpy(out, ", ") : out, fsdp_tunable_list_at(list, i));
        strcpy(out, "]");
        break;
    case FSDP_TUNABLE_MAPS:
        strcpy(out, "[]");
        break;
    }
}
