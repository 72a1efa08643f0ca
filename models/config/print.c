/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as text: for users, for checkpoints, and for the agreement of ranks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

int config_print(const struct config *config, bool help, FILE *to, struct fsdp_err *err)
{
    char allowed[400];
    char *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    const char *last = "";

    if (!value)
        return FSDP_ENOMEM;
    for (int i = 0; i < config_nrows && !ferror(to); i++) {
        const struct fsdp_tunable *row = &config_table[i];
        const char *dot = strchr(row->name, '.');
        size_t len = (size_t)(dot - row->name);
        if (strncmp(row->name, last, len + 1) != 0)
            fprintf(to, "%s%.*s:\n", *last && help ? "\n" : "", (int)len, row->name);
        last = row->name;
        fsdp_tunable_format(value, row, config);
        const bool maps = row->type == FSDP_TUNABLE_MAPS;
        fsdp_tunable_allowed(allowed, sizeof allowed, row);
        if (help)
            fprintf(to, "  # %s.\n  # %s%s; allowed: %s.\n", row->help,
                    row->def ? "Default: " : "Must be given",
                    !row->def   ? ""
                    : *row->def ? row->def
                                : "empty",
                    allowed);
        if (!row->def && !config->line[i])
            fprintf(to, "  # %s:\n", dot + 1);
        else if (maps)
            config_sources_print(config, to, NULL);
        else
            fprintf(to, "  %s: %s\n", dot + 1, value);
    }
    const int why = errno; /* of the last row, if it was not written */
    fsdp_free(value);
    return ferror(to) ? fsdp_err_sys(err, why ? why : EIO, "cannot write the configuration")
                      : FSDP_OK;
}

/* Opens a stream into memory; its text is copied to *out by finish_text. */
static int finish_text(char **out, FILE *stream, char **buffer, struct fsdp_err *err)
{
    int bad = ferror(stream) | fclose(stream);
    char *text = bad || !*buffer ? NULL : fsdp_strdup(*buffer, err);

    free(*buffer);
    if (!text)
        return fsdp_err_set(err, FSDP_ENOMEM, "configuration: out of memory");
    *out = text;
    return FSDP_OK;
}

int config_text(char **out, const struct config *config, struct fsdp_err *err)
{
    char *buffer = NULL;
    size_t nbytes = 0;
    FILE *stream = open_memstream(&buffer, &nbytes);

    if (!stream)
        return fsdp_err_sys(err, errno, "configuration");
    config_print(config, false, stream, NULL);
    return finish_text(out, stream, &buffer, err);
}

/* What may differ between ranks: how a rank talks and computes, not what. A trace and the norms of
 * units are gathered from all. */
static bool is_local(const char *key)
{
    if (strncmp(key, "log.trace", 9) == 0 || strcmp(key, "log.tensorboard_histograms") == 0)
        return false;
    return strncmp(key, "log.", 4) == 0 || strcmp(key, "train.threads") == 0 ||
           strcmp(key, "train.bind") == 0;
}

int config_agree_text(char **out, const struct config *config, struct fsdp_err *err)
{
    char *buffer = NULL, *value = fsdp_alloc(FSDP_TUNABLE_FORMAT_NBYTES, 1, "setting", err);
    size_t nbytes = 0;
    FILE *stream = value ? open_memstream(&buffer, &nbytes) : NULL;

    if (!stream) {
        fsdp_free(value);
        return value ? fsdp_err_sys(err, errno, "configuration") : FSDP_ENOMEM;
    }
    for (int i = 0; i < config_nrows; i++) {
        if (is_local(config_table[i].name))
            continue;
        fsdp_tunable_format(value, &config_table[i], config);
        if (config_table[i].type == FSDP_TUNABLE_MAPS)
            config_sources_print(config, stream, NULL);
        else
            fprintf(stream, "%s = %s\n", config_table[i].name, value);
    }
    fsdp_free(value);
    return finish_text(out, stream, &buffer, err);
}
