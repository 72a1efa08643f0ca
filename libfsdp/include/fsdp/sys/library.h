/* SPDX-License-Identifier: Apache-2.0 */
/* library.h: parts of this build that are opened at run time. */
#ifndef FSDP_SYS_LIBRARY_H
#define FSDP_SYS_LIBRARY_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Looks for a shared library of this build: next to the program and in ../lib from there, then in
 * the same two places from libfsdp.so. Returns false if it is in none. Local. */
bool fsdp_library_find(char *path, size_t path_nbytes, const char *name);

#ifdef __cplusplus
}
#endif
#endif
