/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter groups: which parameters have settings of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optimizer.h"

enum { MAX_WORD = 256 };

/* ---- reading a group ------------------------------------------------------------------------- */

/* The next word up to a blank or `end`, with the rest in *text. False past the last. A word that is
 * too long comes out empty. */
static bool next_word(char out[MAX_WORD], const char **text, const char *end)
{
    const char *from = *text + strspn(*text, " \t");
    size_t len = strcspn(from, " \t");

    if (from >= end)
        return false;
    if (len > (size_t)(end - from))
        len = (size_t)(end - from);
    *text = from + len;
    snprintf(out, MAX_WORD, "%.*s", len < MAX_WORD ? (int)len : 0, from);
    return true;
}

static const char *end_of_names(const char *text)
{
    return text + strcspn(text, ":");
}

static int read_number(double *out, const char **text, const char *word, struct fsdp_err *err)
{
    char *end;
    double value = strtod(*text, &end);

    if (end == *text || !(value >= 0 && value < 1e30))
        return fsdp_err_set(err, FSDP_EINVAL, "parameter group: '%s': a number of at least 0",
                            word);
    *out = value;
    *text = end;
    return FSDP_OK;
}

static int read_optimizer(struct fsdp_optim_group *group, const char *name, const char *word,
                          struct fsdp_err *err)
{
    const struct optimizer *row;

    if (*group->optimizer)
        return fsdp_err_set(err, FSDP_EINVAL, "parameter group: '%s' is set before", word);
    FSDP_TRY(optimizer_find(&row, name, err));
    snprintf(group->optimizer, sizeof group->optimizer, "%s", row->name);
    return FSDP_OK;
}

static int read_setting(struct fsdp_optim_group *group, const char *word, double base_lr,
                        struct fsdp_err *err)
{
    const struct {
        const char *key;
        double *to;
    } keys[] = {{"lr=", &group->lr_scale},
                {"lr_scale=", &group->lr_scale},
                {"weight_decay=", &group->weight_decay},
                {"betas=", &group->betas[0]}};

    if (!strncmp(word, "optimizer=", strlen("optimizer=")))
        return read_optimizer(group, word + strlen("optimizer="), word, err);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value = word + strlen(keys[i].key);
        if (strncmp(word, keys[i].key, strlen(keys[i].key)))
            continue;
        if (*keys[i].to >= 0)
            return fsdp_err_set(err, FSDP_EINVAL, "parameter group: '%s' is set before", word);
        FSDP_TRY(read_number(keys[i].to, &value, word, err));
        if (i == 0 && !(base_lr > 0))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "parameter group: '%s' next to a learning rate of %g: use lr_scale",
                                word, base_lr);
        if (i == 0)
            group->lr_scale /= base_lr;
        if (i == 3 && *value++ != ',')
            return fsdp_err_set(err, FSDP_EINVAL, "parameter group: '%s': two numbers, as 0.9,0.99",
                                word);
        if (i == 3)
            FSDP_TRY(read_number(&group->betas[1], &value, word, err));
        if (*value)
            return fsdp_err_set(err, FSDP_EINVAL, "parameter group: '%s': '%s' is too much", word,
                                value);
        return FSDP_OK;
    }
    return fsdp_err_set(
        err, FSDP_EINVAL,
        "parameter group: '%s'; settings are lr=, lr_scale=, weight_decay=, betas=, optimizer=",
        word);
}

int fsdp_optim_group_parse(struct fsdp_optim_group *out, const char *text, double base_lr,
                           struct fsdp_err *err)
{
    struct fsdp_optim_group group = {text, -1, -1, {-1, -1}, ""};
    const char *end = end_of_names(text), *rest = text;
    char word[MAX_WORD];
    int nnames = 0, nsettings = 0;

    for (; next_word(word, &rest, end); nnames++)
        if (!*word)
            return fsdp_err_set(err, FSDP_EINVAL, "parameter group '%.60s...': a name too long",
                                text);
    if (!*end || !nnames)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "parameter group '%.100s': expected PATTERN...: KEY=VALUE..., such as "
                            "\"*norm* *.bias: weight_decay=0\"",
                            text);
    rest = end + 1;
    for (end = rest + strlen(rest); next_word(word, &rest, end); nsettings++)
        FSDP_TRY(read_setting(&group, word, base_lr, err));
    if (!nsettings)
        return fsdp_err_set(err, FSDP_EINVAL, "parameter group '%.100s' sets nothing", text);
    *out = group;
    return FSDP_OK;
}

/* ---- belonging ------------------------------------------------------------------------------- */

int optimizer_group_of(const struct fsdp_optim_opts *opts, const char *name)
{
    char pattern[MAX_WORD];

    for (int g = 0; g < opts->ngroups; g++) {
        const char *rest = opts->groups[g].names, *end = end_of_names(rest);
        while (next_word(pattern, &rest, end))
            if (fsdp_glob_match(pattern, name))
                return g;
    }
    return -1;
}

const struct optimizer *optimizer_of(const struct fsdp_optim_opts *opts,
                                     const struct fsdp_tensor *tensor)
{
    const int g = optimizer_group_of(opts, tensor->name);
    const char *name =
        g >= 0 && *opts->groups[g].optimizer ? opts->groups[g].optimizer : opts->name;
    const struct optimizer *row = NULL, *instead;

    if (optimizer_find(&row, name, NULL))
        return NULL; /* refused before (optimizer_check) */
    instead = row->instead ? row->instead(tensor) : NULL;
    return instead ? instead : row;
}

struct optimizer_hyper optimizer_hyper_of(const struct fsdp_optim_opts *opts,
                                          const struct fsdp_tensor *tensor)
{
    bool decays = opts->decay == FSDP_DECAY_ALL || optimizer_is_matrix(tensor);
    struct optimizer_hyper hyper = {.lr_scale = 1,
                                    .weight_decay = decays ? opts->weight_decay : 0,
                                    .beta1 = opts->betas[0],
                                    .beta2 = opts->betas[1]};
    int g = optimizer_group_of(opts, tensor->name);
    const struct fsdp_optim_group *group = g < 0 ? NULL : &opts->groups[g];

    if (group && group->lr_scale >= 0)
        hyper.lr_scale = group->lr_scale;
    if (group && group->weight_decay >= 0)
        hyper.weight_decay = group->weight_decay;
    if (group && group->betas[0] >= 0)
        hyper.beta1 = group->betas[0];
    if (group && group->betas[1] >= 0)
        hyper.beta2 = group->betas[1];
    return hyper;
}

int optimizer_check_names(const struct fsdp_optim_opts *opts, int nnames,
                          const char *(*name)(const void *ctx, int i), const void *ctx,
                          struct fsdp_err *err)
{
    char pattern[MAX_WORD];

    for (int g = 0; g < opts->ngroups; g++) {
        const char *rest = opts->groups[g].names, *end = end_of_names(rest);
        while (next_word(pattern, &rest, end)) {
            int i = 0;
            while (i < nnames && !fsdp_glob_match(pattern, name(ctx, i)))
                i++;
            if (i < nnames)
                continue;
            return fsdp_err_set_blame(err, FSDP_EINVAL, "groups",
                                      "parameter group %d: no parameter that is trained matches "
                                      "'%s' (there are: %.100s, ...)",
                                      g + 1, pattern, nnames ? name(ctx, 0) : "none");
        }
    }
    return FSDP_OK;
}
