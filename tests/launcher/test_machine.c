/* SPDX-License-Identifier: Apache-2.0 */
/* Cores and network cards dealt out on machines that hwloc is told of. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"

#if HAVE_HWLOC
#include "../../launcher/bind/hwloc.h"

static struct machine *machine;

/* "HWLOC_SYNTHETIC" or "HWLOC_XMLFILE" */
static bool begin(const char *kind, const char *what)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_XMLFILE");
    setenv(kind, what, 1);
    machine_close(machine);
    machine = NULL;
    return ok(machine_open(&machine, &err) == FSDP_OK, "a machine: %s %s", what, err.text);
}

/* What nplaces ranks get of a set, each "cores: text" and a newline. */
static void deal(char *out, size_t nbytes, const cpu_set_t *set, int nplaces)
{
    *out = 0;
    for (int i = 0; i < nplaces; i++) {
        cpu_set_t mine;
        size_t len = strlen(out);
        int ncores = machine_split(machine, set, i, nplaces, &mine);
        len += (size_t)snprintf(out + len, nbytes - len, "%d: ", ncores);
        machine_describe(machine, &mine, out + len, nbytes - len);
        len = strlen(out);
        snprintf(out + len, nbytes - len, "\n");
    }
}

static void expect(const char *text, const cpu_set_t *set, int nplaces, const char *expected)
{
    char got[2048];
    deal(got, sizeof got, set, nplaces);
    if (!ok(!strcmp(got, expected), "%s", text))
        diag("%s", got);
}

/* Disjoint, whole, and of nearly one size, for every number of ranks. */
static void test_all_counts(const cpu_set_t *all, int most)
{
    for (int n = 1; n <= most; n++) {
        cpu_set_t mine, seen, both;
        int least = CPU_SETSIZE, largest = 0, clean = 1;
        CPU_ZERO(&seen);
        for (int i = 0; i < n; i++) {
            int ncores = machine_split(machine, all, i, n, &mine);
            CPU_AND(&both, &seen, &mine);
            clean &= ncores > 0 && CPU_COUNT(&both) == 0 && CPU_COUNT(&mine) == 2 * ncores;
            for (int c = 0; c < 64; c++)
                clean &= CPU_ISSET(c, &mine) == CPU_ISSET(c + 64, &mine);
            CPU_OR(&seen, &seen, &mine);
            least = ncores < least ? ncores : least;
            largest = ncores > largest ? ncores : largest;
        }
        if (!clean || 4 * least < 3 * (most / n) || !CPU_EQUAL(&seen, all))
            ok(false, "%d ranks: %d to %d cores each", n, least, largest);
    }
    ok(true, "1 to %d ranks: whole cores, none twice, none left over", most);
}

static void test_big(const char *xml)
{
    cpu_set_t all, part, near;
    char nic[32];

    if (!begin("HWLOC_XMLFILE", xml))
        return;
    machine_allowed(machine, &all);
    ok(CPU_COUNT(&all) == 128, "2 packages, 8 NUMA nodes, 64 cores, 128 threads");
    expect("a NUMA node for each of 8 ranks, siblings together", &all, 8,
           "8: 0-7,64-71, NUMA node 0, package 0\n8: 8-15,72-79, NUMA node 1, package 0\n"
           "8: 16-23,80-87, NUMA node 2, package 0\n8: 24-31,88-95, NUMA node 3, package 0\n"
           "8: 32-39,96-103, NUMA node 4, package 1\n8: 40-47,104-111, NUMA node 5, package 1\n"
           "8: 48-55,112-119, NUMA node 6, package 1\n8: 56-63,120-127, NUMA node 7, package 1\n");
    expect(
        "6 ranks: none across packages", &all, 6,
        "10: 0-9,64-73, 2 NUMA nodes, package 0\n11: 10-20,74-84, 2 NUMA nodes, package 0\n"
        "11: 21-31,85-95, 2 NUMA nodes, package 0\n10: 32-41,96-105, 2 NUMA nodes, package 1\n"
        "11: 42-52,106-116, 2 NUMA nodes, package 1\n11: 53-63,117-127, 2 NUMA nodes, package 1\n");
    test_all_counts(&all, 64);
    ok(machine_split(machine, &all, 0, 65, &part) == 0 && CPU_COUNT(&part) == 0,
       "more ranks than cores get none");

    /* What Slurm gave: cores 4-11, of 4-7 one thread alone. */
    CPU_ZERO(&part);
    for (int c = 4; c < 12; c++)
        CPU_SET(c, &part);
    for (int c = 8; c < 12; c++)
        CPU_SET(c + 64, &part);
    expect("a part of the machine is dealt out, and no more", &part, 2,
           "4: 4-7, NUMA node 0, package 0\n4: 8-11,72-75, NUMA node 1, package 0\n");
    expect("a core with one thread counts as one", &part, 4,
           "2: 4-5, NUMA node 0, package 0\n2: 6-7, NUMA node 0, package 0\n"
           "2: 8-9,72-73, NUMA node 1, package 0\n2: 10-11,74-75, NUMA node 1, package 0\n");

    ok(machine_near(machine, "0000:0f:00.0", &near) && CPU_COUNT(&near) == 16 &&
           CPU_ISSET(24, &near) && CPU_ISSET(95, &near),
       "cores near a GPU are those of its NUMA node");
    ok(!machine_near(machine, "0000:aa:00.0", &near), "a GPU that is not there is near nothing");
    static const char *const gpus[] = {"0000:07:00.0", "0000:0f:00.0", "0000:47:00.0",
                                       "0000:4f:00.0", "0000:87:00.0", "0000:8f:00.0",
                                       "0000:c7:00.0", "0000:cf:00.0"};
    for (int i = 0; i < 8; i++) {
        char expected[24];
        snprintf(expected, sizeof expected, "mlx5_%d", i);
        machine_nic(machine, gpus[i], &all, 3, nic, sizeof nic);
        ok(!strcmp(nic, expected), "GPU %d: the card of its switch, %s", i, nic);
    }
    CPU_ZERO(&part);
    CPU_SET(44, &part);
    machine_nic(machine, NULL, &part, 1, nic, sizeof nic);
    ok(!strcmp(nic, "mlx5_7"), "without a GPU a card of the rank's NUMA node, in turn: %s", nic);
}

static void test_small(void)
{
    cpu_set_t all;
    char nic[32];

    if (!begin("HWLOC_SYNTHETIC", "pack:1 core:6 pu:1"))
        return;
    machine_allowed(machine, &all);
    expect("a machine without caches and NUMA nodes to tell of", &all, 4,
           "1: 0, NUMA node 0, package 0\n2: 1-2, NUMA node 0, package 0\n"
           "1: 3, NUMA node 0, package 0\n2: 4-5, NUMA node 0, package 0\n");
    machine_nic(machine, NULL, &all, 0, nic, sizeof nic);
    ok(nic[0] == 0, "and without a network card");
    if (!begin("HWLOC_SYNTHETIC", "pack:2 l3:2 core:3 pu:1"))
        return;
    machine_allowed(machine, &all);
    expect("3 ranks a package of 2 caches stay inside their package", &all, 6,
           "2: 0-1, NUMA node 0, package 0\n2: 2-3, NUMA node 0, package 0\n"
           "2: 4-5, NUMA node 0, package 0\n2: 6-7, NUMA node 0, package 1\n"
           "2: 8-9, NUMA node 0, package 1\n2: 10-11, NUMA node 0, package 1\n");
}

static void test_here(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    cpu_set_t before, part, after;

    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_XMLFILE");
    machine_close(machine);
    machine = NULL;
    sched_getaffinity(0, sizeof before, &before);
    if (!ok(machine_open(&machine, &err) == FSDP_OK, "this machine %s", err.text))
        return;
    machine_allowed(machine, &part);
    ok(CPU_EQUAL(&part, &before), "what hwloc lets this process use is what it may use");
    int ncores = machine_split(machine, &before, 0, 1, &part);
    ok(ncores > 0 && CPU_EQUAL(&part, &before), "one rank gets all of it: %d cores", ncores);
    if (machine_split(machine, &before, 0, 2, &part) == 0) {
        tap_skip("one core here: nothing to bind to");
        return;
    }
    ok(machine_bind(machine, &part, &err) == FSDP_OK &&
           sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&after, &part),
       "bound to half of it %s", err.text);
}

int main(void)
{
    char command[600];
    const char *top = getenv("TOP");

    snprintf(command, sizeof command, "awk -f '%s/tests/launcher/machine.awk' >machine.xml",
             top ? top : ".");
    if (ok(system(command) == 0, "a machine is written"))
        test_big("machine.xml");
    test_small();
    test_here();
    machine_close(machine);
    return tap_done();
}
#else
int main(void)
{
    tap_skip("built without hwloc");
    return tap_done();
}
#endif
