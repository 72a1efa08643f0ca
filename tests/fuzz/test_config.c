/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a model. */
#include "family/stack.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *path = fuzz_file("config.json", data, nbytes);
    const struct model_ops *ops;
    struct model *model;
    if (model_find(&ops, path, NULL) == FSDP_OK && ops->create(&model, path, NULL) == FSDP_OK)
        ops->destroy(model);
    return 0;
}

FUZZ_TARGET("config")
