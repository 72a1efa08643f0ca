/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs that Slurm hides from a rank's neighbours, by what it leaves in the environment; and which
 * ranks of a machine deal out cores among each other. */
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

enum { RANKS = 4 };

static struct binding_card cards[RANKS];

/* Rank r may use cores from[r] to to[r], and wishes for those from[r] to wish_to[r]. */
static void give(const int *from, const int *to, const int *wish_to)
{
    memset(cards, 0, sizeof cards);
    for (int r = 0; r < RANKS; r++)
        for (int i = from[r]; i <= to[r]; i++) {
            CPU_SET(i, &cards[r].allowed);
            if (i <= wish_to[r])
                CPU_SET(i, &cards[r].wish);
        }
}

static void test_judge(void)
{
    static int node_of[RANKS] = {0, 0, 1, 1}, cyclic[RANKS] = {0, 1, 0, 1};
    static const char emulated[RANKS][FSDP_HOST_NBYTES] = {"h/node0", "h/node0", "h/node1",
                                                           "h/node1"};
    static const char hosts[RANKS][FSDP_HOST_NBYTES] = {"a", "a", "b", "b"};
    struct fsdp_node_map nodes = {.nranks = RANKS, .nnodes = 2, .node_of = node_of, .host = hosts};
    static const int same[RANKS] = {0}, all[RANKS] = {7, 7, 7, 7};
    int place, nplaces;
    const char *left;

    give(same, all, all);
    left = binding_judge(cards, &nodes, 3, &place, &nplaces);
    ok(!left && place == 1 && nplaces == 2, "ranks of a node deal out its cores");
    nodes.host = emulated;
    left = binding_judge(cards, &nodes, 3, &place, &nplaces);
    ok(!left && place == 3 && nplaces == 4, "ranks of emulated nodes those of the machine");
    nodes.host = hosts;
    nodes.node_of = cyclic;
    left = binding_judge(cards, &nodes, 2, &place, &nplaces);
    ok(!left && place == 1 && nplaces == 2, "however ranks were dealt out to nodes");
    nodes.node_of = node_of;
    give((int[]){0, 4, 0, 4}, (int[]){3, 7, 3, 7}, all);
    left = binding_judge(cards, &nodes, 1, &place, &nplaces);
    ok(left && strstr(left, "its own already"), "what Slurm gave each is left: %s", left);
    give((int[]){0, 2, 0, 4}, (int[]){3, 7, 3, 7}, all);
    left = binding_judge(cards, &nodes, 1, &place, &nplaces);
    ok(left && strstr(left, "in part"), "so is what overlaps in part: %s", left);
    give(same, all, (int[]){3, 3, 1, 7});
    left = binding_judge(cards, &nodes, 0, &place, &nplaces);
    ok(!left && nplaces == 2, "two ranks near the same GPU's cores share those");
    left = binding_judge(cards, &nodes, 2, &place, &nplaces);
    ok(left != NULL, "a wish inside another's is not dealt out: %s", left);
    nodes = (struct fsdp_node_map){.nranks = 1, .nnodes = 1, .node_of = node_of};
    left = binding_judge(cards, &nodes, 0, &place, &nplaces);
    ok(!left && nplaces == 1, "one rank alone goes near its GPU");
    cards[0].wish = cards[0].allowed;
    left = binding_judge(cards, &nodes, 0, &place, &nplaces);
    ok(left && strstr(left, "only rank"), "or stays where it is: %s", left);
}

int main(void)
{
    test_judge();
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
