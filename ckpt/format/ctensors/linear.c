/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are weights of linear layers. compressed-tensors asks the model's code; here their
 * names say it, and a matrix whose name says nothing is no guess. */
#include <stdio.h>
#include <string.h>

#include "ctensors.h"

enum { NAME_NBYTES = 1024 };

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name))
        names++;
    return *names != NULL;
}

/* The last layer's name of `module`, and whether it is in a list of experts. */
static const char *last_of(bool *expert, char *module)
{
    char *last = module, *save = NULL;
    *expert = false;
    for (char *part = strtok_r(module, ".", &save); part; part = strtok_r(NULL, ".", &save)) {
        *expert |= !strcmp(part, "experts");
        last = part;
    }
    return last;
}

static bool is_linear_name(const char *last)
{
    static const char *const names[] = {
        "dense", "dense_h_to_4h", "dense_4h_to_h", "query_key_value",    "fc1",
        "fc2",   "input_linear",  "output_linear", "kv_a_proj_with_mqa", NULL};
    return fsdp_text_ends(last, "_proj") || is_one_of(last, names);
}

static bool is_head_name(const char *last)
{
    static const char *const names[] = {"lm_head", "embed_out", "score", "classifier", NULL};
    return is_one_of(last, names);
}

static bool is_router_name(const char *module, const char *last)
{
    static const char *const names[] = {"gate", "router", "shared_expert_gate", NULL};
    return is_one_of(last, names) || fsdp_text_ends(module, ".router.layer");
}

static bool is_embedding_name(const char *last)
{
    static const char *const names[] = {"wte", "wpe", NULL};
    return strstr(last, "embed") || is_one_of(last, names);
}

/* Experts in one tensor have no ".weight", or are of a layer like any other. */
static enum ckpt_ct_role role_of_experts(int ndim, const char *last, bool expert)
{
    const bool named = fsdp_text_ends(last, "_proj") || fsdp_text_ends(last, "_linear");
    return ndim >= 3 && (expert || named) ? CKPT_CT_EXPERT : CKPT_CT_PLAIN;
}

enum ckpt_ct_role ckpt_ct_role_of(const struct fsdp_tensor *tensor)
{
    static const char end[] = ".weight";
    char module[NAME_NBYTES], parts[NAME_NBYTES];
    bool expert;

    snprintf(module, sizeof module, "%s", tensor->name);
    const bool is_weight = fsdp_text_ends(module, end);
    if (is_weight)
        module[strlen(module) - (sizeof end - 1)] = 0;
    memcpy(parts, module, sizeof parts);
    const char *last = last_of(&expert, parts);
    if (tensor->ndim != 2 || !is_weight)
        return role_of_experts(tensor->ndim, last, expert);
    if (expert)
        return CKPT_CT_EXPERT;
    if (is_head_name(last))
        return CKPT_CT_HEAD;
    if (is_router_name(module, last))
        return CKPT_CT_ROUTER;
    if (is_embedding_name(last))
        return CKPT_CT_PLAIN;
    return is_linear_name(last) ? CKPT_CT_LINEAR : CKPT_CT_UNKNOWN;
}
