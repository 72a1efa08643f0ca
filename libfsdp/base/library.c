/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp/sys/library.h"

#ifndef BUILD_TARGET
#define BUILD_TARGET "any"
#endif

/* In the folder of `object` (a build's, a library's), or where `make install` and packages of
 * distributions put plug-ins of a program. */
static bool find_near(char *path, size_t path_nbytes, const char *object, const char *name)
{
    static const char *const places[] = {
        "", "../lib/", "fsdp/", "../lib/fsdp/", "../lib64/fsdp/", "../lib/" BUILD_TARGET "/fsdp/"};
    char real[PATH_MAX];

    if (!realpath(object, real))
        return false;
    *strrchr(real, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int len = snprintf(path, path_nbytes, "%s/%s%s", real, places[i], name);
        if (len > 0 && (size_t)len < path_nbytes && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

bool fsdp_library_find(char *path, size_t path_nbytes, const char *name)
{
    static const char here;
    Dl_info info;

    return find_near(path, path_nbytes, "/proc/self/exe", name) ||
           (dladdr(&here, &info) && info.dli_fname &&
            find_near(path, path_nbytes, info.dli_fname, name));
}
