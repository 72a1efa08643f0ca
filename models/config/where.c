/* SPDX-License-Identifier: Apache-2.0 */
/* Where a setting got its value, for errors. */
#include <stdarg.h>
#include <stdio.h>

#include "config_impl.h"

const char *config_where(char *out, size_t out_nbytes, const struct config *config, const char *key)
{
    int line = config->line[config_row_of(key)];
    if (line > 0)
        snprintf(out, out_nbytes, "%s:%d: %s", config->file, line, key);
    else if (line < 0 || !config->file[0])
        snprintf(out, out_nbytes, "command line: %s", key);
    else
        snprintf(out, out_nbytes, "%s: %s", config->file, key);
    return out;
}

bool config_is_given(const struct config *config, const char *key)
{
    return config->line[config_row_of(key)] != 0;
}

int config_refuse(const struct config *config, const char *key, struct fsdp_err *err,
                  const char *fmt, ...)
{
    char where[CONFIG_TEXT + 128], text[FSDP_ERR_TEXT_NBYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fsdp_err_set(err, FSDP_EINVAL, "%s", text);
    fsdp_err_prefix(err, FSDP_EINVAL, "%s: ", config_where(where, sizeof where, config, key));
    return fsdp_err_blame(err, FSDP_EINVAL, key);
}
