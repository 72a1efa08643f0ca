/* SPDX-License-Identifier: Apache-2.0 */
/* data.sources: the items of a mixture. */
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

#define ROW(key, kind, def, allowed)                                                               \
    {                                                                                              \
        "source." #key, FSDP_TUNABLE_##kind, def, "", allowed, offsetof(struct config_source, key) \
    }
static const struct fsdp_tunable table[] = {
    ROW(path, LIST, "", NULL),
    ROW(weight, FLOAT, NULL, "0<.."),
    ROW(passes, FLOAT, NULL, "0<.."),
    ROW(format, CHOICE, NULL, CONFIG_FORMATS),
    ROW(layout, CHOICE, NULL, CONFIG_LAYOUTS),
    ROW(pack, CHOICE, NULL, CONFIG_PACKS),
    ROW(document_end, INT, NULL, CONFIG_DOCUMENT_ENDS),
    ROW(text_key, STRING, NULL, NULL),
    ROW(on_bad_line, CHOICE, NULL, CONFIG_BAD_LINES),
    ROW(too_long, CHOICE, NULL, CONFIG_TOO_LONG),
};
enum { NROWS = sizeof table / sizeof table[0] };
_Static_assert((int)NROWS <= (int)CONFIG_SOURCE_KEYS, "a source has a flag per key");

static const char PREFIX[] = "data.sources[";

bool config_is_source_key(const char *key)
{
    return !strncmp(key, PREFIX, strlen(PREFIX));
}

/* Item and key of "data.sources[1].path". */
static int split_key(int *index, const char **name, const struct config *config, const char *where,
                     const char *key, struct fsdp_err *err)
{
    char *end;
    const long i = strtol(key + strlen(PREFIX), &end, 10);

    if (end == key + strlen(PREFIX) || strncmp(end, "].", 2) != 0)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: '%.100s' is not data.sources[0].key", where,
                            key);
    if (i < 0 || i > config->nsources || i >= CONFIG_MAX_SOURCES)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: %.100s: data.sources has %d items, of at most %d", where, key,
                            config->nsources, CONFIG_MAX_SOURCES);
    *index = (int)i;
    *name = end + 2;
    return FSDP_OK;
}

int config_source_set(struct config *config, const char *where, int line, const char *key,
                      const char *value, const char *const *values, int nvalues,
                      struct fsdp_err *err)
{
    char place[CONFIG_TEXT + 60], row_name[160];
    const char *name = "";
    int i = 0, row = 0;

    FSDP_TRY(split_key(&i, &name, config, where, key, err));
    snprintf(place, sizeof place, "%s: data.sources[%d]", where, i);
    snprintf(row_name, sizeof row_name, "source.%.140s", name);
    FSDP_TRY(fsdp_tunable_find(&row, table, NROWS, place, row_name, err));
    struct config_source *source = &config->sources[i];
    if (value)
        FSDP_TRY(fsdp_tunable_set(table, NROWS, source, place, row_name, value, err));
    else
        FSDP_TRY(
            fsdp_tunable_set_list(table, NROWS, source, place, row_name, values, nvalues, err));
    source->given[row] = true;
    if (i == config->nsources) {
        config->nsources++;
        source->line = line;
    }
    if (!config->line[config_row_of("data.sources")])
        config->line[config_row_of("data.sources")] = line;
    return FSDP_OK;
}

const char *config_where_source(char *out, size_t out_nbytes, const struct config *config, int i)
{
    if (!config->nsources)
        return config_where(out, out_nbytes, config, "data.path");
    if (config->sources[i].line > 0)
        snprintf(out, out_nbytes, "%s:%d: data.sources[%d]", config->file, config->sources[i].line,
                 i);
    else
        snprintf(out, out_nbytes, "command line: data.sources[%d]", i);
    return out;
}

/* ---- what holds ----------------------------------------------------------------------------- */

/* The key of `data` that an item's key stands for. */
static const struct fsdp_tunable *data_row(int row)
{
    char key[80];

    snprintf(key, sizeof key, "data.%s", strchr(table[row].name, '.') + 1);
    for (int i = 0; i < config_nrows; i++)
        if (!strcmp(config_table[i].name, key))
            return &config_table[i];
    return NULL;
}

static size_t field_nbytes(enum fsdp_tunable_type type)
{
    switch (type) {
    case FSDP_TUNABLE_STRING:
        return CONFIG_TEXT;
    case FSDP_TUNABLE_INT:
        return sizeof(int64_t);
    case FSDP_TUNABLE_CHOICE:
        return sizeof(int);
    default:
        return sizeof(struct fsdp_tunable_list);
    }
}

/* What is not given is as in `data`. */
static void fill_in(struct config_source *source, const struct config *config)
{
    for (int row = 0; row < NROWS; row++) {
        const struct fsdp_tunable *from = data_row(row);
        if (from && !source->given[row])
            memcpy((char *)source + table[row].offset, (const char *)config + from->offset,
                   field_nbytes(from->type));
    }
}

void config_source_plain(struct config_source *out, const struct config *config)
{
    *out = (struct config_source){0};
    fill_in(out, config);
}

void config_source(struct config_source *out, const struct config *config, int i)
{
    *out = config->nsources ? config->sources[i] : (struct config_source){0};
    fill_in(out, config);
}

const char *config_source_text_key(const struct config *config, int i)
{
    return config->nsources && config->sources[i].text_key[0] ? config->sources[i].text_key
                                                              : config->data.text_key;
}

static int refuse_source(const struct config *c, int i, struct fsdp_err *err, const char *text)
{
    char where[CONFIG_TEXT + 128];
    return fsdp_err_set_blame(err, FSDP_EINVAL, "data.sources", "%s %s",
                              config_where_source(where, sizeof where, c, i), text);
}

int config_sources_check(const struct config *c, struct fsdp_err *err)
{
    bool weights = false;

    if (c->data.path.nelem)
        return config_refuse(c, "data.sources", err, "data.path is given, too; give one of them");
    for (int i = 0; i < c->nsources; i++)
        weights |= c->sources[i].weight > 0;
    for (int i = 0; i < c->nsources; i++) {
        const struct config_source *source = &c->sources[i];
        if (!source->path.nelem)
            return refuse_source(c, i, err, "has no path");
        if (source->weight > 0 && source->passes > 0)
            return refuse_source(c, i, err, "has a weight and passes; give one of them");
        if (weights && !(source->weight > 0))
            return refuse_source(c, i, err, "has no weight, and another source has one");
    }
    return FSDP_OK;
}

/* ---- printing ------------------------------------------------------------------------------- */

int config_sources_print(const struct config *config, FILE *to, struct fsdp_err *err)
{
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);

    if (!value)
        return FSDP_ENOMEM;
    fprintf(to, "  sources: [");
    for (int i = 0; i < config->nsources; i++) {
        const char *between = i ? ", {" : "{";
        for (int row = 0; row < NROWS; row++) {
            if (!config->sources[i].given[row])
                continue;
            fsdp_tunable_format(value, &table[row], &config->sources[i]);
            fprintf(to, "%s%s: %s", between, strchr(table[row].name, '.') + 1, value);
            between = ", ";
        }
        fprintf(to, "}");
    }
    fprintf(to, "]\n");
    fsdp_free(value);
    return FSDP_OK;
}
