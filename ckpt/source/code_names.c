/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "code_names.h"

enum { NAME_NBYTES = CKPT_MAX_NAME_NBYTES + 32 };
static const char packed_end[] = "_packed";

bool ckpt_codes_is_packed(const char *name)
{
    const size_t n = strlen(name), end = sizeof packed_end - 1;
    return n > end && !strcmp(name + n - end, packed_end);
}

const struct ckpt_tensor *ckpt_part_near(const struct ckpt *ckpt, const char *name, const char *end)
{
    char full[NAME_NBYTES];
    const size_t n = strlen(name) - (ckpt_codes_is_packed(name) ? sizeof packed_end - 1 : 0);
    const int len = snprintf(full, sizeof full, "%.*s%s", (int)n, name, end);
    return len < (int)sizeof full ? ckpt_tensor_find(ckpt, full) : NULL;
}

const struct ckpt_tensor *ckpt_scales_of(const struct ckpt *ckpt, const struct fsdp_tensor *t)
{
    if (fsdp_dtype_nbytes(t->dtype) != 1 && !ckpt_codes_is_packed(t->name))
        return NULL;
    const struct ckpt_tensor *scales = ckpt_part_near(ckpt, t->name, "_scale");
    return scales ? scales : ckpt_part_near(ckpt, t->name, "_scale_inv");
}

bool ckpt_codes_is_part(const struct ckpt *ckpt, const char *name)
{
    static const char *const ends[] = {".weight_scale", ".weight_shape", ".input_scale"};
    char stem[NAME_NBYTES];
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i]);
        if (n <= end || strcmp(name + n - end, ends[i]))
            continue;
        snprintf(stem, sizeof stem, "%.*s.weight", (int)(n - end), name);
        const struct ckpt_tensor *codes = ckpt_tensor_find(ckpt, stem);
        if (!codes)
            codes = ckpt_part_near(ckpt, stem, packed_end);
        return codes && ckpt_scales_of(ckpt, &codes->tensor);
    }
    return false;
}
