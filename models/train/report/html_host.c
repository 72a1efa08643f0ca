/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "html.h"

/* The value of the first line of a file that begins with `name`. */
static void read_value(char out[HTML_TEXT], const char *path, const char *name,
                       const char *separators)
{
    char line[512];
    FILE *from = fopen(path, "re");

    out[0] = 0;
    while (from && !out[0] && fgets(line, sizeof line, from)) {
        if (strncmp(line, name, strlen(name)))
            continue;
        const char *value = line + strlen(name) + strspn(line + strlen(name), separators);
        snprintf(out, HTML_TEXT, "%.*s", (int)strcspn(value, "\"\n"), value);
    }
    if (from)
        fclose(from);
    fsdp_text_clean(out);
}

void html_host_read(struct html_host *host)
{
    struct utsname name;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    *host = (struct html_host){.ncpus = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    read_value(host->cpu, "/proc/cpuinfo", "model name", "\t :");
    read_value(host->system, "/etc/os-release", "PRETTY_NAME", "=\"");
    if (!uname(&name))
        snprintf(host->kernel, sizeof host->kernel, "%.40s %.60s, %.40s", name.sysname,
                 name.release, name.machine);
    if (pages > 0 && page > 0)
        host->memory_nbytes = (uint64_t)pages * (uint64_t)page;
}
