/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that are looked for in the text itself, before any model sees it: the leftmost first, of
 * those that begin at one place the longest. */
#include <stdlib.h>
#include <string.h>

#include "impl.h"

int added_add(struct tokenizer *t, const struct added_token *token, struct fsdp_err *err)
{
    struct added *added = &t->added;
    struct added_token *tokens = fsdp_alloc_grow(added->tokens, added->ntokens, &added->max_tokens,
                                                 sizeof *tokens, "added tokens", err);
    if (!tokens)
        return FSDP_ENOMEM;
    added->tokens = tokens;
    struct added_token *copy = &tokens[added->ntokens];
    *copy = *token;
    copy->match = copy->shown = NULL;
    copy->content = fsdp_alloc(token->nbytes + 1, 1, "added token", err);
    if (!copy->content)
        return FSDP_ENOMEM;
    memcpy(copy->content, token->content, token->nbytes);
    added->ntokens++;
    return FSDP_OK;
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* What text is compared with: of normalized tokens the normal form of their content. */
static int make_match(struct tokenizer *t, struct regex_scan *const *scans,
                      struct added_token *token, struct fsdp_err *err)
{
    struct run in = {0}, others[2] = {{.origin = NULL}, {.origin = NULL}}, *result = &in;
    int rc;

    FSDP_TRY_GOTO(run_add(&in, token->content, token->nbytes, 0, NULL, err), out);
    if (token->normalized && !token->is_normal)
        FSDP_TRY_GOTO(normalizer_apply(&t->normalizer, scans, &in, others, &result, err), out);
    token->match = fsdp_alloc(result->text.nbytes + 1, 1, "added token", err);
    rc = token->match ? FSDP_OK : FSDP_ENOMEM;
    token->nmatch = result->text.nbytes;
    if (rc == FSDP_OK && token->nmatch) /* a normal form can be empty, and has no memory then */
        memcpy(token->match, result->text.at, token->nmatch);
out:
    run_free(&in);
    run_free(&others[0]);
    run_free(&others[1]);
    return rc;
}

/* What the original decodes a token to: its normal form, and of ByteLevel the bytes that it spells.
 */
static int make_shown(const struct tokenizer *t, struct added_token *token, struct fsdp_err *err)
{
    const bool normal = token->normalized && !token->is_normal;
    const char *from = normal ? token->match : token->content;
    const size_t nbytes = normal ? token->nmatch : token->nbytes;

    token->shown = fsdp_alloc(nbytes + 1, 1, "added token", err);
    if (!token->shown)
        return FSDP_ENOMEM;
    struct byte_names names;
    byte_names_make(&names);
    const int n = t->decoder.byte_names ? byte_names_read(token->shown, &names, from, nbytes) : -1;
    token->nshown = n < 0 ? nbytes : (size_t)n;
    if (n < 0)
        memcpy(token->shown, from, nbytes);
    return FSDP_OK;
}

/* By first byte, the longest first, of equal ones the first in the file. */
static int by_match(const void *a, const void *b)
{
    const struct added_token *left = *(const struct added_token *const *)a,
                             *right = *(const struct added_token *const *)b;
    const unsigned char one = (unsigned char)left->match[0], two = (unsigned char)right->match[0];

    if (one != two)
        return one < two ? -1 : 1;
    if (left->nmatch != right->nmatch)
        return left->nmatch > right->nmatch ? -1 : 1;
    return left < right ? -1 : left > right;
}

/* The original takes any of equal ones, and an empty one everywhere. */
static int check_set(const struct added_set *set, struct fsdp_err *err)
{
    for (size_t i = 0; i < set->ntokens; i++) {
        const struct added_token *token = set->tokens[i], *last = i ? set->tokens[i - 1] : NULL;
        if (!token->nmatch)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "the normalizer leaves nothing of the added token '%.40s'",
                                token->content);
        if (last && last->nmatch == token->nmatch &&
            !memcmp(last->match, token->match, token->nmatch))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "the added tokens '%.40s' and '%.40s' have one normal form",
                                last->content, token->content);
    }
    return FSDP_OK;
}

static int make_set(struct added *added, bool normalized, bool skip_special, struct fsdp_err *err)
{
    struct added_set *set = &added->sets[normalized];

    set->tokens = fsdp_alloc(added->ntokens + 1, sizeof *set->tokens, "added tokens", err);
    if (!set->tokens)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < added->ntokens; i++)
        if (added->tokens[i].normalized == normalized &&
            !(skip_special && added->tokens[i].special))
            set->tokens[set->ntokens++] = &added->tokens[i];
    qsort(set->tokens, set->ntokens, sizeof(struct added_token *), by_match);
    FSDP_TRY(check_set(set, err));
    for (size_t byte = 0, i = 0; byte <= 256; byte++) {
        while (i < set->ntokens && (unsigned char)set->tokens[i]->match[0] < byte)
            i++;
        set->begin[byte] = byte == 256 ? set->ntokens : i;
    }
    return FSDP_OK;
}

static int make_by_id(struct added *added, struct fsdp_err *err)
{
    for (size_t i = 0; i < added->ntokens; i++)
        if ((size_t)added->tokens[i].id >= added->nids)
            added->nids = (size_t)added->tokens[i].id + 1;
    added->by_id = fsdp_alloc(added->nids, sizeof *added->by_id, "added tokens", err);
    if (!added->by_id)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < added->ntokens; i++)
        added->by_id[added->tokens[i].id] = &added->tokens[i];
    return FSDP_OK;
}

static int index_with(struct tokenizer *t, struct regex_scan **scans, struct fsdp_err *err)
{
    for (int i = 0; i < t->nregexes; i++)
        FSDP_TRY(regex_scan_create(&scans[i], t->regexes[i], err));
    for (size_t i = 0; i < t->added.ntokens; i++) {
        FSDP_TRY(make_match(t, scans, &t->added.tokens[i], err));
        FSDP_TRY(make_shown(t, &t->added.tokens[i], err));
    }
    FSDP_TRY(make_set(&t->added, false, t->skip_special, err));
    FSDP_TRY(make_set(&t->added, true, t->skip_special, err));
    return make_by_id(&t->added, err);
}

int added_index(struct tokenizer *t, struct fsdp_err *err)
{
    struct regex_scan *scans[MAX_REGEXES] = {NULL};
    static const char word[] = "[\\w\\x{200c}\\x{200d}]";
    struct matcher matcher;
    bool needs_classes = false;

    for (size_t i = 0; i < t->added.ntokens; i++) {
        const struct added_token *token = &t->added.tokens[i];
        needs_classes |= token->single_word || token->lstrip || token->rstrip;
    }
    if (needs_classes) {
        FSDP_TRY(matcher_regex(&matcher, t, "\\s", 2, REGEX_TOKENIZERS, err));
        t->added.space = matcher.regex;
        FSDP_TRY(matcher_regex(&matcher, t, word, strlen(word), REGEX_TOKENIZERS, err));
        t->added.word = matcher.regex;
    }
    int rc = index_with(t, scans, err);
    for (int i = 0; i < t->nregexes; i++)
        regex_scan_destroy(scans[i]);
    return rc;
}

void added_free(struct added *added)
{
    for (size_t i = 0; i < added->ntokens; i++) {
        fsdp_free(added->tokens[i].content);
        fsdp_free(added->tokens[i].match);
        fsdp_free(added->tokens[i].shown);
    }
    fsdp_free(added->tokens);
    fsdp_free(added->sets[0].tokens);
    fsdp_free(added->sets[1].tokens);
    fsdp_free(added->by_id);
    *added = (struct added){0};
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Is the character that begins at `at` of the class? */
static bool char_is(struct regex_scan *scan, const char *text, size_t nbytes, size_t at,
                    size_t *next)
{
    size_t first = 0, end = 0;

    *next = at + 1;
    while (*next < nbytes && is_continuation(text[*next]))
        ++*next;
    return regex_next(scan, text + at, *next - at, 0, &first, &end, NULL) == 1;
}

static size_t char_before(const char *text, size_t at)
{
    do
        at--;
    while (at && is_continuation(text[at]));
    return at;
}

static bool stands_alone(const struct tokenizer *t, struct regex_scan *const *scans,
                         const char *text, size_t nbytes, const struct added_match *match)
{
    struct regex_scan *word = scans[t->added.word];
    size_t next;

    if (match->first && char_is(word, text, nbytes, char_before(text, match->first), &next))
        return false;
    return match->end == nbytes || !char_is(word, text, nbytes, match->end, &next);
}

static void take_spaces(const struct tokenizer *t, struct regex_scan *const *scans,
                        const char *text, size_t nbytes, size_t taken, struct added_match *match)
{
    struct regex_scan *space = scans[t->added.space];
    size_t next;

    if (match->token->lstrip)
        while (match->first > taken) {
            const size_t before = char_before(text, match->first);
            if (before < taken || !char_is(space, text, nbytes, before, &next))
                break;
            match->first = before;
        }
    if (match->token->lstrip && match->first < taken)
        match->first = taken;
    if (match->token->rstrip)
        while (match->end < nbytes && char_is(space, text, nbytes, match->end, &next))
            match->end = next;
}

/* The longest token of the set that text begins with; NULL: none. */
static const struct added_token *token_at(const struct added_set *set, const char *text,
                                          size_t nbytes)
{
    const unsigned char byte = (unsigned char)text[0];

    for (size_t i = set->begin[byte]; i < set->begin[byte + 1]; i++) {
        const struct added_token *token = set->tokens[i];
        if (token->nmatch <= nbytes && !memcmp(text, token->match, token->nmatch))
            return token;
    }
    return NULL;
}

bool added_next(const struct tokenizer *t, const struct added_set *set,
                struct regex_scan *const *scans, const char *text, size_t nbytes,
                struct added_match *match)
{
    size_t taken = match->end;

    if (!set->ntokens)
        return false;
    for (size_t at = match->token_end; at < nbytes; at++) {
        const struct added_token *token = token_at(set, text + at, nbytes - at);
        if (!token)
            continue;
        *match = (struct added_match){token, at, at + token->nmatch, at + token->nmatch};
        if (token->single_word && !stands_alone(t, scans, text, nbytes, match)) {
            at = match->end - 1;
            continue;
        }
        if (token->lstrip || token->rstrip)
            take_spaces(t, scans, text, nbytes, taken, match);
        /* A token all of whose text the one before has taken as white space is none. */
        if (token->lstrip && match->first >= match->end) {
            at = match->token_end - 1;
            taken = match->end;
            continue;
        }
        return true;
    }
    return false;
}
