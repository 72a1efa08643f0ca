/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "keys.h"

static const struct curves_key known[] = {
    {"loss", "loss (nats per token)", false, true},
    {"eval_loss", "held-out loss (nats per token)", false, true},
    {"eval_nats_per_byte", "held-out loss (nats per byte)", false, true},
    {"eval_bits_per_byte", "held-out loss (bits per byte)", false, true},
    {"grad_norm", "gradient norm", true, true},
    {"tokens_per_s", "tokens per second", true, false},
    {"lr", "learning rate", true, false},
    {"tflops", "TFLOP/s per rank", true, false},
    {"mfu", "model FLOPs utilisation", true, false},
    {"loss_scale", "loss scale", false, true},
    {"save_held_s", "seconds that a save held a step", true, false},
    {"flush_s", "seconds to copy a staged checkpoint", true, false},
    {"tokens", "tokens", true, false},
    {"counted_tokens", "tokens that count", true, false},
    {"time", "seconds of training", true, false},
    {"ranks", "ranks", true, false},
};

struct curves_key curves_key(const char *key)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i].key, key))
            return known[i];
    return (struct curves_key){key, key, false, false};
}
