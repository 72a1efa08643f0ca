/* SPDX-License-Identifier: Apache-2.0 */
/* What maps need to know of the model that its tensors do not tell. */
#include <jansson.h>

#include "source/format_ops.h"
#include "job.h"
#include "util/family.h"

/* NULL where there is none that can be read. */
static json_t *config_of(const struct ckpt_job *job)
{
    struct fsdp_err quiet = FSDP_ERR_INIT;
    json_t *root;

    return ckpt_extra_json(&root, job->ckpt, "config.json", &quiet) ? NULL : root;
}

/* As config.json has them; zeros: it does not say so, or there is none. */
static struct ckpt_job_heads heads_of_config(const struct ckpt_job *job)
{
    json_t *root = config_of(job);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const json_int_t query = json_integer_value(json_object_get(root, "num_attention_heads"));
    const json_int_t key = json_integer_value(json_object_get(root, "num_key_value_heads"));
    struct ckpt_job_heads heads = {0, 0};

    if (query > 0) {
        heads.query = (uint64_t)query;
        heads.key =
            key > 0 ? (uint64_t)key : ckpt_family_key_heads(type ? type : "", root, heads.query);
    }
    json_decref(root);
    return heads;
}

/* From the options, else from the config.json that goes along, which must not say another. */
int ckpt_job_heads(struct ckpt_job_heads *out, const struct ckpt_job *job, const char *what,
                   struct fsdp_err *err)
{
    const struct ckpt_select *select = &job->args->select;
    const struct ckpt_job_heads config = heads_of_config(job);

    *out = select->nheads
               ? (struct ckpt_job_heads){(uint64_t)select->nheads, (uint64_t)select->nkv_heads}
               : config;
    if (config.query && (config.query != out->query || config.key != out->key))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--heads %llux%llu, but '%s' has %llu heads of queries and %llu of "
                            "keys: leave --heads out, or name the right config.json (--config)",
                            (unsigned long long)out->query, (unsigned long long)out->key,
                            ckpt_extra_path(job->ckpt, "config.json"),
                            (unsigned long long)config.query, (unsigned long long)config.key);
    if (out->query && out->key)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "tensor '%s': how many attention heads? '%s' has no config.json that says "
                        "so: give them (--heads 32x8: of queries x of keys)",
                        what, job->ckpt->path);
}

int ckpt_job_check_heads(const struct ckpt_job_heads *heads, const struct fsdp_tensor *query,
                         const struct fsdp_tensor *key, struct fsdp_err *err)
{
    const uint64_t nquery = query->ndim ? query->shape[0] : 0, nkey = key->ndim ? key->shape[0] : 0;

    if (!nquery || !nkey || nquery * heads->key == nkey * heads->query)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "with %llu heads of queries and %llu of keys, a head of '%s' has %g rows "
                        "(of %llu) and one of '%s' has %g (of %llu): wrong --heads or config.json?",
                        (unsigned long long)heads->query, (unsigned long long)heads->key,
                        query->name, (double)nquery / (double)heads->query,
                        (unsigned long long)nquery, key->name, (double)nkey / (double)heads->key,
                        (unsigned long long)nkey);
}

uint64_t ckpt_job_vocab(const struct ckpt_job *job)
{
    json_t *root = config_of(job);
    const json_int_t vocab = json_integer_value(json_object_get(root, "vocab_size"));

    json_decref(root);
    return vocab > 0 ? (uint64_t)vocab : 0;
}
