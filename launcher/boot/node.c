/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "node.h"
#include "fsdp/base.h"

void boot_node_key(char *out, size_t nbytes, const char *host)
{
    char id[FSDP_BOOT_ID_NBYTES];

    fsdp_boot_id(id);
    snprintf(out, nbytes, "%s %s", host, id);
}
