/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into the programs of a build folder, and not into those that `make install` installs:
 * before main, CKPT_FAULT=KIND:N (fail, nospace, kill, stop or hang) arms the Nth store call. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/sys/store_ops.h"

__attribute__((constructor)) static void arm(void)
{
    static const char *const kinds[] = {"fail:", "nospace:", "kill:", "stop:", "hang:"};
    const char *text = getenv("CKPT_FAULT");

    for (int i = 0; text && i < 5; i++)
        if (!strncmp(text, kinds[i], strlen(kinds[i])))
            ckpt_store_fault_at(strtoull(text + strlen(kinds[i]), NULL, 10), CKPT_FAULT_FAIL + i);
}
