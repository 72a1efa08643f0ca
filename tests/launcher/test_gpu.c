/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a rank gets, and what is set for CUDA and NCCL. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "tap.h"

static void test_order(void)
{
    /* Pairs 0-2 and 1-3 are linked by four, 2-1 by one. */
    static const int pairs[16] = {0, 0, 4, 0, 0, 0, 1, 4, 4, 1, 0, 0, 0, 4, 0, 0};
    static const int none[9] = {0};
    int order[4];

    gpu_order_by_links(order, pairs, 4);
    ok(order[0] == 0 && order[1] == 2 && order[2] == 1 && order[3] == 3,
       "GPUs that are linked stand next to each other: %d %d %d %d", order[0], order[1], order[2],
       order[3]);
    gpu_order_by_links(order, none, 3);
    ok(order[0] == 0 && order[1] == 1 && order[2] == 2, "without links, as they are");
}

static struct boot_info node(const char *method, int local_rank, int local_size)
{
    struct boot_info info = {.rank = local_rank,
                             .size = local_size,
                             .local_rank = local_rank,
                             .local_size = local_size,
                             .nnodes = 1,
                             .host = "n1",
                             .job = "job7"};
    strcpy(info.method, method);
    return info;
}

static void test_assign(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    static const int order[4] = {0, 2, 1, 3};
    int gpu = -1;

    struct boot_info info = node("local", 2, 4);
    ok(gpu_assign(&gpu, &info, 4, 1, NULL, &err) == FSDP_OK && gpu == 2, "a GPU for each rank");
    ok(gpu_assign(&gpu, &info, 4, 1, order, &err) == FSDP_OK && gpu == 1, "in the order given");
    ok(gpu_assign(&gpu, &info, 8, 1, NULL, &err) == FSDP_OK && gpu == 2, "more GPUs than ranks");
    ok(gpu_assign(&gpu, &info, 2, 2, NULL, &err) == FSDP_OK && gpu == 1, "two ranks share one");
    ok(gpu_assign(&gpu, &info, 2, 1, NULL, &err) == FSDP_EINVAL &&
           strstr(err.text, "4 ranks on host n1") && strstr(err.text, "--ntasks-per-node=2") &&
           strstr(err.text, "--ranks-per-gpu 2"),
       "too few: %s", err.text);
    ok(gpu_assign(&gpu, &info, 1, 1, NULL, &err) == FSDP_EINVAL, "one for four: %s", err.text);
    info = node("pmix", 3, 4);
    ok(gpu_assign(&gpu, &info, 1, 1, NULL, &err) == FSDP_OK && gpu == 0,
       "the one that Slurm shows to each task is its own");
    ok(gpu_assign(&gpu, &info, 3, 1, NULL, &err) == FSDP_EINVAL, "three for four tasks: %s",
       err.text);
}

static void test_environment(void)
{
    char set[512], kept[512];
    struct boot_info info = node("local", 1, 2);

    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsetenv("NCCL_NVLS_ENABLE");
    gpu_environment(NULL, 1, set, sizeof set, kept, sizeof kept);
    ok(!strstr(set, "NVLS"), "whether NCCL uses the switch's multicast is left to NCCL");
    ok(strstr(set, "CUDA_DEVICE_MAX_CONNECTIONS=32") && !getenv("CUDA_DEVICE_MAX_CONNECTIONS"),
       "what would be set: %s", set);
    gpu_environment(&info, 1, set, sizeof set, kept, sizeof kept);
    ok(!strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32") && !getenv("NCCL_NVLS_ENABLE") &&
           !*kept,
       "what is set: %s", set);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
    setenv("NCCL_NVLS_ENABLE", "1", 1);
    gpu_environment(&info, 1, set, sizeof set, kept, sizeof kept);
    ok(!strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "8") &&
           !strcmp(getenv("NCCL_NVLS_ENABLE"), "1") &&
           !strcmp(kept, "CUDA_DEVICE_MAX_CONNECTIONS=8"),
       "the user's own is kept: %s", kept);
    ok(!strstr(set, "NCCL_HOSTID"), "ranks with a GPU of their own are on one host");
    setenv("BOOT_INTERFACE", "ib", 1);
    gpu_environment(&info, 1, set, sizeof set, kept, sizeof kept);
    ok(!strcmp(getenv("NCCL_SOCKET_IFNAME"), "ib"), "NCCL meets over the network that ranks do");
    unsetenv("BOOT_INTERFACE");
    unsetenv("NCCL_SOCKET_IFNAME");
    gpu_environment(&info, 2, set, sizeof set, kept, sizeof kept);
    ok(strstr(kept, "NCCL_NVLS_ENABLE=1") && !strstr(set, "NVLS"), "also here: %s", kept);
    unsetenv("NCCL_NVLS_ENABLE");
    gpu_environment(&info, 2, set, sizeof set, kept, sizeof kept);
    ok(!strcmp(getenv("NCCL_NVLS_ENABLE"), "0"), "ranks that share a GPU cannot use multicast");
    ok(!strcmp(getenv("NCCL_HOSTID"), "job7-rank-1") && !strcmp(getenv("NCCL_NET"), "Socket") &&
           strstr(set, "NCCL_SOCKET_IFNAME=lo"),
       "ranks that share one are hosts of their own: %s", set);
}

static void test_name(void)
{
    static const struct {
        int gpu;
        const char *visible, *order, *name; /* name NULL: not to be known */
    } cases[] = {
        {3, NULL, "PCI_BUS_ID", "3"},
        {1, "4,6", "PCI_BUS_ID", "6"},
        {1, "GPU-aa,GPU-bb", "PCI_BUS_ID", "GPU-bb"},
        {0, "GPU-aa", NULL, "GPU-aa"},
        {2, "4,6", "PCI_BUS_ID", NULL},
        {1, "4,-1,5", "PCI_BUS_ID", NULL},
        {0, "", "PCI_BUS_ID", NULL},
        {0, "4,6", "FASTEST_FIRST", NULL},
        {0, NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[16] = "";
        bool known = gpu_name_of(name, sizeof name, cases[i].gpu, cases[i].visible, cases[i].order);
        ok(cases[i].name ? known && !strcmp(name, cases[i].name) : !known,
           "GPU %d of %s in order %s: %s", cases[i].gpu,
           cases[i].visible ? cases[i].visible : "all", cases[i].order ? cases[i].order : "unset",
           known ? name : "not known");
    }
}

int main(void)
{
    test_name();
    test_order();
    test_assign();
    test_environment();
    return tap_done();
}
