/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of adapters of experts. transformers keeps the weights of a layer's experts in two
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

bool ckpt_adapter_is_parameter(const char *name)
{
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    return !strcmp(last, parameters[0]) || !strcmp(last, parameters[1]);
}
