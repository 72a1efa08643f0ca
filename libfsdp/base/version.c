/* SPDX-License-Identifier: Apache-2.0 */
#include "fsdp/base.h"

/* The Makefile knows them: optional libraries, the target and the flags that choose instructions.
 */
#ifndef BUILD_OPTIONS
#define BUILD_OPTIONS "unknown options"
#endif

#if defined(__clang__)
#define COMPILER "Clang " __clang_version__
#else
#define COMPILER "GCC " __VERSION__
#endif

const char *fsdp_version(void)
{
    return FSDP_VERSION_STRING;
}

const char *fsdp_build_text(void)
{
    return BUILD_OPTIONS " (" COMPILER ")";
}

void fsdp_version_print(FILE *to, const char *program)
{
    fprintf(to, "%s %s\n%s\n", program, fsdp_version(), fsdp_build_text());
}
