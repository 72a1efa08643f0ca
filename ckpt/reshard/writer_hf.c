/* SPDX-License-Identifier: Apache-2.0 */
/* Output of whole tensors: a safetensors file, or a folder of them with an index, as transformers
 * reads it. */
#include "format/hf/hf_names.h"
#include "writer.h"

static int finish_folder(struct ckpt_job *job, const struct ckpt_extra *extras, int nextras,
                         struct fsdp_err *err)
{
    (void)extras;
    (void)nextras;
    return ckpt_job_finish_folder(job, NULL, 0, err);
}

const struct ckpt_writer_ops ckpt_writer_hf = {
    .id = CKPT_OUTPUT_WEIGHTS,
    .place = CKPT_PLACE_HF,
    .single_file = true,
    .outer_names = true,
    .quantizes = true,
    .has_card = true,
    .index_name = CKPT_HF_INDEX_NAME,
    .stem = "model",
    .ext = ".safetensors",
    .file_ends = ".safetensors",
    .names_file = ckpt_hf_names_file,
    .finish = finish_folder,
};
