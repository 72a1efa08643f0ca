/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "impl.h"

/* ---- steps ----------------------------------------------------------------------------------- */

typedef int form_f(const struct normal_step *step, struct unicode_text *out, const char *text,
                   size_t nbytes, struct fsdp_err *err);

static bool is_ascii(char c)
{
    return (unsigned char)c < 0x80;
}

/* Where a text changes, its bytes stem from the stretch around them: stretches end between two
 * characters of ASCII, over which no normal form reaches. */
static int trace_form(form_f *form, const struct normal_step *step, const struct run *in,
                      struct run *out, struct fsdp_err *err)
{
    const char *text = in->text.at;
    const size_t nbytes = in->text.nbytes;
    struct unicode_text part = {0};
    int rc = FSDP_OK;

    for (size_t at = 0, end; at < nbytes && rc == FSDP_OK; at = end) {
        for (end = at + 1; end < nbytes && !(is_ascii(text[end - 1]) && is_ascii(text[end])); end++)
            ;
        part.nbytes = 0;
        rc = form(step, &part, text + at, end - at, err);
        if (rc == FSDP_OK && part.nbytes == end - at)
            rc = run_add(out, part.at, part.nbytes, 0, in->origin + at, err);
        else if (rc == FSDP_OK)
            rc = run_insert(out, part.at, part.nbytes, in->origin[at], in->origin[end - 1], err);
    }
    unicode_text_free(&part);
    return rc;
}

static int apply_form(form_f *form, const struct normal_step *step, const struct run *in,
                      struct run *out, struct fsdp_err *err)
{
    struct unicode_text whole = {0};
    int rc;

    if (!in->with_origin)
        return form(step, &out->text, in->text.at, in->text.nbytes, err);
    FSDP_TRY_GOTO(form(step, &whole, in->text.at, in->text.nbytes, err), out);
    FSDP_TRY_GOTO(trace_form(form, step, in, out, err), out);
    /* A form that looks further than a stretch: its text counts, and its origins are approximate.
     */
    if (out->text.nbytes != whole.nbytes ||
        (whole.nbytes && memcmp(out->text.at, whole.at, whole.nbytes) != 0)) {
        run_clear(out, true);
        rc = run_add(out, whole.at, whole.nbytes, 0, NULL, err);
    }
out:
    unicode_text_free(&whole);
    return rc;
}

static int form_normal(const struct normal_step *step, struct unicode_text *out, const char *text,
                       size_t nbytes, struct fsdp_err *err)
{
    return unicode_normalize(out, text, nbytes, step->form, err);
}

static int form_lower(const struct normal_step *step, struct unicode_text *out, const char *text,
                      size_t nbytes, struct fsdp_err *err)
{
    (void)step;
    return unicode_lower(out, text, nbytes, err);
}

static int form_strip_accents(const struct normal_step *step, struct unicode_text *out,
                              const char *text, size_t nbytes, struct fsdp_err *err)
{
    (void)step;
    return unicode_strip_accents(out, text, nbytes, err);
}

static int apply_normal(const struct normal_step *step, struct regex_scan *const *scans,
                        const struct run *in, struct run *out, struct fsdp_err *err)
{
    (void)scans;
    return apply_form(form_normal, step, in, out, err);
}

static int apply_lower(const struct normal_step *step, struct regex_scan *const *scans,
                       const struct run *in, struct run *out, struct fsdp_err *err)
{
    (void)scans;
    return apply_form(form_lower, step, in, out, err);
}

static int apply_strip_accents(const struct normal_step *step, struct regex_scan *const *scans,
                               const struct run *in, struct run *out, struct fsdp_err *err)
{
    (void)scans;
    return apply_form(form_strip_accents, step, in, out, err);
}

static int apply_strip(const struct normal_step *step, struct regex_scan *const *scans,
                       const struct run *in, struct run *out, struct fsdp_err *err)
{
    size_t first = 0, end = in->text.nbytes;

    (void)scans;
    unicode_strip(in->text.at, &first, &end, step->left, step->right);
    return run_add(out, in->text.at + first, end - first, first,
                   in->with_origin ? in->origin + first : NULL, err);
}

static int apply_prepend(const struct normal_step *step, struct regex_scan *const *scans,
                         const struct run *in, struct run *out, struct fsdp_err *err)
{
    const uint32_t *origin = in->with_origin ? in->origin : NULL;

    (void)scans;
    const size_t from = origin && in->text.nbytes ? origin[0] : 0;
    if (in->text.nbytes)
        FSDP_TRY(run_insert(out, step->content, step->ncontent, from, from, err));
    return run_add(out, in->text.at, in->text.nbytes, 0, origin, err);
}

static int apply_replace(const struct normal_step *step, struct regex_scan *const *scans,
                         const struct run *in, struct run *out, struct fsdp_err *err)
{
    const char *text = in->text.at;
    const size_t nbytes = in->text.nbytes;
    const uint32_t *origin = in->with_origin ? in->origin : NULL;
    size_t done = 0, first = 0, end = 0;

    while (first <= nbytes) {
        int rc = matcher_next(&step->matcher, scans, text, nbytes, &first, &end, err);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        FSDP_TRY(run_add(out, text + done, first - done, 0, origin ? origin + done : NULL, err));
        FSDP_TRY(run_insert(out, step->content, step->ncontent,
                            origin && first < nbytes ? origin[first] : 0,
                            origin && end > first ? origin[end - 1] : 0, err));
        done = end;
        first = end > first ? end : end + 1;
    }
    return run_add(out, text + done, nbytes - done, 0, origin ? origin + done : NULL, err);
}

int normalizer_apply(const struct normalizer *normalizer, struct regex_scan *const *scans,
                     struct run *in, struct run others[2], struct run **result,
                     struct fsdp_err *err)
{
    *result = in;
    for (int i = 0; i < normalizer->nsteps; i++) {
        struct run *out = *result == &others[0] ? &others[1] : &others[0];
        run_clear(out, in->with_origin);
        FSDP_TRY(normalizer->steps[i].apply(&normalizer->steps[i], scans, *result, out, err));
        *result = out;
    }
    return FSDP_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int add_step(struct tokenizer *t, const struct normal_step *step, struct fsdp_err *err)
{
    if (t->normalizer.nsteps == MAX_STEPS)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "more than %d normalizers", MAX_STEPS);
    t->normalizer.steps[t->normalizer.nsteps++] = *step;
    return FSDP_OK;
}

static int set_content(struct normal_step *step, const char *content, struct fsdp_err *err)
{
    step->content = fsdp_strdup(content, err);
    if (!step->content)
        return FSDP_ENOMEM;
    step->ncontent = strlen(content);
    return FSDP_OK;
}

int normalizer_add_prepend(struct tokenizer *t, const char *content, struct fsdp_err *err)
{
    struct normal_step step = {.apply = apply_prepend};

    FSDP_TRY(set_content(&step, content, err));
    return add_step(t, &step, err);
}

static int add_replace(struct tokenizer *t, struct normal_step *step, const char *to,
                       struct fsdp_err *err)
{
    step->apply = apply_replace;
    step->moves_start = true;
    int rc = set_content(step, to, err);
    if (rc == FSDP_OK)
        rc = add_step(t, step, err);
    if (rc != FSDP_OK) {
        fsdp_free(step->content);
        fsdp_free(step->matcher.literal);
    }
    return rc;
}

int normalizer_add_replace(struct tokenizer *t, const char *from, const char *to,
                           struct fsdp_err *err)
{
    struct normal_step step = {0};

    FSDP_TRY(matcher_literal(&step.matcher, from, strlen(from), err));
    return add_replace(t, &step, to, err);
}

static int parse_replace(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *content = json_string_value(json_object_get(json, "content"));
    struct normal_step step = {0};

    if (!content || (!literal && !regex))
        return fsdp_err_set(err, FSDP_EINVAL, "normalizer Replace: it needs a pattern and content");
    if (literal)
        FSDP_TRY(matcher_literal(&step.matcher, literal, strlen(literal), err));
    else
        FSDP_TRY(matcher_regex(&step.matcher, t, regex, strlen(regex), REGEX_TOKENIZERS, err));
    return add_replace(t, &step, content, err);
}

static int parse_prepend(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *content = json_string_value(json_object_get(json, "prepend"));

    if (!content)
        return fsdp_err_set(err, FSDP_EINVAL, "normalizer Prepend: it needs the text to prepend");
    return normalizer_add_prepend(t, content, err);
}

static int parse_strip(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    struct normal_step step = {.apply = apply_strip,
                               .moves_start = true,
                               .left = json_is_true(json_object_get(json, "strip_left")),
                               .right = json_is_true(json_object_get(json, "strip_right"))};
    return add_step(t, &step, err);
}

static int parse_sequence(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *list = json_object_get(json, "normalizers"), *item;
    size_t i;

    if (!json_is_array(list))
        return fsdp_err_set(err, FSDP_EINVAL, "normalizer Sequence: it has no list of normalizers");
    json_array_foreach(list, i, item) FSDP_TRY(normalizer_parse(t, item, err));
    return FSDP_OK;
}

/* A kind has steps of its own (parse), or is one step. */
static const struct {
    const char *type;
    int (*parse)(struct tokenizer *t, const json_t *json, struct fsdp_err *err);
    struct normal_step step;
} kinds[] = {
    {"Sequence", parse_sequence, {0}},
    {"Replace", parse_replace, {0}},
    {"Prepend", parse_prepend, {0}},
    {"Strip", parse_strip, {0}},
    {"NFC", NULL, {.apply = apply_normal, .form = UNICODE_NFC}},
    {"NFD", NULL, {.apply = apply_normal, .form = UNICODE_NFD}},
    {"NFKC", NULL, {.apply = apply_normal, .form = UNICODE_NFKC}},
    {"NFKD", NULL, {.apply = apply_normal, .form = UNICODE_NFKD}},
    {"Lowercase", NULL, {.apply = apply_lower}},
    {"StripAccents", NULL, {.apply = apply_strip_accents, .moves_start = true}},
};

int normalizer_parse(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    if (!json || json_is_null(json))
        return FSDP_OK;
    for (size_t i = 0; type && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(type, kinds[i].type))
            return kinds[i].parse ? kinds[i].parse(t, json, err) : add_step(t, &kinds[i].step, err);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "normalizer '%s' is not supported",
                        type ? type : "without a type");
}
