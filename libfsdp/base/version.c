/* SPDX-License-Identifier: Apache-2.0 */
#include "fsdp/base.h"

const char *fsdp_version(void)
{
    return FSDP_VERSION_STRING;
}
