/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder as a model of fsdp-launch. */
#include "stack.h"

const struct model_ops model_decoder_ops = {
    .family = stack_family,
    .wrap_classes = stack_wrap_classes,
    .create = stack_create,
    .destroy = stack_destroy,
    .set_device = stack_set_device,
    .set_dtypes = stack_set_dtypes,
    .set_lora = stack_set_lora,
    .set_f8 = stack_set_f8,
    .set_graphs = stack_set_graphs,
    .own_prefix = stack_own_prefix,
    .set_carried = stack_set_carried,
    .describe = stack_describe,
    .set_packed = stack_set_packed,
    .set_dropout = stack_set_dropout,
    .set_fast_dropout = stack_set_fast_dropout,
    .most_documents = stack_most_documents,
    .vocab_size = stack_vocab_size,
    .max_seq_len = stack_max_seq_len,
    .run = stack_run,
    .logits = stack_logits,
    .flops_per_token = stack_flops_per_token,
    .dimensions = stack_dimensions,
    .info = stack_info,
    .router = stack_router,
    .decoder_create = stack_decoder_create,
    .decoder_destroy = stack_decoder_destroy,
    .decoder_nbytes = stack_decoder_nbytes,
    .decoder_truncate = stack_decoder_truncate,
    .decode = stack_decode,
    .decode_each = stack_decode_each,
};

int model_find(const struct model_ops **out, const char *config_json_path, struct fsdp_err *err)
{
    const struct family *family;
    struct hf_config *hf;

    FSDP_TRY(hf_config_open(&hf, config_json_path, err));
    const int rc = family_of(&family, hf, err);
    hf_config_close(hf);
    *out = rc ? NULL : &model_decoder_ops;
    return rc;
}
