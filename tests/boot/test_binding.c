/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that Slurm hides from a rank's neighbours, by what it leaves in the environment. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "tap.h"

static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "SLURM_GPUS_PER_TASK",
                                    "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND"};
static const char *values[4];

static char *get(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return (char *)(uintptr_t)values[i];
    return NULL;
}

int main(void)
{
    static const struct {
        const char *what, *values[4];
        int local_size;
        const char *says; /* NULL: nothing */
    } cases[] = {
        {"no GPUs", {NULL}, 4, NULL},
        {"all are seen", {"0,1,2,3", NULL}, 4, NULL},
        {"one, and nothing of Slurm's", {"0"}, 4, NULL},
        {"--gpus-per-task", {"0", "1"}, 4, "--gpus-per-task shows each of the 4 ranks"},
        {"--gpus-per-task, two each", {"0,1", "2"}, 4, NULL},
        {"--gpus-per-task, one rank a node", {"0", "1"}, 1, NULL},
        {"--gpus-per-task, none seen", {"", "1"}, 2, NULL},
        {"--tres-per-task", {"2", NULL, "cpu:2,gres/gpu:1"}, 2, "--tres-per-task shows"},
        {"--tres-per-task without GPUs", {"2", NULL, "cpu:2"}, 2, NULL},
        {"--gpu-bind=single:1", {"1", NULL, NULL, "single:1"}, 2, "srun --gpus-per-node=2"},
        {"--gpu-bind=none", {"1", NULL, NULL, "none"}, 2, NULL},
        {"--gpu-bind=closest", {"1", NULL, NULL, "closest"}, 2, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[400] = "";
        memcpy(values, cases[i].values, sizeof values);
        bool hidden = binding_gpus_hidden(text, sizeof text, cases[i].local_size, get);
        ok(hidden == (cases[i].says != NULL) && (!hidden || strstr(text, cases[i].says)), "%s: %s",
           cases[i].what, hidden ? text : "nothing to say");
    }
    return tap_done();
}
