/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares cores with whom, and who crowds. */
#include "tap.h"
#include "train/node/cores.h"

#include <string.h>

enum { RANKS = 4 };

static cpu_set_t masks[RANKS];
static const int many[RANKS] = {8, 8, 8, 8}, few[RANKS] = {2, 2, 2, 2};
static int node_of[RANKS] = {0, 0, 1, 1};
static const char emulated[RANKS][FSDP_HOST_NBYTES] = {"h/node0", "h/node0", "h/node1", "h/node1"};
static const char real[RANKS][FSDP_HOST_NBYTES] = {"h", "h", "h2", "h2"};

/* Rank r gets cores first[r] .. first[r] + ncores - 1. */
static void bind(const int *first, int ncores)
{
    for (int r = 0; r < RANKS; r++) {
        CPU_ZERO(&masks[r]);
        for (int i = 0; i < ncores; i++)
            CPU_SET(first[r] + i, &masks[r]);
    }
}

int main(void)
{
    const struct fsdp_node_map apart = {
        .nranks = RANKS, .nnodes = 2, .node_of = node_of, .host = real};
    const struct fsdp_node_map together = {
        .nranks = RANKS, .nnodes = 2, .node_of = node_of, .host = emulated};
    struct train_cores cores;
    char list[16];

    bind((int[]){0, 0, 0, 0}, 8);
    train_cores_judge(&cores, masks, many, 2, &apart);
    ok(cores.sharers == 2 && train_cores_share(&cores) == 4 && cores.crowded == -1,
       "nobody is bound: two ranks of a machine share its cores");
    train_cores_judge(&cores, masks, many, 2, &together);
    ok(cores.sharers == 4 && train_cores_share(&cores) == 2, "emulated nodes are one machine");
    bind((int[]){0, 2, 0, 2}, 2);
    train_cores_judge(&cores, masks, many, 1, &apart);
    ok(cores.sharers == 1 && train_cores_share(&cores) == 2 && cores.crowded == -1,
       "each has its own");
    bind((int[]){0, 1, 0, 0}, 1);
    train_cores_judge(&cores, masks, many, 0, &apart);
    ok(cores.sharers == 1 && cores.crowded == 2 && cores.crowded_ncores == 1 &&
           cores.crowded_sharers == 2,
       "rank 0 learns that two on another node crowd on one core");
    train_cores_judge(&cores, masks, many, 3, &apart);
    ok(cores.sharers == 2 && train_cores_share(&cores) == 1, "as does the second of them");
    bind((int[]){0, 0, 0, 0}, 2);
    train_cores_judge(&cores, masks, few, 0, &together);
    ok(cores.crowded == -1, "a machine with fewer cores than ranks can do no better");

    CPU_ZERO(&masks[0]);
    ok(!strcmp(train_cores_list(list, sizeof list, &masks[0]), ""), "no core");
    for (int i = 0; i < 4; i++)
        CPU_SET(i, &masks[0]);
    CPU_SET(8, &masks[0]);
    ok(!strcmp(train_cores_list(list, sizeof list, &masks[0]), "0-3,8"), "a list of cores: %s",
       list);
    for (int i = 10; i < 40; i += 2)
        CPU_SET(i, &masks[0]);
    ok(!strcmp(train_cores_list(list, sizeof list, &masks[0]), "0-3,8,10,12,..."),
       "a long list of cores: %s", list);
    return tap_done();
}
