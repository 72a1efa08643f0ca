/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "ckpt/ckpt.h"

#define ROW(name)                                                                                  \
    {                                                                                              \
#name, sizeof(struct name)                                                                 \
    }

size_t ckpt_struct_nbytes(const char *name)
{
    static const struct {
        const char *name;
        size_t nbytes;
    } rows[] = {
        ROW(fsdp_err),          ROW(fsdp_tensor),         ROW(fsdp_box),
        ROW(fsdp_slice),        ROW(ckpt_tensor),         ROW(ckpt_alias),
        ROW(ckpt_file_info),    ROW(ckpt_file_range),     ROW(ckpt_select),
        ROW(ckpt_reshard_args), ROW(ckpt_reshard_result), ROW(ckpt_verify_args),
        ROW(ckpt_mismatch),     ROW(ckpt_check_result),
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(rows[i].name, name))
            return rows[i].nbytes;
    return 0;
}
