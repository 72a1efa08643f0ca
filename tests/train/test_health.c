/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes the check calls bad, by what their ranks found. */
#include "tap.h"
#include "train/node/health.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NODES = 4, RANKS = 8 };

static struct health ranks[RANKS], rows[NODES];
static int node_of[RANKS] = {0, 0, 1, 1, 2, 2, 3, 3};
static const struct fsdp_node_map nodes = {
    .nranks = RANKS, .nnodes = NODES, .node_of = node_of, .host = NULL};
static char text[400];

static void all_alike(void)
{
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct health){.version = "1.0",
                                   .shm_free = 8e9,
                                   .files = 65536,
                                   .locked = INFINITY,
                                   .write_rate = r % 2 ? 0 : 1e9,
                                   .gpu_free = 79 * 0x1p30,
                                   .gpu_links = 12,
                                   .gpu_lanes = 16,
                                   .inside = 10e9,
                                   .across = 2e9};
        snprintf(ranks[r].host, sizeof ranks[r].host, "n%d", node_of[r]);
    }
}

/* Index of the only bad node, -1 for none, -2 for several. */
static int bad(int nnodes)
{
    int found = -1;

    health_fold(rows, ranks, &nodes);
    for (int i = 0; i < nnodes; i++) {
        char why[sizeof text];
        if (health_fault(why, sizeof why, rows, nnodes, i)) {
            memcpy(text, why, sizeof text);
            found = found == -1 ? i : -2;
        }
    }
    return found;
}

static void check_faults(void)
{
    all_alike();
    ok(bad(NODES) == -1, "nodes that are alike are well");
    ok(rows[2].nranks == 2 && rows[2].write_rate == 1e9 && !strcmp(rows[2].host, "n2"),
       "a node's row is that of its ranks");
    ranks[5].across = 0.9e9;
    ok(bad(NODES) == 2 && strstr(text, "with other nodes: 0.9 GB/s, elsewhere 2"),
       "its slowest rank counts: %s", text);
    ok(bad(2) == -1, "and is not seen from the other nodes");
    ranks[5].across = 1.1e9;
    ok(bad(NODES) == -1, "half as fast is not called bad");
    all_alike();
    ranks[0].inside = ranks[2].inside = 1e9;
    ok(bad(3) == -1 && bad(NODES) == -1, "where half of them are slow, slow is usual");
    ranks[1].across = ranks[3].write_rate = ranks[2].write_rate = 0.1e9;
    ok(bad(NODES) == -2, "two nodes may be bad at once");
    all_alike();
    ranks[2].inside = 1e9;
    ok(bad(2) == -1, "of two nodes that differ in speed neither is called bad");
    ranks[2].locked = 65536;
    ok(bad(2) == 1 && strstr(text, "64 KiB, elsewhere inf"), "of two limits the lower one: %s",
       text);
    all_alike();
    ranks[5].gpu_free = 10 * 0x1p30;
    ok(bad(NODES) == 2 && strstr(text, "memory of a GPU: 10 GiB free, elsewhere 79"),
       "a GPU whose memory another process holds: %s", text);
    all_alike();
    ranks[1].gpu_links = 11;
    ok(bad(NODES) == 0 && strstr(text, "NVLinks of a GPU that work: 11 links, elsewhere 12"),
       "one NVLink less than elsewhere is a fault: %s", text);
    all_alike();
    ranks[7].gpu_lanes = 8;
    ok(bad(NODES) == 3 && strstr(text, "PCIe of a GPU: 8 lanes, elsewhere 16"),
       "so are fewer lanes: %s", text);
    all_alike();
    for (int r = 0; r < RANKS; r++)
        ranks[r].gpu_free = ranks[r].gpu_links = ranks[r].gpu_lanes = 0;
    ok(bad(NODES) == -1, "no GPUs anywhere are no fault");
    all_alike();
    ranks[6].write_rate = 0;
    snprintf(ranks[6].write_error, sizeof ranks[6].write_error, "cannot write in ck: Read-only");
    ok(bad(NODES) == 3 && strstr(text, "Read-only"), "a folder that cannot be written");
    all_alike();
    snprintf(ranks[3].version, sizeof ranks[3].version, "0.9");
    ok(bad(NODES) == 1 && strstr(text, "runs version 0.9, node n0 runs 1.0"), "another version");
    all_alike();
    ranks[4].across = 0;
    snprintf(ranks[4].comm_error, sizeof ranks[4].comm_error, "rank 2 on n1: no answer");
    ok(bad(NODES) == 2 && strstr(text, "no answer"), "a node that reaches no other");
}

static void check_warnings(void)
{
    all_alike();
    ranks[7].clock_s = -3;
    ok(bad(NODES) == -1 && health_warning(text, sizeof text, rows, NODES, 3) &&
           strstr(text, "-3.0 s"),
       "a clock: %s", text);
    ok(!health_warning(text, sizeof text, rows, NODES, 1), "the others' are not warned of");
    for (int r = 0; r < RANKS; r++)
        ranks[r].shm_free = 64 << 20;
    ok(bad(NODES) == -1 && health_warning(text, sizeof text, rows, NODES, 1) &&
           strstr(text, "64.0 MiB free for 2 ranks"),
       "shared memory that is small everywhere: %s", text);
}

int main(void)
{
    check_faults();
    check_warnings();
    return tap_done();
}
