/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores and cards of a machine, by hwloc.
 *
 * Cores are dealt out in two steps: the finest kind of domain (cache, NUMA node, package, machine)
 * is looked for whose domains can each hold whole ranks, without one of them being much smaller
 * than an even share, and none without a rank; then each domain's cores, in hwloc's order, are cut
 * into equal parts for its ranks.
 */
#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdio.h>
#include <string.h>

#include "hwloc.h"

struct machine {
    hwloc_topology_t topology;
};

/* Linux itself tells of PCI devices; the plugins for them and for GPUs only take time, start
 * drivers and leak. */
static void do_without_plugins(hwloc_topology_t topology)
{
    static const char *const names[] = {"pci", "opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
}

int machine_open(struct machine **out, struct fsdp_err *err)
{
    struct machine *m = fsdp_alloc(1, sizeof *m, "machine", err);

    if (!m)
        return FSDP_ENOMEM;
    if (hwloc_topology_init(&m->topology)) {
        fsdp_free(m);
        return fsdp_err_set(err, FSDP_ENOMEM, "hwloc does not begin");
    }
    do_without_plugins(m->topology);
    hwloc_topology_set_io_types_filter(m->topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(m->topology)) {
        machine_close(m);
        return fsdp_err_set(err, FSDP_EIO, "hwloc cannot read this machine: %s", strerror(errno));
    }
    *out = m;
    return FSDP_OK;
}

void machine_close(struct machine *m)
{
    if (m)
        hwloc_topology_destroy(m->topology);
    fsdp_free(m);
}

/* ---- sets ---- */

static void to_sched(const struct machine *m, hwloc_const_bitmap_t set, cpu_set_t *out)
{
    hwloc_cpuset_to_glibc_sched_affinity(m->topology, set, out, sizeof *out);
}

static hwloc_bitmap_t from_sched(const struct machine *m, const cpu_set_t *set)
{
    hwloc_bitmap_t bitmap = hwloc_bitmap_alloc();
    if (bitmap)
        hwloc_cpuset_from_glibc_sched_affinity(m->topology, bitmap, set, sizeof *set);
    return bitmap;
}

void machine_allowed(const struct machine *m, cpu_set_t *out)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();

    CPU_ZERO(out);
    if (set && hwloc_get_cpubind(m->topology, set, HWLOC_CPUBIND_THREAD) == 0)
        to_sched(m, set, out);
    hwloc_bitmap_free(set);
}

int machine_bind(const struct machine *m, const cpu_set_t *set, struct fsdp_err *err)
{
    hwloc_bitmap_t bitmap = from_sched(m, set);
    int rc = bitmap ? hwloc_set_cpubind(m->topology, bitmap, HWLOC_CPUBIND_PROCESS) : -1;

    hwloc_bitmap_free(bitmap);
    return rc ? fsdp_err_sys(err, errno, "binding to cores") : FSDP_OK;
}

/* ---- dealing out cores ---- */

static int count_cores(const struct machine *m, hwloc_const_bitmap_t set)
{
    hwloc_obj_t core = NULL;
    int n = 0;
    while ((core = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_CORE, core)))
        n += hwloc_bitmap_intersects(core->cpuset, set);
    return n;
}

/* Cores first .. first + ncores - 1 of those that set and domain have in common. */
static void take_cores(const struct machine *m, hwloc_const_bitmap_t set,
                       hwloc_const_bitmap_t domain, int first, int ncores, cpu_set_t *out)
{
    hwloc_bitmap_t mine = hwloc_bitmap_alloc(), threads = hwloc_bitmap_alloc();
    hwloc_obj_t core = NULL;
    int i = 0;

    while (mine && threads &&
           (core = hwloc_get_next_obj_by_type(m->topology, HWLOC_OBJ_CORE, core))) {
        hwloc_bitmap_and(threads, core->cpuset, set);
        if (!hwloc_bitmap_intersects(threads, domain))
            continue;
        if (i >= first && i < first + ncores)
            hwloc_bitmap_or(mine, mine, threads);
        i++;
    }
    if (mine && threads)
        to_sched(m, mine, out);
    hwloc_bitmap_free(mine);
    hwloc_bitmap_free(threads);
}

struct domain {
    hwloc_obj_t obj;
    int ncores, nranks;
};

/* Rank after rank goes to the domain where it gets most cores. Returns the smallest share, 0 where
 * a domain would have no rank. */
static int deal_ranks(struct domain *domains, int ndomains, int nranks)
{
    int least = 0;

    for (int i = 0; i < ndomains; i++)
        domains[i].nranks = 0;
    for (int r = 0; r < nranks; r++) {
        int best = 0;
        for (int i = 1; i < ndomains; i++)
            if (domains[i].ncores * (domains[best].nranks + 1) >
                domains[best].ncores * (domains[i].nranks + 1))
                best = i;
        domains[best].nranks++;
    }
    for (int i = 0; i < ndomains; i++) {
        int share = domains[i].nranks ? domains[i].ncores / domains[i].nranks : 0;
        if (i == 0 || share < least)
            least = share;
    }
    return least;
}

/* Returns how many domains of a kind the set touches. */
static int find_domains(const struct machine *m, hwloc_obj_type_t type, hwloc_const_bitmap_t set,
                        struct domain *out, int most)
{
    hwloc_bitmap_t part = hwloc_bitmap_alloc();
    hwloc_obj_t obj = NULL;
    int n = 0;

    while (part && n < most && (obj = hwloc_get_next_obj_by_type(m->topology, type, obj))) {
        hwloc_bitmap_and(part, obj->cpuset, set);
        int ncores = count_cores(m, part);
        if (ncores)
            out[n++] = (struct domain){.obj = obj, .ncores = ncores};
    }
    hwloc_bitmap_free(part);
    return n;
}

/* A part that begins and ends in the cut of a domain's cores among its ranks. */
static int take_part(const struct machine *m, hwloc_const_bitmap_t set,
                     const struct domain *domains, int ndomains, int place, cpu_set_t *out)
{
    for (int i = 0; i < ndomains; place -= domains[i++].nranks) {
        const struct domain *d = &domains[i];
        if (place >= d->nranks)
            continue;
        int first = d->ncores * place / d->nranks, end = d->ncores * (place + 1) / d->nranks;
        take_cores(m, set, d->obj->cpuset, first, end - first, out);
        return end - first;
    }
    return 0;
}

static bool covers(const struct domain *domains, int ndomains, int ncores)
{
    for (int i = 0; i < ndomains; i++)
        ncores -= domains[i].ncores;
    return ncores == 0; /* a machine may have cores outside of any cache or NUMA node */
}

int machine_split(const struct machine *m, const cpu_set_t *set, int place, int nplaces,
                  cpu_set_t *out)
{
    static const hwloc_obj_type_t kinds[] = {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_NUMANODE,
                                             HWLOC_OBJ_PACKAGE, HWLOC_OBJ_MACHINE};
    enum { NKINDS = sizeof kinds / sizeof kinds[0], MAX_DOMAINS = 256 };
    struct domain *best = fsdp_alloc(2 * MAX_DOMAINS, sizeof *best, "domains", NULL), *here;
    hwloc_bitmap_t bitmap = from_sched(m, set);
    int nbest = 0, got = 0, ncores = bitmap ? count_cores(m, bitmap) : 0;

    CPU_ZERO(out);
    here = best ? best + MAX_DOMAINS : NULL;
    for (int k = 0; best && k < NKINDS && nplaces > 0 && ncores >= nplaces; k++) {
        const int share = ncores / nplaces;
        int n = find_domains(m, kinds[k], bitmap, here, MAX_DOMAINS);
        /* Rather three quarters of an even share in one domain than a whole one in two. */
        if (!covers(here, n, ncores) || (n > 1 && 4 * deal_ranks(here, n, nplaces) < 3 * share) ||
            n <= nbest)
            continue;
        deal_ranks(here, n, nplaces);
        memcpy(best, here, (size_t)n * sizeof *best);
        nbest = n;
    }
    if (nbest)
        got = take_part(m, bitmap, best, nbest, place, out);
    hwloc_bitmap_free(bitmap);
    fsdp_free(best);
    return got;
}

/* ---- cards ---- */

static hwloc_obj_t find_pci(const struct machine *m, const char *pci)
{
    return pci && *pci ? hwloc_get_pcidev_by_busidstring(m->topology, pci) : NULL;
}

bool machine_near(const struct machine *m, const char *pci, cpu_set_t *out)
{
    hwloc_obj_t device = find_pci(m, pci);
    hwloc_obj_t around = device ? hwloc_get_non_io_ancestor_obj(m->topology, device) : NULL;

    CPU_ZERO(out);
    if (around)
        to_sched(m, around->cpuset, out);
    return around != NULL;
}

static int depth_of(hwloc_obj_t obj)
{
    int depth = 0;
    while ((obj = obj->parent))
        depth++;
    return depth;
}

/* How deep the nearest common ancestor lies: the same switch is deeper than the same package. */
static int nearness(hwloc_obj_t a, hwloc_obj_t b)
{
    int da = depth_of(a), db = depth_of(b);

    for (; da > db; da--)
        a = a->parent;
    for (; db > da; db--)
        b = b->parent;
    for (; a != b; da--) {
        a = a->parent;
        b = b->parent;
    }
    return da;
}

static bool is_card(hwloc_obj_t os, hwloc_obj_osdev_type_t type)
{
    return os->attr->osdev.type == type && os->parent->type == HWLOC_OBJ_PCI_DEVICE;
}

/* Of cores it is as near as can be, or far. */
static int card_nearness(const struct machine *m, hwloc_obj_t os, hwloc_obj_t device,
                         hwloc_const_bitmap_t cores)
{
    if (device)
        return nearness(os, device);
    hwloc_obj_t around = hwloc_get_non_io_ancestor_obj(m->topology, os);
    return around && hwloc_bitmap_intersects(around->cpuset, cores);
}

/* The place-th of the nearest cards of a type, modulo their number; NULL: none. */
static hwloc_obj_t nearest_card(const struct machine *m, hwloc_obj_osdev_type_t type,
                                hwloc_obj_t device, hwloc_const_bitmap_t cores, int place)
{
    hwloc_obj_t os = NULL;
    int best = 0, nbest = 0;

    while ((os = hwloc_get_next_osdev(m->topology, os))) {
        if (!is_card(os, type))
            continue;
        int near = card_nearness(m, os, device, cores);
        nbest = near > best ? 1 : nbest + (near == best);
        best = near > best ? near : best;
    }
    for (int i = nbest ? place % nbest : -1; i >= 0;) {
        os = hwloc_get_next_osdev(m->topology, os);
        if (is_card(os, type) && card_nearness(m, os, device, cores) == best && i-- == 0)
            return os;
    }
    return NULL;
}

void machine_nic(const struct machine *m, const char *pci, const cpu_set_t *near, int place,
                 char *out, size_t nbytes)
{
    hwloc_bitmap_t cores = from_sched(m, near);
    hwloc_obj_t device = find_pci(m, pci), card = NULL;

    if (cores)
        card = nearest_card(m, HWLOC_OBJ_OSDEV_OPENFABRICS, device, cores, place);
    if (cores && !card)
        card = nearest_card(m, HWLOC_OBJ_OSDEV_NETWORK, device, cores, place);
    snprintf(out, nbytes, "%s", card && card->name ? card->name : "");
    hwloc_bitmap_free(cores);
}

/* ---- words ---- */

/* ", package 0" where one object of the type holds all of the set, ", 2 packages" where several
 * have a part. */
static void add_object(const struct machine *m, hwloc_obj_type_t type, const char *name,
                       hwloc_const_bitmap_t set, char *out, size_t nbytes)
{
    hwloc_obj_t obj = NULL, first = NULL;
    size_t len = strlen(out);
    int n = 0;

    while ((obj = hwloc_get_next_obj_by_type(m->topology, type, obj)))
        if (hwloc_bitmap_intersects(obj->cpuset, set) && n++ == 0)
            first = obj;
    if (n == 1)
        snprintf(out + len, nbytes - len, ", %s %u", name, first->os_index);
    else if (n > 1)
        snprintf(out + len, nbytes - len, ", %d %ss", n, name);
}

void machine_describe(const struct machine *m, const cpu_set_t *set, char *out, size_t nbytes)
{
    hwloc_bitmap_t bitmap = from_sched(m, set);

    *out = 0;
    if (!bitmap)
        return;
    hwloc_bitmap_list_snprintf(out, nbytes, bitmap);
    add_object(m, HWLOC_OBJ_NUMANODE, "NUMA node", bitmap, out, nbytes);
    add_object(m, HWLOC_OBJ_PACKAGE, "package", bitmap, out, nbytes);
    hwloc_bitmap_free(bitmap);
}
