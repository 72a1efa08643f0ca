/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "binding.h"

/* Slurm sets these for options that give each task GPUs of its own. */
static const char *divided_by(char *(*get)(const char *name))
{
    const char *bind = get("SLURM_GPU_BIND"), *tres = get("SLURM_TRES_PER_TASK");

    if (get("SLURM_GPUS_PER_TASK"))
        return "--gpus-per-task";
    if (tres && strstr(tres, "gpu"))
        return "--tres-per-task";
    return bind && (strstr(bind, "single:") || strstr(bind, "per_task:")) ? "--gpu-bind" : NULL;
}

bool binding_gpus_hidden(char *out, size_t out_nbytes, int local_size,
                         char *(*get)(const char *name))
{
    const char *seen = get("CUDA_VISIBLE_DEVICES"), *option = divided_by(get);

    if (local_size < 2 || !option || !seen || !seen[0] || strchr(seen, ','))
        return false;
    snprintf(out, out_nbytes,
             "%s shows each of the %d ranks of a node one GPU alone (CUDA_VISIBLE_DEVICES=%.40s): "
             "they cannot reach each other's memory directly; srun --gpus-per-node=%d "
             "--gpu-bind=none shows all, and each rank takes its own",
             option, local_size, seen, local_size);
    return true;
}
