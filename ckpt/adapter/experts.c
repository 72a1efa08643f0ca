/* SPDX-License-Identifier: Apache-2.0 */
/* Which weights of files are experts' parameters (parameters.c), and the factors of each. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "merge.h"

enum { NAME_NBYTES = 1024 };

/* How files store a parameter: the end of a weight's name, where %d stands for the expert. */
static const struct stored {
    const char *weight, *module;
    bool is_down;
    int nparts, part; /* the rows of gate_up_proj may be two weights */
    bool across;      /* matrices are (in, out) */
} stored[] = {
    {".block_sparse_moe.experts.%d.w1.weight", ".mlp.experts", false, 2, 0, false},
    {".block_sparse_moe.experts.%d.w3.weight", ".mlp.experts", false, 2, 1, false},
    {".block_sparse_moe.experts.%d.w2.weight", ".mlp.experts", true, 1, 0, false},
    {".mlp.experts.%d.gate_proj.weight", ".mlp.experts", false, 2, 0, false},
    {".mlp.experts.%d.up_proj.weight", ".mlp.experts", false, 2, 1, false},
    {".mlp.experts.%d.down_proj.weight", ".mlp.experts", true, 1, 0, false},
    {".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts", false, 1, 0, false},
    {".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts", true, 1, 0, false},
    {".mlp.experts.gate_up_proj", ".mlp.experts", false, 1, 0, true},
    {".mlp.experts.down_proj", ".mlp.experts", true, 1, 0, true},
};
enum { NSTORED = sizeof stored / sizeof stored[0] };

/* ---- the factors of a weight ----------------------------------------------------------------- */

/* Does a weight's name end as `x` says? *nbytes: before that end; *expert: its number. */
static bool is_stored(const char *name, const struct stored *x, size_t *nbytes, uint64_t *expert)
{
    const char *number = strstr(x->weight, "%d"), *tail = number ? number + 2 : x->weight;
    size_t n = strlen(name), head = number ? (size_t)(number - x->weight) : 0;

    if (!ckpt_name_ends(name, n, tail))
        return false;
    n -= strlen(tail);
    *nbytes = n;
    *expert = CKPT_ALL_EXPERTS;
    if (!number)
        return true;
    size_t digits = n;
    *expert = 0;
    while (digits && isdigit((unsigned char)name[digits - 1]))
        digits--;
    for (size_t i = digits; i < n && *expert < CKPT_ALL_EXPERTS / 16; i++)
        *expert = *expert * 10 + (uint64_t)(name[i] - '0');
    if (digits == n || digits < head || strncmp(name + digits - head, x->weight, head) != 0)
        return false;
    *nbytes = digits - head;
    return true;
}

static const struct ckpt_tensor *find_part(const struct ckpt_merged *m, const char *layer,
                                           size_t nbytes, const struct stored *x, char which)
{
    const struct ckpt_adapter_spec *spec = ckpt_adapter_spec(m->adapter);
    char module[NAME_NBYTES], name[2 * NAME_NBYTES];
    const int n = snprintf(module, sizeof module, "%.*s%s", (int)nbytes, layer, x->module);

    if (n >= (int)sizeof module || !ckpt_parameter_is_named(spec, module, (size_t)n, x->is_down))
        return NULL;
    const bool nested = !x->is_down && ckpt_parameter_is_named(spec, module, (size_t)n, true);
    snprintf(name, sizeof name, CKPT_ADAPTER_PREFIX "%s%s.lora_%c.weight", module,
             nested ? CKPT_NESTED : "", which);
    return ckpt_tensor_find(ckpt_adapter_ckpt(m->adapter), name);
}

/* Of the parameter. */
static struct ckpt_rank rank_of(const struct ckpt_merged *m, const char *layer, size_t nbytes,
                                const struct stored *x)
{
    char parameter[NAME_NBYTES];

    snprintf(parameter, sizeof parameter, "%.*s%s.%s", (int)nbytes, layer, x->module,
             ckpt_expert_parameter(x->is_down));
    return ckpt_adapter_rank(m->adapter, parameter);
}

static bool of_experts(struct ckpt_low *low, const struct ckpt_merged *m, const char *weight)
{
    size_t nbytes;
    uint64_t expert;

    for (int i = 0; i < NSTORED; i++) {
        const struct stored *x = &stored[i];
        if (!is_stored(weight, x, &nbytes, &expert))
            continue;
        *low = (struct ckpt_low){.a = find_part(m, weight, nbytes, x, 'A'),
                                 .b = find_part(m, weight, nbytes, x, 'B'),
                                 .rank = rank_of(m, weight, nbytes, x),
                                 .across = x->across,
                                 .expert = expert,
                                 .nparts = (uint64_t)x->nparts,
                                 .part = (uint64_t)x->part};
        low->experts = low->a ? low->a->tensor.shape[0] / (uint64_t)low->rank.r : 0;
        return low->a || low->b;
    }
    return false;
}

/* Of the module, whose name is its A's. */
static struct ckpt_rank rank_of_module(const struct ckpt_merged *m, const struct ckpt_tensor *a)
{
    static const char end[] = ".lora_A.weight";
    const char *name = a ? a->tensor.name + strlen(CKPT_ADAPTER_PREFIX) : "";
    const size_t n = strlen(name);
    char module[NAME_NBYTES];

    snprintf(module, sizeof module, "%.*s", (int)(n < sizeof end ? n : n - (sizeof end - 1)), name);
    return ckpt_adapter_rank(m->adapter, module);
}

bool ckpt_merged_low(struct ckpt_low *low, const struct ckpt_merged *m, const char *weight)
{
    *low = (struct ckpt_low){.a = ckpt_merged_part(m, weight, "lora_A.weight"),
                             .b = ckpt_merged_part(m, weight, "lora_B.weight"),
                             .across = ckpt_adapter_spec(m->adapter)->transposed,
                             .experts = 1,
                             .nparts = 1};
    low->rank = rank_of_module(m, low->a);
    if (low->a || low->b)
        return true;
    return ckpt_adapter_spec(m->adapter)->nparameters && of_experts(low, m, weight);
}

/* ---- the weights of a module ----------------------------------------------------------------- */

int ckpt_expert_nstored(void)
{
    return NSTORED;
}

bool ckpt_expert_weight(char *weight, size_t weight_nbytes, bool *apart, int i, uint64_t expert,
                        const struct ckpt_adapter_spec *spec, const char *module)
{
    const struct stored *x = &stored[i];
    const char *number = strstr(x->weight, "%d");
    const bool nested = ckpt_name_ends(module, strlen(module), CKPT_NESTED);
    const size_t nbytes = strlen(module) - (nested ? strlen(CKPT_NESTED) : 0);
    const bool is_down = !nested && ckpt_parameter_is_named(spec, module, nbytes, true);
    char own[NAME_NBYTES];

    if (x->is_down != is_down || !ckpt_name_ends(module, nbytes, x->module))
        return false;
    snprintf(own, sizeof own, "%s", x->weight);
    if (number)
        snprintf(own, sizeof own, "%.*s%" PRIu64 "%s", (int)(number - x->weight), x->weight, expert,
                 number + 2);
    *apart = number != NULL;
    return snprintf(weight, weight_nbytes, "%.*s%s", (int)(nbytes - strlen(x->module)), module,
                    own) < (int)weight_nbytes;
}
