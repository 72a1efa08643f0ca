/* SPDX-License-Identifier: Apache-2.0 */
/* What maps need to know of the model that its tensors do not tell. */
#include <jansson.h>

#include "source/format_ops.h"
#include "job.h"

/* NULL where there is none that can be read. */
static json_t *config_of(const struct ckpt_job *job)
{
    struct fsdp_err quiet = FSDP_ERR_INIT;
    json_t *root;

    return ckpt_extra_json(&root, job->ckpt, "config.json", &quiet) ? NULL : root;
}

/* From the options, else from the config.json that goes along. */
int ckpt_job_heads(struct ckpt_job_heads *out, const struct ckpt_job *job, const char *what,
                   struct fsdp_err *err)
{
    const struct ckpt_select *select = &job->args->select;
    json_t *root = select->nheads ? NULL : config_of(job);
    json_int_t query = json_integer_value(json_object_get(root, "num_attention_heads"));
    json_int_t key = json_integer_value(json_object_get(root, "num_key_value_heads"));
    json_decref(root);
    *out = (struct ckpt_job_heads){(uint64_t)select->nheads, (uint64_t)select->nkv_heads};
    if (!out->query && query > 0)
        *out = (struct ckpt_job_heads){(uint64_t)query, (uint64_t)(key > 0 ? key : query)};
    if (out->query && out->key)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "tensor '%s': how many attention heads? '%s' has no config.json that says "
                        "so: give them (--heads 32x8: of queries x of keys)",
                        what, job->ckpt->path);
}

uint64_t ckpt_job_vocab(const struct ckpt_job *job)
{
    json_t *root = config_of(job);
    const json_int_t vocab = json_integer_value(json_object_get(root, "vocab_size"));

    json_decref(root);
    return vocab > 0 ? (uint64_t)vocab : 0;
}
