/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "impl.h"

/* The pattern of GPT-2, which ByteLevel uses. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- cutting --------------------------------------------------------------------------------- */

/* The stretches of a piece, matched or not, become pieces as the behavior says. */
struct cutter {
    const struct split_step *step;
    struct pieces *out;
    size_t base; /* of the piece in its run */
    bool at_start, last_match;
    /* The stretch that is still open: it may grow. */
    size_t first, end;
    bool open;
};

static int close_stretch(struct cutter *c, struct fsdp_err *err)
{
    const bool open = c->open && c->end > c->first;

    c->open = false;
    return open ? pieces_add(c->out, c->base + c->first, c->end - c->first,
                             c->at_start && c->first == 0, err)
                : FSDP_OK;
}

/* Does the stretch [first, end) continue the open one? */
static bool joins(const struct cutter *c, bool is_match)
{
    switch (c->step->behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !c->last_match;
    case SPLIT_MERGED_WITH_NEXT:
        return !is_match && c->last_match;
    case SPLIT_CONTIGUOUS:
        return is_match == c->last_match;
    default:
        return false;
    }
}

static int add_stretch(struct cutter *c, size_t first, size_t end, bool matched,
                       struct fsdp_err *err)
{
    const bool is_match = matched != c->step->invert;

    if (c->open && joins(c, is_match)) {
        c->end = end;
    } else {
        FSDP_TRY(close_stretch(c, err));
        c->open = !(is_match && c->step->behavior == SPLIT_REMOVED);
        c->first = first;
        c->end = end;
    }
    c->last_match = is_match;
    return FSDP_OK;
}

static int cut_piece(const struct split_step *step, struct regex_scan *const *scans,
                     const char *text, const struct piece *piece, struct pieces *out,
                     struct fsdp_err *err)
{
    struct cutter c = {.step = step, .out = out, .base = piece->first, .at_start = piece->at_start};
    size_t done = 0, first = 0, end = 0;

    text += piece->first;
    while (first <= piece->nbytes) {
        int rc = matcher_next(&step->matcher, scans, text, piece->nbytes, &first, &end, err);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        if (first > done)
            FSDP_TRY(add_stretch(&c, done, first, false, err));
        FSDP_TRY(add_stretch(&c, first, end, true, err));
        done = end;
        first = end > first ? end : end + 1;
    }
    if (done < piece->nbytes)
        FSDP_TRY(add_stretch(&c, done, piece->nbytes, false, err));
    return close_stretch(&c, err);
}

static int apply_cut(const struct split_step *step, struct regex_scan *const *scans,
                     struct split_work *work, struct fsdp_err *err)
{
    struct pieces *in = work->pieces, *out = work->other_pieces;

    out->npieces = 0;
    for (size_t i = 0; i < in->npieces; i++)
        FSDP_TRY(cut_piece(step, scans, work->run->text.at, &in->at[i], out, err));
    work->pieces = out;
    work->other_pieces = in;
    return FSDP_OK;
}

/* ---- prefixes -------------------------------------------------------------------------------- */

static bool wants_prefix(const struct split_step *step, const char *text, const struct piece *piece)
{
    if (!step->prefix[0] || step->when == PREFIX_NEVER || !piece->nbytes ||
        (step->when == PREFIX_FIRST && !piece->at_start))
        return false;
    const size_t n = strlen(step->prefix);
    const bool has = piece->nbytes >= n && !memcmp(text, step->prefix, n);
    const bool will = step->space[0] && text[0] == ' ' && !strcmp(step->space, step->prefix);
    return !has && !will;
}

static int prefix_piece(const struct split_step *step, const struct run *in,
                        const struct piece *piece, struct run *out, struct fsdp_err *err)
{
    const char *text = in->text.at + piece->first;
    const uint32_t *origin = in->with_origin ? in->origin + piece->first : NULL;
    size_t done = 0;

    if (wants_prefix(step, text, piece))
        FSDP_TRY(run_insert(out, step->prefix, strlen(step->prefix), origin ? origin[0] : 0,
                            origin ? origin[0] : 0, err));
    for (size_t i = 0; step->space[0] && i < piece->nbytes; i++) {
        if (text[i] != ' ')
            continue;
        FSDP_TRY(run_add(out, text + done, i - done, 0, origin ? origin + done : NULL, err));
        FSDP_TRY(run_insert(out, step->space, strlen(step->space), origin ? origin[i] : 0,
                            origin ? origin[i] : 0, err));
        done = i + 1;
    }
    return run_add(out, text + done, piece->nbytes - done, 0, origin ? origin + done : NULL, err);
}

static int apply_prefix(const struct split_step *step, struct split_work *work,
                        struct fsdp_err *err)
{
    struct run *in = work->run, *out = work->other_run;
    struct pieces *pieces = work->pieces;

    run_clear(out, in->with_origin);
    for (size_t i = 0; i < pieces->npieces; i++) {
        const size_t first = out->text.nbytes;
        FSDP_TRY(prefix_piece(step, in, &pieces->at[i], out, err));
        pieces->at[i].first = (uint32_t)first;
        pieces->at[i].nbytes = (uint32_t)(out->text.nbytes - first);
    }
    work->run = out;
    work->other_run = in;
    return FSDP_OK;
}

int splitter_apply(const struct splitter *splitter, struct regex_scan *const *scans,
                   struct split_work *work, struct fsdp_err *err)
{
    for (int i = 0; i < splitter->nsteps; i++) {
        const struct split_step *step = &splitter->steps[i];
        FSDP_TRY(step->is_prefix ? apply_prefix(step, work, err)
                                 : apply_cut(step, scans, work, err));
    }
    return FSDP_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int add_step(struct tokenizer *t, const struct split_step *step, struct fsdp_err *err)
{
    if (t->splitter.bytes)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "a pre-tokenizer after ByteLevel is not supported");
    if (t->splitter.nsteps == MAX_STEPS)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "more than %d pre-tokenizers", MAX_STEPS);
    t->splitter.steps[t->splitter.nsteps++] = *step;
    return FSDP_OK;
}

int splitter_add_regex(struct tokenizer *t, const char *pattern, size_t nbytes,
                       enum split_behavior behavior, enum regex_engine engine, struct fsdp_err *err)
{
    struct split_step step = {.behavior = behavior};

    FSDP_TRY(matcher_regex(&step.matcher, t, pattern, nbytes, engine, err));
    return add_step(t, &step, err);
}

static int add_literal(struct tokenizer *t, const char *text, enum split_behavior behavior,
                       bool invert, struct fsdp_err *err)
{
    struct split_step step = {.behavior = behavior, .invert = invert};

    FSDP_TRY(matcher_literal(&step.matcher, text, strlen(text), err));
    int rc = add_step(t, &step, err);
    if (rc != FSDP_OK)
        fsdp_free(step.matcher.literal);
    return rc;
}

static int parse_behavior(enum split_behavior *out, const json_t *json, enum split_behavior or,
                          struct fsdp_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(json_object_get(json, "behavior"));

    *out = or ;
    for (int i = 0; name && i < 5; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum split_behavior)i;
            return FSDP_OK;
        }
    return name ? fsdp_err_set(err, FSDP_EUNSUPPORTED, "behavior '%s' is not supported", name)
                : FSDP_OK;
}

static int parse_split(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const bool invert = json_is_true(json_object_get(json, "invert"));
    enum split_behavior behavior;

    if (!literal && !regex)
        return fsdp_err_set(err, FSDP_EINVAL, "pre-tokenizer Split: it has no pattern");
    FSDP_TRY(parse_behavior(&behavior, json, SPLIT_ISOLATED, err));
    if (literal)
        return add_literal(t, literal, behavior, invert, err);
    FSDP_TRY(splitter_add_regex(t, regex, strlen(regex), behavior, REGEX_TOKENIZERS, err));
    t->splitter.steps[t->splitter.nsteps - 1].invert = invert;
    return FSDP_OK;
}

static int parse_byte_level(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    if (!json_is_false(json_object_get(json, "add_prefix_space"))) {
        struct split_step step = {.is_prefix = true, .when = PREFIX_ALWAYS, .prefix = " "};
        FSDP_TRY(add_step(t, &step, err));
    }
    if (!json_is_false(json_object_get(json, "use_regex")))
        FSDP_TRY(splitter_add_regex(t, gpt2_pattern, strlen(gpt2_pattern), SPLIT_ISOLATED,
                                    REGEX_TOKENIZERS, err));
    if (t->splitter.bytes)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "ByteLevel twice is not supported");
    t->splitter.bytes = true;
    return FSDP_OK;
}

static int parse_metaspace(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *mark = json_string_value(json_object_get(json, "replacement"));
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    struct split_step step = {.is_prefix = true, .when = PREFIX_ALWAYS};

    if (!mark || !mark[0] || strlen(mark) >= sizeof step.space)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "pre-tokenizer Metaspace: its replacement is no "
                            "character");
    if (scheme && !strcmp(scheme, "never"))
        step.when = PREFIX_NEVER;
    else if (scheme && !strcmp(scheme, "first"))
        step.when = PREFIX_FIRST;
    else if (scheme && strcmp(scheme, "always") != 0)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "prepend_scheme '%s' is not supported", scheme);
    else if (!scheme && json_is_false(json_object_get(json, "add_prefix_space")))
        step.when = PREFIX_NEVER;
    strcpy(step.space, mark);
    strcpy(step.prefix, mark);
    FSDP_TRY(add_step(t, &step, err));
    if (json_is_false(json_object_get(json, "split")))
        return FSDP_OK;
    return add_literal(t, mark, SPLIT_MERGED_WITH_NEXT, false, err);
}

static int parse_digits(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const bool each = json_is_true(json_object_get(json, "individual_digits"));
    return splitter_add_regex(t, "\\p{Digits_Step}", 15, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS,
                              REGEX_TOKENIZERS, err);
}

static int parse_punctuation(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    static const char pattern[] = "\\p{Punctuation_Step}";
    enum split_behavior behavior;

    FSDP_TRY(parse_behavior(&behavior, json, SPLIT_ISOLATED, err));
    return splitter_add_regex(t, pattern, strlen(pattern), behavior, REGEX_TOKENIZERS, err);
}

static int parse_whitespace(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    static const char pattern[] = "[\\w\\x{200c}\\x{200d}]+|[^\\w\\x{200c}\\x{200d}\\s]+";

    (void)json;
    FSDP_TRY(splitter_add_regex(t, pattern, strlen(pattern), SPLIT_REMOVED, REGEX_TOKENIZERS, err));
    t->splitter.steps[t->splitter.nsteps - 1].invert = true;
    return FSDP_OK;
}

static int parse_whitespace_split(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    (void)json;
    return splitter_add_regex(t, "\\s", 2, SPLIT_REMOVED, REGEX_TOKENIZERS, err);
}

static int parse_delimiter(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *mark = json_string_value(json_object_get(json, "delimiter"));

    if (!mark)
        return fsdp_err_set(err, FSDP_EINVAL, "pre-tokenizer CharDelimiterSplit: no delimiter");
    return add_literal(t, mark, SPLIT_REMOVED, false, err);
}

static int parse_sequence(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *list = json_object_get(json, "pretokenizers"), *item;
    size_t i;

    if (!json_is_array(list))
        return fsdp_err_set(err, FSDP_EINVAL, "pre-tokenizer Sequence: it has no list");
    json_array_foreach(list, i, item) FSDP_TRY(splitter_parse(t, item, err));
    return FSDP_OK;
}

static const struct {
    const char *type;
    int (*parse)(struct tokenizer *t, const json_t *json, struct fsdp_err *err);
} kinds[] = {
    {"Sequence", parse_sequence},
    {"Split", parse_split},
    {"ByteLevel", parse_byte_level},
    {"Metaspace", parse_metaspace},
    {"Digits", parse_digits},
    {"Punctuation", parse_punctuation},
    {"Whitespace", parse_whitespace},
    {"WhitespaceSplit", parse_whitespace_split},
    {"CharDelimiterSplit", parse_delimiter},
};

int splitter_parse(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    if (!json || json_is_null(json))
        return FSDP_OK;
    for (size_t i = 0; type && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(type, kinds[i].type))
            return kinds[i].parse(t, json, err);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "pre-tokenizer '%s' is not supported",
                        type ? type : "without a type");
}
