/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a lock keeps out: everybody, or, on some mounts of network file systems, this mount alone.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "store.h"

/* Is a mount's line one of this device whose locks the client keeps to itself? */
static bool is_local(const char *line, dev_t dev)
{
    static const char *const options[] = {"local_lock=all", "local_lock=flock", "localflock"};
    unsigned major_number, minor_number;
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) != 2 ||
        makedev(major_number, minor_number) != dev)
        return false;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const char *at = strstr(rest, options[i]);
        if (at && strchr(" ,", at[-1]) && strchr(",\n", at[strlen(options[i])]))
            return true;
    }
    return false;
}

static bool locks_are_local(dev_t dev)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char *line = NULL;
    size_t room = 0;
    bool local = false;
    while (file && !local && getline(&line, &room, file) >= 0)
        local = is_local(line, dev);
    free(line);
    if (file)
        fclose(file);
    return local;
}

uint64_t ckpt_lock_domain(const char *path)
{
    enum { NFS = 0x6969, LUSTRE = 0x0bd00bd0 };
    char above[PATH_MAX], boot[FSDP_BOOT_ID_NBYTES];
    struct statfs fs;
    struct stat st;
    size_t len = (size_t)snprintf(above, sizeof above, "%s", path);
    if (len >= sizeof above)
        return 0;
    while (statfs(above, &fs)) { /* it may be yet to be made */
        char *slash = strrchr(above, '/');
        if (!strcmp(above, ".") || !strcmp(above, "/"))
            return 0;
        if (!slash)
            strcpy(above, ".");
        else
            slash[slash == above] = 0;
    }
    if ((fs.f_type != NFS && fs.f_type != LUSTRE) || stat(above, &st) ||
        !locks_are_local(st.st_dev))
        return 0;
    fsdp_boot_id(boot);
    uint64_t hash = fsdp_hash(FSDP_HASH_SEED, boot, strlen(boot));
    return fsdp_hash(hash, &st.st_dev, sizeof st.st_dev);
}
