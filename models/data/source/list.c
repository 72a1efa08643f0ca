/* SPDX-License-Identifier: Apache-2.0 */
/* Files, folders and patterns as a list of files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "list.h"

enum { MAX_DEPTH = 64 };

bool data_name_ends(const char *path, const char *end)
{
    const size_t len = strlen(path), end_len = strlen(end);
    return len > end_len && !strcmp(path + len - end_len, end);
}

void data_list_free(struct data_list *list)
{
    for (size_t i = 0; i < list->npaths; i++)
        fsdp_free(list->paths[i]);
    fsdp_free(list->paths);
    *list = (struct data_list){0};
}

/* ---- other people's formats ----------------------------------------------------------------- */

/* Python commands for the shell: they read FILE and print JSON Lines. Values without a JSON type
 * become text. */
#define JSON_OF_ROWS                                                                               \
    "[print(json.dumps(r,default=lambda v:v.decode()if type(v)is bytes else str(v)))for b in "
#define OF_PARQUET                                                                                 \
    "import json,sys,pyarrow.parquet as q;" JSON_OF_ROWS                                           \
    "q.ParquetFile(sys.argv[1]).iter_batches()for r in b.to_pylist()]"
#define OF_ARROW                                                                                   \
    "import json,sys,pyarrow as a;m=a.memory_map(sys.argv[1]);"                                    \
    "o=a.ipc.open_file if m.read(6)==b'ARROW1'else a.ipc.open_stream;m.seek(0);" JSON_OF_ROWS      \
    "o(m).read_all().to_batches()for r in b.to_pylist()]"

/* Does the name need no quotes in a shell? */
static bool is_plain(const char *path)
{
    return !path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                              "_-+=.,:/@%")];
}

static int refuse_table(const char *path, struct fsdp_err *err)
{
    static const struct {
        const char *end, *name, *python;
    } kinds[] = {{".parquet", "Parquet", OF_PARQUET}, {".arrow", "Arrow", OF_ARROW}};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!data_name_ends(path, kinds[i].end))
            continue;
        const char *file = is_plain(path) ? path : "FILE";
        const int len = (int)(strlen(file) - (file == path ? strlen(kinds[i].end) : 0));
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "path",
            "%s: %s is not read here. This command (Python with pyarrow) "
            "makes JSON Lines of it, for data.format jsonl: python3 -c \"%s\" %s > "
            "%.*s.jsonl",
            path, kinds[i].name, kinds[i].python, file, len, file);
    }
    return FSDP_OK;
}

/* Is it FILE.u16 or FILE.u32 with an index, such an index, or what is next to it? */
static bool is_of_tokens(const char *path)
{
    static const char *const ends[] = {".u16",       ".u32",         ".u16.index",
                                       ".u32.index", ".u16.learned", ".u32.learned"};
    char index[PATH_MAX];
    struct stat st;

    for (size_t i = 0; i < sizeof ends / sizeof ends[0] && !data_is_remote(path); i++) {
        const int nids = (int)(strlen(path) - strlen(ends[i]) + strlen(ends[0]));
        if (data_name_ends(path, ends[i]) &&
            snprintf(index, sizeof index, "%.*s.index", nids, path) < (int)sizeof index &&
            stat(index, &st) == 0)
            return true;
    }
    return false;
}

int data_list_refuse_tokens(const struct data_list *list, struct fsdp_err *err)
{
    for (size_t i = 0; i < list->npaths; i++)
        if (is_of_tokens(list->paths[i]))
            return fsdp_err_set_blame(
                err, FSDP_EINVAL, "path",
                "%s was made by fsdp-tokenize and holds no text; leave it out, for "
                "example with a pattern such as '*.txt'",
                list->paths[i]);
    return FSDP_OK;
}

/* ---- files and folders ---------------------------------------------------------------------- */

static int add_file(struct data_list *list, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(refuse_table(path, err));
    char **paths = fsdp_alloc_grow(list->paths, list->npaths, &list->room, sizeof *paths,
                                   "list of files", err);
    if (!paths)
        return FSDP_ENOMEM;
    list->paths = paths;
    if (!(paths[list->npaths] = fsdp_strdup(path, err)))
        return FSDP_ENOMEM;
    list->npaths++;
    return FSDP_OK;
}

static bool is_wanted(const struct data_list *list, const char *path)
{
    for (const char *const *end = list->skipped; end && *end; end++)
        if (data_name_ends(path, *end))
            return false;
    return !list->only || data_name_ends(path, list->only);
}

/* Otherwise a data set with a missing file would be left out silently. */
static int check_partner(const struct data_list *list, const char *path, struct fsdp_err *err)
{
    struct stat st;

    if (!list->partner || !data_name_ends(path, list->partner))
        return FSDP_OK;
    char *full =
        fsdp_sprintf(err, "%.*s%s", (int)(strlen(path) - strlen(list->partner)), path, list->only);
    if (!full)
        return FSDP_ENOMEM;
    const int rc = stat(full, &st) == 0
                       ? FSDP_OK
                       : fsdp_err_sys(err, errno, "%s, which belongs to %s", full, path);
    fsdp_free(full);
    return rc;
}

/* A file in a folder, or that matches a pattern. */
static int add_found(struct data_list *list, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(check_partner(list, path, err));
    return is_wanted(list, path) ? add_file(list, path, err) : FSDP_OK;
}

static int list_folder(struct data_list *list, const char *path, int depth, struct fsdp_err *err);

/* Inside a folder, links to files are followed and links to folders are not: they may be loops. */
static int list_entry(struct data_list *list, const char *path, int depth, struct fsdp_err *err)
{
    struct stat st, link;

    if (stat(path, &st) != 0 || lstat(path, &link) != 0)
        return fsdp_err_sys(err, errno, "%s", path);
    if (S_ISREG(st.st_mode))
        return add_found(list, path, err);
    if (S_ISDIR(link.st_mode))
        return list_folder(list, path, depth + 1, err);
    return FSDP_OK;
}

static int list_folder(struct data_list *list, const char *path, int depth, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    DIR *dir = depth < MAX_DEPTH ? opendir(path) : NULL;

    if (!dir)
        return depth < MAX_DEPTH
                   ? fsdp_err_sys(err, errno, "%s", path)
                   : fsdp_err_set(err, FSDP_EINVAL, "%s: folders nest too deep", path);
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry && errno)
            rc = fsdp_err_sys(err, errno, "%s", path);
        if (!entry)
            break;
        if (entry->d_name[0] == '.')
            continue;
        size_t len = strlen(path);
        char *full = fsdp_sprintf(err, "%s%s%s", path, len && path[len - 1] == '/' ? "" : "/",
                                  entry->d_name);
        rc = full ? list_entry(list, full, depth, err) : FSDP_ENOMEM;
        fsdp_free(full);
        if (rc != FSDP_OK)
            break;
    }
    closedir(dir);
    return rc;
}

/* ---- what a user gave ----------------------------------------------------------------------- */

static int list_match(struct data_list *list, const char *path, struct fsdp_err *err)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return fsdp_err_sys(err, errno, "%s", path);
    if (S_ISDIR(st.st_mode))
        return list_folder(list, path, 0, err);
    return S_ISREG(st.st_mode) ? add_found(list, path, err) : FSDP_OK;
}

/* GLOB_ERR: a folder that cannot be read is an error, not one without matches. */
static int list_pattern(struct data_list *list, const char *pattern, struct fsdp_err *err)
{
    const size_t before = list->npaths;
    glob_t found;
    int rc = FSDP_OK;

    if (strstr(pattern, "**"))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: '**' has no meaning here; a folder is read with all of its "
                            "folders, and '*/*' matches at one depth",
                            pattern);
    errno = 0;
    const int failed = glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    if (failed && failed != GLOB_NOMATCH)
        return fsdp_err_sys(err,
                            failed == GLOB_NOSPACE ? ENOMEM
                            : errno                ? errno
                                                   : EIO,
                            "%s", pattern);
    for (size_t i = 0; !failed && rc == FSDP_OK && i < found.gl_pathc; i++)
        rc = list_match(list, found.gl_pathv[i], err);
    if (!failed)
        globfree(&found);
    if (rc != FSDP_OK || list->npaths > before)
        return rc;
    rc = fsdp_err_set(err, FSDP_EINVAL, "%s: no file matches the pattern", pattern);
    return fsdp_err_blame(err, rc, "path");
}

static int add_far(void *ctx, const char *address, struct fsdp_err *err)
{
    struct data_list *list = ctx;
    return is_wanted(list, address) ? add_file(list, address, err) : FSDP_OK;
}

static int list_far(struct data_list *list, const char *address, struct fsdp_err *err)
{
    if (!list->remote)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: addresses are not read here", address);
    if (!strpbrk(address, "*?["))
        return list->remote->each(address, add_far, list, err);
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "path",
        "%s: addresses have no patterns here; name the folder, of which all files "
        "are read",
        address);
}

static int list_path(struct data_list *list, const char *path, struct fsdp_err *err)
{
    const size_t before = list->npaths;
    struct stat st;

    if (data_is_remote(path))
        return list_far(list, path, err);
    if (stat(path, &st) != 0) {
        const int errnum = errno;
        return errnum == ENOENT && strpbrk(path, "*?[") ? list_pattern(list, path, err)
                                                        : fsdp_err_sys(err, errnum, "%s", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        int fd;
        FSDP_TRY(fsdp_file_open(&fd, path, O_RDONLY, err));
        close(fd);
        return add_file(list, path, err);
    }
    FSDP_TRY(list_folder(list, path, 0, err));
    return list->npaths > before
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "%s: the folder holds no files%s%s", path,
                              list->only ? " that end with " : "", list->only ? list->only : "");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int data_list_add(struct data_list *list, const char *path, struct fsdp_err *err)
{
    const size_t before = list->npaths;

    FSDP_TRY(list_path(list, path, err));
    qsort(list->paths + before, list->npaths - before, sizeof *list->paths, by_name);
    return FSDP_OK;
}
