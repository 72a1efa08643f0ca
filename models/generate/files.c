/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

enum { MAX_NBYTES = 256 << 20 };

/* Where the file is, or next to the weights would be. */
static char *place_of(const struct generate_session *s, const char *name, struct fsdp_err *err)
{
    const char *known = ckpt_extra_path(s->ckpt, name);

    if (known)
        return fsdp_strdup(known, err);
    char *copy = fsdp_strdup(s->path, err);
    char *path = copy ? fsdp_sprintf(err, "%s/%s", dirname(copy), name) : NULL;
    fsdp_free(copy);
    return path;
}

static int make_folder(struct generate_session *s, struct fsdp_err *err)
{
    const char *temp = getenv("TMPDIR");

    if (s->fetched)
        return FSDP_OK;
    char *path = fsdp_sprintf(err, "%s/fsdp-generate-XXXXXX", temp && *temp ? temp : "/tmp");
    if (!path)
        return FSDP_ENOMEM;
    if (!mkdtemp(path)) {
        const int rc = fsdp_err_sys(err, errno, "%s", path);
        fsdp_free(path);
        return rc;
    }
    s->fetched = path;
    return FSDP_OK;
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
    int rc = FSDP_OK;
    char *path = place_of(s, name, err);

    *out = NULL;
    if (!path)
        return FSDP_ENOMEM;
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
