/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/ckpt.h"
#include "limits.h"

int ckpt_mem_check(uint64_t nbytes, uint64_t least, struct fsdp_err *err)
{
    char have[FSDP_NBYTES_TEXT], want[FSDP_NBYTES_TEXT];
    if (nbytes >= least)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EINVAL, "mem_nbytes",
        "a memory budget of %s is too small; at least %s are needed for buffers",
        fsdp_nbytes_text(have, nbytes), fsdp_nbytes_text(want, least));
}

int ckpt_nbytes_parse(uint64_t *out, const char *text, struct fsdp_err *err)
{
    static const char letters[] = "KMGT";
    char *end;
    errno = 0;
    double value = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1;
    double unit = 1;

    if (value >= 0 && *end) {
        const char *letter = strchr(letters, toupper((unsigned char)*end));
        if (letter) {
            bool decimal = !strcasecmp(end + 1, "B");
            if (!decimal && end[1] && strcasecmp(end + 1, "iB"))
                value = -1;
            unit = pow(decimal ? 1000 : 1024, (double)(letter - letters + 1));
        } else if (strcasecmp(end, "B")) {
            value = -1;
        }
    }
    value *= unit;
    if (errno || !(value >= 0) || value > 0x1p62)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not a size such as 256M, 5GB or 1048576",
                            text);
    *out = (uint64_t)value;
    return FSDP_OK;
}
