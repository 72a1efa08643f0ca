/* SPDX-License-Identifier: Apache-2.0 */
/* Overrides of single units as text: "model.layers.3 reshard_after_forward=false". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/fsdp.h"

static int parse_class(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err)
{
    (void)err;
    out->class_name = value;
    return FSDP_OK;
}

static int parse_reshard(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err)
{
    char *end;
    long k = strtol(value, &end, 10);

    if (!strcmp(value, "true"))
        k = 1;
    else if (!strcmp(value, "false"))
        k = 0;
    else if (!*value || *end || k < 2 || k > 1 << 20)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "reshard_after_forward=%s: true, false or a group size", value);
    out->reshard_after_forward = (int)k;
    return FSDP_OK;
}

static int parse_dtype(int *out, const char *value, struct fsdp_err *err)
{
    enum fsdp_dtype dtype;
    FSDP_TRY(fsdp_dtype_parse(&dtype, value, err));
    *out = (int)dtype;
    return FSDP_OK;
}

static int parse_param(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err)
{
    return parse_dtype(&out->param_dtype, value, err);
}

static int parse_reduce(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err)
{
    return parse_dtype(&out->reduce_dtype, value, err);
}

static int parse_codec(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err)
{
    out->gather_codec = !strcmp(value, "true");
    if (out->gather_codec || !strcmp(value, "false"))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "gather_codec=%s: true or false", value);
}

static const struct {
    const char *key;
    int (*parse)(struct fsdp_unit_override *out, const char *value, struct fsdp_err *err);
} keys[] = {
    {"class", parse_class},        {"reshard_after_forward", parse_reshard},
    {"param_dtype", parse_param},  {"reduce_dtype", parse_reduce},
    {"gather_codec", parse_codec},
};
enum { NKEYS = sizeof keys / sizeof keys[0] };

static int parse_word(struct fsdp_unit_override *out, char *word, struct fsdp_err *err)
{
    char known[256] = "", *value = strchr(word, '=');

    if (value)
        *value++ = 0;
    for (int i = 0; i < NKEYS; i++) {
        size_t len = strlen(known);
        if (value && !strcmp(word, keys[i].key))
            return keys[i].parse(out, value, err);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", keys[i].key);
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' in an override: KEY=VALUE follows the pattern of module names "
                        "(keys: %s)",
                        word, known);
}

int fsdp_unit_override_parse(struct fsdp_unit_override *out, char *text, struct fsdp_err *err)
{
    struct fsdp_unit_override o = FSDP_UNIT_OVERRIDE_INIT;
    char *rest = NULL, *word = strtok_r(text, " \t", &rest);
    int nset = 0;

    if (word && !strchr(word, '=')) {
        o.module = word;
        word = strtok_r(NULL, " \t", &rest);
    }
    for (; word; word = strtok_r(NULL, " \t", &rest)) {
        nset += strncmp(word, "class=", 6) != 0;
        FSDP_TRY(parse_word(&o, word, err));
    }
    if (!nset || (!o.module && !o.class_name))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "an override is a pattern of module names or class=NAME, then what "
                            "changes: \"model.layers.3 reshard_after_forward=false\"");
    *out = o;
    return FSDP_OK;
}

int fsdp_opts_regather_size(const struct fsdp_opts *opts)
{
    /* The smallest: a size may be that of the whole group, which is no group of its own. */
    int size = opts->reshard_after_forward > 1 ? opts->reshard_after_forward : 0;
    for (int i = 0; i < opts->nunit_overrides; i++) {
        const int mine = opts->unit_overrides[i].reshard_after_forward;
        size = mine > 1 && (!size || mine < size) ? mine : size;
    }
    return size;
}
