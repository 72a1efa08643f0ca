/* SPDX-License-Identifier: Apache-2.0 */
/* A template's text as tokens. White space around tags is as with jinja2's trim_blocks and
 * lstrip_blocks: a line break behind a block or comment goes, and so do blanks before one that
 * begins its line. */
#include "escape.h"
#include "lexer.h"
#include "text/chat/value/unicode.h"

struct lexer {
    struct chat_run *r;
    const char *begin, *at, *end;
    struct chat_token *tokens;
    size_t ntokens, max;
    char open[CHAT_MAX_DEPTH]; /* the brackets that close what is open */
    int nopen;
};

static int add_token(struct lexer *l, enum chat_token_kind kind, int op, const struct chat_val *v)
{
    if (l->ntokens == l->max) {
        const size_t max = l->max ? 2 * l->max : 64;
        struct chat_token *tokens;
        FSDP_TRY(chat_new(l->r, &tokens, max, sizeof *tokens));
        if (l->ntokens)
            memcpy(tokens, l->tokens, l->ntokens * sizeof *tokens);
        l->tokens = tokens;
        l->max = max;
    }
    l->tokens[l->ntokens++] = (struct chat_token){
        .kind = kind, .line = l->r->line, .op = op, .value = v ? *v : chat_none()};
    return FSDP_OK;
}

static void move_to(struct lexer *l, const char *to)
{
    for (; l->at < to; l->at++)
        l->r->line += *l->at == '\n';
}

static const char *skip_space(const struct lexer *l, const char *at)
{
    const char *end = l->end;
    chat_trim_space(&at, &end, true, false);
    return at;
}

static bool starts_with(const struct lexer *l, const char *at, const char *text)
{
    const size_t nbytes = strlen(text);
    return (size_t)(l->end - at) >= nbytes && !memcmp(at, text, nbytes);
}

/* ---- text between tags ---------------------------------------------------------------------- */

/* Text up to `to`, before a tag with this sign; a block's takes the blanks of its line with it. */
static int add_data(struct lexer *l, const char *to, char sign, bool is_block)
{
    const char *end = to, *line, *blank;
    struct chat_val v;

    if (sign == '-') {
        chat_trim_space(&l->at, &end, false, true);
    } else if (sign != '+' && is_block) {
        line = memrchr(l->at, '\n', (size_t)(to - l->at));
        line = line ? line + 1 : l->at;
        blank = line;
        if (line == l->begin || line[-1] == '\n') {
            chat_trim_space(&blank, &end, true, false);
            end = blank == to ? line : to;
        }
    }
    if (end > l->at) {
        FSDP_TRY(chat_str_keep(l->r, &v, l->at, (size_t)(end - l->at)));
        FSDP_TRY(add_token(l, CHAT_T_DATA, 0, &v));
    }
    move_to(l, to);
    return FSDP_OK;
}

static char sign_at(const struct lexer *l, const char *at)
{
    return at < l->end && (*at == '-' || *at == '+') ? *at : 0;
}

/* Behind the end of a tag at `at`, with what its sign or trim_blocks takes; NULL: it is none. */
static const char *behind_end(const struct lexer *l, const char *at, const char *close, bool plus)
{
    if (starts_with(l, at, "-") && starts_with(l, at + 1, close))
        return skip_space(l, at + 3);
    if (plus && starts_with(l, at, "+") && starts_with(l, at + 1, close))
        return at + 3;
    if (!starts_with(l, at, close))
        return NULL;
    at += 2;
    return plus && at < l->end && *at == '\n' ? at + 1 : at;
}

static int lex_comment(struct lexer *l)
{
    const char *at = l->at + 2 + (sign_at(l, l->at + 2) != 0), *behind;

    for (; at < l->end; at++)
        if ((behind = behind_end(l, at, "#}", true))) {
            move_to(l, behind);
            return FSDP_OK;
        }
    return chat_fail(l->r, "a comment has no end");
}

/* Behind `{% word %}` at `at`, whose sign is *sign; NULL: it is another. */
static const char *behind_word(const struct lexer *l, const char *at, const char *word, char *sign)
{
    const bool is_end = word[0] == 'e';

    if (!starts_with(l, at, "{%"))
        return NULL;
    *sign = sign_at(l, at + 2);
    at = skip_space(l, at + 2 + (*sign != 0));
    if (!starts_with(l, at, word))
        return NULL;
    at = skip_space(l, at + strlen(word));
    if (is_end)
        return behind_end(l, at, "%}", true);
    if (starts_with(l, at, "-%}"))
        return skip_space(l, at + 3);
    return starts_with(l, at, "%}") ? at + 2 : NULL;
}

/* l->at is behind {% raw %}. */
static int lex_raw(struct lexer *l)
{
    const char *behind;
    char sign;

    for (const char *at = l->at; at < l->end; at++)
        if (*at == '{' && (behind = behind_word(l, at, "endraw", &sign))) {
            FSDP_TRY(add_data(l, at, sign, true));
            move_to(l, behind);
            return FSDP_OK;
        }
    return l->at == l->end ? FSDP_OK : chat_fail(l->r, "a raw block has no end");
}

/* ---- inside of tags ------------------------------------------------------------------------- */

/* Behind digits that single underscores may part; `at` where there are none. */
static const char *skip_digits(const struct lexer *l, const char *at)
{
    const char *const begin = at;

    while (at < l->end &&
           ((*at >= '0' && *at <= '9') || (*at == '_' && at > begin && at[-1] != '_' &&
                                           at + 1 < l->end && at[1] >= '0' && at[1] <= '9')))
        at++;
    return at;
}

static const char *skip_float(const struct lexer *l, const char *at)
{
    const char *const digits = skip_digits(l, at), *end = digits, *exponent;

    if (at > l->begin && at[-1] == '.')
        return NULL;
    if (end < l->end && *end == '.' && skip_digits(l, end + 1) > end + 1)
        end = skip_digits(l, end + 1);
    if (end < l->end && (*end | 32) == 'e') {
        exponent = end + 1 + (sign_at(l, end + 1) != 0);
        if (skip_digits(l, exponent) > exponent)
            end = skip_digits(l, exponent);
    }
    return end > digits ? end : NULL;
}

static int lex_number(struct lexer *l)
{
    const char *end = skip_float(l, l->at), *at = l->at;
    int base = 10;
    struct chat_val v;

    if (end) {
        FSDP_TRY(chat_parse_float(l->r, &v, at, end));
    } else {
        if (*at == '0' && at + 2 < l->end && strchr("xXoObB", at[1]) && at[1]) {
            base = (at[1] | 32) == 'x' ? 16 : (at[1] | 32) == 'o' ? 8 : 2;
            at += 2;
            for (end = at; end < l->end &&
                           ((*end >= '0' && *end <= '9' && *end < '0' + base) || *end == '_' ||
                            (base == 16 && (*end | 32) >= 'a' && (*end | 32) <= 'f'));)
                end++;
        } else {
            end = skip_digits(l, at);
            if (*at == '0')
                for (end = at; end < l->end && *end == '0';)
                    end++;
        }
        if (end == at)
            return chat_fail(l->r, "a number without digits");
        FSDP_TRY(chat_parse_int(l->r, &v, at, end, base));
    }
    FSDP_TRY(add_token(l, CHAT_T_NUMBER, 0, &v));
    move_to(l, end);
    return FSDP_OK;
}

static int lex_name(struct lexer *l)
{
    const char *at = l->at;
    int nbytes;
    struct chat_val v;

    while (at < l->end && chat_is_word(chat_decode(at, &nbytes)))
        at += nbytes;
    FSDP_TRY(chat_str_keep(l->r, &v, l->at, (size_t)(at - l->at)));
    FSDP_TRY(add_token(l, CHAT_T_NAME, 0, &v));
    move_to(l, at);
    return FSDP_OK;
}

static int lex_string(struct lexer *l)
{
    const char *end = l->at + 1;
    struct chat_val v;

    while (end < l->end && *end != *l->at)
        end += *end == '\\' ? 2 : 1;
    if (end >= l->end)
        return chat_fail(l->r, "a text has no closing quote");
    FSDP_TRY(chat_unescape(l->r, &v, l->at + 1, end));
    FSDP_TRY(add_token(l, CHAT_T_STRING, 0, &v));
    move_to(l, end + 1);
    return FSDP_OK;
}

static int note_bracket(struct lexer *l, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *found = strchr(opening, c);

    if (found) {
        if (l->nopen == CHAT_MAX_DEPTH)
            return chat_fail(l->r, "brackets are nested more than %d levels deep", CHAT_MAX_DEPTH);
        l->open[l->nopen++] = closing[found - opening];
    } else if (strchr(closing, c)) {
        if (!l->nopen)
            return chat_fail(l->r, "unexpected '%c'", c);
        if (l->open[--l->nopen] != c)
            return chat_fail(l->r, "unexpected '%c', expected '%c'", c, l->open[l->nopen]);
    }
    return FSDP_OK;
}

static int lex_operator(struct lexer *l)
{
    static const char *const pairs[] = {"==", "!=", ">=", "<=", "**", "//"};
    const char c = *l->at;

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (starts_with(l, l->at, pairs[i])) {
            FSDP_TRY(add_token(l, CHAT_T_OP, CHAT_OP2(pairs[i][0], pairs[i][1]), NULL));
            l->at += 2;
            return FSDP_OK;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return c > ' ' && c < 127 ? chat_fail(l->r, "unexpected character '%c'", c)
                                  : chat_fail(l->r, "unexpected character");
    FSDP_TRY(note_bracket(l, c));
    FSDP_TRY(add_token(l, CHAT_T_OP, c, NULL));
    l->at++;
    return FSDP_OK;
}

static int lex_token(struct lexer *l)
{
    int nbytes;
    const char *blank = skip_space(l, l->at);

    if (blank > l->at) {
        move_to(l, blank);
        return FSDP_OK;
    }
    if (*l->at >= '0' && *l->at <= '9')
        return lex_number(l);
    if (*l->at == '\'' || *l->at == '"')
        return lex_string(l);
    if (chat_is_word(chat_decode(l->at, &nbytes)))
        return lex_name(l);
    return lex_operator(l);
}

/* l->at is behind the tag's beginning. */
static int lex_tag(struct lexer *l, bool is_block)
{
    const char *behind;

    l->nopen = 0;
    while (l->at < l->end) {
        behind = l->nopen ? NULL : behind_end(l, l->at, is_block ? "%}" : "}}", is_block);
        if (behind) {
            FSDP_TRY(add_token(l, is_block ? CHAT_T_BLOCK_END : CHAT_T_VAR_END, 0, NULL));
            move_to(l, behind);
            return FSDP_OK;
        }
        FSDP_TRY(lex_token(l));
    }
    return FSDP_OK; /* the parser misses the end */
}

static int lex_tags(struct lexer *l)
{
    while (l->at < l->end) {
        const char *at = l->at, *raw;
        char sign;
        while ((at = memchr(at, '{', (size_t)(l->end - at))) &&
               !(at + 1 < l->end && (at[1] == '%' || at[1] == '{' || at[1] == '#')))
            at++;
        if (!at)
            return add_data(l, l->end, '+', false);
        raw = behind_word(l, at, "raw", &sign);
        sign = sign_at(l, at + 2);
        FSDP_TRY(add_data(l, at, sign, at[1] != '{'));
        if (raw) {
            move_to(l, raw);
            FSDP_TRY(lex_raw(l));
        } else if (at[1] == '#') {
            FSDP_TRY(lex_comment(l));
        } else {
            const bool is_block = at[1] == '%';
            FSDP_TRY(add_token(l, is_block ? CHAT_T_BLOCK_BEGIN : CHAT_T_VAR_BEGIN, 0, NULL));
            l->at += 2 + (sign != 0);
            FSDP_TRY(lex_tag(l, is_block));
        }
    }
    return FSDP_OK;
}

/* Line breaks become \n, and one at the end goes. */
static int normalize_lines(struct chat_run *r, struct lexer *l, const char *source, size_t nbytes)
{
    char *copy;
    size_t n = 0;

    FSDP_TRY(chat_new_bytes(r, &copy, nbytes));
    for (size_t i = 0; i < nbytes; i++) {
        if (source[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < nbytes && source[i + 1] == '\n';
        } else {
            copy[n++] = source[i];
        }
    }
    n -= n && copy[n - 1] == '\n';
    l->begin = l->at = copy;
    l->end = copy + n;
    return FSDP_OK;
}

int chat_lex(struct chat_run *r, struct chat_token **out, const char *source, size_t nbytes)
{
    struct lexer l = {.r = r};

    r->line = 1;
    FSDP_TRY(normalize_lines(r, &l, source, nbytes));
    FSDP_TRY(lex_tags(&l));
    FSDP_TRY(add_token(&l, CHAT_T_EOF, 0, NULL));
    *out = l.tokens;
    return FSDP_OK;
}
