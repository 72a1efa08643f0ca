/* SPDX-License-Identifier: Apache-2.0 */
/* JSON is read as the YAML that it is. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "leaves.h"

enum { MOST_LEAVES = 4096, DEPTH = 24, MOST_NBYTES = 4 << 20 };

struct reader {
    const char *file;
    FILE *from;
    size_t nbytes; /* read so far */
    yaml_parser_t parser;
    struct from_leaves *out;
    char path[FROM_PATH_NBYTES];
    int depth;
    struct fsdp_err *err;
};

struct from_leaf *from_leaves_find(const struct from_leaves *leaves, const char *path)
{
    for (int i = 0; i < leaves->count; i++)
        if (strcmp(leaves->all[i].path, path) == 0)
            return &leaves->all[i];
    return NULL;
}

void from_leaves_free(struct from_leaves *leaves)
{
    fsdp_free(leaves->all);
    *leaves = (struct from_leaves){.count = 0};
}

static int refuse(const struct reader *r, size_t line, const char *why)
{
    return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%zu: %s", r->file, line + 1, why);
}

/* A file of any length, or one without an end, is not read as a whole. */
static int read_some(void *ctx, unsigned char *to, size_t nbytes, size_t *got)
{
    struct reader *r = ctx;

    *got = r->nbytes < MOST_NBYTES ? fread(to, 1, nbytes, r->from) : 0;
    r->nbytes += *got;
    return r->nbytes < MOST_NBYTES && !ferror(r->from);
}

static int next_event(struct reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event))
        return FSDP_OK;
    if (r->nbytes >= MOST_NBYTES)
        return fsdp_err_set(r->err, FSDP_EINVAL,
                            "%s: longer than %d MiB, which no configuration is", r->file,
                            MOST_NBYTES >> 20);
    return refuse(r, r->parser.problem_mark.line,
                  r->parser.problem ? r->parser.problem : "not valid YAML or JSON");
}

static int add_leaf(struct reader *r, const char *value, size_t line)
{
    struct from_leaves *out = r->out;
    if (from_leaves_find(out, r->path))
        return refuse(r, line, "this key is in the file twice");
    if (out->count == MOST_LEAVES)
        return refuse(r, line, "too many keys for a configuration");
    if (out->count == out->capacity) {
        int capacity = out->capacity ? 2 * out->capacity : 64;
        struct from_leaf *more = fsdp_alloc((size_t)capacity, sizeof *more, "settings", r->err);
        if (!more)
            return FSDP_ENOMEM;
        if (out->count)
            memcpy(more, out->all, (size_t)out->count * sizeof *more);
        fsdp_free(out->all);
        out->all = more;
        out->capacity = capacity;
    }
    struct from_leaf *leaf = &out->all[out->count++];
    *leaf = (struct from_leaf){.line = (int)line + 1};
    snprintf(leaf->path, sizeof leaf->path, "%s", r->path);
    snprintf(leaf->value, sizeof leaf->value, "%s", value);
    fsdp_text_clean(leaf->path); /* both are written into one line of another file */
    fsdp_text_clean(leaf->value);
    return FSDP_OK;
}

/* Appends as far as there is room; the end of a value that is too long shows that it was cut. */
static void append(char out[FROM_VALUE_NBYTES], const char *text)
{
    size_t len = strlen(out);
    if (snprintf(out + len, FROM_VALUE_NBYTES - len, "%s", text) >= (int)(FROM_VALUE_NBYTES - len))
        memcpy(out + FROM_VALUE_NBYTES - 4, "...", 4);
}

static void append_scalar(char out[FROM_VALUE_NBYTES], const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (!strcmp(text, "null") || !strcmp(text, "~")))
        text = "";
    append(out, text);
}

/* The rest of a list, and what is in it, in one line. */
static int read_list(struct reader *r, char out[FROM_VALUE_NBYTES])
{
    static const char *const opens[] = {"[", "{"}, *const closes[] = {"]", "}"};
    char kinds[DEPTH] = {0};
    int depth = 1, nwords = 0;
    bool after_key = false;

    append(out, "[");
    while (depth) {
        yaml_event_t event;
        FSDP_TRY(next_event(r, &event));
        const bool ends =
            event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        const bool map = kinds[depth - 1];
        int rc = FSDP_OK;
        if (ends) {
            append(out, closes[event.type == YAML_MAPPING_END_EVENT]);
            depth--;
            nwords = 1;
        } else {
            append(out, !nwords ? "" : map && after_key ? ": " : ", ");
            nwords = 1;
            if (event.type == YAML_SCALAR_EVENT)
                append_scalar(out, &event);
            else if (event.type == YAML_ALIAS_EVENT || depth == DEPTH)
                rc = refuse(r, event.start_mark.line, "this is not read in a configuration");
            else {
                bool opened = event.type == YAML_MAPPING_START_EVENT;
                append(out, opens[opened]);
                kinds[depth++] = opened;
                nwords = 0;
            }
        }
        after_key = !ends && map && !after_key && event.type == YAML_SCALAR_EVENT;
        yaml_event_delete(&event);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int read_value(struct reader *r, const yaml_event_t *event);

static int read_mapping(struct reader *r, size_t line)
{
    const size_t before = strlen(r->path);
    int nkeys = 0;

    if (++r->depth > DEPTH)
        return refuse(r, line, "this is nested too deeply for a configuration");
    for (;; nkeys++) {
        yaml_event_t event;
        FSDP_TRY(next_event(r, &event));
        const bool end = event.type == YAML_MAPPING_END_EVENT;
        int rc = FSDP_OK;
        if (!end && event.type != YAML_SCALAR_EVENT)
            rc = refuse(r, event.start_mark.line, "a key is a word");
        else if (!end && (size_t)snprintf(r->path + before, sizeof r->path - before, "%s%s",
                                          before ? "." : "",
                                          event.data.scalar.value) >= sizeof r->path - before)
            rc = refuse(r, event.start_mark.line, "this key is too long");
        yaml_event_delete(&event);
        if (rc || end) {
            r->path[before] = 0;
            r->depth--;
            return rc ? rc : nkeys || !before ? FSDP_OK : add_leaf(r, "{}", line);
        }
        FSDP_TRY(next_event(r, &event));
        rc = read_value(r, &event);
        yaml_event_delete(&event);
        FSDP_TRY(rc);
        r->path[before] = 0;
    }
}

static int read_value(struct reader *r, const yaml_event_t *event)
{
    char value[FROM_VALUE_NBYTES] = "";
    const size_t line = event->start_mark.line;

    switch (event->type) {
    case YAML_MAPPING_START_EVENT:
        return read_mapping(r, line);
    case YAML_SEQUENCE_START_EVENT:
        FSDP_TRY(read_list(r, value));
        return add_leaf(r, value, line);
    case YAML_SCALAR_EVENT:
        append_scalar(value, event);
        return add_leaf(r, value, line);
    default:
        return refuse(r, line, "anchors and aliases are not read; write the value out");
    }
}

static int read_document(struct reader *r)
{
    yaml_event_t event;
    yaml_event_type_t type;
    int rc;

    do { /* the stream and the document begin */
        FSDP_TRY(next_event(r, &event));
        type = event.type;
        rc = type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_START_EVENT ? FSDP_OK
             : type == YAML_MAPPING_START_EVENT
                 ? read_mapping(r, event.start_mark.line)
                 : refuse(r, event.start_mark.line, "expected keys and values");
        yaml_event_delete(&event);
    } while (rc == FSDP_OK && type != YAML_MAPPING_START_EVENT);
    return rc;
}

int from_leaves_read(struct from_leaves *out, const char *path, const char *prefix,
                     struct fsdp_err *err)
{
    struct reader r = {.file = path, .out = out, .err = err};
    FILE *file = fopen(path, "re");
    if (!file)
        return fsdp_err_sys(err, errno, "%s", path);
    if (!yaml_parser_initialize(&r.parser)) {
        fclose(file);
        return fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", path);
    }
    r.from = file;
    yaml_parser_set_input(&r.parser, read_some, &r);
    snprintf(r.path, sizeof r.path, "%s", prefix);
    int rc = read_document(&r);
    yaml_parser_delete(&r.parser);
    fclose(file);
    return rc;
}
