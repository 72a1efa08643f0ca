/* SPDX-License-Identifier: Apache-2.0 */
#include "fsdp/base.h"

const char *fsdp_version(void)
{
    return FSDP_VERSION_STRING;
}

void fsdp_version_print(FILE *to, const char *program)
{
    fprintf(to, "%s %s\n", program, FSDP_VERSION_STRING);
}
