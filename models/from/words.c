/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "words.h"

const char *from_dtype(const char *value)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"bf16", "bfloat16"},   {"bfloat16", "bfloat16"}, {"fp16", "float16"},
                 {"float16", "float16"}, {"half", "float16"},      {"fp32", "float32"},
                 {"float32", "float32"}, {"float", "float32"},     {"no", "float32"}};

    if (!strncasecmp(value, "torch.", 6))
        value += 6;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcasecmp(names[i].theirs, value))
            return names[i].ours;
    return NULL;
}

void from_set_dtype(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    const char *type = from_dtype(leaf->value);
    if (type)
        from_set(job, row->ours, leaf->path, "%s", type);
    else
        from_remark(job, FROM_LOST, leaf, "no type of that name");
}

void from_set_bool(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set(job, row->ours, leaf->path, "%s", from_is_true(leaf->value) ? "true" : "false");
}

void from_set_stage(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    static const char *const stages[] = {"NO_SHARD", "ZERO1", "SHARD_GRAD_OP", "FULL_SHARD"};
    if (leaf->value[0] >= '0' && leaf->value[0] <= '3' && !leaf->value[1])
        from_set(job, row->ours, leaf->path, "%s", stages[leaf->value[0] - '0']);
    else
        from_remark(job, FROM_LOST, leaf, "no stage of that number");
}

void from_set_folder(struct from_job *job, const struct from_row *row, struct from_leaf *leaf)
{
    from_set_text(job, row->ours, leaf->path, leaf->value);
}
