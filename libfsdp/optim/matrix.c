/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "optimizer.h"

bool optimizer_is_matrix(const struct fsdp_tensor *tensor)
{
    static const char bias[] = "bias";
    const size_t nbytes = strlen(tensor->name), end = sizeof bias - 1;

    return tensor->ndim >= 2 && (nbytes < end || strcmp(tensor->name + nbytes - end, bias) != 0);
}
