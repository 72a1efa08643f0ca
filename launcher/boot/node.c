/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "node.h"

void boot_node_key(char *out, size_t nbytes, const char *host)
{
    char id[40] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (fgets(id, sizeof id, file))
            id[strcspn(id, "\n")] = 0;
        fclose(file);
    }
    snprintf(out, nbytes, "%s %s", host, id);
}
