/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/stat.h>

#include "format.h"
#include "sources.h"

static int add_stdin(struct data_list *list, struct fsdp_err *err)
{
    char **paths = fsdp_alloc_grow(list->paths, list->npaths, &list->room, sizeof *paths,
                                   "list of files", err);

    if (!paths)
        return FSDP_ENOMEM;
    list->paths = paths;
    if (!(paths[list->npaths] = fsdp_strdup("-", err)))
        return FSDP_ENOMEM;
    list->npaths++;
    return FSDP_OK;
}

/* ---- the output's own files ------------------------------------------------------------------ */

struct own_file {
    dev_t device;
    ino_t inode;
};
struct own_files {
    struct own_file at[2 * TOKENS_NPARTS + 1];
    int nfiles;
};

static int find_own(struct own_files *own, const char *path, struct fsdp_err *err)
{
    static const char *const more[] = {"", ".part"};
    struct stat st;

    for (int i = 0; path && i < 2 * TOKENS_NPARTS + 1; i++) {
        char *name = i < 2 * TOKENS_NPARTS
                         ? fsdp_sprintf(err, "%s%s%s", path, tokens_ends[i / 2], more[i % 2])
                         : fsdp_sprintf(err, "%s" TOKENS_JOURNAL, path);
        if (!name)
            return FSDP_ENOMEM;
        if (stat(name, &st) == 0)
            own->at[own->nfiles++] = (struct own_file){st.st_dev, st.st_ino};
        fsdp_free(name);
    }
    return FSDP_OK;
}

static bool is_own(const struct own_files *own, const char *path)
{
    struct stat st;

    if (data_is_remote(path) || !strcmp(path, "-") || stat(path, &st))
        return false;
    for (int i = 0; i < own->nfiles; i++)
        if (own->at[i].device == st.st_dev && own->at[i].inode == st.st_ino)
            return true;
    return false;
}

/* The files that `path` names; those of its folders that are the output's own are left out. */
static int add_path(struct data_list *list, const char *path, const struct own_files *own,
                    struct fsdp_err *err)
{
    const size_t before = list->npaths;
    size_t kept = before;

    FSDP_TRY(strcmp(path, "-") != 0 ? data_list_add(list, path, err) : add_stdin(list, err));
    for (size_t i = before; i < list->npaths; i++) {
        if (!is_own(own, list->paths[i])) {
            list->paths[kept++] = list->paths[i];
            continue;
        }
        if (!strcmp(list->paths[i], path))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' is read, and the output is to be written there; give the "
                                "output another name",
                                path);
        fsdp_free(list->paths[i]);
        list->paths[i] = NULL;
    }
    list->npaths = kept;
    return FSDP_OK;
}

/* ---- what they are --------------------------------------------------------------------------- */

static bool is_lines_name(const char *path)
{
    static const char *const ends[] = {".jsonl", ".ndjson", ".json"};
    static const char *const packed[] = {"", ".gz", ".zst"};
    char end[16];

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        for (size_t k = 0; k < sizeof packed / sizeof packed[0]; k++) {
            snprintf(end, sizeof end, "%s%s", ends[i], packed[k]);
            if (data_name_ends(path, end))
                return true;
        }
    return false;
}

static void describe(struct encode_source *s, const char *path, enum encode_format format)
{
    const bool is_stdin = !strcmp(path, "-");
    struct stat st;

    *s = (struct encode_source){.path = path,
                                .name = is_stdin ? "standard input" : path,
                                .is_lines = format == ENCODE_AUTO ? is_lines_name(path)
                                                                  : format == ENCODE_LINES};
    if (data_is_remote(path) || is_stdin || stat(path, &st) || !S_ISREG(st.st_mode))
        return;
    s->has_size = true;
    s->nbytes = (uint64_t)st.st_size;
    s->seconds = st.st_mtim.tv_sec;
    s->nanoseconds = st.st_mtim.tv_nsec;
}

static int describe_all(struct encode_sources *s, struct fsdp_err *err)
{
    bool known = true;

    if (!s->list.npaths)
        return fsdp_err_set(err, FSDP_EINVAL, "there is nothing to read but the output itself");
    if (!(s->at = fsdp_alloc(s->list.npaths, sizeof *s->at, "list of files", err)))
        return FSDP_ENOMEM;
    s->nsources = s->list.npaths;
    for (size_t i = 0; i < s->nsources; i++) {
        describe(&s->at[i], s->list.paths[i], s->opts->format);
        known = known && s->at[i].has_size;
        s->nbytes += s->at[i].nbytes;
    }
    if (!known)
        s->nbytes = 0;
    return FSDP_OK;
}

int encode_sources_open(struct encode_sources *out, const struct encode_opts *opts,
                        const char *path, struct fsdp_err *err)
{
    struct encode_sources s = {.opts = opts, .list = {.remote = opts->remote}};
    struct own_files own = {.nfiles = 0};
    int rc = find_own(&own, path, err);

    for (int i = 0; rc == FSDP_OK && i < opts->npaths; i++)
        rc = add_path(&s.list, opts->paths[i], &own, err);
    if (rc == FSDP_OK)
        rc = data_list_refuse_tokens(&s.list, err);
    if (rc == FSDP_OK)
        rc = describe_all(&s, err);
    if (rc == FSDP_OK)
        *out = s;
    else
        encode_sources_close(&s);
    return rc;
}

int encode_sources_check(const struct encode_sources *s, struct fsdp_err *err)
{
    struct stat st;

    for (size_t i = 0; i < s->nsources; i++) {
        const struct encode_source *was = &s->at[i];
        if (was->has_size &&
            (stat(was->path, &st) || (uint64_t)st.st_size != was->nbytes ||
             st.st_mtim.tv_sec != was->seconds || st.st_mtim.tv_nsec != was->nanoseconds))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s was changed or removed while it was read; begin anew "
                                "when it is whole",
                                was->name);
    }
    return FSDP_OK;
}

void encode_sources_close(struct encode_sources *s)
{
    data_list_free(&s->list);
    fsdp_free(s->at);
    s->at = NULL;
}
