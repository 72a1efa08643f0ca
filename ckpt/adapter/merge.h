/* SPDX-License-Identifier: Apache-2.0 */
/* merge.h: adapters that are added to a model's weights. Private to this folder. */
#ifndef CKPT_ADAPTER_MERGE_H
#define CKPT_ADAPTER_MERGE_H

#include "ckpt/adapter.h"

struct ckpt_merged {
    struct ckpt_adapter *adapter;
    double weight;
    char *path; /* as it was given */
};

struct ckpt_adapters {
    struct ckpt_merged *all;
    int count;
};

/* The adapter's tensor that is this part ("lora_A.weight") of a weight; NULL where it has none. */
const struct ckpt_tensor *ckpt_merged_part(const struct ckpt_merged *m, const char *weight,
                                           const char *part);
/* The tensor that takes the place of a weight; NULL where there is none. */
const struct ckpt_tensor *ckpt_merged_whole(const struct ckpt_merged *m, const char *weight);

#endif
