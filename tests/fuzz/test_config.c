/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a model. */
#include "fuzz.h"
#include "family/gpt2.h"
#include "family/llama.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *path = fuzz_file("config.json", data, nbytes);
    const struct model_ops *ops;
    struct stack_config config;
    double *inv_freq = NULL;
    if (model_find(&ops, path, NULL))
        return 0;
    if (llama_config_read(&config, &inv_freq, path, NULL) == FSDP_OK)
        fsdp_free(inv_freq);
    gpt2_config_read(&config, path, NULL);
    return 0;
}

FUZZ_TARGET("config")
