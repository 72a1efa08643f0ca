/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rules of torchtitan's names (map.c) cannot say. Its experts of a layer are one tensor
 * [experts, out, in], of which Hugging Face's files have one for each expert; and whether rows of
 * queries and keys change places depends on the model.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "map.h"

#define EXPERTS ".moe.routed_experts.inner_experts."

static const struct {
    const char *titan, *hf;
} experts[] = {{"w1_EFD", "gate_proj"}, {"w3_EFD", "up_proj"}, {"w2_EDF", "down_proj"}};

bool ckpt_job_turns_halves(const struct ckpt_job *job)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;

    for (int t = 0; t < layout->ntensors; t++)
        if (strstr(layout->tensors[t].tensor.name, ".attention.q_norm.") ||
            strstr(layout->tensors[t].tensor.name, ".self_attn.q_norm."))
            return true;
    return false;
}

/* "state.layers.3.moe...w1_EFD.exp_avg": what comes before and behind the parameter. */
struct stacked {
    int front;          /* bytes: "state." or nothing */
    uint64_t layer;     /* 3 */
    const char *hf;     /* "gate_proj" */
    const char *suffix; /* ".exp_avg", or "" */
};

static bool parse_stacked(struct stacked *out, const char *name)
{
    const char *at = name;
    char *end;

    out->front = (int)ckpt_map_state_nbytes(name);
    at += out->front;
    if (strncmp(at, "layers.", 7) != 0)
        return false;
    out->layer = strtoull(at + 7, &end, 10);
    if (end == at + 7 || strncmp(end, EXPERTS, strlen(EXPERTS)) != 0)
        return false;
    at = end + strlen(EXPERTS);
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        const size_t n = strlen(experts[i].titan);
        if (strncmp(at, experts[i].titan, n) != 0 || (at[n] && at[n] != '.'))
            continue;
        out->hf = experts[i].hf;
        out->suffix = at + n;
        return true;
    }
    return false;
}

static int copy_tensor(struct ckpt_job *job, const struct ckpt_job_tensor *t,
                       const struct ckpt_job_part *parts, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_job_add_tensor(job, &t->tensor, t->kind, err));
    struct ckpt_job_tensor *mine = &job->tensors[job->ntensors - 1];
    mine->role = t->role;
    mine->stored = t->stored;
    mine->own = t->own;
    for (int i = 0; i < t->nparts; i++)
        FSDP_TRY(ckpt_job_add_part(job, &parts[t->first_part + i], err));
    return FSDP_OK;
}

/* One expert's tensor, or its step, which all have. */
static int add_expert(struct ckpt_job *job, const struct ckpt_job_tensor *t,
                      const struct stacked *stacked, int stored, uint64_t expert,
                      struct fsdp_err *err)
{
    struct fsdp_tensor tensor = t->tensor;
    const bool whole = tensor.ndim == 0;
    char name[CKPT_MAX_NAME_NBYTES];

    for (int d = 0; d + 1 < tensor.ndim; d++)
        tensor.shape[d] = tensor.shape[d + 1];
    tensor.ndim -= !whole;
    snprintf(name, sizeof name, "%.*smodel.layers.%llu.mlp.experts.%llu.%s.weight%s",
             stacked->front, t->tensor.name, (unsigned long long)stacked->layer,
             (unsigned long long)expert, stacked->hf, stacked->suffix);
    if (!(tensor.name = ckpt_job_keep_name(job, name, err)))
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_job_add_tensor(job, &tensor, t->kind, err));
    struct ckpt_job_tensor *mine = &job->tensors[job->ntensors - 1];
    mine->role = t->role;
    mine->own = mine->tensor.name;
    const struct ckpt_job_part part = {
        .tensor = stored, .nrows = whole ? 1 : tensor.shape[0], .in_slab = !whole, .slab = expert};
    return ckpt_job_add_part(job, &part, err);
}

/* The number of experts, of the parameter itself: of an optimizer's step nothing says it. */
static uint64_t count_experts(const struct ckpt_job *job, const struct ckpt_job_tensor *t,
                              const struct stacked *stacked)
{
    const int nbytes = (int)(stacked->suffix - t->tensor.name) - stacked->front;
    char name[CKPT_MAX_NAME_NBYTES + 1];

    snprintf(name, sizeof name, "%.*s", nbytes, t->tensor.name + stacked->front);
    const struct ckpt_tensor *param = ckpt_tensor_find(job->ckpt, name);
    return param && param->tensor.ndim == 3 ? param->tensor.shape[0] : 0;
}

static int refuse_tensor(const char *name, const char *why, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "tensor '%s' %s: leave it out (--exclude), or rename it (--map FILE)", name,
                        why);
}

static int split_one(struct ckpt_job *job, const struct ckpt_job_tensor *t,
                     const struct ckpt_job_part *parts, int *nchanged, struct fsdp_err *err)
{
    const char *name = t->tensor.name;
    struct stacked stacked;

    if (strstr(name, ".moe.expert_bias")) {
        fsdp_log(FSDP_LOG_WARN, "tensor '%s' is left out: Hugging Face's models have none", name);
        return FSDP_OK;
    }
    if (strstr(name, ".attention.sinks"))
        return refuse_tensor(name, "is of GPT-OSS, which torchtitan-to-hf does not know", err);
    if (!parse_stacked(&stacked, name)) {
        if (strstr(name, ".moe.") && !strstr(name, ".moe.router.gate."))
            return refuse_tensor(name, "has no counterpart in Qwen3's experts", err);
        return copy_tensor(job, t, parts, err);
    }
    const struct ckpt_job_part *part = &parts[t->first_part];
    const uint64_t count = count_experts(job, t, &stacked);
    if (t->nparts != 1 || part->order != CKPT_ROWS_SAME || !count ||
        (t->tensor.ndim && (t->tensor.ndim != 3 || t->tensor.shape[0] != count)))
        return refuse_tensor(name, "is no stack of experts", err);
    *nchanged += 1;
    for (uint64_t i = 0; i < count; i++)
        FSDP_TRY(add_expert(job, t, &stacked, part->tensor, i, err));
    return FSDP_OK;
}

int ckpt_job_map_experts(struct ckpt_job *job, bool to_titan, int *nchanged, struct fsdp_err *err)
{
    struct ckpt_job_tensor *tensors = job->tensors;
    struct ckpt_job_part *parts = job->parts;
    const int ntensors = job->ntensors;
    int rc = FSDP_OK;

    for (int i = 0; to_titan && i < ntensors; i++)
        if (strstr(tensors[i].tensor.name, ".mlp.experts."))
            return refuse_tensor(tensors[i].tensor.name,
                                 "is an expert's, which hf-to-torchtitan does not join", err);
    if (to_titan)
        return FSDP_OK;
    job->tensors = NULL;
    job->parts = NULL;
    job->ntensors = job->nparts = 0;
    job->max_tensors = job->max_parts = 0;
    for (int i = 0; rc == FSDP_OK && i < ntensors; i++)
        rc = split_one(job, &tensors[i], parts, nchanged, err);
    fsdp_free(tensors);
    fsdp_free(parts);
    return rc;
}
