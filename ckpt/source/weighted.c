/* SPDX-License-Identifier: Apache-2.0 */
/* PATH=WEIGHT, as those take it who add several checkpoints up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "source.h"

static bool exists(const char *path)
{
    return !ckpt_path_is_url(path) && access(path, F_OK) == 0;
}

int ckpt_weighted_parse(char **path, double *weight, const char *text, const char *what,
                        struct fsdp_err *err)
{
    const char *eq = strrchr(text, '=');
    char *end = NULL;
    const double number = eq ? strtod(eq + 1, &end) : 1;
    const bool given = eq && eq[1] && !*end;

    *weight = 1;
    if (!(*path = fsdp_sprintf(err, "%.*s", given ? (int)(eq - text) : (int)strlen(text), text)))
        return FSDP_ENOMEM;
    if (given && exists(text)) {
        if (exists(*path))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s %s: there are '%s' and '%s'; write %s=1 or %s/%s", what, text,
                                text, *path, text, *path, eq);
        fsdp_free(*path);
        *path = fsdp_strdup(text, err);
        return *path ? FSDP_OK : FSDP_ENOMEM;
    }
    *weight = number;
    return isfinite(number)
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "%s %s: its weight must be finite", what, text);
}
