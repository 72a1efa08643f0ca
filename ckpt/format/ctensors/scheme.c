/* SPDX-License-Identifier: Apache-2.0 */
/* The schemes, and what config.json says of each. */
#include <string.h>

#include "ctensors.h"

/* The release whose files these are. */
#define VERSION "0.20.0"

static const struct ckpt_ct_scheme schemes[] = {
    {"fp8_dynamic", "float-quantized", false, true, CKPT_CT_CHANNEL, 0},
    {"fp8_channel", "naive-quantized", false, false, CKPT_CT_CHANNEL, 0},
    {"fp8_tensor", "naive-quantized", false, false, CKPT_CT_TENSOR, 0},
    {"w8a16", "pack-quantized", true, false, CKPT_CT_GROUP, 128},
    {"w8a16_g64", "pack-quantized", true, false, CKPT_CT_GROUP, 64},
    {"w8a16_g32", "pack-quantized", true, false, CKPT_CT_GROUP, 32},
    {"w8a16_channel", "pack-quantized", true, false, CKPT_CT_CHANNEL, 0},
};

int ckpt_ct_scheme_of(const struct ckpt_ct_scheme **out, const char *name, struct fsdp_err *err)
{
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        *out = &schemes[i];
        if (!strcmp(name, schemes[i].name))
            return FSDP_OK;
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "there is no quantization '%.40s': use fp8_dynamic, fp8_channel, "
                        "fp8_tensor, w8a16, w8a16_g64, w8a16_g32 or w8a16_channel",
                        name);
}

uint64_t ckpt_ct_nscales(const struct ckpt_ct_scheme *scheme, uint64_t row_nelem)
{
    return scheme->strategy == CKPT_CT_GROUP ? row_nelem / scheme->group : 1;
}

uint64_t ckpt_ct_row_nbytes(const struct ckpt_ct_scheme *scheme, uint64_t row_nelem)
{
    return scheme->integers ? (row_nelem + 3) / 4 * 4 : row_nelem;
}

/* ---- config.json ----------------------------------------------------------------------------- */

static json_t *config_args(const struct ckpt_ct_scheme *scheme, const char *strategy, bool dynamic)
{
    json_t *group =
        scheme->strategy == CKPT_CT_GROUP ? json_integer((json_int_t)scheme->group) : json_null();
    return json_pack("{s:b, s:o, s:i, s:s, s:b, s:s}", "dynamic", dynamic, "group_size", group,
                     "num_bits", 8, "strategy", strategy, "symmetric", 1, "type",
                     scheme->integers ? "int" : "float");
}

static json_t *config_group(const struct ckpt_ct_scheme *scheme)
{
    static const char *const strategies[] = {
        [CKPT_CT_TENSOR] = "tensor", [CKPT_CT_CHANNEL] = "channel", [CKPT_CT_GROUP] = "group"};
    json_t *inputs = scheme->activations ? config_args(scheme, "token", true) : json_null();
    return json_pack("{s:s, s:o, s:n, s:[s], s:o}", "format", scheme->format, "input_activations",
                     inputs, "output_activations", "targets", "Linear", "weights",
                     config_args(scheme, strategies[scheme->strategy], false));
}

json_t *ckpt_ct_config(const struct ckpt_ct_scheme *scheme, const char *const *ignored,
                       int nignored)
{
    json_t *ignore = json_array();
    for (int i = 0; ignore && i < nignored; i++)
        json_array_append_new(ignore, json_string(ignored[i]));
    return json_pack("{s:{s:o}, s:s, s:n, s:o, s:n, s:n, s:s, s:s, s:{}, s:{}, s:s}",
                     "config_groups", "group_0", config_group(scheme), "format", scheme->format,
                     "global_compression_ratio", "ignore", ignore, "kv_cache_scheme",
                     "moe_sparsity_config", "quant_method", "compressed-tensors",
                     "quantization_status", "compressed", "sparsity_config", "transform_config",
                     "version", VERSION);
}
