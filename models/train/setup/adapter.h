/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.h: the adapters that a run trains, as the section lora says, or the files of an adapter
 * that it begins from. */
#ifndef TRAIN_ADAPTER_H
#define TRAIN_ADAPTER_H

#include "ckpt/adapter.h"
#include "config/config.h"
#include "family/model.h"

struct train_adapter {
    struct model_lora lora; /* r 0: none */
    double alpha;
    bool rslora;
    struct ckpt_adapter *start; /* NULL: new ones */
    const char **targets, **parameters, **modules;
    struct model_lora_rank *ranks; /* with names of their own */
};
/* What PEFT's rank_pattern and alpha_pattern say, as a text; freed with fsdp_free. NULL: out of
 * memory. */
char *train_adapter_patterns(const struct train_adapter *adapter);

/* Memory that train_adapter_close frees, also after an error; config is borrowed. Local, blocks. */
int train_adapter_open(struct train_adapter *adapter, const struct config *config,
                       struct fsdp_err *err);
void train_adapter_close(struct train_adapter *adapter);

static inline bool train_adapter_is_on(const struct train_adapter *adapter)
{
    return adapter->lora.r > 0;
}

#endif
