/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"
#include "seen.h"
#include "text/tokenizer/tokenizer.h"

enum {
    KEY_VERSION = 1,          /* increase when encode_run gives other tokens for the same text */
    LEFT_AFTER_S = 7 * 86400, /* an unfinished entry of this age is a leftover */
    KEY_DIGITS = 16,
    HOST_NBYTES = 65
};

static const char *const widths[] = {"tokens.u16", "tokens.u32"};
static const char *const ends[] = {"", ".index", ".learned"};

int data_cache_folder(char **out, const char *setting, struct fsdp_err *err)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (strcmp(setting, "auto") != 0)
        *out = fsdp_strdup(setting, err);
    else if (base && *base)
        *out = fsdp_sprintf(err, "%s/fsdp", base);
    else if (home && *home)
        *out = fsdp_sprintf(err, "%s/.cache/fsdp", home);
    else
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "data: neither XDG_CACHE_HOME nor HOME is set, so there is no folder for "
            "the tokens of text; set data.cache to a folder");
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

static uint64_t key_of(const struct encode_opts *opts, uint64_t source_hash)
{
    const uint64_t facts[] = {KEY_VERSION, opts->format, opts->skip_bad_lines,
                              data_text_hash(opts->text, opts->text_key), source_hash};
    return fsdp_hash(FSDP_HASH_SEED, facts, sizeof facts);
}

int data_cache_key(uint64_t *out, const char *folder, const struct encode_opts *opts,
                   struct fsdp_err *err)
{
    uint64_t id, hash;

    FSDP_TRY(fsdp_err_prefix(err, fsdp_folder_make(folder, 0777, err), "data.cache: "));
    FSDP_TRY(data_seen_id(&id, opts, err));
    if (!data_seen_get(&hash, folder, id)) {
        FSDP_TRY(encode_source_hash(&hash, opts, err));
        data_seen_put(folder, id, hash);
    }
    *out = key_of(opts, hash);
    return FSDP_OK;
}

int data_cache_find(char **out, bool *exists, const char *folder, uint64_t key,
                    struct fsdp_err *err)
{
    for (int i = 0; i < 2; i++) {
        char *path = fsdp_sprintf(err, "%s/%016" PRIx64 "/%s", folder, key, widths[i]);
        if (!path)
            return FSDP_ENOMEM;
        const int rc = tokens_exist(exists, path, err);
        if (!rc && (*exists || i == 1)) {
            *out = path;
            return FSDP_OK;
        }
        fsdp_free(path);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

int data_cache_check(const char *path, struct fsdp_err *err)
{
    struct tokens *tokens = NULL;
    int rc = tokens_open(&tokens, path, err);

    if (rc == FSDP_OK)
        rc = tokens_verify(tokens, err);
    tokens_close(tokens);
    return rc == FSDP_ECORRUPT
               ? fsdp_err_hint(err, rc, "; remove its folder, and the text is tokenized again")
               : rc;
}

/* ---- leftovers ------------------------------------------------------------------------------- */

/* Removes the files that this program writes, and then the folder if it is empty. */
static void remove_entry(const char *folder)
{
    static const char *const parts[] = {"", ".part", ".part.journal"};
    char *path;

    for (int w = 0; w < 2; w++)
        for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++)
            for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
                path = fsdp_sprintf(NULL, "%s/%s%s%s", folder, widths[w], ends[e], parts[p]);
                if (path)
                    unlink(path);
                fsdp_free(path);
            }
    rmdir(folder);
}

/* KEY.tmp.HOST.PID */
static bool is_unfinished(const char *name)
{
    return strspn(name, "0123456789abcdef") == KEY_DIGITS &&
           !strncmp(name + KEY_DIGITS, ".tmp.", 5);
}

static void remove_left(const char *folder)
{
    DIR *dir = opendir(folder);
    struct stat st;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char *path = is_unfinished(entry->d_name)
                         ? fsdp_sprintf(NULL, "%s/%s", folder, entry->d_name)
                         : NULL;
        if (path && !lstat(path, &st) && S_ISDIR(st.st_mode) &&
            time(NULL) - st.st_mtime > LEFT_AFTER_S)
            remove_entry(path);
        fsdp_free(path);
    }
    if (dir)
        closedir(dir);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Another process may have finished first; or what is there has lost its index, and stays in the
 * way. */
static int check_there(const char *entry, const char *width, struct fsdp_err *err)
{
    char *path = fsdp_sprintf(err, "%s/%s", entry, width);
    bool exists = false;
    int rc = path ? tokens_exist(&exists, path, err) : FSDP_ENOMEM;

    fsdp_free(path);
    if (rc || exists)
        return rc;
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "data.cache: %s is there and has no %s.index; remove the folder, and it is "
                        "made again",
                        entry, width);
}

static int make_in(const char *work, const char *entry, uint64_t key,
                   const struct encode_opts *opts, struct fsdp_err *err)
{
    const int own = tokenizer_vocab_size(opts->text->tokenizer);
    const int vocab_size = opts->text->vocab_size ? opts->text->vocab_size : own;
    struct tokens_info info;

    if (mkdir(work, 0777))
        return fsdp_err_sys(err, errno, "data.cache: %s", work);
    const char *width = widths[vocab_size > UINT16_MAX + 1];
    char *path = fsdp_sprintf(err, "%s/%s", work, width);
    int rc = path ? encode_run(&info, path, opts, err) : FSDP_ENOMEM;
    fsdp_free(path);
    if (!rc && key_of(opts, info.source_hash) != key)
        rc = fsdp_err_set(err, FSDP_EINVAL,
                          "%s%s changed while it became tokens; begin anew when it is whole",
                          opts->paths[0], opts->npaths > 1 ? ", or another," : "");
    if (rc || !rename(work, entry))
        return rc;
    return errno == EEXIST || errno == ENOTEMPTY
               ? check_there(entry, width, err)
               : fsdp_err_sys(err, errno, "data.cache: %s", entry);
}

int data_cache_make(const char *folder, uint64_t key, const struct encode_opts *opts,
                    struct fsdp_err *err)
{
    char host[HOST_NBYTES] = "";
    int rc = FSDP_ENOMEM;

    gethostname(host, sizeof host - 1);
    char *entry = fsdp_sprintf(err, "%s/%016" PRIx64, folder, key);
    char *work = entry ? fsdp_sprintf(err, "%s.tmp.%s.%ld", entry, host, (long)getpid()) : NULL;
    if (work) {
        remove_left(folder);
        rc = make_in(work, entry, key, opts, err);
        remove_entry(work);
    }
    fsdp_free(work);
    fsdp_free(entry);
    return rc;
}
