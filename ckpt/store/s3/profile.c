/* SPDX-License-Identifier: Apache-2.0 */
/* The files that all tools for AWS share: ~/.aws/credentials and ~/.aws/config. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "creds.h"

static char *file_of(const char *variable, const char *name)
{
    const char *path = getenv(variable), *home = getenv("HOME");
    if (path && *path)
        return fsdp_strdup(path, NULL);
    return home && *home ? fsdp_sprintf(NULL, "%s/.aws/%s", home, name) : NULL;
}

const char *ckpt_s3_profile_name(void)
{
    const char *name = getenv("AWS_PROFILE");
    if (!name || !*name)
        name = getenv("AWS_DEFAULT_PROFILE");
    return name && *name ? name : "default";
}

static char *trim(char *text)
{
    size_t len;
    text += strspn(text, " \t");
    for (len = strlen(text); len && strchr(" \t\r\n", text[len - 1]); len--)
        text[len - 1] = 0;
    return text;
}

/* "[default]", and "[profile NAME]" in config, "[NAME]" in credentials. */
static bool is_section(char *line, const char *profile, bool config)
{
    char *end = strchr(line, ']');
    if (!end)
        return false;
    *end = 0;
    line = trim(line + 1);
    bool marked = config && !strncmp(line, "profile", 7) && strchr(" \t", line[7]) && line[7];
    if (marked)
        line = trim(line + 7);
    return !strcmp(line, profile) && (marked || !config || !strcmp(profile, "default"));
}

/* "name", or "parent.name" for what is nested: "parent =" and below it "  name = value". */
static bool is_setting(char parent[64], const char *name, bool indented, const char *setting)
{
    size_t len = strlen(parent);
    if (indented)
        return len && !strncmp(setting, parent, len) && setting[len] == '.' &&
               !strcmp(setting + len + 1, name);
    snprintf(parent, 64, "%s", name);
    return !strcmp(name, setting);
}

/* *known: the profile has a section in the file. */
static char *look_up(bool *known, const char *path, bool config, const char *profile,
                     const char *setting)
{
    FILE *file = NULL;
    char *line = NULL, *found = NULL, parent[64] = "";
    size_t room = 0;
    bool here = false;
    if (path)
        fsdp_file_stream(&file, path, NULL);
    while (file && !found && getline(&line, &room, file) >= 0) {
        bool indented = strchr(" \t", line[0]) && line[0];
        char *text = trim(line), *equals = strchr(text, '=');
        if (*text == '[') {
            here = is_section(text, profile, config);
            parent[0] = 0;
            *known |= here;
        } else if (here && equals && *text != '#' && *text != ';') {
            *equals = 0;
            if (is_setting(parent, trim(text), indented, setting))
                found = fsdp_strdup(trim(equals + 1), NULL);
        }
    }
    if (line)
        explicit_bzero(line, room);
    free(line);
    if (file)
        fclose(file);
    if (found && !*found) {
        fsdp_free(found);
        found = NULL;
    }
    return found;
}

char *ckpt_s3_profile_get(const char *profile, const char *setting, bool *known)
{
    static const struct {
        const char *variable, *name;
        bool config;
    } files[] = {{"AWS_SHARED_CREDENTIALS_FILE", "credentials", false},
                 {"AWS_CONFIG_FILE", "config", true}};
    char *value = NULL;
    bool ignored = false;
    for (int i = 0; i < 2 && !value; i++) {
        char *path = file_of(files[i].variable, files[i].name);
        value = look_up(known ? known : &ignored, path, files[i].config,
                        profile ? profile : ckpt_s3_profile_name(), setting);
        fsdp_free(path);
    }
    return value;
}
