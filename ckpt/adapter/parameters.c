/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that PEFT's files and a model's do not share. A module that transformers calls otherwise
 * than files is one of them: GPT-NeoX's head, the routers of Mixtral and Granite.
 *
 * The names of adapters of experts: transformers keeps the weights of a layer's experts in two
 * parameters, and PEFT names adapters by these, whatever files store. It wraps the module of both
 * once for each that has an adapter, down_proj around gate_up_proj:
 *
 *     <module>.lora_A.weight               of down_proj, or of the only one
 *     <module>.base_layer.lora_A.weight    of gate_up_proj, where both have one
 */
#include <stdio.h>
#include <string.h>

#include "merge.h"

enum { NAME_NBYTES = 1024 };
static const char *const parameters[] = {"gate_up_proj", "down_proj"};

/* Ends of weights' names; the first is a whole name. */
static const struct renamed {
    const char *module, *stored;
} renamed[] = {
    {"lm_head.weight", "embed_out.weight"},
    {".mlp.gate.weight", ".block_sparse_moe.gate.weight"},
    {".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"},
};

static bool rename_end(char *out, size_t out_nbytes, const char *name, bool to_stored)
{
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        const char *from = to_stored ? renamed[i].module : renamed[i].stored;
        const char *to = to_stored ? renamed[i].stored : renamed[i].module;
        const size_t n = strlen(name), suffix = strlen(from);
        if (ckpt_name_ends(name, n, from) && (*from == '.' || n == suffix))
            return snprintf(out, out_nbytes, "%.*s%s", (int)(n - suffix), name, to) <
                   (int)out_nbytes;
    }
    return false;
}

bool ckpt_adapter_stored_name(char *stored, size_t stored_nbytes, const char *weight)
{
    return rename_end(stored, stored_nbytes, weight, true);
}

bool ckpt_adapter_module_name(char *weight, size_t weight_nbytes, const char *stored)
{
    return rename_end(weight, weight_nbytes, stored, false);
}

const struct ckpt_tensor *ckpt_adapter_find_stored(const struct ckpt *model, const char *weight)
{
    const struct ckpt_tensor *own = ckpt_tensor_find(model, weight);
    char stored[NAME_NBYTES];
    return !own && ckpt_adapter_stored_name(stored, sizeof stored, weight)
               ? ckpt_tensor_find(model, stored)
               : own;
}

bool ckpt_name_ends(const char *name, size_t nbytes, const char *end)
{
    const size_t n = strlen(end);
    return n <= nbytes && !strncmp(name + nbytes - n, end, n);
}

bool ckpt_parameter_is_named(const struct ckpt_adapter_spec *spec, const char *module,
                             size_t nbytes, bool is_down)
{
    char name[NAME_NBYTES];
    const int len =
        snprintf(name, sizeof name, "%.*s.%s", (int)nbytes, module, parameters[is_down]);

    for (int i = 0; len < (int)sizeof name && i < spec->nparameters; i++) {
        const size_t n = strlen(spec->parameters[i]);
        if (n && ckpt_name_ends(name, (size_t)len, spec->parameters[i]) &&
            (n == (size_t)len || name[(size_t)len - n - 1] == '.'))
            return true;
    }
    return false;
}

bool ckpt_adapter_is_expert(const struct ckpt_adapter_spec *spec, const char *module, size_t nbytes)
{
    if (ckpt_name_ends(module, nbytes, CKPT_NESTED))
        nbytes -= strlen(CKPT_NESTED);
    if (!ckpt_name_ends(module, nbytes, ".experts")) /* a name may be gate_up_proj alone */
        return false;
    return ckpt_parameter_is_named(spec, module, nbytes, false) ||
           ckpt_parameter_is_named(spec, module, nbytes, true);
}

const char *ckpt_expert_parameter(bool is_down)
{
    return parameters[is_down];
}

bool ckpt_adapter_parameter(char *parameter, size_t parameter_nbytes,
                            const struct ckpt_adapter_spec *spec, const char *module, size_t nbytes)
{
    const bool nested = ckpt_name_ends(module, nbytes, CKPT_NESTED);

    if (!ckpt_adapter_is_expert(spec, module, nbytes))
        return false;
    nbytes -= nested ? strlen(CKPT_NESTED) : 0;
    const bool is_down = !nested && ckpt_parameter_is_named(spec, module, nbytes, true);
    return snprintf(parameter, parameter_nbytes, "%.*s.%s", (int)nbytes, module,
                    parameters[is_down]) < (int)parameter_nbytes;
}

bool ckpt_adapter_is_parameter(const char *name)
{
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    return !strcmp(last, parameters[0]) || !strcmp(last, parameters[1]);
}
