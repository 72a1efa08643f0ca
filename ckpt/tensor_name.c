/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "limits.h"
#include "tensor_name.h"
#include "text.h"

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
