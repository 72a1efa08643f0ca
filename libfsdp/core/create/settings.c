/* SPDX-License-Identifier: Apache-2.0 */
/* The table of an engine's settings, and the text of their values. */
#include "settings.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#define ROW(section, key, kind, def, allowed, help, type, agreement, field)                        \
    {#section "." #key,                                                                            \
     SETTING_##type,                                                                               \
     SETTING_##agreement,                                                                          \
     def,                                                                                          \
     allowed,                                                                                      \
     FSDP_TUNABLE_##kind,                                                                          \
     offsetof(struct fsdp_opts, field)},
#define NO_KEY(type, agreement, field)                                                             \
    {                                                                                              \
#field, SETTING_##type, SETTING_##agreement, NULL, NULL, FSDP_TUNABLE_INT,                 \
            offsetof(struct fsdp_opts, field)                                                      \
    }

/* Both versions and `agree` are no settings. */
/* clang-format off */
const struct setting setting_table[] = {
    FSDP_SETTINGS(ROW)
    NO_KEY(POINTER, BY_OUTCOME, wrap_callback),
    NO_KEY(POINTER, BY_OUTCOME, wrap_ctx),
    NO_KEY(INT, BY_OUTCOME, nunit_overrides),
    NO_KEY(INT, AGREED, accumulation),
    NO_KEY(BOOL, AGREED, frozen_in_param_dtype),
    NO_KEY(INT, BY_OUTCOME, optim.ngroups),
};
/* clang-format on */
const int setting_nrows = sizeof setting_table / sizeof setting_table[0];

size_t setting_nbytes(enum setting_type type)
{
    switch (type) {
    case SETTING_BOOL:
        return sizeof(bool);
    case SETTING_UINT64:
    case SETTING_GIB:
        return sizeof(uint64_t);
    case SETTING_DOUBLE:
        return sizeof(double);
    case SETTING_DOUBLES:
        return 2 * sizeof(double);
    case SETTING_TEXT:
    case SETTING_NAME:
    case SETTING_CODEC:
    case SETTING_POINTER:
        return sizeof(void *);
    default:
        return sizeof(int);
    }
}

/* The word of an enum's constant. */
static void write_word(FILE *to, const struct setting *row, int value)
{
    const struct fsdp_tunable words = {
        .name = row->name, .type = FSDP_TUNABLE_CHOICE, .allowed = row->allowed};
    char word[32];

    fsdp_tunable_word(word, sizeof word, &words, value);
    fputs(word, to);
}

static void write_value(FILE *to, const struct setting *row, const void *at)
{
    switch (row->type) {
    case SETTING_INT:
        fprintf(to, "%d", *(const int *)at);
        break;
    case SETTING_BOOL:
        fputs(*(const bool *)at ? "true" : "false", to);
        break;
    case SETTING_UINT64:
    case SETTING_GIB:
        fprintf(to, "%" PRIu64, *(const uint64_t *)at);
        break;
    case SETTING_DOUBLE:
        fprintf(to, "%.17g", *(const double *)at);
        break;
    case SETTING_DOUBLES:
        fprintf(to, "%.17g, %.17g", ((const double *)at)[0], ((const double *)at)[1]);
        break;
    case SETTING_TEXT:
    case SETTING_NAME:
        fputs(*(const char *const *)at ? *(const char *const *)at : "", to);
        break;
    case SETTING_STRATEGY:
        fputs(fsdp_strategy_name(*(const enum fsdp_strategy *)at), to);
        break;
    case SETTING_DTYPE:
        fputs(fsdp_dtype_name(*(const enum fsdp_dtype *)at), to);
        break;
    case SETTING_WORD:
        write_word(to, row, *(const int *)at);
        break;
    case SETTING_WRAP_POLICY: /* ranks compare what comes of these */
    case SETTING_CODEC:
    case SETTING_POINTER:
        break;
    }
}

void settings_write(FILE *to, const struct fsdp_opts *opts)
{
    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++) {
        if (row->agreement != SETTING_AGREED)
            continue;
        fprintf(to, "%s = ", row->name);
        write_value(to, row, (const char *)opts + row->offset);
        fputc('\n', to);
    }
}

/* ---- from a configuration -------------------------------------------------------------------- */

static const struct setting *setting_of(const char *key)
{
    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++)
        if (row->def && !strcmp(row->name, key))
            return row;
    return NULL;
}

/* A word that stands for something that is not its position. */
static int take_word(void *to, const struct setting *setting, const struct fsdp_tunable *row,
                     int index, struct fsdp_err *err)
{
    char word[64];

    fsdp_tunable_word(word, sizeof word, row, index);
    switch (setting->type) {
    case SETTING_STRATEGY:
        return fsdp_strategy_parse(to, word, err);
    case SETTING_WRAP_POLICY:
        return fsdp_wrap_policy_parse(to, word, err);
    case SETTING_DTYPE:
        return fsdp_dtype_parse(to, word, err);
    default:
        *(const struct fsdp_gather_codec **)to =
            index ? &fsdp_gather_float8 : NULL; /* the word after auto */
        return FSDP_OK;
    }
}

int fsdp_opts_take(struct fsdp_opts *opts, const struct fsdp_tunable *row, const void *base,
                   struct fsdp_err *err)
{
    const struct setting *setting = setting_of(row->name);
    const void *from = (const char *)base + row->offset;
    void *to = setting ? (char *)opts + setting->offset : NULL;

    if (!setting)
        return FSDP_OK;
    switch (setting->type) {
    case SETTING_INT:
        *(int *)to = (int)*(const int64_t *)from;
        return FSDP_OK;
    case SETTING_UINT64:
        *(int64_t *)to = *(const int64_t *)from; /* never negative: `allowed` */
        return FSDP_OK;
    case SETTING_GIB:
        *(uint64_t *)to = (uint64_t)(*(const double *)from * (double)(1 << 30));
        return FSDP_OK;
    case SETTING_TEXT:
        *(const char **)to = from;
        return FSDP_OK;
    case SETTING_BOOL:
    case SETTING_DOUBLE:
    case SETTING_DOUBLES:
    case SETTING_WORD:
        memcpy(to, from, setting_nbytes(setting->type));
        return FSDP_OK;
    case SETTING_STRATEGY:
    case SETTING_WRAP_POLICY:
    case SETTING_DTYPE:
    case SETTING_CODEC:
        return take_word(to, setting, row, *(const int *)from, err);
    case SETTING_NAME:
    case SETTING_POINTER:
        break;
    }
    return FSDP_OK;
}
