/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <yaml.h>

#include "sections.h"

enum {
    FILE_MAX_NBYTES = 1 << 20,
    NAME_NBYTES = 128,
    MAX_SECTIONS = 64,
    MAX_ELEMS = 1024,
    MAX_KEYS = 256,
    MAX_ITEM_KEYS = 32
};

struct seen {
    char name[NAME_NBYTES];
    int line;
};

struct reader {
    const char *path;
    char *text;
    yaml_parser_t parser;
    yaml_event_t event;
    bool have_event;
    struct seen sections[MAX_SECTIONS], keys[MAX_KEYS];
    int nsections, nkeys;
    const char *values[MAX_ELEMS];
    struct sections_form form;
    sections_f *fn;
    void *ctx;
    struct fsdp_err *err;
};

static bool line_has_tab(const char *text, size_t line)
{
    while (line-- > 0 && (text = strchr(text, '\n')))
        text++;
    return text && memchr(text, '\t', strcspn(text, "\n"));
}

static int syntax_error(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = p->problem_mark.line;
    const char *hint = line_has_tab(r->text, line) ? "; indent with spaces, not tabs"
                       : p->context && strstr(p->context, "block mapping")
                           ? "; indent all keys of a section alike"
                           : "";

    if (p->error == YAML_MEMORY_ERROR)
        return fsdp_err_set(r->err, FSDP_ENOMEM, "%s: out of memory", r->path);
    if (p->error == YAML_READER_ERROR)
        return fsdp_err_set(r->err, FSDP_EINVAL, "%s: not a text file: %s at byte %zu", r->path,
                            p->problem, p->problem_offset);
    return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%zu: not valid YAML: %s%s%s%s", r->path, line + 1,
                        p->problem, p->context ? " " : "", p->context ? p->context : "", hint);
}

static int line_of(const struct reader *r)
{
    return (int)r->event.start_mark.line + 1;
}

static int refuse_anchor(struct reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;

    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (anchor || tag || e->type == YAML_ALIAS_EVENT)
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s:%d: anchors (&), aliases (*) and tags (!) are not used here; write "
                            "the value, in quotes if it begins so",
                            r->path, line_of(r));
    return FSDP_OK;
}

static int next(struct reader *r)
{
    if (r->have_event)
        yaml_event_delete(&r->event);
    r->have_event = yaml_parser_parse(&r->parser, &r->event);
    return r->have_event ? refuse_anchor(r) : syntax_error(r);
}

static bool at(const struct reader *r, yaml_event_type_t type)
{
    return r->event.type == type;
}

static const char *scalar(const struct reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

/* No value at all, or one of YAML's words for that. */
static bool is_null(const struct reader *r)
{
    const char *text = scalar(r);
    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || !strcmp(text, "~") || !strcasecmp(text, "null"));
}

/* Notes a name, refusing one that came before. */
static int note_name(struct reader *r, struct seen *seen, int *nseen, int max, const char *what,
                     const char *name)
{
    for (int i = 0; i < *nseen; i++)
        if (strcmp(seen[i].name, name) == 0)
            return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: %s %s was given before, on line %d",
                                r->path, line_of(r), what, name, seen[i].line);
    if (*nseen == max)
        return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: more than %d names", r->path, line_of(r),
                            max);
    snprintf(seen[*nseen].name, sizeof seen[0].name, "%s", name);
    seen[(*nseen)++].line = line_of(r);
    return FSDP_OK;
}

static int read_name(struct reader *r, char out[NAME_NBYTES], const char *what)
{
    if (!at(r, YAML_SCALAR_EVENT))
        return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: the name of a %s must be a word", r->path,
                            line_of(r), what);
    if (strlen(scalar(r)) >= NAME_NBYTES / 2 || strlen(scalar(r)) != r->event.data.scalar.length)
        return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: unknown %s '%.40s...'", r->path,
                            line_of(r), what, scalar(r));
    strcpy(out, scalar(r));
    return FSDP_OK;
}

static int read_value(struct reader *r, int line, const char *key);

/* A mapping that is element `index` of a list. */
static int read_item(struct reader *r, const char *list, int index)
{
    char name[NAME_NBYTES], key[3 * NAME_NBYTES];
    struct seen seen[MAX_ITEM_KEYS];
    int nseen = 0;

    for (;;) {
        FSDP_TRY(next(r));
        if (at(r, YAML_MAPPING_END_EVENT))
            return FSDP_OK;
        FSDP_TRY(read_name(r, name, "key"));
        FSDP_TRY(note_name(r, seen, &nseen, MAX_ITEM_KEYS, "key", name));
        snprintf(key, sizeof key, "%s[%d].%s", list, index, name);
        int line = line_of(r);
        FSDP_TRY(next(r));
        FSDP_TRY(read_value(r, line, key));
    }
}

/* The mappings of a list, whose first one is there. */
static int read_items(struct reader *r, const char *key)
{
    for (int i = 0;; i++) {
        FSDP_TRY(read_item(r, key, i));
        FSDP_TRY(next(r));
        if (at(r, YAML_SEQUENCE_END_EVENT))
            return FSDP_OK;
        if (!at(r, YAML_MAPPING_START_EVENT))
            return fsdp_err_set(r->err, FSDP_EINVAL,
                                "%s:%d: %s: an element of the list is no mapping, and those before "
                                "are",
                                r->path, line_of(r), key);
    }
}

static int read_list(struct reader *r, int line, const char *key);

/* The lists of a list, whose first one is there. */
static int read_lists(struct reader *r, const char *key)
{
    char element[4 * NAME_NBYTES];

    for (int i = 0;; i++) {
        snprintf(element, sizeof element, "%s[%d]", key, i);
        FSDP_TRY(read_list(r, line_of(r), element));
        FSDP_TRY(next(r));
        if (at(r, YAML_SEQUENCE_END_EVENT))
            return FSDP_OK;
        if (!at(r, YAML_SEQUENCE_START_EVENT))
            return fsdp_err_set(
                r->err, FSDP_EINVAL,
                "%s:%d: %s: an element of the list is no list, and those before are", r->path,
                line_of(r), key);
    }
}

static int read_list(struct reader *r, int line, const char *key)
{
    int nvalues = 0, rc = FSDP_OK;

    for (;;) {
        FSDP_TRY_GOTO(next(r), out);
        if (at(r, YAML_SEQUENCE_END_EVENT))
            break;
        if (at(r, YAML_MAPPING_START_EVENT) && !nvalues && !strchr(key, '['))
            return read_items(r, key);
        if (at(r, YAML_SEQUENCE_START_EVENT) && !nvalues && !strchr(key, '[') && r->form.lists)
            return read_lists(r, key);
        if (!at(r, YAML_SCALAR_EVENT) || is_null(r)) {
            rc = fsdp_err_set(r->err, FSDP_EINVAL,
                              "%s:%d: %s: an element of the list is not a plain value", r->path,
                              line_of(r), key);
            goto out;
        }
        if (nvalues == MAX_ELEMS) {
            rc = fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: %s: more than %d elements", r->path,
                              line, key, MAX_ELEMS);
            goto out;
        }
        if (!(r->values[nvalues] = fsdp_strdup(scalar(r), r->err))) {
            rc = FSDP_ENOMEM;
            goto out;
        }
        nvalues++;
    }
    rc = r->fn(r->ctx, line, key, NULL, r->values, nvalues, r->err);
out:
    while (nvalues > 0)
        fsdp_free((void *)(uintptr_t)r->values[--nvalues]);
    return rc;
}

static int read_value(struct reader *r, int line, const char *key)
{
    if (at(r, YAML_SEQUENCE_START_EVENT))
        return read_list(r, line, key);
    if (!at(r, YAML_SCALAR_EVENT))
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s:%d: %s: a mapping is not allowed here; give a value", r->path, line,
                            key);
    if (is_null(r))
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s:%d: %s: has no value; give one or remove the line", r->path, line,
                            key);
    if (strlen(scalar(r)) != r->event.data.scalar.length)
        return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: %s: a zero byte in the value", r->path,
                            line, key);
    return r->fn(r->ctx, line, key, scalar(r), NULL, 0, r->err);
}

/* A mapping under a key of a section. */
static int read_mapping(struct reader *r, const char *under)
{
    char name[NAME_NBYTES], key[3 * NAME_NBYTES];
    struct seen seen[MAX_ITEM_KEYS];
    int nseen = 0;

    for (;;) {
        FSDP_TRY(next(r));
        if (at(r, YAML_MAPPING_END_EVENT))
            return FSDP_OK;
        FSDP_TRY(read_name(r, name, "key"));
        snprintf(key, sizeof key, "%s.%s", under, name);
        FSDP_TRY(note_name(r, seen, &nseen, MAX_ITEM_KEYS, "key", key));
        int line = line_of(r);
        FSDP_TRY(next(r));
        FSDP_TRY(read_value(r, line, key));
    }
}

static int read_section(struct reader *r, const char *section)
{
    char name[NAME_NBYTES], key[2 * NAME_NBYTES];

    r->nkeys = 0;
    for (;;) {
        FSDP_TRY(next(r));
        if (at(r, YAML_MAPPING_END_EVENT))
            return FSDP_OK;
        FSDP_TRY(read_name(r, name, "key"));
        snprintf(key, sizeof key, "%s.%s", section, name);
        FSDP_TRY(note_name(r, r->keys, &r->nkeys, MAX_KEYS, "key", key));
        int line = line_of(r);
        FSDP_TRY(next(r));
        if (at(r, YAML_MAPPING_START_EVENT) && r->form.maps)
            FSDP_TRY(read_mapping(r, key));
        else
            FSDP_TRY(read_value(r, line, key));
    }
}

static int read_sections(struct reader *r)
{
    char name[NAME_NBYTES];

    for (;;) {
        FSDP_TRY(next(r));
        if (at(r, YAML_MAPPING_END_EVENT))
            return FSDP_OK;
        FSDP_TRY(read_name(r, name, "section"));
        FSDP_TRY(note_name(r, r->sections, &r->nsections, MAX_SECTIONS, "section", name));
        int line = line_of(r);
        if (!r->form.values)
            FSDP_TRY(r->fn(r->ctx, line, name, NULL, NULL, 0, r->err));
        FSDP_TRY(next(r));
        if (r->form.values &&
            (at(r, YAML_SEQUENCE_START_EVENT) || (at(r, YAML_SCALAR_EVENT) && !is_null(r)))) {
            FSDP_TRY(read_value(r, line, name));
            continue;
        }
        if (r->form.values)
            FSDP_TRY(r->fn(r->ctx, line, name, NULL, NULL, 0, r->err));
        if (at(r, YAML_SCALAR_EVENT) && is_null(r))
            continue; /* a section without keys */
        if (!at(r, YAML_MAPPING_START_EVENT))
            return fsdp_err_set(r->err, FSDP_EINVAL,
                                "%s:%d: %s: is not a section; write 'section:' and, indented under "
                                "it, 'key: value'",
                                r->path, line, name);
        FSDP_TRY(read_section(r, name));
    }
}

static int read_document(struct reader *r)
{
    FSDP_TRY(next(r)); /* stream start */
    FSDP_TRY(next(r));
    if (at(r, YAML_STREAM_END_EVENT))
        return FSDP_OK; /* only comments: all defaults */
    FSDP_TRY(next(r));
    if (at(r, YAML_SCALAR_EVENT) && is_null(r))
        return FSDP_OK;
    if (!at(r, YAML_MAPPING_START_EVENT))
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s:%d: not a configuration: expected sections such as '%s:' with "
                            "indented keys",
                            r->path, line_of(r), r->form.section);
    FSDP_TRY(read_sections(r));
    FSDP_TRY(next(r)); /* document end */
    FSDP_TRY(next(r));
    if (!at(r, YAML_STREAM_END_EVENT))
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s:%d: a second document begins here; one is "
                            "allowed",
                            r->path, line_of(r));
    return FSDP_OK;
}

int sections_read(const char *path, const struct sections_form *form, sections_f *fn, void *ctx,
                  struct fsdp_err *err)
{
    size_t nbytes = 0;
    struct reader *r = fsdp_alloc(1, sizeof *r, "configuration reader", err);

    if (!r)
        return FSDP_ENOMEM;
    r->path = path;
    r->form = *form;
    r->fn = fn;
    r->ctx = ctx;
    r->err = err;
    int rc = fsdp_file_read(&r->text, &nbytes, path, FILE_MAX_NBYTES, err);
    if (rc == FSDP_OK && !yaml_parser_initialize(&r->parser))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", path);
    if (rc == FSDP_OK) {
        yaml_parser_set_input_string(&r->parser, (const unsigned char *)r->text, nbytes);
        rc = read_document(r);
        if (r->have_event)
            yaml_event_delete(&r->event);
        yaml_parser_delete(&r->parser);
    }
    fsdp_free(r->text);
    fsdp_free(r);
    return rc;
}
