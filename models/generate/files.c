/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { MAX_NBYTES = 256 << 20 };

/* Is it the address of a file of weights, rather than of a folder? */
static bool is_file(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct stat st;

    return ckpt_path_is_url(path) ? strstr(slash ? slash : path, ".safetensors") != NULL
                                  : stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

static char *folder_of(const char *path, struct fsdp_err *err)
{
    char *copy = fsdp_strdup(path, err);
    char *out = copy ? fsdp_strdup(dirname(copy), err) : NULL;

    fsdp_free(copy);
    return out;
}

static char *neighbour_of(const char *path, const char *name, struct fsdp_err *err)
{
    char *folder = folder_of(path, err);
    char *out = folder ? fsdp_sprintf(err, "%s/%s", folder, name) : NULL;

    fsdp_free(folder);
    return out;
}

/* Where the file is, or next to the weights would be; *out NULL: nowhere. */
static int place_of(char **out, const struct generate_session *s, const char *name,
                    struct fsdp_err *err)
{
    const char *known = ckpt_extra_path(s->ckpt, name);

    *out = NULL;
    if (known)
        *out = fsdp_strdup(known, err);
    else if (!is_file(s->path))
        return FSDP_OK;
    else
        *out = neighbour_of(s->path, name, err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

static int make_folder(struct generate_session *s, struct fsdp_err *err)
{
    return s->fetched ? FSDP_OK : fsdp_folder_temporary(&s->fetched, "fsdp-generate", err);
}

static int write_file(const char *path, const char *data, size_t nbytes, struct fsdp_err *err)
{
    int fd = -1;

    FSDP_TRY(fsdp_file_open(&fd, path, O_WRONLY | O_CREAT | O_TRUNC, err));
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return fsdp_err_sys(err, errno, "%s", path);
    }
    const bool whole = fwrite(data, 1, nbytes, file) == nbytes;
    return fclose(file) == 0 && whole ? FSDP_OK : fsdp_err_sys(err, errno, "%s", path);
}

/* *out stays NULL where the store has no such file. */
static int fetch_file(char **out, struct generate_session *s, const char *from, const char *name,
                      struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *data = NULL;
    size_t nbytes = 0;

    int rc = ckpt_extra_read(&data, &nbytes, from, MAX_NBYTES, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    rc = make_folder(s, err);
    char *to = rc == FSDP_OK ? fsdp_sprintf(err, "%s/%s", s->fetched, name) : NULL;
    if (rc == FSDP_OK)
        rc = to ? write_file(to, data, nbytes, err) : FSDP_ENOMEM;
    fsdp_free(data);
    if (rc)
        fsdp_free(to);
    else
        *out = to;
    return rc;
}

int generate_session_file(char **out, struct generate_session *s, const char *name,
                          struct fsdp_err *err)
{
    char *path;
    int rc = place_of(&path, s, name, err);

    *out = NULL;
    if (rc || !path)
        return rc;
    if (ckpt_path_is_url(path)) {
        rc = fetch_file(out, s, path, name, err);
    } else if (access(path, R_OK) == 0) {
        *out = path;
        return FSDP_OK;
    }
    fsdp_free(path);
    return rc;
}

/* The first small file whose name ends with .tiktoken; NULL: there is none. */
static const char *find_ranks(const struct generate_session *s)
{
    for (int i = 0; i < ckpt_nextra(s->ckpt); i++) {
        const char *path = ckpt_extra_at(s->ckpt, i), *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
        if (dot && !strcmp(dot, ".tiktoken"))
            return name;
    }
    return NULL;
}

int generate_session_tokenizer(char **out, struct generate_session *s, struct fsdp_err *err)
{
    const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model", find_ranks(s)};
    char *next = NULL;

    *out = NULL;
    for (int i = 0; i < 4 && !*out; i++)
        if (names[i])
            FSDP_TRY(generate_session_file(out, s, names[i], err));
    if (!*out || !s->fetched)
        return FSDP_OK;
    /* It is read where it is next to the other. */
    const int rc = generate_session_file(&next, s, "tokenizer_config.json", err);
    fsdp_free(next);
    return rc;
}

int generate_session_template(char **folder, struct generate_session *s, struct fsdp_err *err)
{
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    char *path[3] = {NULL};
    int rc = FSDP_OK;

    *folder = NULL;
    for (int i = 0; i < 3 && rc == FSDP_OK; i++)
        rc = generate_session_file(&path[i], s, names[i], err);
    const char *found = path[0] ? path[0] : path[1];
    if (rc == FSDP_OK && found) {
        *folder = folder_of(found, err);
        rc = *folder ? FSDP_OK : FSDP_ENOMEM;
    }
    for (int i = 0; i < 3; i++)
        fsdp_free(path[i]);
    return rc;
}

void generate_files_remove(struct generate_session *s)
{
    DIR *folder = s->fetched ? opendir(s->fetched) : NULL;

    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder) {
        closedir(folder);
        rmdir(s->fetched);
    }
    fsdp_free(s->fetched);
}
