/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "util/limits.h"
#include "tensor_name.h"
#include "util/text.h"

#define TEXT_OF(number) #number
#define LIMIT_TEXT(number) TEXT_OF(number)

const char *ckpt_tensor_name_wrong(const char *name, bool dcp)
{
    if (!*name)
        return "its name is empty";
    if (strlen(name) > CKPT_MAX_NAME_NBYTES)
        return "its name has more than " LIMIT_TEXT(CKPT_MAX_NAME_NBYTES) " bytes";
    if (!ckpt_utf8_check(name))
        return "its name is not valid UTF-8";
    if (!dcp && !strcmp(name, CKPT_TENSOR_NAME_RESERVED))
        return "safetensors reserves this name for its own metadata";
    return NULL;
}

bool ckpt_tensor_name_is_moment(const char *leaf)
{
    static const char *const leaves[] = {"exp_avg",   "exp_avg_sq",      "max_exp_avg_sq",
                                         "exp_inf",   "momentum_buffer", "square_avg",
                                         "acc_delta", "grad_avg"};
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0]; i++)
        if (!strcmp(leaf, leaves[i]))
            return true;
    return false;
}

bool ckpt_tensor_name_is_optim(const char *name)
{
    const char *last = strrchr(name, '.');
    if (!strncmp(name, "state.", 6))
        return true;
    return last && strstr(name, ".state.") && strstr(name, ".state.") + 6 < last &&
           (ckpt_tensor_name_is_moment(last + 1) || !strcmp(last + 1, "step"));
}
