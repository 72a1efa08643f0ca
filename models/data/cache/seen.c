/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "data/source/list.h"
#include "seen.h"

enum { SETTLED_S = 2, HASH_NBYTES = 17 };

/* False: the file's attributes do not identify its content. */
static bool add_facts(uint64_t *id, const char *path)
{
    struct stat st;

    if (data_is_remote(path) || stat(path, &st) || !S_ISREG(st.st_mode) ||
        time(NULL) - st.st_ctime <= SETTLED_S)
        return false;
    const int64_t facts[] = {(int64_t)st.st_dev, (int64_t)st.st_ino, st.st_size,
                             st.st_mtim.tv_sec,  st.st_mtim.tv_nsec, st.st_ctim.tv_sec,
                             st.st_ctim.tv_nsec};
    *id = fsdp_hash(*id, path, strlen(path) + 1);
    *id = fsdp_hash(*id, facts, sizeof facts);
    return true;
}

int data_seen_id(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err)
{
    struct data_list list = {.remote = opts->remote};
    uint64_t id = fsdp_hash(FSDP_HASH_SEED, &opts->format, sizeof opts->format);
    int rc = FSDP_OK;

    *out = 0;
    for (int i = 0; rc == FSDP_OK && i < opts->npaths; i++)
        rc = data_list_add(&list, opts->paths[i], err);
    bool known = rc == FSDP_OK;
    for (size_t i = 0; known && i < list.npaths; i++)
        known = add_facts(&id, list.paths[i]);
    if (known)
        *out = id;
    data_list_free(&list);
    return rc;
}

bool data_seen_get(uint64_t *hash, const char *folder, uint64_t id)
{
    char *path = id ? fsdp_sprintf(NULL, "%s/seen/%016" PRIx64, folder, id) : NULL, *text = NULL;
    size_t nbytes;
    bool found = false;

    if (path && !fsdp_file_read(&text, &nbytes, path, HASH_NBYTES, NULL)) {
        char *end;
        *hash = strtoull(text, &end, 16);
        found = nbytes == HASH_NBYTES && end == text + HASH_NBYTES - 1;
    }
    fsdp_free(text);
    fsdp_free(path);
    return found;
}

static int put_hash(FILE *to, const void *hash, struct fsdp_err *err)
{
    (void)err; /* the stream remembers */
    fprintf(to, "%016" PRIx64 "\n", *(const uint64_t *)hash);
    return FSDP_OK;
}

void data_seen_put(const char *folder, uint64_t id, uint64_t hash)
{
    char *seen = id ? fsdp_sprintf(NULL, "%s/seen", folder) : NULL;
    char *path = seen ? fsdp_sprintf(NULL, "%s/%016" PRIx64, seen, id) : NULL;

    if (path && (!mkdir(seen, 0777) || errno == EEXIST))
        fsdp_file_replace(path, put_hash, &hash, NULL);
    fsdp_free(path);
    fsdp_free(seen);
}
